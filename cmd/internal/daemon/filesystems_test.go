package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/state"
)

// TestRecognize: an identity that was recorded stays as long as what is known of the
// filesystem says that it is the same.
func TestRecognize(t *testing.T) {
	one, two := [16]byte{1}, [16]byte{2}
	const hexOne = "01000000000000000000000000000000"
	for name, x := range map[string]struct {
		was   state.Filesystem
		found posixfs.Filesystem
		same  bool
	}{
		"first use":                       {state.Filesystem{}, posixfs.Filesystem{UUID: one, Statfs: 7}, false},
		"as before":                       {state.Filesystem{UUID: hexOne, Statfs: 7, ID: 9}, posixfs.Filesystem{UUID: one, Statfs: 7}, true},
		"another device":                  {state.Filesystem{UUID: hexOne, Statfs: 7, ID: 9}, posixfs.Filesystem{UUID: one, Statfs: 8}, true},
		"another filesystem":              {state.Filesystem{UUID: hexOne, Statfs: 7, ID: 9}, posixfs.Filesystem{UUID: two, Statfs: 7}, false},
		"no UUID":                         {state.Filesystem{Statfs: 7, ID: 9}, posixfs.Filesystem{Statfs: 7}, true},
		"no UUID, another device":         {state.Filesystem{Statfs: 7, ID: 9}, posixfs.Filesystem{Statfs: 8}, false},
		"the kernel tells the UUID now":   {state.Filesystem{Statfs: 7, ID: 9}, posixfs.Filesystem{UUID: one, Statfs: 7}, true},
		"the kernel does not tell it now": {state.Filesystem{UUID: hexOne, Statfs: 7, ID: 9}, posixfs.Filesystem{Statfs: 7}, true},
	} {
		is, same := recognize(x.was, &x.found)
		if same != x.same || same != (is.ID == x.was.ID) || is.Statfs != x.found.Statfs {
			t.Errorf("%s: %+v, %v", name, is, same)
		}
		if (x.found.UUID == one || x.was.UUID == hexOne && same) && is.UUID != hexOne {
			t.Errorf("%s: UUID %q", name, is.UUID)
		}
	}
}

// TestCopiesOfFilesystems exports a filesystem and a copy of it with the same UUID: they are two for
// clients, also when the exports come in another order after a restart. It needs root and loop devices.
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
		for _, s := range d.exports {
			if s.store == nil {
				t.Fatalf("export %s: %s", s.Pseudo, s.Error)
			}
			out[s.Pseudo] = s.store.FSID()
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
