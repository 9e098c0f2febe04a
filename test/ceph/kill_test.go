package ceph

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
)

// pausesMost is how long a client may be without an answer: the MDS's beacon grace and reconnect,
// the session of a gateway that was killed, its grace period and lease, and what starting takes
// here.
const pausesMost = 2 * time.Minute

// load are clients that work while servers die. What they got an answer for is never lost.
type load struct {
	t    *testing.T
	stop atomic.Bool
	wg   sync.WaitGroup

	mu      sync.Mutex
	last    map[string]time.Time // the last answer of each worker
	longest time.Duration        // the longest pause
	done    map[string]int       // answers
	holder  string               // of the lock
	lost    int                  // locks that servers have given up, which clients know
}

// step runs a worker until the load stops. Errors are for later: only answers count.
func (l *load) step(name string, do func() error) {
	l.mu.Lock()
	l.last[name] = time.Now()
	l.mu.Unlock()
	l.wg.Go(func() {
		for !l.stop.Load() {
			err := do()
			now := time.Now()
			l.mu.Lock()
			if err == nil {
				l.longest = max(l.longest, now.Sub(l.last[name]))
				l.last[name] = now
				l.done[name]++
			}
			l.mu.Unlock()
			if err != nil {
				time.Sleep(200 * time.Millisecond)
			}
		}
	})
}

// writer writes numbers into blocks of a file, each stable. check compares the file.
func (l *load) writer(name string, fsys *client.FS, r *rand.Rand) (check func(*client.FS) error) {
	const blocks, size = 64, 64 << 10
	var acked, sent [blocks]uint64
	var f *client.File
	n, buf := uint64(0), make([]byte, size)
	l.step(name, func() (err error) {
		if f == nil {
			if f, err = fsys.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
				f = nil
				return err
			}
		}
		n++
		b := r.IntN(blocks)
		for i := 0; i < size; i += 8 {
			binary.LittleEndian.PutUint64(buf[i:], n)
		}
		sent[b] = n
		if _, err = f.WriteAt(buf, int64(b)*size); err == nil {
			err = f.Sync()
		}
		if err != nil {
			_ = f.Close()
			f = nil
			return err
		}
		acked[b] = n
		return nil
	})
	return func(other *client.FS) error {
		p, err := other.ReadFile(name)
		if err != nil {
			return err
		}
		for b := range blocks {
			for i := 0; i < size && acked[b] > 0; i += 8 {
				if len(p) < (b+1)*size {
					return fmt.Errorf("%s has %d bytes, and no block %d", name, len(p), b)
				}
				if got := binary.LittleEndian.Uint64(p[b*size+i:]); got < acked[b] || got > sent[b] {
					return fmt.Errorf("%s: block %d has %d at %d, acknowledged was %d", name, b, got, i, acked[b])
				}
			}
		}
		return nil
	}
}

// renamer gives a file one name after the other. check looks for the last one.
func (l *load) renamer(name string, fsys *client.FS) (check func(*client.FS) error) {
	if err := fsys.WriteFile(name+"-0", []byte(name), 0o644); err != nil {
		l.t.Fatal(err)
	}
	at := 0
	l.step(name, func() error {
		err := fsys.Rename(fmt.Sprint(name, "-", at), fmt.Sprint(name, "-", at+1))
		if err != nil && errors.Is(err, fs.ErrNotExist) { // was it done before the answer was lost?
			_, err = fsys.Stat(fmt.Sprint(name, "-", at+1))
		}
		if err == nil {
			at++
		}
		return err
	})
	return func(other *client.FS) error {
		for _, i := range []int{at, at + 1} {
			if got, err := other.ReadFile(fmt.Sprint(name, "-", i)); err == nil {
				if string(got) != name {
					return fmt.Errorf("%s-%d has %q", name, i, got)
				}
				return nil
			}
		}
		return fmt.Errorf("%s-%d is lost", name, at)
	}
}

// locker takes and releases one lock that all lockers want. A lock is held twice if another client
// got it before this one released it, and this one was not told that it had lost it.
func (l *load) locker(name string, fsys *client.FS) {
	var f *client.File
	l.step(name, func() (err error) {
		if f == nil {
			if f, err = fsys.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o666); err != nil {
				f = nil
				return err
			}
		}
		if err = f.TryLock(0, 1, true); err != nil {
			if strings.Contains(err.Error(), "denied") {
				time.Sleep(5 * time.Millisecond)
				return nil
			}
			_ = f.Close()
			f = nil
			return err
		}
		l.mu.Lock()
		l.holder = name
		l.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		_, err = f.WriteAt([]byte(name), 0) // under the lock
		l.mu.Lock()
		other := l.holder
		l.mu.Unlock()
		if unlock := f.Unlock(0, 1); err == nil {
			err = unlock
		}
		if err == nil && other != name {
			l.t.Errorf("%s and %s have the lock at the same time", name, other)
		}
		if err != nil {
			if errors.Is(err, client.ErrLockLost) {
				l.mu.Lock()
				l.lost++
				l.mu.Unlock()
			}
			_ = f.Close()
			f = nil
		}
		return err
	})
}

// daemon is a program of Ceph that runs in the cluster of test/ceph/run.
type daemon struct{ name, program, id string }

func (d daemon) pid(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(filepath.Dir(os.Getenv("RSTORED_CEPH")), "run", d.name+".pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// kill kills the daemon, and starts it again after a while.
func (d daemon) kill(t *testing.T, away time.Duration) {
	t.Helper()
	if err := syscall.Kill(d.pid(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(away)
	cmd := exec.Command(filepath.Join(os.Getenv("RSTORED_CEPH_PROGRAMS"), d.program), "-c", os.Getenv("RSTORED_CEPH"),
		"-i", d.id)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", d.name, err, out)
	}
}

// activeMDS is the MDS that serves.
func activeMDS(t *testing.T) daemon {
	t.Helper()
	programs := os.Getenv("RSTORED_CEPH_PROGRAMS")
	cmd := exec.Command(filepath.Join(programs, "ceph"), "-c", os.Getenv("RSTORED_CEPH"), "mds", "stat")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(programs, "../lib/python3/dist-packages"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "0=b=up") {
		return daemon{"mds.b", "ceph-mds", "b"}
	}
	return daemon{"mds.a", "ceph-mds", "a"}
}

// TestKill kills gateways, the OSD and the active MDS, one or two of them at a time, in
// RSTORED_CEPH_ROUNDS rounds, while clients of two gateways write, rename and lock. Nothing
// acknowledged is lost, and no lock is held twice. RSTORED_CEPH_SEED repeats a run's choices.
func TestKill(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("RSTORED_CEPH_ROUNDS"))
	if rounds == 0 {
		t.Skip("RSTORED_CEPH_ROUNDS is not set: make failover-ceph")
	}
	seed := rand.Uint64()
	if s := os.Getenv("RSTORED_CEPH_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 0, 64)
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	bin := cluster(t)
	gateways := [2]*gateway{start(t, bin, "127.0.0.2"), start(t, bin, "127.0.0.3")}
	var pauses []time.Duration
	for round := range rounds {
		l := &load{t: t, last: make(map[string]time.Time), done: make(map[string]int)}
		var checks []func(*client.FS) error
		for i, g := range gateways {
			for _, v := range []client.Version{client.Version3, client.Version42} {
				transport := []string{"rdma", "tcp"}[r.IntN(2)]
				name := fmt.Sprint("r", round, "-", v, "-", i)
				checks = append(checks, l.writer(name+"-w", g.fs(v, transport), rand.New(rand.NewPCG(seed, uint64(round)))),
					l.renamer(name+"-n", g.fs(v, transport)))
			}
			l.locker(fmt.Sprint("locker-", i), g.fs(client.Version42, "tcp"))
		}
		time.Sleep(time.Duration(500+r.IntN(1500)) * time.Millisecond)
		kinds := r.Perm(4)[:1+r.IntN(2)]
		var names []string
		var killing sync.WaitGroup
		for _, kind := range kinds {
			away := time.Duration(r.IntN(3000)) * time.Millisecond
			switch kind {
			case 0, 1:
				names = append(names, fmt.Sprint("gateway ", kind))
				g := gateways[kind]
				killing.Go(func() {
					g.stop()
					time.Sleep(away)
					g.run()
				})
			case 2:
				names = append(names, "OSD")
				killing.Go(func() { daemon{"osd.0", "ceph-osd", "0"}.kill(t, away) })
			case 3:
				d := activeMDS(t)
				names = append(names, "active "+d.name)
				killing.Go(func() { d.kill(t, away) })
			}
		}
		killing.Wait()
		restarted := time.Now()
		for waiting := true; waiting; time.Sleep(100 * time.Millisecond) {
			waiting = false
			l.mu.Lock()
			for name, at := range l.last {
				if at.Before(restarted.Add(time.Second)) {
					waiting = true
					if time.Since(restarted) > pausesMost {
						t.Errorf("round %d (%v): %s has had no answer for %v", round, names, name, time.Since(at))
						waiting = false
						break
					}
				}
			}
			l.mu.Unlock()
		}
		l.stop.Store(true)
		l.wg.Wait()
		for i, check := range checks {
			if err := check(gateways[i%2].fs(client.Version42, "rdma")); err != nil {
				t.Errorf("round %d (%v): %v", round, names, err)
			}
		}
		pauses = append(pauses, l.longest)
		t.Logf("round %d: killed %v; longest pause %v; %d locks lost and known; %v", round, names,
			l.longest.Round(time.Millisecond), l.lost, l.done)
		if t.Failed() {
			return
		}
	}
	var most time.Duration
	for _, p := range pauses {
		most = max(most, p)
	}
	t.Logf("%d rounds, longest pause %v", rounds, most)
}
