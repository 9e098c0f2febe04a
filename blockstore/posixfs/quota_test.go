package posixfs

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// TestQuota: what quotactl says in the units of the protocol. The layout is the kernel's.
func TestQuota(t *testing.T) {
	if n := unsafe.Sizeof(dqblk{}); n != 72 {
		t.Errorf("if_dqblk has 72 bytes, not %d", n)
	}
	f, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, _ := f.Root()
	if !f.limits.Quotas {
		if _, err := f.Quota(&blockstore.Cred{}, root); !errors.Is(err, blockstore.ErrNotSupp) {
			t.Errorf("without quotas: %v", err)
		}
	}
	f.limits.Quotas = true
	for _, c := range []struct {
		d    dqblk
		err  error
		want blockstore.Quota
		fail error
	}{
		{dqblk{hard: 8, soft: 4, space: 5000}, nil, blockstore.Quota{Used: 5000, Soft: 4096, Hard: 8192}, nil},
		{
			dqblk{space: 5000, soft: 4, spaceTime: 77, inodes: 3, isoft: 1, ihard: 9, inodesTime: 78},
			nil,
			blockstore.Quota{
				Used: 5000, Soft: 4096, Until: 77, Files: 3, FilesSoft: 1, FilesHard: 9, FilesUntil: 78,
			},
			nil,
		},
		{dqblk{hard: 1 << 60}, nil, blockstore.Quota{}, nil},
		{dqblk{}, unix.ENOENT, blockstore.Quota{}, nil},
		{dqblk{}, unix.ESRCH, blockstore.Quota{}, nil},
		{dqblk{}, unix.EPERM, blockstore.Quota{}, blockstore.ErrPerm},
	} {
		f.quotas.get = func(fd int, uid uint32) (dqblk, error) {
			if uid != 4711 {
				t.Errorf("asked for %d", uid)
			}
			return c.d, c.err
		}
		got, err := f.Quota(&blockstore.Cred{UID: 4711}, root)
		if got != c.want || !errors.Is(err, c.fail) {
			t.Errorf("%+v, %v: %+v, %v", c.d, c.err, got, err)
		}
	}
	for _, c := range []struct {
		err  error
		want bool
	}{{nil, true}, {unix.ENOENT, true}, {unix.ESRCH, false}, {unix.EPERM, false}, {unix.ENOSYS, false}} {
		q := quotas{get: func(int, uint32) (dqblk, error) { return dqblk{}, c.err }}
		if got := q.found(0); got != c.want {
			t.Errorf("%v: quotas %v", c.err, got)
		}
	}
}

// TestClonesKnown: Limits say what Clone does.
func TestClonesKnown(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, _ := f.Root()
	a, _, _ := f.Lookup(&blockstore.Cred{}, root, "a")
	b, _, err := f.Lookup(&blockstore.Cred{}, root, "b")
	if err != nil {
		t.Fatal(err)
	}
	err = f.Clone(&blockstore.Cred{}, a, 0, b, 0, 0)
	if got := err == nil; got != f.Limits().Clones {
		t.Errorf("Limits say %v, Clone says %v", f.Limits().Clones, err)
	}
}

// TestQuotaOfOthers: asking as somebody else leaves the thread as it was.
func TestQuotaOfOthers(t *testing.T) {
	if !canSwitch() {
		t.Skip("for root")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	caps := func() unix.CapUserData {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&hdr, &data[0]); err != nil {
			t.Fatal(err)
		}
		return data[0]
	}
	euid := func() uint32 {
		id, _, _ := unix.RawSyscall(unix.SYS_GETEUID, 0, 0, 0)
		return uint32(id)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	k := newCaller(true, false)
	before := caps()
	if !setEUID(4711) || euid() != 4711 || caps().Effective != 0 {
		t.Errorf("as 4711: %d, %+v", euid(), caps())
	}
	if !setEUID(k.uid) {
		t.Fatal("no way back")
	}
	_, err = k.quotaOf(int(dir.Fd()), 4711)
	if err == unix.EPERM {
		t.Error("a user may not ask for himself")
	}
	if euid() != k.uid || caps() != before || setFSUID(noID) != k.uid {
		t.Errorf("afterwards: %d, %+v, before %+v", euid(), caps(), before)
	}
	if _, err := k.quotaOf(int(dir.Fd()), noID); err != unix.EPERM {
		t.Errorf("nobody: %v", err)
	}
}

// TestReserve: a client's user other than root does not get the blocks that a filesystem
// reserves for root, by whatever way data comes, although the daemon is root.
func TestReserve(t *testing.T) {
	dir := loopDisk(t, "ext4", filepath.Join(t.TempDir(), "image"), 32<<20, "", "-m", "25")
	must(t, os.Chmod(dir, 0o777))
	for name, opts := range map[string]Options{"": {}, "own threads": {OwnThreads: true}} {
		f, err := Open(dir, opts)
		must(t, err)
		root, err := f.Root()
		must(t, err)
		for way, add := range map[string]func(c *blockstore.Cred, h blockstore.Handle, off uint64) error{
			"write": func(c *blockstore.Cred, h blockstore.Handle, off uint64) error {
				_, _, _, err := f.WriteAt(c, h, make([]byte, 64<<10), off, blockstore.Unstable)
				return err
			},
			"write that does not wait": func(c *blockstore.Cred, h blockstore.Handle, off uint64) error {
				_, _, _, err := f.WriteNowait(c, h, make([]byte, 64<<10), off, blockstore.Unstable)
				if err != nil {
					_, _, _, err = f.WriteAt(c, h, make([]byte, 64<<10), off, blockstore.Unstable)
				}
				return err
			},
			"direct": func(c *blockstore.Cred, h blockstore.Handle, off uint64) error {
				f.SetDirect(true)
				defer f.SetDirect(false)
				_, _, _, err := f.WriteAt(c, h, make([]byte, directMin), off*directMin/(64<<10), blockstore.Unstable)
				return err
			},
			"allocate": func(c *blockstore.Cred, h blockstore.Handle, off uint64) error {
				return f.Allocate(c, h, off, 64<<10)
			},
		} {
			mode := uint32(0o666)
			h, _, _, err := f.Create(user, root, "file", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
			must(t, err)
			var off uint64
			for ; err == nil; off += 64 << 10 {
				if off > 64<<20 {
					t.Fatalf("%s %s: more was written than there is", name, way)
				}
				err = add(user, h, off)
			}
			wantErr(t, err, blockstore.ErrNoSpace)
			s, err := f.Stat(user, root)
			must(t, err)
			if off == 64<<10 || s.FreeBytes < 4<<20 {
				t.Errorf("%s %s: the user left %d bytes free after %d", name, way, s.FreeBytes, off)
			}
			if err := add(&blockstore.Cred{}, h, off); err != nil {
				t.Errorf("%s %s: root has no reserve: %v", name, way, err)
			}
			_, err = f.Remove(nil, root, "file")
			must(t, err)
		}
		must(t, f.Close())
	}
}
