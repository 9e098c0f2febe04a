package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/control"
)

// TestCopiesOfFilesystems exports a filesystem and a copy of it with the same UUID: they are two
// for clients, also when the exports come in another order after a restart. It needs root and loop
// devices.
func TestCopiesOfFilesystems(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	base := t.TempDir()
	img := filepath.Join(base, "one")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Skipf("%s: %v: %s", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(img, 8<<20); err != nil {
		t.Fatal(err)
	}
	run("mkfs.ext4", "-q", img)
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "two"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	var exports []string
	for _, name := range []string{"one", "two"} {
		dev := run("losetup", "-f", "--show", filepath.Join(base, name))
		t.Cleanup(func() { _ = exec.Command("losetup", "-d", dev).Run() })
		at := filepath.Join(base, "mnt-"+name)
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(dev, at, "ext4", 0, ""); err != nil {
			t.Skipf("cannot mount: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		exports = append(exports, at+"=/"+name)
	}
	cfg := testConfig(t, exports...)
	cfg.RDMAListen = nil
	fsids := func() map[string]uint64 {
		t.Helper()
		d, _ := startDaemon(t, cfg)
		defer stopDaemon(t, d)
		out := make(map[string]uint64)
		for _, s := range d.ExportSet.All() {
			if !s.Open() {
				t.Fatalf("export %s: %s", s.Pseudo, s.Error)
			}
			out[s.Pseudo] = s.Store().FSID()
		}
		own := 0
		for _, e := range d.Exports() {
			if e.Identity == control.IdentityState {
				own++
			}
		}
		if own != 1 {
			t.Errorf("%d exports have an identity that the state directory alone has", own)
		}
		if m := d.Status().NFS4Memory; m.Limit != 1<<30 || m.Near() {
			t.Errorf("state of version 4: %+v", m)
		}
		return out
	}
	before := fsids()
	if before["/one"] == before["/two"] {
		t.Errorf("both are %x", before["/one"])
	}
	cfg.Exports[0], cfg.Exports[1] = cfg.Exports[1], cfg.Exports[0]
	if after := fsids(); after["/one"] != before["/one"] || after["/two"] != before["/two"] {
		t.Errorf("%x after a restart, before %x", after, before)
	}
}
