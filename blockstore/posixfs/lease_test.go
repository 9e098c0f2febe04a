package posixfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// leaseRig is a store with a file that it has made and written.
type leaseRig struct {
	t      *testing.T
	f      *FS
	h      blockstore.Handle
	path   string
	broken chan struct{}
}

func newLeaseRig(t *testing.T, opts Options) *leaseRig {
	t.Helper()
	dir := t.TempDir()
	f, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	r := &leaseRig{t: t, f: f, path: filepath.Join(dir, "file"), broken: make(chan struct{}, 16)}
	t.Cleanup(func() {
		if r.f != nil {
			_ = r.f.Close()
		}
	})
	r.h = r.make("file")
	if _, _, _, err := f.WriteAt(&blockstore.Cred{}, r.h, []byte("content"), 0, blockstore.FileSync); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *leaseRig) make(name string) blockstore.Handle {
	r.t.Helper()
	root, err := r.f.Root()
	if err != nil {
		r.t.Fatal(err)
	}
	mode := uint32(0o644)
	h, _, _, err := r.f.Create(&blockstore.Cred{}, root, name, blockstore.Guarded, &blockstore.SetAttr{Mode: &mode},
		[8]byte{})
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

// lease has to succeed, or the host has none for this user or file system.
func (r *leaseRig) lease(write bool) func() {
	r.t.Helper()
	release, err := r.f.Lease(r.h, write, func() { r.broken <- struct{}{} })
	if errors.Is(err, blockstore.ErrNotSupp) {
		r.t.Skip("no leases here")
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return release
}

// heard waits for broken.
func (r *leaseRig) heard() {
	r.t.Helper()
	select {
	case <-r.broken:
	case <-time.After(10 * time.Second):
		r.t.Fatal("nobody was told")
	}
}

// try is an open of another program that does not wait.
func (r *leaseRig) try(flags int) error {
	fd, err := unix.Open(r.path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// TestLeases: which opens of others break a lease, and that they go on when it is
// released.
func TestLeases(t *testing.T) {
	for _, c := range []struct {
		write  bool
		flags  int
		breaks bool
	}{
		{false, unix.O_RDONLY, false},
		{false, unix.O_WRONLY, true},
		{false, unix.O_RDWR, true},
		{true, unix.O_RDONLY, true},
		{true, unix.O_RDWR, true},
		{true, unix.O_PATH, false},
	} {
		t.Run(fmt.Sprintf("write %v, flags %o", c.write, c.flags), func(t *testing.T) {
			r := newLeaseRig(t, Options{})
			release := r.lease(c.write)
			if err := r.try(c.flags); errors.Is(err, unix.EAGAIN) != c.breaks {
				t.Fatal(err)
			}
			if !c.breaks {
				release()
				if n := r.f.Counters().LeaseBreaks; n != 0 || len(r.broken) != 0 {
					t.Errorf("%d breaks", n)
				}
				return
			}
			r.heard()
			opened := make(chan error)
			go func() {
				fd, err := unix.Open(r.path, c.flags|unix.O_CLOEXEC, 0)
				if err == nil {
					unix.Close(fd)
				}
				opened <- err
			}()
			select {
			case err := <-opened:
				t.Fatal("opened while it is leased", err)
			default:
			}
			release()
			release()
			if err := <-opened; err != nil {
				t.Error(err)
			}
			if n := r.f.Counters().LeaseBreaks; n != 1 || len(r.broken) != 0 {
				t.Errorf("%d breaks", n)
			}
			r.lease(c.write)()
		})
	}
}

// TestLeaseInUse: there is none of a file that another program has open in a way that it
// would be against.
func TestLeaseInUse(t *testing.T) {
	for _, c := range []struct {
		write bool
		flags int
		want  error
	}{
		{false, os.O_RDONLY, nil},
		{false, os.O_WRONLY, blockstore.ErrJukebox},
		{true, os.O_RDONLY, blockstore.ErrJukebox},
		{true, os.O_RDWR, blockstore.ErrJukebox},
	} {
		r := newLeaseRig(t, Options{})
		r.lease(false)()
		file, err := os.OpenFile(r.path, c.flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		release, err := r.f.Lease(r.h, c.write, func() {})
		if !errors.Is(err, c.want) {
			t.Errorf("write %v, open with %o: %v", c.write, c.flags, err)
		}
		if release != nil {
			release()
		}
		file.Close()
	}
}

// TestLeaseAndStore: calls of the store itself neither wait for its leases nor break
// those to write; one to read is given up by the first of them that writes.
func TestLeaseAndStore(t *testing.T) {
	p := make([]byte, 16)
	who := &blockstore.Cred{}
	for _, write := range []bool{false, true} {
		r := newLeaseRig(t, Options{})
		release := r.lease(write)
		if n, _, err := r.f.ReadAt(who, r.h, p, 0, false); err != nil || string(p[:n]) != "content" {
			t.Errorf("%q, %v", p[:n], err)
		}
		if _, err := r.f.GetAttr(who, r.h); err != nil {
			t.Error(err)
		}
		if err := r.try(unix.O_WRONLY); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("write %v: the lease is gone after a READ: %v", write, err)
		}
		r.heard()
		release()
		release = r.lease(write)
		if _, _, _, err := r.f.WriteAt(who, r.h, []byte("changed"), 0, blockstore.FileSync); err != nil {
			t.Error(err)
		}
		size := uint64(7)
		if _, err := r.f.SetAttr(who, r.h, &blockstore.SetAttr{Size: &size}, nil); err != nil {
			t.Error(err)
		}
		if _, err := r.f.Commit(who, r.h, 0, 0); err != nil {
			t.Error(err)
		}
		if len(r.broken) != 0 {
			t.Errorf("write %v: the store has broken its own lease", write)
		}
		if err := r.try(unix.O_RDWR); errors.Is(err, unix.EAGAIN) != write {
			t.Errorf("write %v: another program after a WRITE: %v", write, err)
		}
		release()
		if err := r.try(unix.O_RDWR); err != nil {
			t.Errorf("released: %v", err)
		}
	}
}

// TestLeaseDirty: nobody waits for a sync to have a lease.
func TestLeaseDirty(t *testing.T) {
	r := newLeaseRig(t, Options{})
	r.lease(false)()
	who := &blockstore.Cred{}
	if _, _, _, err := r.f.WriteAt(who, r.h, []byte("changed"), 0, blockstore.Unstable); err != nil {
		t.Fatal(err)
	}
	if _, err := r.f.Lease(r.h, false, func() {}); !errors.Is(err, blockstore.ErrNotSupp) {
		t.Errorf("unstable: %v", err)
	}
	if _, err := r.f.Commit(who, r.h, 0, 0); err != nil {
		t.Fatal(err)
	}
	// The descriptor of the first lease goes when nobody waits for it.
	for deadline := time.Now().Add(10 * time.Second); ; {
		release, err := r.f.Lease(r.h, false, func() {})
		if err == nil {
			release()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestLeaseUsers: two leases to read are one for the host, which goes with the last.
func TestLeaseUsers(t *testing.T) {
	r := newLeaseRig(t, Options{})
	a, b := r.lease(false), r.lease(false)
	if _, err := r.f.Lease(r.h, true, func() {}); !errors.Is(err, blockstore.ErrJukebox) {
		t.Errorf("to write beside two to read: %v", err)
	}
	a()
	if err := r.try(unix.O_WRONLY); !errors.Is(err, unix.EAGAIN) {
		t.Error(err)
	}
	r.heard()
	if _, err := r.f.Lease(r.h, false, func() {}); !errors.Is(err, blockstore.ErrJukebox) {
		t.Errorf("one more of what is broken: %v", err)
	}
	b()
	if err := r.try(unix.O_WRONLY); err != nil {
		t.Error(err)
	}
}

// TestLeaseBound: half of the cache can be leased, and what is leased stays there.
func TestLeaseBound(t *testing.T) {
	r := newLeaseRig(t, Options{OpenFiles: 1})
	open := r.f.objects.max
	leased := 0
	var releases []func()
	for i := range 3 * open {
		h := r.make(fmt.Sprint(i))
		release, err := r.f.Lease(h, i%2 == 0, func() { r.broken <- struct{}{} })
		switch {
		case err == nil:
			leased++
			releases = append(releases, release)
		case !errors.Is(err, blockstore.ErrNotSupp):
			t.Fatal(err)
		}
	}
	if leased == 0 {
		t.Skip("no leases here")
	}
	if leased != open/2 || len(r.broken) != 0 {
		t.Errorf("%d leases, %d broken", leased, len(r.broken))
	}
	for i := range open / 2 {
		r.path = filepath.Join(filepath.Dir(r.path), fmt.Sprint(i))
		if err := r.try(unix.O_WRONLY); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("file %d: %v", i, err)
		}
		r.heard()
	}
	for _, release := range releases {
		release()
	}
	if n := r.f.objects.pinned; n != 0 {
		t.Errorf("%d objects are pinned", n)
	}
}

// TestLeaseClosed: with the store its leases go, whoever has them.
func TestLeaseClosed(t *testing.T) {
	r := newLeaseRig(t, Options{})
	release := r.lease(true)
	if err := r.f.Close(); err != nil {
		t.Fatal(err)
	}
	r.f = nil
	if err := r.try(unix.O_WRONLY); err != nil {
		t.Error(err)
	}
	release()
	if len(r.broken) != 0 {
		t.Error("told after the end")
	}
}

// TestNoLease: of what there is none.
func TestNoLease(t *testing.T) {
	r := newLeaseRig(t, Options{})
	root, err := r.f.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.f.Lease(root, false, func() {}); !errors.Is(err, blockstore.ErrIsDir) {
		t.Error(err)
	}
	if _, err := r.f.Lease(blockstore.Handle{}, false, func() {}); err == nil {
		t.Error("of no handle")
	}
}
