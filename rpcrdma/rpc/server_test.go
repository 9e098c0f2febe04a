package rpc

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

const (
	testProg = 200100
	procEcho = 1
	procSlow = 2
	procOnce = 3
	procBad  = 4
)

type testService struct {
	mu   sync.Mutex
	runs int
	gate chan struct{}
}

func (s *testService) programs() []Program {
	echo := func(c *Call, _ bool) Status {
		v := c.Args.Uint32()
		if c.Args.Err() != nil {
			return Garbage
		}
		c.Res.Uint32(v)
		return Done
	}
	return []Program{
		{Name: "test", Prog: testProg, Vers: 2, Procs: []Proc{
			{Name: "NULL", Inline: true, Serve: func(*Call, bool) Status { return Done }},
			procEcho: {Name: "ECHO", Inline: true, Serve: echo},
			procSlow: {Name: "SLOW", Inline: true, Serve: func(c *Call, mayBlock bool) Status {
				v := c.Args.Uint32()
				c.Res.Uint32(v)
				if !mayBlock {
					return Again
				}
				return Done
			}},
			procOnce: {Name: "ONCE", Mutates: true, Serve: func(c *Call, _ bool) Status {
				s.mu.Lock()
				s.runs++
				n := s.runs
				s.mu.Unlock()
				if s.gate != nil {
					<-s.gate
				}
				c.Res.Uint32(uint32(n))
				return Done
			}},
			procBad: {Name: "BAD", Serve: func(*Call, bool) Status { panic("on purpose") }},
		}},
		{Name: "test", Prog: testProg, Vers: 4},
	}
}

// send dispatches one message on a new connection. It returns the reply, or nil if the call was
// dropped. The client does not acknowledge the reply.
func send(t *testing.T, s *Server, peer string, msg []byte) []byte {
	t.Helper()
	return sendFrom(t, s, Peer{Addr: netip.MustParseAddrPort(peer), Transport: TransportTCP, Conn: NextConn()}, msg, nil)
}

// sendFrom dispatches one message. It returns the reply, or nil if the call was dropped. then, if
// not nil, is called with the call when it is answered.
func sendFrom(t *testing.T, s *Server, p Peer, msg []byte, then func(*Call)) []byte {
	t.Helper()
	got := make(chan []byte, 2)
	c := &Call{Peer: p}
	c.Reply = func(c *Call, drop bool) {
		if drop {
			got <- nil
			return
		}
		if then != nil {
			then(c)
		}
		got <- c.Res.AppendFlat(nil)
	}
	s.Dispatch(c, xdr.NewDecoder(msg), false)
	select {
	case b := <-got:
		return b
	case <-time.After(10 * time.Second):
		t.Fatal("no reply")
		return nil
	}
}

func call(xid, prog, vers, proc uint32, args ...uint32) []byte {
	var e xdr.Encoder
	EncodeCall(&e, xid, prog, vers, proc, &Cred{Flavor: AuthSys, Machine: "client", UID: 7, Groups: []uint32{1, 2}})
	for _, a := range args {
		e.Uint32(a)
	}
	return e.B
}

func TestReplies(t *testing.T) {
	s := NewServer(ServerConfig{Programs: (&testService{}).programs(), Workers: 2})
	defer s.Close()
	wrongVersion := call(1, testProg, 2, 0)
	wrongVersion[11] = 3
	var gss xdr.Encoder
	for _, w := range []uint32{1, 0, 2, testProg, 2, 0, 6, 0, 0, 0} {
		gss.Uint32(w)
	}
	manyGroups := call(1, testProg, 2, 0)
	manyGroups[28+4+4+4+8+8+3] = 17
	for _, c := range []struct {
		name string
		msg  []byte
		want error // by value; nil is success with result
		res  uint32
	}{
		{"null", call(1, testProg, 2, 0), nil, 0},
		{"echo", call(1, testProg, 2, procEcho, 99), nil, 99},
		{"on a worker", call(1, testProg, 2, procSlow, 98), nil, 98},
		{"arguments missing", call(1, testProg, 2, procEcho), &AcceptError{Stat: GarbageArgs}, 0},
		{"panic", call(1, testProg, 2, procBad), &AcceptError{Stat: SystemErr}, 0},
		{"unknown procedure", call(1, testProg, 2, 77), &AcceptError{Stat: ProcUnavail}, 0},
		{"unknown version", call(1, testProg, 3, 0), &AcceptError{Stat: ProgMismatch, Low: 2, High: 4}, 0},
		{"unknown program", call(1, 1, 1, 0), &AcceptError{Stat: ProgUnavail}, 0},
		{"RPC version 3", wrongVersion, &DeniedError{Low: 2, High: 2}, 0},
		{"RPCSEC_GSS", gss.B, &DeniedError{Auth: AuthRejectedCred}, 0},
		{"17 groups", manyGroups, &DeniedError{Auth: AuthBadCred}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			reply := send(t, s, "192.0.2.1:700", c.msg)
			d := xdr.NewDecoder(reply)
			err := DecodeReply(&d, 1)
			var a, wa *AcceptError
			var n, wn *DeniedError
			switch {
			case c.want == nil && err == nil:
			case errors.As(err, &a) && errors.As(c.want, &wa) && *a == *wa:
			case errors.As(err, &n) && errors.As(c.want, &wn) && *n == *wn:
			default:
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if c.res != 0 && d.Uint32() != c.res {
				t.Error("wrong result")
			}
		})
	}
	for _, m := range [][]byte{nil, {1, 2, 3}, call(1, testProg, 2, 0)[:20], make([]byte, 40)[:40:40]} {
		if len(m) == 40 {
			m[7] = 1 // a reply
		}
		if r := send(t, s, "192.0.2.1:700", m); r != nil {
			t.Errorf("a message of %d bytes that is no call was answered by %x", len(m), r)
		}
	}
}

func TestMutatingCallsRunOnce(t *testing.T) {
	svc := &testService{gate: make(chan struct{})}
	s := NewServer(ServerConfig{Programs: svc.programs(), Workers: 2})
	defer s.Close()
	msg := call(5, testProg, 2, procOnce, 1)
	var wg sync.WaitGroup
	replies := make([][]byte, 4)
	join := func(i int) {
		wg.Go(func() {
			replies[i] = send(t, s, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(1000+i)).String(), msg)
		})
	}
	join(0)
	for { // until it is executed
		svc.mu.Lock()
		n := svc.runs
		svc.mu.Unlock()
		if n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for i := range replies[1:] { // these join the first
		join(i + 1)
		for s.Stats().Procs[0].Retransmits <= uint64(i) { // one connection after the other
			time.Sleep(time.Millisecond)
		}
	}
	close(svc.gate)
	wg.Wait()
	again := send(t, s, "192.0.2.1:9", msg)
	for i, r := range append(replies, again) {
		if string(r) != string(again) || r == nil {
			t.Errorf("reply %d is %x, want %x", i, r, again)
		}
	}
	if svc.runs != 1 {
		t.Errorf("executed %d times", svc.runs)
	}
	send(t, s, "192.0.2.2:9", msg)                               // another client
	send(t, s, "192.0.2.1:9", call(5, testProg, 2, procOnce, 2)) // other arguments
	send(t, s, "192.0.2.1:9", call(6, testProg, 2, procOnce, 1)) // another XID
	if svc.runs != 4 {
		t.Errorf("executed %d times, want 4", svc.runs)
	}
}

func TestReplyCacheIsBounded(t *testing.T) {
	svc := &testService{}
	s := NewServer(ServerConfig{Programs: svc.programs(), Workers: 2, ReplyCacheEntries: 10})
	defer s.Close()
	for i := range uint32(100) {
		send(t, s, "192.0.2.1:9", call(i, testProg, 2, procOnce))
	}
	if n := len(s.cache.entries); n != 10 || s.cache.count != 10 {
		t.Errorf("%d entries, count %d, want 10", n, s.cache.count)
	}
	if s.cache.bytes <= 0 || s.cache.bytes > 10*64 {
		t.Errorf("%d bytes", s.cache.bytes)
	}
}

func TestDispatchDoesNotAllocate(t *testing.T) {
	s := NewServer(ServerConfig{Programs: (&testService{}).programs(), Workers: 1})
	defer s.Close()
	msg := call(1, testProg, 2, procEcho, 9)
	c := &Call{Reply: func(*Call, bool) {}}
	if n := testing.AllocsPerRun(100, func() {
		c.Reset()
		s.Dispatch(c, xdr.NewDecoder(msg), false)
	}); n != 0 {
		t.Errorf("%v allocations per call", n)
	}
}

func FuzzDispatch(f *testing.F) {
	f.Add(call(1, testProg, 2, procEcho, 4))
	f.Add(call(1, testProg, 2, procOnce))
	svc := &testService{}
	s := NewServer(ServerConfig{Programs: svc.programs(), Workers: 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r := send(t, s, "192.0.2.1:9", b); r != nil && ReplyXID(r) != ReplyXID(b) {
			t.Errorf("reply to another call: %x", r)
		}
	})
}

// TestElsewhere: if a transport sets Call.Elsewhere, workers also serve procedures that never wait.
func TestElsewhere(t *testing.T) {
	var blocked, asked atomic.Int32
	s := NewServer(ServerConfig{Workers: 2, Programs: []Program{{Name: "test", Prog: testProg, Vers: 2, Procs: []Proc{
		{Name: "NULL", Inline: true, Serve: func(_ *Call, mayBlock bool) Status {
			asked.Add(1)
			if mayBlock {
				blocked.Add(1)
			}
			return Done
		}},
	}}}})
	defer s.Close()
	for n := range 20 {
		done := make(chan struct{})
		c := &Call{
			Peer: Peer{Addr: netip.MustParseAddrPort("192.0.2.1:700")}, Elsewhere: n%2 == 1,
			Reply: func(*Call, bool) { close(done) },
		}
		s.Dispatch(c, xdr.NewDecoder(call(uint32(n), testProg, 2, 0)), false)
		<-done
	}
	if asked.Load() != 20 || blocked.Load() != 10 {
		t.Errorf("of %d calls %d were served by workers", asked.Load(), blocked.Load())
	}
}
