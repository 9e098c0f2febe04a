package rpc

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// outcomes collects the outcomes of calls.
type outcomes chan error

func (o outcomes) call(timeout time.Duration) *BackwardCall {
	return &BackwardCall{
		Prog: 7, Vers: 1, Proc: 1, Args: []byte{0, 0, 0, 9}, Timeout: timeout,
		Done: func(res *xdr.Decoder, err error) {
			if err == nil && res.Uint32() != 42 {
				err = errors.New("other results")
			}
			o <- err
		},
	}
}

func (o outcomes) want(t *testing.T, n int, want error) {
	t.Helper()
	for range n {
		select {
		case err := <-o:
			if !errors.Is(err, want) {
				t.Errorf("%v instead of %v", err, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a call has no outcome")
		}
	}
	select {
	case err := <-o:
		t.Errorf("one outcome too many: %v", err)
	default:
	}
}

func replyTo(call []byte) []byte {
	var e xdr.Encoder
	encodeAccepted(&e, ReplyXID(call), RPCSuccess)
	e.Uint32(42)
	return e.B
}

func TestBackwardCredits(t *testing.T) {
	var sent [][]byte
	w := NewBackward(func(m []byte) bool { sent = append(sent, m); return true }, 1000, 1)
	o := make(outcomes, 100)
	for range 12 {
		w.Call(o.call(time.Hour))
	}
	if len(sent) != 1 {
		t.Fatalf("%d calls on one credit", len(sent))
	}
	if IsReply(sent[0]) || !IsReply(replyTo(sent[0])) {
		t.Error("a call is taken for a reply, or the other way round")
	}
	if !w.Receive(replyTo(sent[0]), 3) || len(sent) != 4 {
		t.Fatalf("%d calls in all after a grant of 3", len(sent))
	}
	o.want(t, 1, nil)
	if !w.Receive(replyTo(sent[1]), 1000) || len(sent) != 2+BackwardCalls {
		t.Fatalf("%d calls in all after a grant beyond the bound", len(sent))
	}
	if !w.Receive(replyTo(sent[2]), 0) {
		t.Error("a reply was not wanted")
	}
	o.want(t, 2, nil)
	seen := make(map[uint32]bool)
	for _, m := range sent {
		if xid := ReplyXID(m); seen[xid] {
			t.Errorf("XID %#x twice", xid)
		} else {
			seen[xid] = true
		}
	}
	for _, bad := range [][]byte{
		replyTo(sent[0]), replyTo(binary.BigEndian.AppendUint32(nil, ReplyXID(sent[10])+1)),
		{0, 0, 0, 1, 0, 0, 0, 1},
	} {
		if w.Receive(bad, 8) {
			t.Errorf("a reply that nobody asked for was taken: %x", bad)
		}
	}
	o.want(t, 0, nil)
	w.Close()
	w.Close()
	o.want(t, 9, ErrClosed)
	w.Call(o.call(time.Hour))
	o.want(t, 1, ErrClosed)
	if w.Connected() || w.Receive(replyTo(sent[5]), 8) {
		t.Error("alive after the end")
	}
}

func TestBackwardBounds(t *testing.T) {
	full := false
	var sent [][]byte
	w := NewBackward(func(m []byte) bool {
		if !full {
			sent = append(sent, m)
		}
		return !full
	}, 100, 1)
	o := make(outcomes, 200)
	long := o.call(time.Hour)
	long.Args = make([]byte, 100)
	w.Call(long)
	o.want(t, 1, ErrTooLarge)
	w.Call(o.call(time.Nanosecond)) // sent, and given up
	o.want(t, 1, ErrTimeout)
	w.Call(o.call(time.Nanosecond)) // given up before its turn
	o.want(t, 1, ErrTimeout)
	for range backwardQueue + 1 {
		w.Call(o.call(time.Hour))
	}
	o.want(t, 1, ErrTooMany)
	if len(sent) != 1 {
		t.Fatalf("%d calls on one credit", len(sent))
	}
	if !w.Receive(replyTo(sent[0]), 1) || len(sent) != 2 {
		t.Errorf("the late reply did not free the credit: %d calls", len(sent))
	}
	o.want(t, 0, nil)
	w.Close()
	o.want(t, backwardQueue, ErrClosed)

	full = true
	w = NewBackward(func([]byte) bool { return false }, 100, 1)
	w.Call(o.call(time.Hour))
	o.want(t, 1, ErrClosed)
}
