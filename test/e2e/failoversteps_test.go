package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
)

// step makes one file: each of its calls must happen exactly once.
func (w *worker) step(ctx context.Context, i int) error {
	name := fmt.Sprintf("%s-%d", w.name, i)
	mode := uint32(0o600)
	n, err := w.c.Create(ctx, w.dir, name+".part", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		return fmt.Errorf("CREATE: %w", err)
	}
	w.acknowledged()
	if _, err := w.c.Write(ctx, n.Handle, content(name), 0, blockstore.FileSync); err != nil {
		return fmt.Errorf("WRITE: %w", err)
	}
	w.acknowledged()
	if err := w.c.Rename(ctx, w.dir, name+".part", w.dir, name); err != nil {
		return fmt.Errorf("RENAME: %w", err)
	}
	w.acknowledged()
	if i%3 == 0 {
		if err := w.c.Remove(ctx, w.dir, name); err != nil {
			return fmt.Errorf("REMOVE: %w", err)
		}
		w.acknowledged()
		return nil
	}
	w.done = append(w.done, name)
	return nil
}

func (w *worker) acknowledged() {
	now := time.Now().UnixNano()
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.last.Swap(now); before != 0 {
		w.gap = max(w.gap, time.Duration(now-before))
	}
}

// longest returns the longest pause since it was asked last.
func (w *worker) longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	gap := w.gap
	w.gap = 0
	return gap
}

// load is what clients of each version and transport do meanwhile.
type load struct {
	p       *pair
	workers []*worker
	rows    []row // of each client in each round
	stop    atomic.Bool
	running sync.WaitGroup
	more    *others // further clients, or nil
}

func (p *pair) load() *load {
	return p.loadOf([]client.Version{client.Version3, client.Version42}, []string{"rdma", "tcp"})
}

func (p *pair) loadOf(versions []client.Version, transports []string) *load {
	t, l := p.t, &load{p: p}
	for _, v := range versions {
		for _, transport := range transports {
			c := p.client(v, transport)
			root, err := c.Resolve(patient(t), "/data")
			if err != nil {
				t.Fatal(err)
			}
			l.workers = append(l.workers, &worker{name: fmt.Sprintf("%v-%s", v, transport), c: c, dir: root.Handle})
		}
	}
	for _, w := range l.workers {
		l.running.Go(func() {
			for i := 1; !l.stop.Load() && !t.Failed(); i++ {
				if err := w.step(patient(t), i); err != nil && t.Context().Err() == nil {
					t.Errorf("%s, file %d: %v", w.name, i, err)
				}
			}
		})
	}
	l.others()
	return l
}

func (l *load) end() {
	l.stop.Store(true)
	l.more.stop()
	l.running.Wait()
}

// pauses returns the longest pause of each client since it was called last, which a fault has
// caused.
func (l *load) pauses(fault string) string {
	var all []string
	before := len(l.rows)
	for _, w := range l.workers {
		gap := w.longest()
		all = append(all, fmt.Sprintf("%s %.1f s", w.name, gap.Seconds()))
		if fault != "" {
			l.rows = append(l.rows, row{fault, w.name, gap})
		}
	}
	record(l.p.t, l.rows[before:])
	return strings.Join(all, ", ")
}

// goesOn waits until each client has had an answer after since.
func (l *load) goesOn(since time.Time, what string) {
	t := l.p.t
	t.Helper()
	for _, w := range l.workers {
		for end := time.Now().Add(time.Minute); time.Unix(0, w.last.Load()).Before(since); time.Sleep(time.Millisecond) {
			if l.p.at >= 0 {
				l.p.nodes[l.p.at].again()
			}
			if time.Now().After(end) || t.Failed() {
				t.Fatalf("%s: %s does not continue", what, w.name)
			}
		}
	}
}

// verify ends the load, and compares what was acknowledged with what is there.
func (l *load) verify() {
	p, t := l.p, l.p.t
	t.Helper()
	l.end()
	l.more.ended()
	var want []string
	for _, w := range l.workers {
		want = append(want, w.done...)
	}
	var have []string
	entries, err := os.ReadDir(p.export)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if n := e.Name(); n != "lost+found" && !strings.HasPrefix(n, heldPrefix) {
			have = append(have, n)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(want, have) {
		t.Errorf("%d files were acknowledged, and %d are there: %q", len(want), len(have), different(want, have))
	}
	for _, name := range want {
		b, err := os.ReadFile(filepath.Join(p.export, name))
		if err != nil || string(b) != string(content(name)) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	t.Logf("%d files", len(want))
}

// TestFailover: two nodes with one state directory and one address. Whatever happens to the one
// that serves, the other one takes over, the clients of every version and transport continue,
// nothing that was acknowledged is lost, and nothing is done twice. A node that was stopped and
// continues ends without an answer to anybody. FAILOVER_SEED sets the seed, FAILOVER_ROUNDS how
// many faults.
func TestFailover(t *testing.T) {
	seed := rand.Uint64()
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_SEED"), &seed)
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 7))
	rounds := 3
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_ROUNDS"), &rounds)
	p := newPair(t)
	p.move(0)
	p.nodes[0].start()
	p.nodes[0].serves()
	l := p.load()
	defer l.end()
	l.holdLocks()

	for i := range rounds {
		time.Sleep(time.Duration(300+r.IntN(500)) * time.Millisecond)
		l.pauses("")
		p.nodes[p.at].serves()
		from, to := p.nodes[p.at], p.nodes[1-p.at]
		var what string
		var stopped bool
		fault := time.Now()
		kinds := 4
		if p.disk {
			kinds++
		}
		switch (i + int(seed%uint64(kinds))) % kinds { // each kind in turn
		case 0:
			what = "a kill"
			from.end(syscall.SIGKILL)
		case 1:
			what = "a stopped process"
			stopped = true
			_ = from.cmd.Process.Signal(syscall.SIGSTOP)
		case 2:
			what = "a node without power"
			from.space.IP(t, "link set "+haPort+" down")
			from.end(syscall.SIGKILL)
		case 3:
			what = "a planned change"
			if code := from.end(syscall.SIGTERM); code != 0 {
				t.Errorf("node %s ended with %d", from.name, code)
			}
		case 4:
			what = "slow storage"
			p.freeze(time.Duration(2500+r.IntN(1500)) * time.Millisecond)
			if code := from.wait(); code != 75 {
				t.Errorf("node %s could not renew the lease, and ended with %d", from.name, code)
			}
		}
		p.move(1 - p.at)
		to.start()
		to.serves()
		served := time.Since(fault)
		l.goesOn(fault.Add(served), fmt.Sprintf("round %d, %s", i, what))
		if stopped {
			_ = from.cmd.Process.Signal(syscall.SIGCONT)
			if code := from.wait(); code != 75 {
				t.Errorf("node %s was stopped, and ended with %d", from.name, code)
			}
		}
		from.space.IP(t, "link set "+haPort+" up")
		time.Sleep(100 * time.Millisecond)
		t.Logf("round %d: %s of node %s: node %s serves after %.1f s; longest pauses: %s", i, what, from.name, to.name,
			served.Seconds(), l.pauses(what))
	}
	l.verify()
	l.distribution()
}

// different returns what one list has and the other has not.
func different(a, b []string) (d []string) {
	for _, x := range a {
		if _, ok := slices.BinarySearch(b, x); !ok {
			d = append(d, x)
		}
	}
	for _, x := range b {
		if _, ok := slices.BinarySearch(a, x); !ok {
			d = append(d, x)
		}
	}
	return d
}
