package cli

import (
	"os"
	"path/filepath"
	"syscall"
)

// EnvProgram is the name of a variable of the environment: with "static" as its value the
// static program goes on itself.
const EnvProgram = "RSTORED_PROGRAM"

// PreferRDMA runs the build of a program that uses RDMA devices in the place of this one, if it is
// installed: as name in ../lib/rstored/rdma, seen from the directory of this program. The process,
// its arguments and its environment stay. It returns where there is no such program, or one that cannot
// be executed, as without a C library, and always in that build itself.
func PreferRDMA(name string) {
	if rdmaCore || os.Getenv(EnvProgram) == "static" {
		return
	}
	self, err := os.Executable()
	if err != nil {
		return
	}
	other := filepath.Join(filepath.Dir(filepath.Dir(self)), "lib", "rstored", "rdma", name)
	_ = syscall.Exec(other, os.Args, os.Environ())
}
