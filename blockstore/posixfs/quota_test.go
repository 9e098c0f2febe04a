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
	if euid() != k.uid || caps() != before || setFS(unix.SYS_SETFSUID, noID) != k.uid {
		t.Errorf("afterwards: %d, %+v, before %+v", euid(), caps(), before)
	}
	if _, err := k.quotaOf(int(dir.Fd()), noID); err != unix.EPERM {
		t.Errorf("nobody: %v", err)
	}
}
