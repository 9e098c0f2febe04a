package rpcrdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

func TestReplyTooLong(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	for _, err := range []error{
		text(c, 10_000, 100),
		text(c, 10_000, 5_000),
		get(c, 10_000, 5_000, 0),
	} {
		var remote *RemoteError
		if !errors.As(err, &remote) || remote.Code != CodeChunk {
			t.Errorf("%v, want ERR_CHUNK", err)
		}
	}
	if err := text(c, 10, 100); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if n := w.l.Stats().Errors["rpcrdma_reply_too_long"]; n != 3 {
		t.Errorf("counted %d", n)
	}
}

func TestArgumentsByReferenceInReply(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	for _, n := range []int{1, 100, 3900, 5000, 100_000} {
		b := make([]byte, n)
		pattern(b, 1)
		r := request(procEcho, func(e *xdr.Encoder) { e.Bulk(b) }, func(d *xdr.Decoder) error {
			if !bytes.Equal(d.Opaque(1<<20), b) {
				return errors.New("wrong data")
			}
			return nil
		})
		r.Dst = make([]byte, n)
		if err := c.Call(context.Background(), r); err != nil {
			t.Errorf("%d: %v", n, err)
		}
		r.Dst = make([]byte, max(n, 8192)) // arguments inline, result in a chunk
		if err := c.Call(context.Background(), r); err != nil {
			t.Errorf("%d: %v", n, err)
		}
	}
}

func TestManyCallers(t *testing.T) {
	for _, credits := range []int{1, 2, 16, 128, 4000} {
		t.Run(fmt.Sprint(credits), func(t *testing.T) {
			w := newWorld(t, Config{Credits: min(credits, 64), ConnMemory: 1, Memory: 1})
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			var wg sync.WaitGroup
			for k := range 2 {
				c := w.dial(fmt.Sprintf("192.0.2.%d", 10+k), ClientConfig{Credits: credits})
				for g := range 24 {
					wg.Go(func() {
						rnd := rand.New(rand.NewPCG(seed, uint64(k*100+g)))
						for range 10 {
							n := rnd.IntN(1<<20) >> rnd.IntN(18)
							var err error
							switch rnd.IntN(4) {
							case 0:
								err = put(c, n)
							case 1:
								err = get(c, n, n, 0)
							case 2:
								err = text(c, n>>4, n>>4+4)
							case 3:
								err = put(c, n>>2, n>>3, 1)
							}
							if err != nil {
								t.Errorf("%d: %v", n, err)
							}
						}
					})
				}
			}
			wg.Wait()
			for _, i := range w.l.Conns() {
				if i.Credits > 64 || i.Credits < 1 || i.Calls != 240 {
					t.Errorf("%+v", i)
				}
			}
		})
	}
}

func TestCancel(t *testing.T) {
	w := newWorld(t, Config{Credits: 2})
	c := w.dial("192.0.2.9", ClientConfig{})
	if err := put(c, 1); err != nil {
		t.Fatal(err)
	}
	w.inUse(0)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for range 5 { // two in flight, three waiting for credits
		wg.Go(func() {
			if err := c.Call(ctx, request(procWait, nil, nil)); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	w.inUse(2)
	cancel()
	wg.Wait()
	again := make(chan error)
	go func() { again <- put(c, 1) }() // only the late replies free the credits
	select {
	case err := <-again:
		t.Fatalf("a credit was used twice: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(w.svc.gate)
	if err := <-again; err != nil {
		t.Fatal(err)
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

func TestCancelledMemoryIsClosed(t *testing.T) {
	w := newWorld(t, Config{})
	dev := w.net.device("192.0.2.9")
	defer dev.Close()
	c, err := Dial(context.Background(), dev, serverAddr, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	dst := make([]byte, 8192)
	r := request(procWait, nil, nil)
	r.Dst = dst
	failed := make(chan error)
	go func() { failed <- c.Call(ctx, r) }()
	w.inUse(1)
	if _, remote := c.pd.(*fakePD).open(); remote != 1 {
		t.Errorf("%d regions open during the call", remote)
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, remote := c.pd.(*fakePD).open(); remote != 0 {
		t.Errorf("%d regions open after it", remote)
	}
	close(w.svc.gate)
}

// TestRegisteredMemory: each call opens a part of registered memory, and closes it afterwards.
func TestRegisteredMemory(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	buf := make([]byte, 1<<20)
	release, err := c.Register(buf)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		const n = 100_000
		dst, want := buf[i*n:][:n], make([]byte, n)
		pattern(want, 0)
		r := request(procGet, func(e *xdr.Encoder) {
			e.Uint32(1)
			e.Uint32(n)
		}, func(d *xdr.Decoder) error {
			if b := d.Bulk(n); len(b) != n || &b[0] != &dst[0] {
				return fmt.Errorf("%d bytes, or elsewhere", len(b))
			}
			return nil
		})
		r.Dst = dst
		if err := c.Call(context.Background(), r); err != nil || !bytes.Equal(dst, want) {
			t.Fatalf("call %d: %v, or wrong data", i, err)
		}
	}
	if err := put(c, 100_000); err != nil {
		t.Error(err)
	}
	if all, remote := c.pd.(*fakePD).open(); all != 2 || remote != 0 {
		t.Errorf("%d regions between calls, %d of them open to the server; want 2 and none", all, remote)
	}
	release()
	c.loop.Submit(func() {})
	done := make(chan struct{})
	c.loop.Submit(func() { close(done) })
	<-done
	if all, _ := c.pd.(*fakePD).open(); all != 1 {
		t.Errorf("%d regions after release", all)
	}
}

func TestServerCloses(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	failed := make(chan error)
	go func() { failed <- c.Call(context.Background(), request(procWait, nil, nil)) }()
	w.inUse(1)
	closed := make(chan error)
	go func() { closed <- w.l.Close() }()
	var lost *rpc.ConnError
	if err := <-failed; !errors.As(err, &lost) {
		t.Fatalf("%v, want a ConnError", err)
	}
	select {
	case <-closed:
		t.Fatal("closed with a call in progress")
	case <-time.After(20 * time.Millisecond):
	}
	close(w.svc.gate)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if err := put(c, 1); !errors.As(err, &lost) {
		t.Fatal(err)
	}
}

func TestShutdownFinishesCalls(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	result := make(chan error)
	go func() { result <- c.Call(context.Background(), request(procWait, nil, nil)) }()
	w.inUse(1)
	done := make(chan error)
	go func() { done <- w.l.Shutdown(context.Background()) }()
	time.Sleep(20 * time.Millisecond)
	close(w.svc.gate)
	if err := <-result; err != nil {
		t.Errorf("the call in progress: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestReplyCacheAcrossConnections(t *testing.T) {
	w := newWorld(t, Config{})
	w.svc.first = make(chan struct{})
	once := func(c *Client, room int) (n uint32, err error) {
		r := request(procOnce, nil, func(d *xdr.Decoder) error {
			n = d.Uint32()
			want := make([]byte, 5000)
			pattern(want, 9)
			if !bytes.Equal(d.Bulk(5000), want) {
				return errors.New("wrong data")
			}
			return nil
		})
		r.XID, r.Dst = 4711, make([]byte, room)
		err = c.Call(context.Background(), r)
		return n, err
	}
	until := func(what string, ok func() bool) {
		for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Error("not within 30 s: " + what)
				return
			}
		}
	}
	a := w.dial("192.0.2.9", ClientConfig{})
	lost := make(chan error, 1)
	go func() {
		_, err := once(a, 5000)
		lost <- err
	}()
	until("the execution", func() bool { return w.svc.counted.Load() == 1 })
	a.Close()
	if <-lost == nil {
		t.Fatal("a closed connection brought an answer")
	}
	b := w.dial("192.0.2.9", ClientConfig{})
	go func() {
		until("the call, sent again", func() bool { return w.srv.Stats().Procs[0].Retransmits == 1 })
		close(w.svc.first)
	}()
	// The cache has the RPC message. The chunks of the new call decide where the data goes.
	if n, err := once(b, 0x4000); n != 1 || err != nil {
		t.Errorf("execution %d, %v", n, err)
	}
	until("the acknowledgment", func() bool {
		for _, c := range w.l.Conns() {
			if c.InUse > 0 {
				return false
			}
		}
		return true
	})
	if n, err := once(w.dial("192.0.2.9", ClientConfig{}), 5000); n != 2 || err != nil {
		t.Errorf("another process got the reply of the first: %d, %v", n, err)
	}
	if n, err := once(w.dial("192.0.2.10", ClientConfig{}), 5000); n != 3 || err != nil {
		t.Errorf("another client got the reply of the first: %d, %v", n, err)
	}
}

func TestDialErrors(t *testing.T) {
	n := newFakeNet()
	dev := n.device("192.0.2.9")
	defer dev.Close()
	var lost *rpc.ConnError
	if _, err := Dial(context.Background(), dev, serverAddr, ClientConfig{}); !errors.As(err, &lost) ||
		!strings.Contains(err.Error(), "192.0.2.1:20049") {
		t.Error(err)
	}
	full := newWorld(t, Config{MaxConns: 1})
	full.dial("192.0.2.9", ClientConfig{})
	dev = full.net.device("192.0.2.10")
	defer dev.Close()
	if _, err := Dial(context.Background(), dev, serverAddr, ClientConfig{}); !errors.As(err, &lost) {
		t.Error(err)
	}
	refused := func() uint64 { return full.l.Stats().Errors["rpcrdma_connection_refused"] }
	for deadline := time.Now().Add(10 * time.Second); refused() == 0 && time.Now().Before(deadline); {
		runtime.Gosched() // the client may see the reply before it is counted
	}
	if n := refused(); n != 1 {
		t.Errorf("counted %d refused connections", n)
	}
}
