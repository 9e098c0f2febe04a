package rpcrdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

const (
	prog    = 200400
	procGet = 1
	procPut = 2
	size    = 1 << 20
)

// serveRoCE serves a program of two procedures over packets on the loopback.
func serveRoCE(t testing.TB) (*rpcrdma.Listener, netip.AddrPort) {
	t.Helper()
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
		{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
		procGet: {Name: "GET", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			n := int(c.Args.Uint32())
			p := c.Payload(n)
			if c.Args.Err() != nil || p == nil {
				return rpc.Garbage
			}
			if n > 0 {
				p[0], p[n-1] = 17, 18
			}
			c.Res.Bulk(p)
			return rpc.Done
		}},
		procPut: {Name: "PUT", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			b := c.Args.Opaque(size)
			if c.Args.Err() != nil || len(b) > 0 && b[len(b)-1] != 19 {
				return rpc.Garbage
			}
			c.Res.Uint32(uint32(len(b)))
			return rpc.Done
		}},
	}}}})
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		t.Skip(err)
	}
	l, err := rpcrdma.Serve(dev, 20049, srv, rpcrdma.Config{})
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
	return l, netip.AddrPortFrom(dev.Addr(), 20049)
}

func dialRoCE(t testing.TB, at netip.AddrPort) *rpcrdma.Client {
	t.Helper()
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := rpcrdma.Dial(ctx, dev, at, rpcrdma.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		dev.Close()
	})
	return c
}

func get(c rpc.Client, dst []byte) error {
	return c.Call(context.Background(), &rpc.Request{
		Prog: prog, Vers: 1, Proc: procGet, Dst: dst,
		Args: func(e *xdr.Encoder) { e.Uint32(uint32(len(dst))) },
		Res: func(d *xdr.Decoder) error {
			b := d.Bulk(size)
			if n := len(b); d.Err() != nil || n != len(dst) || n > 0 && (b[n-1] != 18 || n > 1 && b[0] != 17) {
				return fmt.Errorf("%d bytes, %v", n, d.Err())
			}
			return nil
		},
	})
}

func put(c rpc.Client, b []byte) error {
	return c.Call(context.Background(), &rpc.Request{
		Prog: prog, Vers: 1, Proc: procPut,
		Args: func(e *xdr.Encoder) { e.Bulk(b) },
		Res: func(d *xdr.Decoder) error {
			if n := int(d.Uint32()); n != len(b) {
				return fmt.Errorf("%d bytes arrived", n)
			}
			return nil
		},
	})
}

func TestOverPackets(t *testing.T) {
	l, at := serveRoCE(t)
	var wg sync.WaitGroup
	for range 2 {
		c := dialRoCE(t, at)
		for g := range 8 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for _, n := range []int{0, 1, 100, 4000, 4097, 65537 + g, 300_000, size} {
					b := bytes.Repeat([]byte{19}, n)
					if err := put(c, b); err != nil {
						t.Errorf("put %d: %v", n, err)
					}
					if err := get(c, b); err != nil {
						t.Errorf("get %d: %v", n, err)
					}
				}
			}()
		}
	}
	wg.Wait()
	for i := 0; l.Stats().MemoryInUse != 0 && i < 500; i++ { // the last acknowledgements
		time.Sleep(10 * time.Millisecond)
	}
	if s := l.Stats(); s.RDMAWriteBytes < 16*size || s.RDMAReadBytes < 16*size || s.MemoryInUse != 0 {
		t.Errorf("%+v", s)
	}
	for k, n := range l.Stats().Errors {
		if n != 0 && k != "rpcrdma_waited_for_memory" {
			t.Errorf("%s: %d", k, n)
		}
	}
	c := dialRoCE(t, at)
	closed := make(chan error)
	go func() { closed <- l.Close() }()
	defer func() {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}()
	var lost *rpc.ConnError
	for range 1000 {
		if err := put(c, nil); err != nil {
			if !errors.As(err, &lost) {
				t.Error(err)
			}
			return
		}
	}
	t.Error("the server closed and still answers")
}

func TestOrdinaryEndIsNoError(t *testing.T) {
	l, at := serveRoCE(t)
	c := dialRoCE(t, at)
	if err := put(c, bytes.Repeat([]byte{19}, size)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := put(c, nil); !errors.Is(err, rpc.ErrClosed) {
		t.Errorf("%v, want closed", err)
	}
	for i := 0; len(l.Conns()) != 0; i++ {
		if time.Sleep(10 * time.Millisecond); i == 500 {
			t.Fatal("the server does not notice")
		}
	}
	for k, n := range l.Stats().Errors {
		if n != 0 {
			t.Errorf("%s: %d", k, n)
		}
	}
}

func BenchmarkRoCE(b *testing.B) {
	for _, k := range []struct {
		name    string
		n, par  int
		do      func(rpc.Client, []byte) error
		latency bool
	}{
		{"get/0", 0, 1, get, true},
		{"get/4096", 4096, 1, get, true},
		{"put/4096", 4096, 1, put, true},
		{"get/4096x16", 4096, 16, get, false},
		{"get/1MiBx4", size, 4, get, false},
		{"put/1MiBx4", size, 4, put, false},
	} {
		b.Run(k.name, func(b *testing.B) {
			_, at := serveRoCE(b)
			c := dialRoCE(b, at)
			b.SetBytes(int64(k.n))
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for g := range k.par {
				wg.Add(1)
				go func() {
					defer wg.Done()
					buf := bytes.Repeat([]byte{19}, k.n)
					for i := g; i < b.N; i += k.par {
						if err := k.do(c, buf); err != nil {
							b.Error(err)
							return
						}
					}
				}()
			}
			wg.Wait()
		})
	}
}
