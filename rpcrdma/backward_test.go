package rpcrdma

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// callsBack are the calls of a server to one client, and their outcomes.
type callsBack struct {
	to   rpc.Caller
	ends chan error
}

func (b *callsBack) call(timeout time.Duration) {
	b.to.Call(&rpc.BackwardCall{
		Prog: 0x40000000, Vers: 1, Proc: 1, Args: []byte{1, 2, 3, 4}, Timeout: timeout,
		Done: func(res *xdr.Decoder, err error) {
			if err == nil && res.Uint32() != 77 {
				err = errors.New("other results")
			}
			b.ends <- err
		},
	})
}

func (b *callsBack) want(t *testing.T, want error) {
	t.Helper()
	select {
	case err := <-b.ends:
		if !errors.Is(err, want) {
			t.Errorf("%v instead of %v", err, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no end of a call")
	}
}

// backwardReply makes the reply to a call of the server, with a grant.
func backwardReply(xid, credits uint32) []byte {
	h := Header{XID: xid, Version: Version, Credits: credits, Type: TypeMsg}
	return append(h.Append(nil), words(xid, rpc.MsgReply, 0, 0, 0, 0, 77)...)
}

func TestCallsBack(t *testing.T) {
	w := newWorld(t, Config{})
	got := make(chan rpc.Caller, 1)
	w.svc.onNull = func(c *rpc.Call) {
		select {
		case got <- c.Back:
		default:
		}
	}
	r := w.rawUp()
	r.send(message(&Header{XID: 1, Credits: 32}, rawCall(1, procNull)))
	r.reply()
	b := &callsBack{to: <-got, ends: make(chan error, 20)}
	receive := func() uint32 {
		t.Helper()
		h, msg := r.reply()
		if h.Type != TypeMsg || len(h.Reads)+len(h.Writes) > 0 || h.HasReply || h.Credits == 0 || len(msg) < 8 {
			t.Fatalf("%+v, %x", h, msg)
		}
		if xid := binary.BigEndian.Uint32(msg); xid != h.XID || binary.BigEndian.Uint32(msg[4:]) != rpc.MsgCall {
			t.Fatalf("%+v, %x", h, msg)
		}
		return h.XID
	}
	for range 3 {
		b.call(time.Hour)
	}
	xid := receive()
	// The server sends one call at a time until the client grants more. So the next message that
	// the client gets is the reply to its own call.
	r.send(message(&Header{XID: 2, Credits: 32}, rawCall(2, procNull)))
	if h, _ := r.reply(); h.XID != 2 {
		t.Fatalf("%+v", h)
	}
	before := w.l.Stats()
	r.send(backwardReply(xid+1000, 8), backwardReply(xid, 8))
	b.want(t, nil)
	x2, x3 := receive(), receive()
	r.send(backwardReply(x3, 8), backwardReply(x2, 8))
	b.want(t, nil)
	b.want(t, nil)
	after := w.l.Stats()
	if n := after.Errors["rpcrdma_backward_message"] - before.Errors["rpcrdma_backward_message"]; n != 1 {
		t.Errorf("%d replies without a call counted", n)
	}
	if n, m := after.Messages["sent_backward_call"], after.Messages["recv_backward_reply"]; n != 3 || m != 3 {
		t.Errorf("%d calls and %d replies counted", n, m)
	}
	// A reply with chunks is no reply, nor is one whose XID differs from that of its transport
	// header.
	b.call(time.Hour)
	xid = receive()
	m := r.region(100, remoteWrite)
	bad := message(&Header{XID: xid, Credits: 8, Writes: []Chunk{segments(m, 10)}},
		words(xid, rpc.MsgReply, 0, 0, 0, 0, 77))
	other := message(&Header{XID: xid + 1, Credits: 8}, words(xid, rpc.MsgReply, 0, 0, 0, 0, 77))
	r.send(bad, other, message(&Header{XID: 3, Credits: 32}, rawCall(3, procNull)))
	r.reply()
	if n := w.l.Stats().Errors["rpcrdma_backward_message"] - after.Errors["rpcrdma_backward_message"]; n != 2 {
		t.Errorf("%d bad replies counted", n)
	}
	// Many calls at once: no more than the bound are in flight, and all complete.
	for range 2 * rpc.BackwardCalls {
		b.call(time.Hour)
	}
	r.send(backwardReply(xid, 1000))
	b.want(t, nil)
	for range 2 * rpc.BackwardCalls {
		r.send(backwardReply(receive(), 1000))
		b.want(t, nil)
	}
	b.call(time.Hour)
	receive()
	r.dev.loop.do(func() { r.conn.Disconnect() })
	b.want(t, rpc.ErrClosed)
	if b.to.Connected() {
		t.Error("alive after the end")
	}
	b.call(time.Hour)
	b.want(t, rpc.ErrClosed)
	w.alive()
}
