package tcp

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestTake: take returns calls in their order, as many as the bounds of a batch allow. A long call
// is written alone.
func TestTake(t *testing.T) {
	var o outbox
	add := func(sizes ...int) {
		for _, n := range sizes {
			o.queue = append(o.queue, &pending{call: xdr.Encoder{B: make([]byte, n)}})
		}
	}
	add(batchBytes+1, batchBytes-100, 100, 1, 2*batchBytes)
	for range batchCalls + 1 {
		add(10)
	}
	last := -1
	for i, want := range [][]int{
		{batchBytes + 1}, {batchBytes - 100, 100}, {1}, {2 * batchBytes}, make([]int, batchCalls), make([]int, 1),
	} {
		if !o.take() || !o.active || len(o.batch) != len(want) {
			t.Fatalf("batch %d: %d calls instead of %d", i, len(o.batch), len(want))
		}
		for j, p := range o.batch {
			if n := p.call.Len(); want[j] != 0 && n != want[j] || p.stage.Load() != writing {
				t.Errorf("batch %d, call %d: %d bytes in stage %d", i, j, n, p.stage.Load())
			}
		}
		last = i
	}
	if o.take() || o.active || last != 5 {
		t.Error("a batch of nothing")
	}
}

// until waits for a condition of the outbox.
func (b *byHand) until(holds func(o *outbox) bool) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		o := &b.c.out
		o.mu.Lock()
		ok := holds(o)
		o.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			b.t.Fatal("the outbox does not change")
		}
	}
}

// waiting makes two calls while the server reads nothing: the first is being written, the second is
// in the queue. It returns a function that ends the second, and the results of both.
func waiting(t *testing.T, b *byHand) (giveUp func(), first, second chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	first, second = make(chan error, 1), make(chan error, 1)
	go func() { first <- nullCall(t.Context(), b.c, 1) }()
	b.until(func(o *outbox) bool { return o.active && len(o.queue) == 0 })
	go func() { second <- nullCall(ctx, b.c, 2) }()
	b.until(func(o *outbox) bool { return len(o.queue) == 1 })
	return cancel, first, second
}

func nullCall(ctx context.Context, c *Client, xid uint32) error {
	return c.Call(ctx, &rpc.Request{
		XID: xid, Prog: 1, Vers: 1, Args: func(*xdr.Encoder) {}, Res: func(*xdr.Decoder) error { return nil },
	})
}

// TestQueuedCallEnds: a call that is canceled while another one is written returns at once and is
// never sent. The same is true of a call for which the server has sent a reply already.
func TestQueuedCallEnds(t *testing.T) {
	for _, made := range []bool{false, true} {
		b := newByHand(t)
		giveUp, first, second := waiting(t, b)
		want := context.Canceled
		if made {
			want = nil
			if _, err := b.Write(reply(2, func(*xdr.Encoder) {})); err != nil {
				t.Fatal(err)
			}
		} else {
			giveUp()
		}
		if err := <-second; !errors.Is(err, want) {
			t.Errorf("the queued call: %v", err)
		}
		if xid := b.call(); xid != 1 {
			t.Errorf("call %d was sent", xid)
		}
		if _, err := b.Write(reply(1, func(*xdr.Encoder) {})); err != nil {
			t.Fatal(err)
		}
		if err := <-first; err != nil {
			t.Errorf("the first call: %v", err)
		}
		go func() { _ = nullCall(t.Context(), b.c, 3) }()
		if xid := b.call(); xid != 3 {
			t.Errorf("call %d was sent", xid)
		}
		giveUp()
	}
}

// TestGivenUpWhileWritten: a call that is canceled while it is written returns when its memory is
// free.
func TestGivenUpWhileWritten(t *testing.T) {
	b := newByHand(t)
	giveUp, first, second := waiting(t, b)
	if xid := b.call(); xid != 1 { // the second call is written next
		t.Errorf("call %d was sent", xid)
	}
	b.until(func(o *outbox) bool { return len(o.queue) == 0 })
	giveUp()
	select {
	case err := <-second:
		t.Errorf("the call returned while it was written: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if xid := b.call(); xid != 2 {
		t.Errorf("call %d was sent", xid)
	}
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("the call that was given up: %v", err)
	}
	_ = b.c.Close()
	if err := <-first; err == nil {
		t.Error("a call without a reply succeeded")
	}
}

// TestManyCallers: calls of many goroutines on one connection each get their own reply.
func TestManyCallers(t *testing.T) {
	_, addr, _ := serve(t, Config{})
	c := dial(t, addr)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 100 {
				if err := echo(c, procEcho, pattern(3000)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
