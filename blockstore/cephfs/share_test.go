//go:build cephfs && linux && cgo

package cephfs

import (
	"errors"
	"math"
	"os"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// gateway is a mount of the whole filesystem beside others, as of another gateway.
func gateway(t *testing.T, o Options) *FS {
	t.Helper()
	o.Conf = os.Getenv("RSTORED_CEPH")
	if o.Conf == "" {
		t.Skip("RSTORED_CEPH is not set: there is no cluster")
	}
	o.Delegations = 20 * time.Second
	fs, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return fs.(*FS)
}

func file(t *testing.T, f *FS) blockstore.Handle {
	t.Helper()
	_, _ = f.Remove(nil, f.top, t.Name())
	h, _, _, err := f.Create(nil, f.top, t.Name(), blockstore.Guarded, &blockstore.SetAttr{}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestLocksOfOthers(t *testing.T) {
	a, b := gateway(t, Options{}), gateway(t, Options{})
	defer a.Close()
	defer b.Close()
	h := file(t, a)
	lock := func(f *FS, start, end uint64, exclusive bool, want *blockstore.HostLock) {
		t.Helper()
		in, err := f.LockHost(h, start, end, exclusive)
		if err != nil || (in == nil) != (want == nil) || in != nil && *in != *want {
			t.Fatalf("lock %d to %d: %v, %v; want %v", start, end, in, err, want)
		}
	}
	lock(a, 0, 99, true, nil)
	lock(a, 50, math.MaxUint64, true, nil) // of one owner
	lock(b, 10, 19, false, &blockstore.HostLock{Start: 0, End: math.MaxUint64, Exclusive: true})
	if in, err := b.TestHost(h, 10, 19, false); err != nil || in == nil {
		t.Fatalf("test: %v, %v", in, err)
	}
	a.UnlockHost(h, 10, 19)
	lock(b, 10, 19, true, nil)
	lock(b, 20, 29, true, &blockstore.HostLock{Start: 20, End: math.MaxUint64, Exclusive: true})
	lock(a, 15, 15, false, &blockstore.HostLock{Start: 10, End: 19, Exclusive: true})
	a.ReleaseHost(h)
	lock(b, 20, 29, true, nil)
	b.ReleaseHost(h)
	lock(a, 0, math.MaxUint64, true, nil)
	if err := a.Release(); err == nil {
		t.Fatal("a mount with locks was released")
	}
	a.ReleaseHost(h)
	broken := make(chan struct{}, 9)
	leased(t, a, h, false, broken)
	if err := a.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.GetAttr(nil, a.top); err != blockstore.ErrJukebox {
		t.Errorf("GetAttr after Release: %v", err)
	}
	if in, err := a.LockHost(h, 0, 1, true); in != nil || err != blockstore.ErrJukebox {
		t.Errorf("lock after Release: %v, %v", in, err)
	}
	if err := a.Resume(); err != nil {
		t.Fatal(err)
	}
	<-broken // the lease ended with the mount
	lock(a, 0, math.MaxUint64, true, nil)
}

// TestLockBehindLease: a lock does not wait for a client of another gateway that has to return a
// delegation. It is taken once that has happened.
func TestLockBehindLease(t *testing.T) {
	a, b := gateway(t, Options{}), gateway(t, Options{})
	defer a.Close()
	defer b.Close()
	h := file(t, a)
	broken := make(chan struct{}, 9)
	release := leased(t, a, h, true, broken)
	if in, err := b.TestHost(h, 5, 6, false); err != nil || in == nil || *in != (blockstore.HostLock{
		Start: 5, End: 6, Exclusive: true,
	}) {
		t.Errorf("test: %v, %v", in, err)
	}
	<-broken
	for range 2 {
		begun := time.Now()
		if in, err := b.LockHost(h, 0, 9, true); in != nil || err != blockstore.ErrWouldBlock {
			t.Fatalf("lock: %v, %v", in, err)
		}
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("the lock took %v", d)
		}
	}
	if b.Releasable() == nil {
		t.Error("an open is under way")
	}
	release()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		in, err := b.LockHost(h, 0, 9, true)
		if in == nil && err == nil {
			break
		}
		if in != nil || err != blockstore.ErrWouldBlock || time.Now().After(end) {
			t.Fatalf("lock after the lease: %v, %v", in, err)
		}
	}
	b.ReleaseHost(h)
}

// leased takes a lease, as soon as the MDS has given back what others had of the file.
func leased(t *testing.T, f *FS, h blockstore.Handle, write bool, broken chan struct{}) (release func()) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		release, err := f.Lease(h, write, func() { broken <- struct{}{} })
		if err == nil {
			return release
		}
		if time.Now().After(end) {
			t.Fatalf("lease, write %v: %v", write, err)
		}
	}
}

// TestLeases: another gateway's open waits until the lease is released.
func TestLeases(t *testing.T) {
	a, b := gateway(t, Options{}), gateway(t, Options{})
	defer a.Close()
	defer b.Close()
	h := file(t, a)
	broken := make(chan struct{}, 9)
	lease := func(f *FS, write bool) func() {
		t.Helper()
		return leased(t, f, h, write, broken)
	}
	write := func(f *FS) error {
		_, _, _, err := f.WriteAt(nil, h, []byte("x"), 0, blockstore.FileSync)
		return err
	}
	for range 3 {
		release := lease(a, true)
		if err := write(a); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, _, err := b.ReadAt(nil, h, make([]byte, 1), 0, false)
			done <- err
		}()
		select {
		case <-broken:
		case err := <-done:
			t.Fatal("the other gateway read under a lease to write: ", err)
		}
		select {
		case err := <-done:
			t.Fatal("the other gateway did not wait: ", err)
		case <-time.After(100 * time.Millisecond):
		}
		release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	// Both may read.
	ra, rb := lease(a, false), lease(b, false)
	ra2 := lease(a, false)
	done := make(chan error, 1)
	go func() { done <- write(b) }() // ends its own lease, and recalls that of a
	<-broken
	<-broken
	ra()
	select {
	case err := <-done:
		t.Fatal("there is another user: ", err)
	case <-time.After(100 * time.Millisecond):
	}
	ra2()
	rb()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestLeaseOwn: calls of the store itself do not wait for its leases. Users learn that a lease has
// ended.
func TestLeaseOwn(t *testing.T) {
	a := gateway(t, Options{})
	defer a.Close()
	h := file(t, a)
	mode, size := uint32(0o600), uint64(7)
	set := func(s *blockstore.SetAttr) error { _, err := a.SetAttr(nil, h, s, nil); return err }
	rename := func(from, to string) error { _, _, err := a.Rename(nil, a.top, from, a.top, to); return err }
	for _, op := range []struct {
		name                string
		endsWrite, endsRead bool
		do                  func() error
	}{
		{"mode", true, true, func() error { return set(&blockstore.SetAttr{Mode: &mode}) }},
		{"size", true, true, func() error { return set(&blockstore.SetAttr{Size: &size}) }},
		{"times", true, true, func() error { return set(&blockstore.SetAttr{MtimeHow: blockstore.TimeServer}) }},
		{"write", false, true, func() error {
			_, _, _, err := a.WriteAt(nil, h, []byte("x"), 0, blockstore.FileSync)
			return err
		}},
		{"commit", false, false, func() error { _, err := a.Commit(nil, h, 0, 0); return err }},
		{"lock", false, true, func() error {
			_, err := a.LockHost(h, 0, 1, true)
			a.ReleaseHost(h)
			return err
		}},
		{"xattr", true, true, func() error {
			_, err := a.SetXattr(nil, h, "a", []byte("b"), blockstore.XattrEither)
			return err
		}},
		{"link", true, true, func() error { _, _, err := a.Link(nil, h, a.top, "another"); return err }},
		{"rename", true, true, func() error { return rename("second", "third") }},
		{"replace", true, true, func() error { return rename("new", "second") }},
		{"unlink", true, true, func() error { _, err := a.Remove(nil, a.top, "second"); return err }},
	} {
		for _, write := range []bool{true, false} {
			for _, name := range []string{"another", "second", "third", "new"} {
				_, _ = a.Remove(nil, a.top, name)
			}
			_, _, err := a.Link(nil, h, a.top, "second")
			_, _, _, err2 := a.Create(nil, a.top, "new", blockstore.Guarded, nil, [8]byte{})
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			broken := make(chan struct{}, 1)
			release := leased(t, a, h, write, broken)
			done := make(chan error, 1)
			go func() { done <- op.do() }()
			select {
			case err := <-done:
				if err != nil {
					t.Fatalf("%s, write %v: %v", op.name, write, err)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%s, write %v: waits for the lease of the store itself", op.name, write)
			}
			want := write && op.endsWrite || !write && op.endsRead
			if want {
				<-broken
			}
			release()
			if !want && len(broken) > 0 {
				t.Errorf("%s, write %v: the lease was broken", op.name, write)
			}
		}
	}
}
