package posixfs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// vanish closes what a process that ends has open of a store, and gives nothing up.
func vanish(f *FS) {
	f.makers.stop()
	f.streams.close()
	f.hostLocks.mu.Lock()
	for h, fd := range f.hostLocks.fds {
		unix.Close(fd)
		delete(f.hostLocks.fds, h)
	}
	f.hostLocks.mu.Unlock()
	for _, o := range f.objects.list() {
		if l := o.lease; l != nil {
			l.forget()
		}
		o.closeFiles()
	}
	f.root.closeFiles()
	if t, ok := f.find.(*byTable); ok && !t.dbMu.TryRLock() {
		close(t.quit) // it was released
		return
	} else if ok {
		t.dbMu.RUnlock()
	}
	_ = f.find.close()
}

// succeed opens the store once more, where the first one was.
func succeed(t *testing.T, f *FS) (*FS, error) {
	t.Helper()
	if err := f.Release(); err != nil {
		t.Fatal(err)
	}
	next, err := Open(f.dir, f.opts)
	if err != nil {
		t.Fatal(err)
	}
	data, files, err := f.Handover()
	if err != nil {
		t.Fatal(err)
	}
	err = next.Restore(data, files)
	for _, x := range files {
		_ = x.Close()
	}
	return next, err
}

// TestHandoverLocks: a lock of the host is never free, whatever becomes of the two processes.
func TestHandoverLocks(t *testing.T) {
	for _, handles := range []Mechanism{Auto, Server} {
		dir, state := t.TempDir(), t.TempDir()
		name := filepath.Join(dir, "f")
		if err := os.WriteFile(name, []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(dir, Options{StateDir: state, Handles: handles})
		if err != nil {
			t.Fatal(err)
		}
		root, _ := f.Root()
		h, _, err := f.Lookup(&blockstore.Cred{}, root, "f")
		if err != nil {
			t.Fatal(err)
		}
		p := startProgram(t, name)
		if in, err := f.LockHost(h, 10, 19, true); in != nil || err != nil {
			t.Fatal(in, err)
		}
		locked := func() {
			t.Helper()
			p.says("w 10 1", "busy")
			p.says("r 19 1", "busy")
		}
		locked()
		failed, err := succeed(t, f)
		if err != nil {
			t.Fatal(err)
		}
		locked()
		vanish(failed) // the next one fails
		locked()
		if err := errors.Join(f.Resume(), f.Settle()); err != nil {
			t.Fatal(err)
		}
		if in, err := f.LockHost(h, 15, 25, true); in != nil || err != nil {
			t.Fatal(in, err)
		}
		p.says("w 25 1", "busy")
		next, err := succeed(t, f)
		if err != nil {
			t.Fatal(err)
		}
		locked()
		if next.Verifier() != f.Verifier() {
			t.Error("another verifier")
		}
		vanish(f)
		locked()
		if err := next.Settle(); err != nil {
			t.Fatal(err)
		}
		locked()
		if in, err := next.LockHost(h, 20, 30, true); in != nil || err != nil {
			t.Error("the process's own lock is in its way", in, err)
		}
		if _, err := next.GetAttr(&blockstore.Cred{}, h); err != nil {
			t.Error(err)
		}
		next.UnlockHost(h, 10, 14)
		p.says("w 10 5", "ok")
		p.says("w 15 1", "busy")
		next.ReleaseHost(h)
		p.says("w 0 0", "ok")
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestHandoverLeases: what another program does with a leased file is told to the process that
// has taken over, whenever that began, and a lease that nobody asks for ends.
func TestHandoverLeases(t *testing.T) {
	for _, c := range []struct {
		name          string
		write, before bool // somebody waits before the store is handed over
		during        bool // or after that, before anybody has asked for the lease again
	}{
		{name: "read"},
		{name: "write", write: true},
		{name: "broken before", write: true, before: true},
		{name: "broken meanwhile", during: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newLeaseRig(t, Options{StateDir: t.TempDir()})
			r.lease(c.write)
			users := 1
			if !c.write {
				r.lease(false)
				users = 2
			}
			opened := make(chan error, 1)
			open := func() {
				go func() {
					fd, err := unix.Open(r.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
					if err == nil {
						unix.Close(fd)
					}
					opened <- err
				}()
			}
			if c.before {
				open()
				r.heard()
			}
			next, err := succeed(t, r.f)
			if err != nil {
				t.Fatal(err)
			}
			old := r.f
			r.f = next
			vanish(old)
			if c.during {
				open()
				waitBroken(t, next, r.h)
			}
			var ends []func()
			for range users {
				end, err := next.Lease(r.h, c.write, func() { r.broken <- struct{}{} })
				if err != nil {
					t.Fatal(err)
				}
				ends = append(ends, end)
			}
			if err := next.Settle(); err != nil {
				t.Fatal(err)
			}
			if !c.before && !c.during {
				open()
			}
			r.heard()
			select {
			case err := <-opened:
				t.Fatalf("it was opened before the lease ended: %v", err)
			default:
			}
			for _, end := range ends {
				end()
			}
			if err := <-opened; err != nil {
				t.Error(err)
			}
			if len(r.broken) > 0 {
				t.Error("told twice")
			}
		})
	}
}
