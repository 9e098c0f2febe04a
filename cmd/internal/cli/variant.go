package cli

import (
	"os"
	"path/filepath"
	"syscall"
)

// EnvProgram names an environment variable. With the value "static" the static program does not run
// the other build.
const EnvProgram = "RSTORED_PROGRAM"

// variants are the directories of other builds. That for CephFS uses RDMA devices, too.
var variants = []string{"ceph", "rdma"}

// PreferRDMA executes the build of a program that uses CephFS or RDMA devices, if it is installed as
// ../lib/rstored/ceph/NAME or ../lib/rstored/rdma/NAME, relative to the directory of this program.
// Process, arguments and environment stay. It returns if there is no such program, if the kernel
// cannot execute it (as without a C library), and always in that build itself.
func PreferRDMA(name string) {
	if rdmaCore || os.Getenv(EnvProgram) == "static" {
		return
	}
	self, err := os.Executable()
	if err != nil {
		return
	}
	for _, v := range variants {
		other := filepath.Join(filepath.Dir(filepath.Dir(self)), "lib", "rstored", v, name)
		_ = syscall.Exec(other, os.Args, os.Environ())
	}
}
