package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// TestUpgradeHolds: what a client of version 4 has open, denies to others and has locked is
// his over upgrades, against other clients and against programs of the host, at every moment;
// and then it is given up as if there had been none.
func TestUpgradeHolds(t *testing.T) {
	d := newDaemon(t)
	t.Cleanup(func() {
		if _, pid := d.serving(); pid != d.cmd.Process.Pid {
			d.successor = pid
		}
	})
	for transport, version := range map[string]client.Version{"rdma": client.Version42, "tcp": client.Version41} {
		one, two := d.clientOf(version, transport), d.clientOf(client.Version42, "tcp")
		name := "/data/held-" + transport
		f, err := one.CreateFile(t.Context(), name, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("0123456789"), 0); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.TryLock(2, 4, true)); err != nil {
			t.Fatal(err)
		}
		denied, err := one.CreateFile(t.Context(), name+"-denied", 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if err := denied.Close(); err != nil {
			t.Fatal(err)
		}
		if denied, err = one.OpenShare(t.Context(), name+"-denied", client.ShareRead, client.ShareWrite); err != nil {
			t.Fatal(err)
		}

		// A program of the host looks all the time.
		host, err := os.OpenFile(filepath.Join(d.export, "held-"+transport), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		var stop atomic.Bool
		var looks atomic.Int64
		var work sync.WaitGroup
		work.Go(func() {
			for !stop.Load() {
				l := unix.Flock_t{Type: unix.F_RDLCK, Start: 3, Len: 1}
				if err := unix.FcntlFlock(host.Fd(), unix.F_GETLK, &l); err != nil || l.Type != unix.F_WRLCK {
					t.Errorf("on the host the byte is free: %+v, %v", l, err)
					return
				}
				looks.Add(1)
				time.Sleep(100 * time.Microsecond)
			}
		})
		g, err := two.OpenShare(t.Context(), name, client.ShareRead|client.ShareWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			before := d.connections()
			d.takeOver("upgrade")
			after := d.connections()
			for a, since := range before {
				if !after[a].Equal(since) {
					t.Errorf("the connection of %s, made at %v, is of %v now", a, since, after[a])
				}
			}
			if err := g.TryLock(5, 1, false); !errors.As(err, new(*client.LockedError)) {
				t.Errorf("another client's lock: %v", err)
			}
			if _, err := two.OpenShare(t.Context(), name+"-denied", client.ShareWrite, 0); !client.IsStatus(err,
				nfs.ErrShareDenied) {
				t.Errorf("another client's open: %v", err)
			}
			if _, err := f.WriteAt([]byte("x"), 3); err != nil {
				t.Error(err)
			}
			// By the stateid that it has. Nothing but the lock keeps the file open for the next one.
			if err := errors.Join(f.TryLock(2, 4, true), f.Sync()); err != nil {
				t.Error(err)
			}
		}
		stop.Store(true)
		work.Wait()
		if looks.Load() == 0 {
			t.Error("nobody looked")
		}
		if err := errors.Join(f.Unlock(0, 0), denied.Close()); err != nil {
			t.Fatal(err)
		}
		if err := g.TryLock(5, 1, false); err != nil {
			t.Error(err)
		}
		if h, err := two.OpenShare(t.Context(), name+"-denied", client.ShareWrite, 0); err != nil {
			t.Error(err)
		} else if err := h.Close(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(g.Close(), f.Close(), host.Close()); err != nil {
			t.Error(err)
		}
	}
}
