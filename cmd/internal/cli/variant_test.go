package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPreferRDMA: this test, lying as program p in bin, becomes what lies in lib/rstored/ceph or
// lib/rstored/rdma, if that can be executed.
func TestPreferRDMA(t *testing.T) {
	if rdmaCore {
		t.Skip("this is the other program")
	}
	if os.Getenv("RSTORED_TEST_PREFER") != "" {
		PreferRDMA("p")
		os.Stdout.WriteString("static\n")
		os.Exit(0)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, other, ceph, env, want string
		mode                         os.FileMode
	}{
		{name: "nothing is installed", want: "static\n"},
		{
			name: "installed", other: "#!/bin/sh\necho rdma $1 $RSTORED_TEST_PREFER\n", mode: 0o755,
			want: "rdma -test.run=TestPreferRDMA yes\n",
		},
		{name: "asked for the static one", other: "#!/bin/sh\necho rdma\n", mode: 0o755, env: "static", want: "static\n"},
		{
			name: "with CephFS", other: "#!/bin/sh\necho rdma\n", ceph: "#!/bin/sh\necho ceph\n", mode: 0o755,
			want: "ceph\n",
		},
		{name: "CephFS alone", ceph: "#!/bin/sh\necho ceph\n", mode: 0o755, want: "ceph\n"},
		{name: "no program", other: "#!/bin/sh\necho rdma\n", mode: 0o644, want: "static\n"},
		{name: "without its interpreter", other: "#!/no/such/file\n", mode: 0o755, want: "static\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			p, other := filepath.Join(dir, "bin", "p"), filepath.Join(dir, "lib", "rstored", "rdma", "p")
			ceph := filepath.Join(dir, "lib", "rstored", "ceph", "p")
			for _, f := range []string{p, other, ceph} {
				if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			// Not a symbolic link, which would lead from where it points to.
			if err := os.Link(self, p); err != nil {
				if err := os.WriteFile(p, text, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for file, text := range map[string]string{other: c.other, ceph: c.ceph} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(file, []byte(text), c.mode); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(p, "-test.run=TestPreferRDMA")
			cmd.Env = append(os.Environ(), "RSTORED_TEST_PREFER=yes", EnvProgram+"="+c.env)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if out, err := cmd.Output(); err != nil || string(out) != c.want {
				t.Errorf("%v, %q, want %q\n%s", err, out, c.want, stderr.Bytes())
			}
		})
	}
}
