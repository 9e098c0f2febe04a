package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// distribution logs the pauses by fault and by kind of client: those of this run, or all of the file
// that FAILOVER_RECORD names, to which each round of any test appends its own.
func (l *load) distribution() {
	t := l.p.t
	if name := os.Getenv("FAILOVER_RECORD"); name != "" {
		l.rows = recorded(t, name)
	}
	pauses := make(map[[2]string][]time.Duration)
	for _, r := range l.rows {
		kind, _, _ := strings.Cut(r.client, "-")
		if kind != "linux" && kind != "fuse" {
			kind = "go"
		}
		for _, key := range [][2]string{{r.fault, kind}, {r.fault, "all"}, {"all", kind}, {"all", "all"}} {
			pauses[key] = append(pauses[key], r.pause)
		}
	}
	byNames := func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }
	for _, key := range slices.SortedFunc(maps.Keys(pauses), byNames) {
		list := pauses[key]
		slices.Sort(list)
		at := func(percent int) float64 { return list[max(len(list)*percent+99, 100)/100-1].Seconds() }
		t.Logf("%-20s %-5s %4d pauses: median %.1f s, 95 of 100 at most %.1f s, longest %.1f s", key[0], key[1], len(list),
			at(50), at(95), at(100))
	}
}

// row is the longest pause of one client by one fault.
type row struct {
	fault, client string
	pause         time.Duration
}

// record appends rows to the file of FAILOVER_RECORD, if there is one.
func record(t *testing.T, rows []row) {
	t.Helper()
	name := os.Getenv("FAILOVER_RECORD")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		_, e := fmt.Fprintf(f, "%s\t%s\t%s\t%.3f\n", t.Name(), r.fault, r.client, r.pause.Seconds())
		err = errors.Join(err, e)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// recorded returns the rows of a test in a file of record.
func recorded(t *testing.T, name string) (all []row) {
	t.Helper()
	for line := range strings.Lines(read(name)) {
		words := strings.Split(strings.TrimSpace(line), "\t")
		if len(words) != 4 || words[0] != t.Name() {
			continue
		}
		seconds, err := strconv.ParseFloat(words[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, row{words[1], words[2], time.Duration(seconds * float64(time.Second))})
	}
	return all
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
