package rpcrdma

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// lesser is a device that reports fewer features than it has.
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

// waiter is the place where calls of echoWait report that they have arrived, and wait.
type waiter struct{ there, on chan struct{} }

// serveEcho serves over the software device, on the loopback interface.
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

// shut checks that no memory is open after a call.
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
		// The SEND may not have completed yet.
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

// TestWindows: each call binds windows. When it returns they are closed, by the server's
// invalidation or by the client.
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
