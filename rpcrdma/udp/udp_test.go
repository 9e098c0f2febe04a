package udp

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Procedures of the test program: echo returns its argument, grow returns as many bytes as its
// argument says, and hold waits for the test.
const (
	testProg   = 400123
	procEcho   = 1
	procGrow   = 2
	procHold   = 3
	procSilent = 4 // not routed
)

type rig struct {
	*Listener
	held, release chan struct{}
	peers         sync.Map // of the calls that were served
}

func serve(t *testing.T, network, at string, cfg Config) *rig {
	t.Helper()
	r := &rig{held: make(chan struct{}, 8), release: make(chan struct{})}
	procs := []rpc.Proc{
		0: {Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
		procEcho: {Name: "ECHO", Serve: func(c *rpc.Call, _ bool) rpc.Status {
			r.peers.Store(c.Peer, true)
			c.Res.Opaque(c.Args.Opaque(MaxMessage))
			if c.Args.Err() != nil {
				return rpc.Garbage
			}
			return rpc.Done
		}},
		procGrow: {Name: "GROW", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			c.Res.Opaque(make([]byte, min(c.Args.Uint32(), 1<<20)))
			return rpc.Done
		}},
		procHold: {Name: "HOLD", Serve: func(*rpc.Call, bool) rpc.Status {
			r.held <- struct{}{}
			<-r.release
			return rpc.Done
		}},
	}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{Name: "t", Prog: testProg, Vers: 1, Procs: procs}}})
	t.Cleanup(srv.Close)
	if cfg.Admits == nil {
		cfg.Admits = func(netip.Addr) bool { return true }
	}
	cfg.Route = func(_, _, proc uint32) *rpc.Server {
		if proc == procSilent {
			return nil
		}
		return srv
	}
	p, err := new(net.ListenConfig).ListenPacket(t.Context(), network, at)
	if err != nil {
		t.Skip(err)
	}
	if r.Listener, err = cfg.Serve(p.(*net.UDPConn)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Shutdown(context.Background()) })
	return r
}

func (r *rig) port() string {
	_, port, _ := net.SplitHostPort(r.Addr().String())
	return port
}

func dialTo(t *testing.T, at string) *Client {
	t.Helper()
	c, err := Dial(netip.MustParseAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func echo(ctx context.Context, c *Client, text string) (back string, err error) {
	err = c.Call(ctx, &rpc.Request{
		Prog: testProg, Vers: 1, Proc: procEcho,
		Args: func(e *xdr.Encoder) { e.String(text) },
		Res:  func(d *xdr.Decoder) error { back = d.String(MaxMessage); return d.Err() },
	})
	return back, err
}

// TestAddresses: a reply comes from the address that was called, also from a socket on all
// addresses, in both families.
func TestAddresses(t *testing.T) {
	for _, s := range []struct{ network, at, call string }{
		{"udp4", "127.0.0.1:0", "127.0.0.1:"},
		{"udp4", "0.0.0.0:0", "127.0.0.9:"},
		{"udp", ":0", "127.0.0.9:"},
		{"udp", ":0", "[::1]:"},
		{"udp6", "[::1]:0", "[::1]:"},
	} {
		r := serve(t, s.network, s.at, Config{})
		c := dialTo(t, s.call+r.port())
		// The client's socket is connected: it accepts datagrams from that address only.
		if back, err := echo(t.Context(), c, "hello"); err != nil || back != "hello" {
			t.Errorf("%v: %q, %v", s, back, err)
		}
		r.peers.Range(func(k, _ any) bool {
			p := k.(rpc.Peer)
			if want := netip.MustParseAddrPort(s.call + r.port()); p.Local != want || p.Transport != rpc.TransportUDP ||
				p.Addr.String() != c.c.LocalAddr().String() {
				t.Errorf("%v: the call has %+v", s, p)
			}
			return true
		})
	}
}

// raw sends a datagram and returns the reply. It returns nil if the reply to a later NULL comes
// first.
func raw(t *testing.T, r *rig, msg []byte) []byte {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "udp4", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const marker = 77
	for _, m := range [][]byte{msg, callOf(marker, 0, nil)} {
		if _, err := c.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	var got []byte
	for b := make([]byte, 1<<16); ; {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if binary.BigEndian.Uint32(b) == marker {
			return got
		}
		got = append([]byte(nil), b[:n]...)
	}
}

func callOf(xid, proc uint32, args func(*xdr.Encoder)) []byte {
	var e xdr.Encoder
	rpc.EncodeCall(&e, xid, testProg, 1, proc, nil)
	if args != nil {
		args(&e)
	}
	return e.B
}

// TestNoAmplifier: which datagrams get no reply, and how long the other replies are.
func TestNoAmplifier(t *testing.T) {
	var asked atomic.Int32
	r := serve(t, "udp4", "127.0.0.1:0", Config{Admits: func(netip.Addr) bool { asked.Add(1); return true }})
	grow := func(n uint32) []byte { return callOf(1, procGrow, func(e *xdr.Encoder) { e.Uint32(n) }) }
	reply := append([]byte(nil), callOf(1, 0, nil)...)
	binary.BigEndian.PutUint32(reply[4:], 1)
	for name, msg := range map[string][]byte{
		"empty": {}, "short": make([]byte, headMin-1), "reply": reply,
		"long":       callOf(1, procEcho, func(e *xdr.Encoder) { e.Opaque(make([]byte, MaxMessage)) }),
		"not routed": callOf(1, procSilent, nil),
	} {
		if b := raw(t, r, msg); b != nil {
			t.Errorf("%s: answered by %x", name, b)
		}
	}
	if n := r.Counters(); n.Malformed != 4 || n.Unanswered != 1 {
		t.Errorf("counted %+v", n)
	}
	if n := asked.Load(); n != 5+1 { // five NULL calls, and the call that is not routed
		t.Errorf("asked %d times whether a host may call", n)
	}
	const head, errorLen = 24, 24
	req := len(grow(0))
	within := uint32(growth*req - head - 4)
	if b := raw(t, r, grow(within)); len(b) != growth*req {
		t.Errorf("%d bytes within the bound", len(b))
	}
	// Long replies share a budget. A reply longer than a datagram is never sent.
	if b := raw(t, r, grow(MaxMessage)); len(b) != errorLen || b[23] != byte(rpc.SystemErr) {
		t.Errorf("a reply that is no datagram: %x", b)
	}
	const long = 8000
	sent := 0
	for i := range 100 {
		switch b := raw(t, r, grow(long)); {
		case len(b) == long+head+4:
			sent += len(b)
		case len(b) != errorLen:
			t.Fatalf("reply %d has %d bytes", i, len(b))
		}
	}
	if n := r.Counters(); sent < budgetRate-2*long || n.Withheld == 0 {
		t.Errorf("%d bytes of long replies, counters %+v", sent, n)
	}
	// Short replies are still sent.
	if b := raw(t, r, grow(within)); len(b) != growth*req {
		t.Errorf("%d bytes within the bound, without a budget", len(b))
	}
}

// TestBudget uses a clock of its own.
func TestBudget(t *testing.T) {
	var b budget
	now := time.Unix(1000, 0)
	if !b.take(budgetRate, now) || b.take(1, now) {
		t.Error("the first second")
	}
	now = now.Add(time.Second / 2)
	if !b.take(budgetRate/2, now) || b.take(1, now) {
		t.Error("half a second later")
	}
	if b.take(1, now.Add(-time.Hour)) {
		t.Error("a clock that goes back gives more")
	}
}

// TestDenied: a host that is not admitted gets no reply. Nor does a call to a broadcast address.
func TestDenied(t *testing.T) {
	r := serve(t, "udp4", "0.0.0.0:0", Config{Admits: func(a netip.Addr) bool { return a.String() != "127.0.0.1" }})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := echo(ctx, dialTo(t, "127.0.0.1:"+r.port()), "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("answered: %v", err)
	}
	before := r.Counters().Denied
	if before == 0 {
		t.Error("the call was not counted")
	}
	c, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	to := netip.MustParseAddrPort("127.255.255.255:" + r.port())
	if _, err := c.WriteTo(callOf(1, 0, nil), net.UDPAddrFromAddrPort(to)); err != nil {
		t.Skip(err)
	}
	for until := time.Now().Add(20 * time.Second); r.Counters().Denied == before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the broadcast was not refused: %+v", r.Counters())
		}
	}
}

// TestPause: while a listener is paused, calls wait in the socket. Shutdown waits for calls.
func TestPause(t *testing.T) {
	r := serve(t, "udp4", "127.0.0.1:0", Config{})
	c := dialTo(t, r.Addr().String())
	r.Pause(true)
	r.Pause(true)
	got := make(chan error, 1)
	go func() { _, err := echo(t.Context(), c, "later"); got <- err }()
	time.Sleep(20 * time.Millisecond)
	if n := r.Counters().Calls; n != 0 {
		t.Errorf("%d calls while paused", n)
	}
	r.Pause(false)
	if err := <-got; err != nil {
		t.Error(err)
	}
	go func() {
		got <- c.Call(t.Context(), &rpc.Request{Prog: testProg, Vers: 1, Proc: procHold})
	}()
	<-r.held
	done := make(chan error, 1)
	go func() { done <- r.Shutdown(t.Context()) }()
	close(r.release)
	if err := errors.Join(<-done, <-got); err != nil {
		t.Error(err)
	}
	// A paused Listener ends too, and so does one that was not started.
	p := serve(t, "udp4", "127.0.0.1:0", Config{})
	p.Pause(true)
	later := serve(t, "udp4", "127.0.0.1:0", Config{Later: true})
	if err := errors.Join(p.Shutdown(t.Context()), later.Shutdown(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestShutdownBusy: Shutdown returns when its context ends, also if all calls are in progress and
// the reader waits for a free one.
func TestShutdownBusy(t *testing.T) {
	r := serve(t, "udp4", "127.0.0.1:0", Config{MaxCalls: 1})
	defer close(r.release)
	c := dialTo(t, r.Addr().String())
	go func() { _ = c.Call(t.Context(), &rpc.Request{Prog: testProg, Vers: 1, Proc: procHold}) }()
	<-r.held
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Shutdown(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Shutdown waits for a call longer than its context lasts")
	}
}

// TestResend: a client repeats its call until it is answered, and accepts no other reply.
func TestResend(t *testing.T) {
	s, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	go func() {
		b := make([]byte, MaxMessage)
		for i := 0; ; i++ {
			n, from, err := s.ReadFrom(b)
			if err != nil {
				return
			}
			if i == 0 {
				continue // lost
			}
			xid := binary.BigEndian.Uint32(b)
			var e xdr.Encoder
			e.Uint32s(xid, 1, 0, 0, 0, 0)
			e.B = append(e.B, b[40:n]...)
			stale := append([]byte(nil), e.B...)
			binary.BigEndian.PutUint32(stale, xid-1)
			for _, m := range [][]byte{{1, 2}, stale, e.B} {
				_, _ = s.WriteTo(m, from)
			}
		}
	}()
	if back, err := echo(t.Context(), dialTo(t, s.LocalAddr().String()), "again"); err != nil || back != "again" {
		t.Errorf("%q, %v", back, err)
	}
	// A closed port is an error at once.
	_ = s.Close()
	var lost *rpc.ConnError
	if _, err := echo(t.Context(), dialTo(t, s.LocalAddr().String()), "x"); !errors.As(err, &lost) {
		t.Errorf("a closed port: %v", err)
	}
}

// FuzzDatagram: no datagram ends the Listener, or gets a reply that is too long.
func FuzzDatagram(f *testing.F) {
	f.Add(callOf(1, procEcho, func(e *xdr.Encoder) { e.String("x") }))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, msg []byte) {
		if len(msg) > 60000 {
			return
		}
		if len(msg) >= headMin && binary.BigEndian.Uint32(msg[20:]) == procHold {
			return
		}
		r := serve(t, "udp4", "127.0.0.1:0", Config{})
		if b := raw(t, r, msg); len(b) > max(MaxMessage, growth*len(msg)) {
			t.Errorf("%d bytes for %d", len(b), len(msg))
		}
	})
}
