package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// holdLocks has a client of each minor version hold a lock until the load ends. All the time the
// owner writes by the lock and locks again what it has locked, and another client tries to lock the
// same byte. That client must never get the lock.
func (l *load) holdLocks() {
	p, t := l.p, l.p.t
	t.Helper()
	for i, v := range []client.Version{client.Version41, client.Version42} {
		transport := []string{"tcp", "rdma"}[i%2]
		name := "/data/" + heldPrefix + v.String()
		mine, err := p.client(v, transport).CreateFile(t.Context(), name, 0o644) // for all rounds
		if err != nil {
			t.Fatal(err)
		}
		if err := mine.TryLock(2, 4, true); err != nil {
			t.Fatal(err)
		}
		others, err := p.client(client.Version42, "tcp").OpenShare(t.Context(), name, client.ShareRead|client.ShareWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		l.running.Go(func() {
			for !l.stop.Load() && !t.Failed() {
				_, err := mine.WriteAt([]byte("x"), 3)
				if err := errors.Join(err, mine.TryLock(2, 4, true)); err != nil && t.Context().Err() == nil {
					t.Errorf("the owner of a lock, version %v over %s: %v", v, transport, err)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
		l.running.Go(func() {
			for !l.stop.Load() && !t.Failed() {
				err := others.TryLock(5, 1, false)
				if !errors.As(err, new(*client.LockedError)) && t.Context().Err() == nil {
					t.Errorf("another client's lock, version %v over %s: %v", v, transport, err)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
}

// Requests of ioctl(2), from linux/fs.h.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// heldPrefix begins the names of the files with locks.
const heldPrefix = "held-"

// distribution logs the pauses by fault.
func (l *load) distribution() {
	delete(l.pausesOf, "")
	var all []time.Duration
	show := func(what string, list []time.Duration) {
		slices.Sort(list)
		at := func(percent int) float64 { return list[(len(list)-1)*percent/100].Seconds() }
		l.p.t.Logf("%-22s %4d pauses: median %.1f s, 95 of 100 at most %.1f s, longest %.1f s", what, len(list),
			at(50), at(95), at(100))
	}
	for what, list := range l.pausesOf {
		all = append(all, list...)
		show(what, list)
	}
	if len(all) > 0 {
		show("all", all)
	}
}

// sharedDisk mounts a file system at a directory, which freeze can stop. It reports false where the
// test may not mount one.
func sharedDisk(t *testing.T, dir string) bool {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 1<<30); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Logf("no file system of its own for the nodes: %v: %s", err, out)
			return false
		}
	}
	t.Cleanup(func() {
		// A process that a script has killed may still be about to close its files.
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			out, err := exec.Command("umount", dir).CombinedOutput()
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Errorf("umount: %v: %s", err, out)
				return
			}
		}
	})
	return true
}

// freeze has the storage of both nodes answer nothing for a while.
func (p *pair) freeze(d time.Duration) {
	p.t.Helper()
	f, err := os.Open(filepath.Dir(p.export))
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0); err != nil {
		p.t.Fatal(err)
	}
	time.Sleep(d)
	if err := unix.IoctlSetInt(int(f.Fd()), fiThaw, 0); err != nil {
		p.t.Fatal(err)
	}
}
