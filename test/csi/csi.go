// Package csi puts together what tests of the driver in deploy/csi need: the driver itself,
// csi-sanity, which Kubernetes tests drivers with, and a client that makes single calls.
package csi

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// Sanity is the version of csi-sanity.
const Sanity = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.4.0"

// Tools builds rstored-csi, csicall and csi-sanity into dir, as static binaries. root is that of
// the repository. csi-sanity comes from the proxy of Go modules, or from the module cache.
func Tools(ctx context.Context, root, dir string) error {
	for _, args := range [][]string{
		{"build", "-o", dir + "/rstored-csi", "./deploy/csi"},
		{"build", "-C", "test", "-o", dir + "/csicall", "./csi/csicall"},
		{"install", Sanity},
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %q: %w\n%s", args, err, out)
		}
	}
	return nil
}
