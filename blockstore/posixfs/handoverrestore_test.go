package posixfs

import (
	"bytes"
	"encoding/gob"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// waitBroken waits until somebody waits for the lease.
func waitBroken(t *testing.T, f *FS, h blockstore.Handle) {
	t.Helper()
	o, err := f.acquire(h)
	if err != nil {
		t.Fatal(err)
	}
	defer f.release(o)
	for o.lease.isBroken() == false {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
}

// TestHandoverGoesOn: the store whose successor has failed hears of leases again.
func TestHandoverGoesOn(t *testing.T) {
	r := newLeaseRig(t, Options{StateDir: t.TempDir()})
	end := r.lease(true)
	failed, err := succeed(t, r.f)
	if err != nil {
		t.Fatal(err)
	}
	vanish(failed)
	if err := errors.Join(r.f.Resume(), r.f.Settle()); err != nil {
		t.Fatal(err)
	}
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		if fd, err := unix.Open(r.path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd)
		}
	}()
	r.heard()
	end()
	<-opened
}

// TestHandoverUnclaimed: a lease of a delegation that is no more ends.
func TestHandoverUnclaimed(t *testing.T) {
	r := newLeaseRig(t, Options{StateDir: t.TempDir()})
	r.lease(true)
	next, err := succeed(t, r.f)
	if err != nil {
		t.Fatal(err)
	}
	vanish(r.f)
	r.f = next
	if err := next.Settle(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(r.path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if n := next.objects.pinned; n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

// TestHandoverDirty: unstable writes are not forgotten, and their file may be gone.
func TestHandoverDirty(t *testing.T) {
	dir := t.TempDir()
	f, err := Open(dir, Options{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r := &leaseRig{t: t, f: f}
	h, gone := r.make("a"), r.make("b")
	for _, x := range []blockstore.Handle{h, gone} {
		if _, _, _, err := f.WriteAt(&blockstore.Cred{}, x, []byte("unstable"), 0, blockstore.Unstable); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	next, err := succeed(t, f)
	if err != nil {
		t.Fatal(err)
	}
	vanish(f)
	if err := next.Settle(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Close() }()
	o, err := next.acquire(h)
	if err != nil {
		t.Fatal(err)
	}
	if !o.dirty.Load() || o.rw.Load() < 0 {
		t.Error("what was written is forgotten")
	}
	next.release(o)
	if _, err := next.Commit(&blockstore.Cred{}, h, 0, 0); err != nil || o.dirty.Load() {
		t.Error(err)
	}
	if _, err := next.GetAttr(&blockstore.Cred{}, gone); !errors.Is(err, blockstore.ErrStale) {
		t.Error(err)
	}
}

func TestDamagedHandover(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	f, err := Open(dir, Options{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	r := &leaseRig{t: t, f: f}
	h := r.make("a")
	if err := f.Release(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(f.Resume(), f.Close()) }()
	file, err := os.Open(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	forged := bytes.Clone(h.Bytes())
	forged[len(forged)-1] ^= 1
	verf := make([]byte, 8)
	root := f.root.h.Bytes()
	for name, x := range map[string]handedOver{
		"another directory": {Root: []byte{1}, Verifier: verf},
		"no verifier":       {Root: root},
		"no handle":         {Root: root, Verifier: verf, Objects: []handedObject{{Path: 1}}},
		"no path":           {Root: root, Verifier: verf, Objects: []handedObject{{Handle: h.Bytes()}}},
		"forged":            {Root: root, Verifier: verf, Objects: []handedObject{{Handle: forged, Path: 1}}},
		"no such file":      {Root: root, Verifier: verf, Objects: []handedObject{{Handle: h.Bytes(), Path: 2}}},
		"before the first":  {Root: root, Verifier: verf, Objects: []handedObject{{Handle: h.Bytes(), Path: 1, RO: -1}}},
		"lease of nothing":  {Root: root, Verifier: verf, Objects: []handedObject{{Handle: h.Bytes(), Path: 1, Leases: 1}}},
		"the root":          {Root: root, Verifier: verf, Objects: []handedObject{{Handle: root, Path: 1}}},
		"lock of nothing":   {Root: root, Verifier: verf, Locks: []handedLocks{{Handle: h.Bytes()}}},
		"locks twice":       {Root: root, Verifier: verf, Locks: []handedLocks{{h.Bytes(), 1}, {h.Bytes(), 1}}},
	} {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(&x); err != nil {
			t.Fatal(err)
		}
		next, err := Open(dir, Options{StateDir: state})
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Restore(b.Bytes(), []*os.File{file}); err == nil {
			t.Errorf("%s: no error", name)
		}
		vanish(next)
	}
}

// FuzzRestore: what is handed over is refused, or makes a store that can be closed.
func FuzzRestore(f *testing.F) {
	dir, state := f.TempDir(), f.TempDir()
	first, err := Open(dir, Options{StateDir: state})
	if err != nil {
		f.Fatal(err)
	}
	mode := uint32(0o644)
	h, _, _, err := first.Create(&blockstore.Cred{}, first.root.h, "a", blockstore.Guarded,
		&blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		f.Fatal(err)
	}
	if _, _, _, err := first.WriteAt(&blockstore.Cred{}, h, []byte("x"), 0, blockstore.Unstable); err != nil {
		f.Fatal(err)
	}
	if _, err := first.LockHost(h, 0, 1, true); err != nil {
		f.Fatal(err)
	}
	data, files, err := first.Handover()
	if err := errors.Join(err, first.Release()); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		for _, x := range files {
			_ = x.Close()
		}
		_ = errors.Join(first.Resume(), first.Close())
	})
	f.Add(data)
	f.Fuzz(func(t *testing.T, b []byte) {
		next, err := Open(dir, Options{StateDir: state})
		if err != nil {
			t.Fatal(err)
		}
		_ = next.Restore(b, files)
		vanish(next)
	})
}
