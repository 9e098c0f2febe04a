package tcp

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// outwardPeer is a client that a server calls. Procedure 1 adds one to its argument. Procedure 2
// answers when held is closed.
type outwardPeer struct {
	l     *Listener
	addr  netip.AddrPort
	calls atomic.Int32
	held  chan struct{}
}

func newOutwardPeer(t *testing.T) *outwardPeer {
	p := &outwardPeer{held: make(chan struct{})}
	srv := rpc.NewServer(rpc.ServerConfig{
		Workers: 4,
		Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
			{Name: "NULL", Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
			{Name: "ADD", Serve: func(c *rpc.Call, _ bool) rpc.Status {
				p.calls.Add(1)
				c.Res.Uint32(c.Args.Uint32() + 1)
				return rpc.Done
			}},
			{Name: "HOLD", Serve: func(*rpc.Call, bool) rpc.Status {
				<-p.held
				return rpc.Done
			}},
		}}},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.l = Serve(l, srv)
	p.addr = netip.MustParseAddrPort(l.Addr().String())
	t.Cleanup(func() {
		p.l.Close()
		srv.Close()
	})
	return p
}

// outwardCall makes a call and waits for its outcome.
func outwardCall(t *testing.T, c rpc.Caller, proc uint32, patience time.Duration) (uint32, error) {
	t.Helper()
	type result struct {
		n   uint32
		err error
	}
	done := make(chan result, 2)
	c.Call(&rpc.BackwardCall{
		Prog: prog, Vers: 1, Proc: proc, Args: []byte{0, 0, 0, 41}, Timeout: patience,
		Done: func(d *xdr.Decoder, err error) {
			r := result{err: err}
			if err == nil {
				r.n = d.Uint32()
			}
			done <- r
		},
	})
	select {
	case r := <-done:
		return r.n, r.err
	case <-time.After(20 * time.Second):
		t.Fatal("the call did not end")
		return 0, nil
	}
}

// TestOutward: a CallbackDialer connects when there is a call, reuses the connection, and connects
// again when the peer has closed it.
func TestOutward(t *testing.T) {
	p := newOutwardPeer(t)
	o := NewCallbackDialer(0)
	defer o.Close()
	c := o.To(p.addr)
	if o.Conns() != 0 || !c.Connected() {
		t.Error("connected before there is a call")
	}
	for range 3 {
		if n, err := outwardCall(t, c, 1, time.Minute); n != 42 || err != nil {
			t.Fatal(n, err)
		}
	}
	if n := len(p.l.Conns()); n != 1 || o.Conns() != 1 {
		t.Errorf("%d connections, %d", n, o.Conns())
	}
	var refused *rpc.AcceptError
	if _, err := outwardCall(t, c, 9, time.Minute); !errors.As(err, &refused) {
		t.Error(err)
	}
	// The peer has closed the connection, as it does with idle ones.
	c.(*callbackCaller).mu.Lock()
	c.(*callbackCaller).conn.conn.Close()
	c.(*callbackCaller).mu.Unlock()
	if n, err := outwardCall(t, c, 1, time.Minute); n != 42 || err != nil {
		t.Error(n, err)
	}
	if o.To(p.addr) != c {
		t.Error("another connection to the same address")
	}
	// Done is called before the connection is released.
	for deadline := time.Now().Add(10 * time.Second); o.Conns() != 0 && time.Now().Before(deadline); {
		c.(*callbackCaller).closeIdle()
	}
	if o.Conns() != 0 {
		t.Errorf("%d connections that nobody uses", o.Conns())
	}
	if n, err := outwardCall(t, c, 1, time.Minute); n != 42 || err != nil {
		t.Error(n, err)
	}
	if p.calls.Load() != 5 {
		t.Errorf("%d calls arrived", p.calls.Load())
	}
}

// TestOutwardFails: a peer that does not exist, a peer that does not answer, too many peers, and
// Close.
func TestOutwardFails(t *testing.T) {
	p := newOutwardPeer(t)
	l, err := net.Listen("tcp", "127.0.0.9:0") // an address that no other peer has
	if err != nil {
		t.Fatal(err)
	}
	gone := netip.MustParseAddrPort(l.Addr().String())
	l.Close()
	o := NewCallbackDialer(1)
	defer o.Close()
	share := NewCallbackDialer(2 * callbackShare)
	defer share.Close()
	for i := range 3 { // at one address each, of one host
		_, err := outwardCall(t, share.To(newOutwardPeer(t).addr), 1, time.Minute)
		if want := i == 2; errors.Is(err, rpc.ErrTooMany) != want || !want && err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	var lost *rpc.ConnError
	if _, err := outwardCall(t, o.To(gone), 1, time.Minute); !errors.As(err, &lost) || o.Conns() != 0 {
		t.Error(err, o.Conns())
	}
	c := o.To(p.addr)
	// On an existing connection the call waits for its reply only.
	if n, err := outwardCall(t, c, 1, time.Minute); n != 42 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := outwardCall(t, c, 2, time.Millisecond); !errors.Is(err, rpc.ErrTimeout) {
		t.Error(err)
	}
	if n, err := outwardCall(t, c, 1, time.Minute); n != 42 || err != nil {
		t.Error(n, err)
	}
	other := newOutwardPeer(t)
	if _, err := outwardCall(t, o.To(other.addr), 1, time.Minute); !errors.Is(err, rpc.ErrTooMany) {
		t.Error(err)
	}
	held := make(chan error, 1)
	c.Call(&rpc.BackwardCall{
		Prog: prog, Vers: 1, Proc: 2, Timeout: time.Hour,
		Done: func(_ *xdr.Decoder, err error) { held <- err },
	})
	close(p.held)
	if err := <-held; err != nil {
		t.Error(err)
	}
	// There are more calls than a connection takes at once. They wait.
	const many = 3 * callbackCalls
	for range many {
		c.Call(&rpc.BackwardCall{
			Prog: prog, Vers: 1, Proc: 1, Args: make([]byte, 4), Timeout: time.Hour,
			Done: func(_ *xdr.Decoder, err error) {
				other.calls.Add(1)
				if err != nil {
					t.Error(err)
				}
			},
		})
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	o2 := NewCallbackDialer(0)
	ended := make(chan error, 1)
	o2.To(netip.MustParseAddrPort(silent.Addr().String())).Call(&rpc.BackwardCall{
		Prog: prog, Vers: 1, Proc: 1,
		Timeout: time.Hour, Done: func(_ *xdr.Decoder, err error) { ended <- err },
	})
	o2.Close()
	if err := <-ended; err == nil {
		t.Error("answered by nobody")
	}
	if _, err := outwardCall(t, o2.To(p.addr), 1, time.Hour); !errors.Is(err, rpc.ErrClosed) ||
		o2.To(p.addr).Connected() ||
		o2.Conns() != 0 {
		t.Error(err, o2.Conns())
	}
	o.done.Wait()
	if other.calls.Load() != many {
		t.Errorf("%d of %d calls", other.calls.Load(), many)
	}
}
