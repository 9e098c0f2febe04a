package rpcrdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

func TestForward(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	ctx := context.Background()

	for i, n := range []int{1, 3000, 5001, 1 << 20} { // arguments
		data := make([]byte, n)
		pattern(data, 0)
		var e xdr.Encoder
		xid := uint32(1000 + i)
		rpc.EncodeCall(&e, xid, testProg, testVers, procPut, nil)
		e.Uint32(1)
		e.Opaque(data)
		e.Uint32(0xabcd)
		at := len(e.B) - 4 - padded(n)
		for _, h := range []ForwardHints{{}, {ArgAt: at, ArgLen: n}} {
			b, err := c.Forward(ctx, e.B, h)
			if err != nil {
				t.Fatalf("%d %+v: %v", n, h, err)
			}
			d := xdr.NewDecoder(b)
			if err := rpc.DecodeReply(&d, xid); err != nil || d.Uint32() != sum(data) || d.Remaining() != 4 {
				t.Errorf("%d %+v: %v", n, h, err)
			}
		}
	}
	for i, n := range []int{1, 3000, 5001, 1 << 20} { // results
		want := make([]byte, n)
		pattern(want, 0)
		xid := uint32(2000 + i)
		for _, h := range []ForwardHints{{ResMax: 2 << 20}, {BulkMax: n, BulkAt: func(b []byte) int { return len(b) - 4 }}} {
			b, err := c.Forward(ctx, rawCall(xid, procGet, 1, uint32(n)), h)
			if err != nil {
				t.Fatal(err)
			}
			d := xdr.NewDecoder(b)
			if err := rpc.DecodeReply(&d, xid); err != nil || !bytes.Equal(d.Opaque(1<<21), want) || d.Uint32() != 0xabcd || d.Remaining() != 0 {
				t.Errorf("%d: %v", n, err)
			}
		}
		// A bulk result that ends the reply lands in its place.
		var e xdr.Encoder
		rpc.EncodeCall(&e, xid, testProg, testVers, procEcho, nil)
		e.Opaque(want)
		b, err := c.Forward(ctx, e.B, ForwardHints{BulkMax: n})
		d := xdr.NewDecoder(b)
		if err != nil || rpc.DecodeReply(&d, xid) != nil || !bytes.Equal(d.Opaque(1<<21), want) || d.Remaining() != 0 {
			t.Errorf("%d: %v", n, err)
		}
	}
	for _, b := range [][]byte{nil, {1, 2, 3}, make([]byte, 9), words(1, 1, 2)} {
		if _, err := c.Forward(ctx, b, ForwardHints{}); err == nil {
			t.Errorf("%x was forwarded", b)
		}
	}
	for _, h := range []ForwardHints{{ArgAt: 4, ArgLen: 4}, {ArgAt: 1 << 40, ArgLen: 4}, {ArgAt: 40, ArgLen: 1 << 62}, {ArgAt: -8, ArgLen: 1 << 62}} {
		if _, err := c.Forward(ctx, rawCall(3000, procNull), h); err != nil {
			t.Errorf("a bad hint %+v: %v", h, err)
		}
	}
}

func TestForwardSameXID(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	if err := put(c, 1); err != nil { // credits
		t.Fatal(err)
	}
	w.inUse(0)
	failed := make(chan error)
	go func() {
		_, err := c.Forward(context.Background(), rawCall(5, procWait), ForwardHints{})
		failed <- err
	}()
	w.inUse(1)
	if _, err := c.Forward(context.Background(), rawCall(5, procNull), ForwardHints{}); !errors.Is(err, ErrXIDInUse) {
		t.Error(err)
	}
	close(w.svc.gate)
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// cutGet cuts the first item out of the reply of GET.
func cutGet(_, _, proc uint32, reply []byte) (at, n int) {
	if proc != procGet || len(reply) < 28 {
		return 0, 0
	}
	return 28, int(binary.BigEndian.Uint32(reply[24:]))
}

func TestProxy(t *testing.T) {
	svc := &service{gate: make(chan struct{})}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: svc.programs(), Workers: 4})
	defer srv.Close()
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	behind := tcp.Serve(nl, srv)
	defer behind.Close()
	n := newFakeNet()
	dev := n.device("192.0.2.1")
	defer dev.Close()
	p := &Proxy{Cut: cutGet, Dial: func(ctx context.Context, _ rpc.Peer) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", nl.Addr().String())
	}}
	l, err := p.Serve(dev, port, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := &world{t: t, net: n}
	c := w.dial("192.0.2.9", ClientConfig{})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for _, n := range []int{0, 1, 5000 + g, 200_000 + g, 1 << 20} {
				for what, err := range map[string]error{"put": put(c, n), "get": get(c, n, n, 0), "text": text(c, n, n+4), "puts": put(c, n, 3, n/2)} {
					if err != nil && !(what == "puts" && n == 1<<20) { // longer than allowed
						t.Errorf("%s %d: %v", what, n, err)
					}
				}
			}
		}()
	}
	wg.Wait()
	if s := l.Stats(); s.RDMAWriteBytes < 8<<20 || s.RDMAReadBytes < 8<<20 {
		t.Errorf("%d bytes written, %d read", s.RDMAWriteBytes, s.RDMAReadBytes)
	}
	// The end of the server behind is the end of the connection, also for
	// calls in progress.
	failed := make(chan error)
	go func() { failed <- c.Call(context.Background(), request(procWait, nil, nil)) }()
	time.Sleep(20 * time.Millisecond)
	go behind.Close()
	var lost *rpc.ConnError
	if err := <-failed; !errors.As(err, &lost) {
		t.Errorf("%v, want a ConnError", err)
	}
	close(svc.gate)
}

func TestProxyWithoutServerBehind(t *testing.T) {
	n := newFakeNet()
	dev := n.device("192.0.2.1")
	defer dev.Close()
	p := &Proxy{Dial: func(context.Context, rpc.Peer) (net.Conn, error) { return nil, fmt.Errorf("nobody home") }}
	l, err := p.Serve(dev, port, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cdev := n.device("192.0.2.9")
	defer cdev.Close()
	c, err := Dial(context.Background(), cdev, serverAddr, ClientConfig{})
	if err == nil {
		defer c.Close()
		err = put(c, 1)
	}
	var lost *rpc.ConnError
	if !errors.As(err, &lost) {
		t.Errorf("%v, want a ConnError", err)
	}
}
