package rpc

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

type seenCall struct {
	Served
	proc uint32
	peer netip.AddrPort
}

type watcher struct {
	mu   sync.Mutex
	seen []seenCall
}

func (w *watcher) Observe(c *Call, s Served) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, seenCall{s, c.Proc, c.Peer.Addr})
}

// TestObserver: the Observer gets each call of a procedure once, with its row, its sizes, and
// whether a worker served it. It gets no retransmissions, and no calls without a procedure.
func TestObserver(t *testing.T) {
	w := new(watcher)
	programs := (&testService{}).programs()
	s := NewServer(ServerConfig{Programs: programs, Observer: w, Workers: 2})
	defer s.Close()
	const peer = "10.0.0.1:900"
	send(t, s, peer, call(1, testProg, 2, procEcho, 7))
	send(t, s, peer, call(2, testProg, 2, procSlow, 7))
	send(t, s, peer, call(3, testProg, 2, procOnce, 7))
	send(t, s, peer, call(3, testProg, 2, procOnce, 7)) // again
	send(t, s, peer, call(4, testProg, 2, 99, 7))       // no such procedure
	send(t, s, peer, call(5, testProg, 2, procEcho))    // garbage
	send(t, s, peer, call(6, testProg, 2, procBad, 7))

	names := Procedures(programs)
	type short struct {
		name   string
		status Status
		moved  bool
		in     int
	}
	want := []short{
		{"ECHO", Done, false, 4},
		{"SLOW", Done, true, 4},
		{"ONCE", Done, true, 4},
		{"ECHO", Garbage, false, 0},
		{"BAD", Failed, true, 4},
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) != len(want) {
		t.Fatalf("%d calls were told of, want %d: %+v", len(w.seen), len(want), w.seen)
	}
	for i, g := range w.seen {
		n := names[g.Row]
		if n.Program != "test" || n.Version != 2 || n.Proc != g.proc {
			t.Errorf("call %d: row %d is %+v, the procedure %d", i, g.Row, n, g.proc)
		}
		if got := (short{n.Name, g.Status, g.Queued > 0, g.Args}); got != want[i] {
			t.Errorf("call %d: %+v, want %+v", i, got, want[i])
		}
		if g.Took < g.Queued || g.At < g.Took || g.Reply < 24 || g.peer.String() != peer {
			t.Errorf("call %d: %+v", i, g)
		}
	}
}

// TestLoad: Load counts the calls that wait for workers and the calls that workers serve.
func TestLoad(t *testing.T) {
	svc := &testService{gate: make(chan struct{})}
	s := NewServer(ServerConfig{Programs: svc.programs(), Workers: 2})
	defer s.Close()
	answered := make(chan struct{}, 3)
	for i := range 3 {
		c := &Call{
			Peer:  Peer{Addr: netip.MustParseAddrPort("10.0.0.1:1")},
			Reply: func(*Call, bool) { answered <- struct{}{} },
		}
		s.Dispatch(c, xdr.NewDecoder(call(uint32(i), testProg, 2, procOnce)), false)
	}
	reach := func(want Load) {
		t.Helper()
		for until := time.Now().Add(10 * time.Second); s.Load() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("load %+v, want %+v", s.Load(), want)
			}
		}
	}
	reach(Load{Workers: 2, Busy: 2, Queued: 1})
	close(svc.gate)
	for range 3 {
		<-answered
	}
	reach(Load{Workers: 2, Done: 3})
}

type sink struct{ n int }

func (k *sink) Observe(_ *Call, s Served) { k.n += s.Row }

// TestObserverAllocates: an Observer costs no allocation.
func TestObserverAllocates(t *testing.T) {
	s := NewServer(ServerConfig{Programs: (&testService{}).programs(), Observer: new(sink)})
	defer s.Close()
	c := &Call{Peer: Peer{Addr: netip.MustParseAddrPort("10.0.0.1:1")}, Reply: func(*Call, bool) {}}
	msg := call(1, testProg, 2, 0)
	if n := testing.AllocsPerRun(1000, func() {
		c.Reset()
		s.Dispatch(c, xdr.NewDecoder(msg), false)
	}); n != 0 {
		t.Errorf("%v allocations for a call", n)
	}
}
