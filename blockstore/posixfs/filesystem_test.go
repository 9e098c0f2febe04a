package posixfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
)

// TestDeviceNumber mounts a filesystem by another loop device: its identity stays, and
// so do the handles. It needs root, loop devices and the programs that make filesystems.
func TestDeviceNumber(t *testing.T) {
	needRoot(t)
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) { testDeviceNumber(t, kind) })
	}
}

func testDeviceNumber(t *testing.T, kind string) {
	mkfs, err := exec.LookPath("mkfs." + kind)
	if err != nil {
		t.Skip(err)
	}
	base := t.TempDir()
	img, dir := filepath.Join(base, "img"), filepath.Join(base, "mnt")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(img, nil, 0o600))
	must(t, os.Truncate(img, 400<<20)) // XFS takes no less than 300 MB
	if out, err := exec.Command(mkfs, "-q", img).CombinedOutput(); err != nil {
		t.Skipf("%s: %v: %s", mkfs, err, out)
	}
	attach := func() string {
		t.Helper()
		out, err := exec.Command("losetup", "-f", "--show", img).Output()
		if err != nil {
			t.Skipf("losetup: %v", err)
		}
		dev := strings.TrimSpace(string(out))
		t.Cleanup(func() { _ = exec.Command("losetup", "-d", dev).Run() })
		return dev
	}
	mount := func(dev string) {
		t.Helper()
		if err := unix.Mount(dev, dir, kind, 0, ""); err != nil {
			t.Skipf("mounting %s: %v", kind, err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	open := func() *FS {
		t.Helper()
		f, err := Open(dir, Options{StateDir: filepath.Join(base, "state")})
		must(t, err)
		return f
	}
	first, second := attach(), attach() // at once, so that they are two
	mount(first)
	f := open()
	r, err := f.Root()
	must(t, err)
	h, _, _, err := f.Create(nil, r, "file", blockstore.Guarded, &blockstore.SetAttr{}, [8]byte{})
	must(t, err)
	fsid := f.FSID()
	before, err := ProbeFilesystem(dir)
	must(t, err)
	must(t, f.Close())
	must(t, unix.Unmount(dir, 0))
	must(t, exec.Command("losetup", "-d", first).Run())

	mount(second)
	f = open()
	if _, err := f.GetAttr(nil, h); err != nil {
		t.Errorf("a handle of before: %v", err)
	}
	if f.FSID() != fsid {
		t.Errorf("fsid %x, before %x", f.FSID(), fsid)
	}
	after, err := ProbeFilesystem(dir)
	must(t, err)
	if after.Dev == before.Dev && kind != "btrfs" {
		t.Errorf("the device is %#x as before", after.Dev)
	}
	if after.ID() != before.ID() || after.ByDevice || !after.SameDirectory(&before) {
		t.Errorf("%+v, before %+v", after, before)
	}
	must(t, f.Close())
}

// TestFilesystemOption has an identity given, which makes other handles.
func TestFilesystemOption(t *testing.T) {
	s := newSite(t, Options{})
	ids := make(map[uint64]blockstore.Handle)
	for _, n := range []uint64{0, 1, 2} {
		s.opts.Filesystem = n
		f := s.open(t)
		r, err := f.Root()
		must(t, err)
		for _, o := range ids {
			_, err := f.GetAttr(nil, o)
			wantErr(t, err, blockstore.ErrStale)
		}
		ids[f.FSID()] = r
		must(t, f.Close())
	}
	if len(ids) != 3 {
		t.Errorf("identities %v", ids)
	}
}
