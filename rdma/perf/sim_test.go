package perf

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
)

// world is a client and a server on a simulated network, in one goroutine and with a
// clock of its own.
type world struct {
	t   *testing.T
	net *sim.Network
	dev [2]*roce.Device
	srv *Server
	l   *Listener
}

var worldAddr = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}

func newWorld(t *testing.T, cfg sim.Config, change func(*Limits)) *world {
	w := &world{t: t, net: sim.New(cfg)}
	for i := range w.dev {
		link, err := w.net.Open(worldAddr[i])
		if err != nil {
			t.Fatal(err)
		}
		if w.dev[i], err = roce.NewWithLink(link, roce.Config{Random: w.net.Rand().Uint32}); err != nil {
			t.Fatal(err)
		}
	}
	l := DefaultLimits()
	l.Clients = []netip.Prefix{netip.PrefixFrom(worldAddr[0], 24)}
	if change != nil {
		change(&l)
	}
	var err error
	if w.srv, err = NewServer(l, nil); err != nil {
		t.Fatal(err)
	}
	if w.l, err = w.srv.Listen(w.dev[1], Port); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// until runs the world until done returns true. It fails the test if that takes longer than limit.
func (w *world) until(what string, limit time.Duration, done func() bool) {
	w.t.Helper()
	end := w.net.Now() + rdma.Time(limit)
	for !done() {
		next := end
		for _, d := range w.dev {
			if err := d.Turn(); err != nil {
				w.t.Fatal(err)
			}
			switch at := d.Deadline(); {
			case at < 0:
				next = min(next, w.net.Now()+rdma.Microsecond)
			case at > 0:
				next = min(next, at)
			}
		}
		if n := w.net.Next(); n != 0 {
			next = min(next, n)
		}
		if next >= end {
			w.t.Fatalf("%s: not within %v", what, limit)
		}
		w.net.Advance(next)
	}
}

// client makes a run. At the end of the test it is closed, and its memory must be free.
func (w *world) client(o Options) *client {
	w.t.Helper()
	c, err := newClient(w.dev[0], netip.AddrPortFrom(worldAddr[1], Port), o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		gone := false
		c.loop.Submit(func() { c.disconnect(func() { gone = true }) })
		w.until("the end", time.Hour, func() bool { return gone && w.srv.Connections() == 0 })
		c.release()
		if n := w.srv.Memory(); n != 0 {
			w.t.Errorf("%d bytes are still in use", n)
		}
	})
	return c
}

// await runs the world until the run has reached the outcome, and returns the error of the run.
func (w *world) await(c *client, what string, do func(), outcome chan struct{}) error {
	w.t.Helper()
	c.loop.Submit(do)
	w.until(what, time.Hour, func() bool { return len(outcome)+len(c.broken) > 0 })
	if len(c.broken) > 0 {
		return <-c.broken
	}
	<-outcome
	return nil
}

// TestBadNetwork: every message is counted once, although packets are lost, repeated and reordered.
func TestBadNetwork(t *testing.T) {
	for _, op := range []Op{Write, Read, Send, FetchAdd, CompareSwap} {
		for _, o := range []Options{
			{Iterations: 300, Depth: 32, QPs: 2, Bidirectional: true},
			{Iterations: 300, Depth: 1, QPs: 1, Latency: true},
		} {
			t.Run(fmt.Sprintf("%v, latency %v", op, o.Latency), func(t *testing.T) {
				w := newWorld(t, sim.Config{Seed: uint64(op), Loss: 0.02, Duplicate: 0.01, Reorder: 0.01, Corrupt: 0.01}, nil)
				o.Op, o.Sizes = op, []int{AtomicSize, 20000}
				if op.Atomic() {
					o.Sizes = o.Sizes[:1]
				}
				c := w.client(o)
				if err := w.await(c, "connecting", c.connect, c.up); err != nil {
					t.Fatal(err)
				}
				want := uint64(o.Iterations * o.QPs)
				for _, n := range o.Sizes {
					if err := w.await(c, "measuring", func() { c.begin(n) }, c.done); err != nil {
						t.Fatal(err)
					}
					if r := c.result; r.Sent.Iterations != want ||
						o.Bidirectional && (r.Back.Iterations != want || r.Back.Bytes != want*uint64(n)) {
						t.Errorf("%d bytes: %+v; want %d messages", n, r, want)
					}
				}
			})
		}
	}
}

// TestSilence: the server does not end a client that sends only msgAlive, for any time. It ends a
// client whose host is gone.
func TestSilence(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 1}, func(l *Limits) { l.IdleTimeout, l.MaxDuration = 8*time.Second, time.Hour })
	c := w.client(Options{Op: Write, Sizes: []int{64}, Iterations: 10, Depth: 4, QPs: 2})
	if err := w.await(c, "connecting", c.connect, c.up); err != nil {
		t.Fatal(err)
	}
	later := w.net.Now() + rdma.Time(10*time.Minute)
	waited := false
	c.loop.Submit(func() { c.loop.After(later-w.net.Now(), func() { waited = true }) })
	w.until("waiting", time.Hour, func() bool { return waited })
	if n := w.srv.Connections(); n != 2 {
		t.Errorf("%d connections after 10 minutes", n)
	}
	if err := w.await(c, "measuring", func() { c.begin(64) }, c.done); err != nil || c.result.Sent.Iterations != 20 {
		t.Errorf("%v, %+v", err, c.result)
	}
	w.net.Cut(worldAddr[0], worldAddr[1], true)
	w.until("noticing", 17*time.Second, func() bool { return w.srv.Connections() == 0 })
	if n := w.srv.n.Of(EndedIdle); n != 2 {
		t.Errorf("%d were ended for silence", n)
	}
}

// TestTooLong: the server ends a measurement after MaxDuration.
func TestTooLong(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 1, Delay: rdma.Second / 10}, func(l *Limits) { l.MaxDuration = 20 * time.Second })
	c := w.client(Options{Op: Send, Sizes: []int{64}, Iterations: 1 << 40, Depth: 4, QPs: 1})
	if err := w.await(c, "connecting", c.connect, c.up); err != nil {
		t.Fatal(err)
	}
	begun := w.net.Now()
	err := w.await(c, "measuring", func() { c.begin(64) }, c.done)
	if err == nil || !strings.Contains(err.Error(), "ends measurements after 20s") {
		t.Errorf("%v", err)
	}
	if d := time.Duration(w.net.Now() - begun); d < 19*time.Second || d > 22*time.Second {
		t.Errorf("it took %v", d)
	}
	if n := w.srv.n.Of(EndedDuration); n != 1 {
		t.Errorf("%d were ended for their time", n)
	}
}

// TestLateStop: a test for a duration ends although the network loses msgStop.
func TestLateStop(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 3, Loss: 0.3, Delay: rdma.Millisecond}, nil)
	c := w.client(Options{
		Op: Write, Sizes: []int{64}, Duration: 500 * time.Millisecond, Depth: 4, QPs: 1,
		Bidirectional: true,
	})
	if err := w.await(c, "connecting", c.connect, c.up); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := w.await(c, "measuring", func() { c.begin(64) }, c.done); err != nil {
			t.Fatal(err)
		}
		if r := c.result; r.Sent.Iterations == 0 || r.Back.Iterations == 0 {
			t.Errorf("%+v", r)
		}
	}
}
