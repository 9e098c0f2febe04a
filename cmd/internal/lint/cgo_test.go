package lint

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// usesC is the packages outside of the standard library, of a program and what it imports, that
// have C in them.
func usesC(t *testing.T, tags string, programs ...string) []string {
	t.Helper()
	const has = `{{if not .Standard}}{{if or .CgoFiles .CFiles .CXXFiles .SwigFiles ` +
		`.SysoFiles}}{{.ImportPath}}{{end}}{{end}}`
	cmd := exec.Command("go", append([]string{"list", "-deps", "-tags", tags, "-f", has}, programs...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOOS=linux")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	return strings.Fields(string(out))
}

// TestPureGo: the programs are Go alone. One package brings C into the build for RDMA devices, and
// two into the one for Ceph.
func TestPureGo(t *testing.T) {
	programs := []string{"./cmd/rstored", "./cmd/rstorectl", "./deploy/csi"}
	if got := usesC(t, "", programs...); len(got) != 0 {
		t.Errorf("there is C in %q", got)
	}
	for tag, pkgs := range map[string][]string{
		"rdmacore": {"/rdma/verbs"}, "cephfs": {"/blockstore/cephfs", "/cmd/internal/rados"},
	} {
		got := usesC(t, tag, programs...)
		got = slices.DeleteFunc(got, func(p string) bool { return slices.Contains(pkgs, strings.TrimPrefix(p, module)) })
		if len(got) != 0 {
			t.Errorf("with %s there is C in %q too", tag, got)
		}
	}
}
