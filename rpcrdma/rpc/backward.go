package rpc

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Caller makes calls to the peer of a connection that the peer made: in the backward
// direction (RFC 8881 section 2.10.3.1, RFC 8167). It is comparable, and may be used
// from any goroutine, also after the connection has ended.
type Caller interface {
	// Call sends a call. It does not wait.
	Call(b *BackwardCall)
	// Alive reports whether the connection is still there.
	Alive() bool
}

// BackwardCall is a call in the backward direction. It is the Caller's until Done.
type BackwardCall struct {
	Prog, Vers, Proc uint32
	Cred             *Cred  // nil is AUTH_NONE
	Args             []byte // encoded
	// Timeout is how long to wait for the reply, and for the call's turn.
	Timeout time.Duration
	// Done is called once, from any goroutine, possibly before Call returns: with the
	// results, which are valid during the call of Done only, or with why there are
	// none. It must not wait.
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
	// BackwardCalls is how many are outstanding at most.
	BackwardCalls = 8
	// backwardQueue is how many wait for one of those.
	backwardQueue = 64
)

// Backward is a Caller for a transport: it keeps the calls of one connection. The
// transport tells it what arrives and when the connection ends.
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

// backward is a call; b is nil once its caller has been told that it took too long.
// A call that was sent holds its credit until it is answered all the same.
type backward struct {
	b     *BackwardCall
	msg   []byte
	xid   uint32
	timer *time.Timer
}

// NewBackward makes the Caller of a connection. send sends a message of at most max
// bytes, which it may keep; it must not wait, and reports false if it cannot. At most
// credits calls are outstanding until the peer says something else.
func NewBackward(send func(msg []byte) bool, limit, credits int) *Backward {
	return &Backward{send: send, max: limit, credits: credits, calls: make(map[uint32]*backward), xid: uint32(time.Now().UnixNano())}
}

// Alive implements Caller.
func (w *Backward) Alive() bool { return !w.dead.Load() }

// Call implements Caller.
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

// pump sends what there is credit for. It reports false if the last one in the queue
// could not be sent. Call with mu held.
func (w *Backward) pump() bool {
	for len(w.queue) > 0 && len(w.calls) < w.credits {
		k := w.queue[0]
		if !w.send(k.msg) {
			if len(w.queue) > 1 {
				return true // tried again with the next reply; else their time runs out
			}
			w.queue = w.queue[:0]
			return false
		}
		k.msg = nil
		w.calls[k.xid] = k
		w.queue = append(w.queue[:0], w.queue[1:]...)
	}
	return true
}

// expire ends the wait for a reply.
func (w *Backward) expire(k *backward) {
	w.mu.Lock()
	b := k.b
	k.b = nil
	for i := range w.queue {
		if w.queue[i] == k {
			w.queue = append(w.queue[:i], w.queue[i+1:]...)
			break
		}
	}
	w.mu.Unlock()
	if b != nil {
		b.Done(nil, ErrTimeout)
	}
}

// IsReply reports whether a message is a reply.
func IsReply(msg []byte) bool {
	return len(msg) >= 8 && msg[4] == 0 && msg[5] == 0 && msg[6] == 0 && msg[7] == MsgReply
}

// Receive takes a reply, whose peer now allows as many calls to be outstanding as
// credits says; 0 says nothing. It reports false if nobody waits for such a reply. It
// does not keep msg.
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
		return true // too late
	}
	d := xdr.NewDecoder(msg)
	if err := DecodeReply(&d, k.xid); err != nil {
		b.Done(nil, err)
	} else {
		b.Done(&d, nil)
	}
	return true
}

// Close ends all calls, after the connection. Nothing is sent once it has returned.
func (w *Backward) Close() {
	w.mu.Lock()
	if w.dead.Swap(true) {
		w.mu.Unlock()
		return
	}
	var ended []*BackwardCall
	add := func(k *backward) {
		k.timer.Stop()
		if k.b != nil {
			ended = append(ended, k.b)
			k.b = nil
		}
	}
	for _, k := range w.calls {
		add(k)
	}
	for _, k := range w.queue {
		add(k)
	}
	clear(w.calls)
	w.queue = nil
	w.mu.Unlock()
	for _, b := range ended {
		b.Done(nil, ErrClosed)
	}
}
