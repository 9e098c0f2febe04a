package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
)

// IBTA reject reasons that the tests know.
const (
	rejectService  = 8
	rejectConsumer = 28
)

func testConnect(t *testing.T, open Provider) {
	asked := make(chan string, 1)
	cfg := endpoint.Config{
		Params: rdma.ConnParams{PrivateData: []byte("a few words"), ResponderResources: 7, InitiatorDepth: 3},
		Admit: func(r rdma.ConnRequest) (uint16, []byte) {
			if r.ResponderResources() != 7 || r.InitiatorDepth() != 3 || r.PathMTU().Code() == 0 {
				t.Errorf("the request offers %d and %d at MTU %d", r.ResponderResources(), r.InitiatorDepth(), r.PathMTU())
			}
			asked <- string(bytes.TrimRight(r.PrivateData(), "\x00"))
			return 0, nil
		},
	}
	p := newPair(t, open, cfg)
	if got := <-asked; got != "a few words" {
		t.Errorf("private data of the request %q", got)
	}
	if got := string(bytes.TrimRight(p.a.PrivateData(), "\x00")); got != "a few words" {
		t.Errorf("private data of the reply %q", got)
	}
	// Each side starts no more READs than the other side serves.
	for i, c := range []*endpoint.Conn{p.a, p.b} {
		if e := c.Negotiated(); e.InitiatorDepth != 3 || e.ResponderResources != 3 || e.PathMTU.Code() == 0 {
			t.Errorf("side %d negotiated %+v", i, e)
		}
	}
	p.a.Loop().Submit(func() {
		if s := p.a.QP().State(); s != rdma.StateRTS {
			t.Errorf("the queue pair is in %v", s)
		}
	})
	settle(p.a)
}

func testReject(t *testing.T, open Provider) {
	server, client := open(t), open(t)
	l, err := endpoint.Listen(server, port, endpoint.Config{
		Admit: func(rdma.ConnRequest) (uint16, []byte) { return rejectConsumer, []byte("not you") },
	})
	ok(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = endpoint.Dial(ctx, client, l.Addr(), endpoint.Config{})
	var r *endpoint.RejectedError
	if !errors.As(err, &r) || r.Reason != rejectConsumer || string(bytes.TrimRight(r.PrivateData, "\x00")) != "not you" {
		t.Errorf("got %v", err)
	}
}

func testNothingListens(t *testing.T, open Provider) {
	server, client := open(t), open(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := endpoint.Dial(ctx, client, netip.AddrPortFrom(server.Addr(), port), endpoint.Config{})
	var r *endpoint.RejectedError
	if !errors.As(err, &r) || r.Reason != rejectService {
		t.Errorf("got %v", err)
	}
}

func testListenTwice(t *testing.T, open Provider) {
	d := open(t)
	l, err := endpoint.Listen(d, port, endpoint.Config{})
	ok(t, err)
	if _, err := endpoint.Listen(d, port, endpoint.Config{}); err == nil {
		t.Error("two listeners share a port")
	}
	ok(t, l.Close())
	if l.Close() == nil {
		t.Error("a listener was closed twice")
	}
	l, err = endpoint.Listen(d, port, endpoint.Config{})
	ok(t, err)
	ok(t, l.Close())
}

func testDisconnect(t *testing.T, open Provider) {
	for i, name := range []string{"by the active side", "by the passive side", "by both"} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, open, endpoint.Config{})
			m := p.region(p.a, 64, 1, anyAccess)
			if i != 1 {
				p.a.Disconnect()
			}
			if i != 0 {
				p.b.Disconnect()
			}
			_ = over(t, p.a)
			_ = over(t, p.b)
			_, err := p.a.Do(p.ctx, rdma.SendWR{Op: rdma.OpSend, SGL: whole(m)})
			var e *endpoint.Error
			if !errors.As(err, &e) || e.Status != rdma.WRFlushErr {
				t.Errorf("a request after the end: %v", err)
			}
			if _, err := p.b.Recv(p.ctx); err == nil {
				t.Error("a message after the end")
			}
		})
	}
}

func testDeviceClosed(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	ok(t, p.devs[1].Close())
	start := time.Now()
	_ = over(t, p.b)
	_ = over(t, p.a)
	if d := time.Since(start); d > patience/4 {
		t.Errorf("the peer of a closed device found out after %v", d)
	}
	if p.devs[1].Close() == nil {
		t.Error("a device was closed twice")
	}
	if p.devs[1].Loops()[0].Submit(func() {}) {
		t.Error("the loop of a closed device takes work")
	}
}

func testDialAbandoned(t *testing.T, open Provider) {
	server, client := open(t), open(t)
	hold := make(chan rdma.ConnRequest, 1)
	l, err := server.Listen(port, func(r rdma.ConnRequest) { hold <- r })
	ok(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := endpoint.Dial(ctx, client, l.Addr(), endpoint.Config{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	// The server can still answer a request whose client has given up.
	r := <-hold
	done := make(chan struct{})
	r.Loop().Submit(func() { r.Reject(rejectConsumer, nil); r.Reject(rejectConsumer, nil); close(done) })
	<-done
}

func testManyConnections(t *testing.T, open Provider) {
	n := 100
	if testing.Short() {
		n = 20
	}
	p := newPair(t, open, endpoint.Config{})
	var all sync.WaitGroup
	for i := range n {
		a, b := p.connect(endpoint.Config{RecvDepth: 4})
		src, dst := p.region(a, 100_000, byte(i), rdma.LocalWrite), p.region(b, 100_000, byte(i+1), anyAccess)
		all.Go(func() {
			for range 3 {
				if err := a.Write(p.ctx, src, 0, len(src.Bytes()), endpoint.RemoteOf(dst)); err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				if err := a.Send(p.ctx, src, 0, 100); err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				if _, err := b.Recv(p.ctx); err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
			}
			settle(b)
			if !bytes.Equal(src.Bytes(), dst.Bytes()) {
				t.Errorf("connection %d: the memories differ", i)
			}
		})
	}
	all.Wait()
}

func testLoop(t *testing.T, open Provider) {
	d := open(t)
	for _, l := range d.Loops() {
		order := make(chan int, 16)
		l.Submit(func() {
			l.After(30*rdma.Millisecond, func() { order <- 3 })
			l.After(5*rdma.Millisecond, func() { order <- 2 })
			cancel := l.After(10*rdma.Millisecond, func() { order <- 9 })
			l.Submit(func() { order <- 1 })
			order <- 0
			cancel()
			cancel()
		})
		for want := range 4 {
			if got := await(t, order, fmt.Sprintf("step %d does not come", want)); got != want {
				t.Errorf("step %d came when %d was due", got, want)
			}
		}
	}
}
