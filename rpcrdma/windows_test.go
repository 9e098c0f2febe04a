package rpcrdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// lesser is a device that offers less than it has.
type lesser struct {
	rdma.Device
	lim rdma.Limits
}

func (d lesser) Limits() rdma.Limits { return d.lim }

const (
	echoProg = 200401
	echoGet  = 1 // of n bytes, and m bytes behind them
	echoPut  = 2
	echoWait = 3 // is answered when the test says so
)

func fill(b []byte) []byte {
	for i := range b {
		b[i] = byte(i>>8) ^ byte(i)
	}
	return b
}

// waiter is where calls of echoWait say that they are there, and wait.
type waiter struct{ there, on chan struct{} }

// serveEcho serves over packets on the loopback.
func serveEcho(t *testing.T) (*Listener, netip.AddrPort, waiter) {
	t.Helper()
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return serveEchoOn(t, dev)
}

func serveEchoOn(t *testing.T, dev rdma.Device) (*Listener, netip.AddrPort, waiter) {
	t.Helper()
	w := waiter{make(chan struct{}), make(chan struct{})}
	get := func(c *rpc.Call) rpc.Status {
		n, m := int(c.Args.Uint32()), int(c.Args.Uint32())
		p := c.Payload(n)
		if c.Args.Err() != nil || p == nil {
			return rpc.Garbage
		}
		c.Res.Bulk(fill(p))
		c.Res.Opaque(fill(make([]byte, m)))
		return rpc.Done
	}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{
		Name: "echo", Prog: echoProg, Vers: 1,
		Procs: []rpc.Proc{
			{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
			echoGet: {Name: "GET", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status { return get(c) }},
			echoPut: {Name: "PUT", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
				b, tail := c.Args.Opaque(4<<20), c.Args.Opaque(1<<20)
				if c.Args.Err() != nil || !bytes.Equal(b, fill(make([]byte, len(b)))) ||
					!bytes.Equal(tail, fill(make([]byte, len(tail)))) {
					return rpc.Garbage
				}
				return rpc.Done
			}},
			echoWait: {Name: "WAIT", Serve: func(c *rpc.Call, _ bool) rpc.Status {
				w.there <- struct{}{}
				<-w.on
				return get(c)
			}},
		},
	}}})
	l, err := Serve(dev, 20049, srv, Config{Memory: 64 << 20, MaxConns: 8}) // devices pin all of it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		srv.Close()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, netip.AddrPortFrom(dev.Addr(), 20049), w
}

func dialLesser(t *testing.T, at netip.AddrPort, lim rdma.Limits, cfg ClientConfig) *Client {
	t.Helper()
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return dialOn(t, lesser{dev, lim}, at, cfg)
}

func dialOn(t *testing.T, dev rdma.Device, at netip.AddrPort, cfg ClientConfig) *Client {
	t.Helper()
	t.Cleanup(func() { dev.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := Dial(ctx, dev, at, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func echo(ctx context.Context, c *Client, proc uint32, dst []byte, tail int) error {
	return c.Call(ctx, &rpc.Request{
		Prog: echoProg, Vers: 1, Proc: proc, Dst: dst, ResMax: tail + 64,
		Args: func(e *xdr.Encoder) { e.Uint32(uint32(len(dst))); e.Uint32(uint32(tail)) },
		Res: func(d *xdr.Decoder) error {
			b := d.Bulk(4 << 20)
			rest := d.Opaque(1 << 20)
			if d.Err() != nil || !bytes.Equal(b, fill(make([]byte, len(dst)))) || !bytes.Equal(rest, fill(make([]byte, tail))) {
				return fmt.Errorf("%d and %d bytes: %v, or others", len(b), len(rest), d.Err())
			}
			return nil
		},
	})
}

func store(c *Client, b []byte, tail int) error {
	return c.Call(context.Background(), &rpc.Request{
		Prog: echoProg, Vers: 1, Proc: echoPut,
		Args: func(e *xdr.Encoder) { e.Bulk(b); e.Opaque(fill(make([]byte, tail))) },
	})
}

// shut checks, when a call has returned, that no memory is open.
func shut(t *testing.T, c *Client) {
	t.Helper()
	if c.win == nil {
		return
	}
	done := make(chan struct{})
	c.loop.Submit(func() {
		defer close(done)
		for _, w := range c.win.free {
			if k := w.mw.RKey(); k != 0 || w.own != nil || w.block != nil {
				t.Errorf("a window that is free has the key %#x", k)
			}
		}
		if n := c.win.arena.Stats().InUse; n != 0 {
			t.Errorf("%d bytes of the client's memory are in use", n)
		}
		// A SEND may not have completed yet.
		taken := 0
		for i, n := range c.win.took {
			if !slices.Contains(c.sendFree, i) {
				taken += n
			}
		}
		if c.win.sqFree+taken != c.entries-1 {
			t.Errorf("%d entries of the send queue are free, and %d are taken, of %d", c.win.sqFree, taken, c.entries-1)
		}
	})
	<-done
}

// TestWindows: memory is opened by windows that are bound with the call, and closed when it
// returns, whether the server or the client has closed it.
func TestWindows(t *testing.T) {
	l, at, _ := serveEcho(t)
	c := dialLesser(t, at, rdma.Limits{Windows: true}, ClientConfig{})
	if c.win == nil || !l.Conns()[0].RemoteInvalidation {
		t.Fatal("no windows, or the server may not invalidate them")
	}
	mem := make([]byte, 1<<20)
	release, err := c.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	traffic(t, c, mem)
	if n := l.Stats().Messages["sent_with_invalidate"]; n == 0 {
		t.Errorf("the server has invalidated nothing: %+v", l.Stats())
	}
	release()
	together(t, c)
	noErrors(t, l)
}

// traffic moves data of many sizes both ways, in memory that is registered and in other.
func traffic(t *testing.T, c *Client, mem []byte) {
	t.Helper()
	for _, n := range []int{0, 1, 100, 4000, 5000, windowCopyMax + 1, 300_001, 1_000_000} {
		for _, tail := range []int{0, 10, 5000, 70_000} {
			for what, b := range map[string][]byte{"registered": mem[:n], "other": make([]byte, n)} {
				clear(b)
				if err := echo(t.Context(), c, echoGet, b, tail); err != nil {
					t.Errorf("getting %d and %d, %s memory: %v", n, tail, what, err)
				}
				shut(t, c)
				if err := store(c, fill(b), tail); err != nil {
					t.Errorf("putting %d and %d, %s memory: %v", n, tail, what, err)
				}
				shut(t, c)
			}
		}
	}
}

// together is calls of several at once.
func together(t *testing.T, c *Client) {
	t.Helper()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			b := make([]byte, 200_000)
			for i := range 20 {
				n := (g*7919 + i*104729) % len(b)
				if err := errors.Join(echo(t.Context(), c, echoGet, b[:n], n%9000), store(c, fill(b[:n]), n%9000)); err != nil {
					t.Errorf("%d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	shut(t, c)
}

func noErrors(t *testing.T, l *Listener) {
	t.Helper()
	for k, n := range l.Stats().Errors {
		if n != 0 && k != "rpcrdma_waited_for_memory" {
			t.Errorf("%s: %d", k, n)
		}
	}
}

// TestWindowsShortQueue: calls wait for their places in a short send queue.
func TestWindowsShortQueue(t *testing.T) {
	_, at, _ := serveEcho(t)
	c := dialLesser(t, at, rdma.Limits{Windows: true, WRs: 2 * windowRequests}, ClientConfig{})
	if c.win == nil || c.entries != 2*windowRequests {
		t.Fatalf("%d entries", c.entries)
	}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if err := echo(t.Context(), c, echoGet, make([]byte, 9000), 9000); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	shut(t, c)
}

// TestWindowsGivenUp: the memory of a call that is given up is closed before its caller hears of
// it, and a server that answers all the same loses the connection, and every call on it ends.
func TestWindowsGivenUp(t *testing.T) {
	_, at, w := serveEcho(t)
	c := dialLesser(t, at, rdma.Limits{Windows: true}, ClientConfig{})
	if err := store(c, nil, 0); err != nil { // whose reply brings credits
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	const n = 100_000
	given, other := make(chan error, 1), make(chan error, 1)
	go func() { given <- echo(ctx, c, echoWait, make([]byte, n), 0) }()
	<-w.there
	go func() { other <- echo(t.Context(), c, echoWait, make([]byte, n), 0) }()
	<-w.there
	var wins []*window
	done := make(chan struct{})
	c.loop.Submit(func() {
		for _, x := range c.calls {
			wins = append(wins, x.wins...)
		}
		close(done)
	})
	<-done
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	open := 0
	for _, win := range wins {
		if win.mw.Rekey() != 0 { // that of a window that is closed is 0
			open++
		}
	}
	if len(wins) != 2 || open != 1 {
		t.Errorf("of %d windows %d are there", len(wins), open)
	}
	w.on <- struct{}{}
	w.on <- struct{}{}
	var lost *rpc.ConnError
	if err := <-other; err != nil && !errors.As(err, &lost) {
		t.Errorf("the other call: %v", err)
	}
	for i := 0; c.Err() == nil; i++ {
		if time.Sleep(10 * time.Millisecond); i == 2000 {
			t.Fatal("the connection is there, though the server has written to memory that is closed")
		}
	}
}

// TestNoWindows: where there are no windows and the peer cannot invalidate regions, the server is
// told so, and memory is opened by registering it.
func TestNoWindows(t *testing.T) {
	l, at, _ := serveEcho(t)
	c := dialLesser(t, at, rdma.Limits{WRs: 300, CQEs: 600, RdAtomic: 4}, ClientConfig{})
	info := l.Conns()[0]
	if c.win != nil || info.RemoteInvalidation || info.ReadDepth != 4 {
		t.Fatalf("%+v", info)
	}
	for _, n := range []int{0, 5000, 300_001} {
		for _, tail := range []int{0, 70_000} {
			if err := errors.Join(echo(t.Context(), c, echoGet, make([]byte, n), tail),
				store(c, fill(make([]byte, n)), tail)); err != nil {
				t.Errorf("%d and %d: %v", n, tail, err)
			}
		}
	}
	if l.Stats().Messages["sent_with_invalidate"] != 0 {
		t.Error("the server has invalidated keys")
	}
}

// TestOverVerbs: server and client over devices of the kernel, whatever they offer.
func TestOverVerbs(t *testing.T) {
	text := os.Getenv("RDMA_TEST_ADDRS")
	if text == "" {
		t.Skip("RDMA_TEST_ADDRS names no addresses of RDMA devices: the guests' cases do")
	}
	var devs []rdma.Device
	for _, s := range strings.Split(text, ",") {
		d, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr(s)})
		if err != nil {
			t.Fatal(err)
		}
		devs = append(devs, d)
	}
	l, at, w := serveEchoOn(t, devs[0])
	c := dialOn(t, devs[1], at, ClientConfig{})
	lim := rdma.LimitsOf(devs[1])
	if info := l.Conns()[0]; (c.win != nil) != lim.Windows || info.RemoteInvalidation != lim.Windows {
		t.Errorf("the device has %+v; the connection: %+v", lim, info)
	}
	mem := make([]byte, 1<<20)
	release, err := c.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	traffic(t, c, mem)
	if n := l.Stats().Messages["sent_with_invalidate"]; (n > 0) != lim.Windows {
		t.Errorf("the server has sent %d messages that invalidate", n)
	}
	release()
	together(t, c)
	noErrors(t, l)
	// A call that is given up, and answered all the same.
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() { given <- echo(ctx, c, echoWait, make([]byte, 100_000), 0) }()
	<-w.there
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	w.on <- struct{}{}
	for i := 0; c.Err() == nil; i++ {
		if time.Sleep(10 * time.Millisecond); i == 2000 {
			t.Fatal("the connection is there, though the server has written to memory that is closed")
		}
	}
}

// TestWithin: a connection asks for no more than a device has.
func TestWithin(t *testing.T) {
	small := rdma.Limits{WRs: 600, CQEs: 1000, RdAtomic: 2}
	if c := (Config{Credits: 4096}).withDefaults().within(small); c.ReadDepth != 2 || c.Credits < 8 ||
		c.ReadDepth+sendQueueMin+2*c.Credits+1+rpc.BackwardCalls > small.WRs || receives(c.Credits) > small.WRs ||
		receives(c.Credits)+2*c.ReadDepth+sendQueueMin+2*c.Credits+1+rpc.BackwardCalls > small.CQEs {
		t.Errorf("a server: %+v", c)
	}
	if c := (ClientConfig{Credits: 4096}).withDefaults().within(small); c.ReadDepth != 2 ||
		c.Credits+backwardReceives+1 > small.WRs ||
		2*(c.Credits+backwardReceives)+1 > small.CQEs {
		t.Errorf("a client: %+v", c)
	}
	if c := (Config{}).withDefaults(); c != c.within(rdma.Limits{}) {
		t.Error("limits that are not known limit something")
	}
}
