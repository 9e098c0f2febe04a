package rpc

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Caller makes calls to the peer of a connection that the peer made, in the backward
// direction (RFC 8881 section 2.10.3.1, RFC 8167). It is comparable, and may be used
// from any goroutine, also after the connection has ended.
type Caller interface {
	// Call sends a call. It does not wait.
	Call(b *BackwardCall)
	// Connected reports whether the connection still exists.
	Connected() bool
}

// BackwardCall is a call in the backward direction. It belongs to the Caller until Done.
type BackwardCall struct {
	Prog, Vers, Proc uint32
	Cred             *Cred  // nil is AUTH_NONE
	Args             []byte // encoded
	// Timeout bounds the wait for a credit and for the reply.
	Timeout time.Duration
	// Done is called once, from any goroutine, possibly before Call returns. It gets the results,
	// which are valid only during the call of Done, or an error. It must not wait.
	Done func(res *xdr.Decoder, err error)
}

// Errors of a BackwardCall.
var (
	ErrTimeout  = errors.New("rpc: no reply in time")
	ErrTooMany  = errors.New("rpc: too many calls wait for their turn")
	ErrTooLarge = errors.New("rpc: the call is longer than a message can be")
)

// Bounds of the calls of one connection in the backward direction.
const (
	// BackwardCalls bounds the calls without a reply.
	BackwardCalls = 8
	// backwardQueue bounds the calls that wait to be sent.
	backwardQueue = 64
)

// Backward is the Caller of a transport's connection. It has the calls of the connection; the
// transport sends them, and passes in the replies and the end of the connection.
//
//	Call --> queue --credit--> calls --Receive, or Close--> Done
//	           |                 |
//	           +--- Timeout -----+--> Done(ErrTimeout); a call that was sent retains its credit
//	                                  until the peer has answered it
type Backward struct {
	send func(msg []byte) bool
	max  int // bytes of a message

	dead atomic.Bool

	mu      sync.Mutex
	credits int
	xid     uint32
	calls   map[uint32]*backward // sent, and not answered
	queue   []*backward
}

// backward is a call. b is nil after Done. mu protects all fields.
type backward struct {
	b     *BackwardCall
	msg   []byte
	xid   uint32
	timer *time.Timer
}

// NewBackward makes the Caller of a connection. send sends a message of at most limit bytes, which
// belongs to it; it must not wait, and reports false if it cannot send. credits is the number of
// calls without a reply until the peer grants another number.
func NewBackward(send func(msg []byte) bool, limit, credits int) *Backward {
	return &Backward{
		send: send, max: limit, credits: credits, calls: make(map[uint32]*backward),
		xid: uint32(time.Now().UnixNano()),
	}
}

// Connected implements Caller.
func (w *Backward) Connected() bool { return !w.dead.Load() }

// Call implements Caller. The peer is a client and may never answer. Such a call ends by its
// Timeout, but retains its credit. So a peer that answers nothing stops its callbacks after
// BackwardCalls of them, and nothing else.
func (w *Backward) Call(b *BackwardCall) {
	if err := w.call(b); err != nil {
		b.Done(nil, err)
	}
}

func (w *Backward) call(b *BackwardCall) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.dead.Load():
		return ErrClosed
	case len(w.queue) >= backwardQueue:
		return ErrTooMany
	}
	for w.xid++; w.calls[w.xid] != nil; {
		w.xid++
	}
	var e xdr.Encoder
	EncodeCall(&e, w.xid, b.Prog, b.Vers, b.Proc, b.Cred)
	k := &backward{b: b, msg: append(e.B, b.Args...), xid: w.xid}
	if len(k.msg) > w.max {
		return ErrTooLarge
	}
	k.timer = time.AfterFunc(b.Timeout, func() { w.expire(k) })
	w.queue = append(w.queue, k)
	if !w.pump() {
		k.b = nil
		k.timer.Stop()
		return ErrClosed
	}
	return nil
}

// pump sends the calls for which there are credits. It reports false if the only call in the queue
// could not be sent. If there are several, they are tried again with the next reply, or time out.
// The caller holds mu.
func (w *Backward) pump() bool {
	for len(w.queue) > 0 && len(w.calls) < w.credits {
		k := w.queue[0]
		if !w.send(k.msg) {
			if len(w.queue) > 1 {
				return true
			}
			w.queue = w.queue[:0]
			return false
		}
		k.msg = nil
		w.calls[k.xid] = k
		w.queue = slices.Delete(w.queue, 0, 1)
	}
	return true
}

// expire ends the wait for a reply.
func (w *Backward) expire(k *backward) {
	w.mu.Lock()
	b := k.b
	k.b = nil
	w.queue = slices.DeleteFunc(w.queue, func(q *backward) bool { return q == k })
	w.mu.Unlock()
	if b != nil {
		b.Done(nil, ErrTimeout)
	}
}

// IsReply reports whether a message is a reply.
func IsReply(msg []byte) bool {
	return len(msg) >= 8 && msg[4] == 0 && msg[5] == 0 && msg[6] == 0 && msg[7] == MsgReply
}

// Receive handles a reply. credits is the peer's new grant; 0 leaves the grant as it is. It reports
// false for a reply to no call. msg belongs to the caller again when Receive returns.
func (w *Backward) Receive(msg []byte, credits uint32) bool {
	w.mu.Lock()
	k := w.calls[ReplyXID(msg)]
	if k == nil || w.dead.Load() {
		w.mu.Unlock()
		return false
	}
	delete(w.calls, k.xid)
	if credits > 0 {
		w.credits = int(min(credits, BackwardCalls))
	}
	b := k.b
	k.b = nil
	k.timer.Stop()
	w.pump()
	w.mu.Unlock()
	if b == nil {
		return true // the caller got ErrTimeout
	}
	d := xdr.NewDecoder(msg)
	if err := DecodeReply(&d, k.xid); err != nil {
		b.Done(nil, err)
	} else {
		b.Done(&d, nil)
	}
	return true
}

// Close fails all calls, because the connection has ended. After it has returned nothing is sent.
func (w *Backward) Close() {
	w.mu.Lock()
	if w.dead.Swap(true) {
		w.mu.Unlock()
		return
	}
	var ended []*BackwardCall
	for _, k := range slices.Concat(slices.Collect(maps.Values(w.calls)), w.queue) {
		k.timer.Stop()
		if k.b != nil {
			ended = append(ended, k.b)
			k.b = nil
		}
	}
	clear(w.calls)
	w.queue = nil
	w.mu.Unlock()
	for _, b := range ended {
		b.Done(nil, ErrClosed)
	}
}
