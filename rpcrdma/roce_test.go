package rpcrdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
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

// serveRoCE serves a program of two procedures over the software device, on the loopback interface.
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
		t.Fatal(err)
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
		t.Fatal(err)
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
			wg.Go(func() {
				for _, n := range []int{0, 1, 100, 4000, 4097, 65537 + g, 300_000, size} {
					b := bytes.Repeat([]byte{19}, n)
					if err := put(c, b); err != nil {
						t.Errorf("put %d: %v", n, err)
					}
					if err := get(c, b); err != nil {
						t.Errorf("get %d: %v", n, err)
					}
				}
			})
		}
	}
	wg.Wait()
	for i := 0; l.Stats().MemoryInUse != 0 && i < 6000; i++ { // the last ACKs
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

// loan is memory that the transport borrows.
type loan struct {
	b   []byte
	out *loans
}

// loans counts loans, and those that were released.
type loans struct{ given, back atomic.Int64 }

func (l *loan) Bytes() []byte              { return l.b }
func (l *loan) Copy(dst, src []byte) error { copy(dst, src); return nil }
func (l *loan) Release() {
	if l.b == nil {
		panic("released twice")
	}
	l.b = nil
	l.out.back.Add(1)
}

// TestBorrow: borrowed memory is released once, however the call ends. Only a result with a Write
// chunk of its own is borrowed.
func TestBorrow(t *testing.T) {
	const (
		procLend = iota + 1
		procLendAndFail
		procLendAndDrop
		procLendElsewhere
	)
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i >> 8)
	}
	var out loans
	lend := func(c *rpc.Call, n int) bool {
		if !c.Borrows(n) {
			return false
		}
		out.given.Add(1)
		c.Borrow(&loan{data[:n:n], &out})
		return true
	}
	result := func(st rpc.Status) func(*rpc.Call, bool) rpc.Status {
		return func(c *rpc.Call, _ bool) rpc.Status {
			n := int(c.Args.Uint32())
			if !lend(c, n) {
				c.Res.Bulk(bytes.Clone(data[:n]))
			}
			if st == rpc.Done && c.Borrows(1) {
				return rpc.Failed // there is one chunk
			}
			return st
		}
	}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
		{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
		procLend:          {Name: "LEND", Inline: true, Serve: result(rpc.Done)},
		procLendAndFail:   {Name: "FAIL", Inline: true, Serve: result(rpc.Failed)},
		procLendAndDrop:   {Name: "DROP", Inline: true, Serve: result(rpc.Drop)},
		procLendElsewhere: {Name: "WORKER", Mutates: true, Serve: result(rpc.Done)},
	}}}})
	defer srv.Close()
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	l, err := rpcrdma.Serve(dev, 20049, srv, rpcrdma.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := dialRoCE(t, netip.AddrPortFrom(dev.Addr(), 20049))
	call := func(ctx context.Context, proc uint32, n int) error {
		dst := make([]byte, n)
		return c.Call(ctx, &rpc.Request{
			Prog: prog, Vers: 1, Proc: proc, Dst: dst,
			Args: func(e *xdr.Encoder) { e.Uint32(uint32(n)) },
			Res: func(d *xdr.Decoder) error {
				if b := d.Bulk(size); d.Err() != nil || !bytes.Equal(b, data[:n]) {
					return fmt.Errorf("%d bytes, %v", len(b), d.Err())
				}
				return nil
			},
		})
	}
	for _, k := range []struct {
		name string
		proc uint32
		n    int
		lent int64
		fail bool
	}{
		{"lent", procLend, size, 1, false},
		{"not of whole pages", procLend, 70001, 1, false},
		{"not sent", procLendAndFail, size, 1, true},
		{"of a reply that is kept", procLendElsewhere, size, 0, false},
	} {
		was := out.given.Load()
		if err := call(t.Context(), k.proc, k.n); (err != nil) != k.fail {
			t.Errorf("%s: %v", k.name, err)
		}
		if n := out.given.Load() - was; n != k.lent {
			t.Errorf("%s: %d lent", k.name, n)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _ = call(ctx, procLendAndDrop, size) })
		wg.Go(func() {
			for ctx.Err() == nil {
				if call(ctx, procLend, size) != nil {
					return
				}
			}
		})
	}
	for out.given.Load() < 40 {
		if err := call(t.Context(), procLend, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil { // with calls in flight
		t.Error(err)
	}
	cancel()
	wg.Wait()
	if given, back := out.given.Load(), out.back.Load(); given != back {
		t.Errorf("%d were lent, %d came back", given, back)
	}
	if n := l.Stats().LentBytes; n < 3*size {
		t.Errorf("%d bytes counted", n)
	}
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
		if time.Sleep(10 * time.Millisecond); i == 6000 {
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
				wg.Go(func() {
					buf := bytes.Repeat([]byte{19}, k.n)
					for i := g; i < b.N; i += k.par {
						if err := k.do(c, buf); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
