package rpcrdma

import (
	"cmp"
	"context"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Call implements rpc.Client. If ctx ends after the call was sent, its memory is closed to the
// server at once, so that the caller can reuse it. A server that still writes to it breaks the
// connection, and the other calls fail with it.
func (c *Client) Call(ctx context.Context, r *rpc.Request) error {
	x := newExchange(c)
	for r.XID == 0 {
		r.XID = c.xid.Add(1)
	}
	x.xid = r.XID
	r.Encode(&x.call)
	x.dst, x.resMax = r.Dst, cmp.Or(r.ResMax, 1024)
	if err := x.run(ctx); err != nil {
		return err
	}
	x.results = x.decoder()
	err := r.Decode(&x.results)
	x.recycle()
	return err
}

// exchange is a call and its reply. The caller owns it, except from start to finish: then it
// belongs to the loop.
//
//	newExchange --run--> start --credit, room--> send --reply--> accept --> finish --> recycle
//	                       |                       |                          ^
//	                       v                       | giveUp, fail             |
//	                    waiting -------------------+--------------------------+
//
// With windows, settle comes between accept and finish: the caller gets the reply when the memory
// of the call is closed.
type exchange struct {
	c      *Client
	xid    uint32
	call   xdr.Encoder
	dst    []byte // memory for the bulk result; nil if there is none
	resMax int    // bound of the results, without bulk data
	done   chan error
	start  func() // c.start of the exchange, made once so that calling does not allocate
	shared bool   // must not be reused: a submitted giveUp still refers to it

	// From start to finish these belong to the loop.
	over    bool
	next    *exchange
	queued  bool
	offered Header    // the transport header of the call
	mrs     []rdma.MR // memory opened to the server; nil with windows
	room    []byte    // memory of the Reply chunk
	// With windows:
	wins      []*window
	arenaRoom []byte // the Reply chunk's memory, if it is a block of the windows' arena
	long      int    // bytes of the reply in arenaRoom
	closing   bool   // the reply is here; the windows are being invalidated
	outcome   error  // for finish after that

	// The reply, after finish.
	reply   []byte // without the bulk result
	bulk    []byte
	hasBulk bool        // the bulk result is in dst, even if it is empty
	results xdr.Decoder // over reply and bulk; used by the caller
}

// newExchange returns an idle exchange with its memory, or a new one.
func newExchange(c *Client) *exchange {
	x, _ := c.idle.Get().(*exchange)
	if x == nil {
		x = &exchange{c: c, done: make(chan error, 1)}
		x.start = func() { c.start(x) }
	}
	return x
}

// recycle retains the exchange and its memory for another call. The device does not use this
// memory: retire or closed has ended the server's access. Large buffers are not retained, because
// one long call would otherwise leave its memory in the pool.
func (x *exchange) recycle() {
	if x.shared {
		return
	}
	c := x.c
	x.call.Reset()
	clear(x.call.Refs[:cap(x.call.Refs)])
	x.offered.Reset()
	if cap(x.call.B) > idleBufferMax {
		x.call.B = nil
	}
	*x = exchange{
		c: c, call: x.call, done: x.done, start: x.start, offered: x.offered,
		mrs: x.mrs[:0], wins: x.wins[:0], room: x.room[:0], reply: x.reply[:0],
	}
	if cap(x.room) > idleRoomMax {
		x.room = nil
	}
	if cap(x.reply) > idleRoomMax {
		x.reply = nil
	}
	c.idle.Put(x)
}

// idleRoomMax is the largest memory for a Reply chunk that an idle exchange retains.
const idleRoomMax = 64 << 10

// run sends the call and waits for the reply. After an error x must not be used or recycled. A
// caller whose context ends first still waits for giveUp on the loop. When run returns, the
// server can no longer reach dst and the arguments, so the caller may reuse them.
func (x *exchange) run(ctx context.Context) error {
	c := x.c
	if err := c.Err(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !c.loop.Submit(x.start) {
		return &rpc.ConnError{Peer: c.peer, Err: rdma.ErrClosed}
	}
	select {
	case err := <-x.done:
		return err
	case <-ctx.Done():
	}
	if !c.loop.Submit(func() { c.giveUp(x, ctx.Err()) }) {
		return ctx.Err()
	}
	x.shared = true // giveUp refers to x, even if the reply arrives first
	return <-x.done
}

// decoder decodes the reply. A bulk result that the server wrote to dst is not in the message: only
// its length is.
func (x *exchange) decoder() xdr.Decoder {
	d := xdr.NewDecoder(x.reply)
	if x.hasBulk {
		d.SetBulk(x.bulk)
	}
	return d
}

// exchangeQueue is a list of calls that wait to be sent. A call is in it once at most.
type exchangeQueue struct{ head, tail *exchange }

func (q *exchangeQueue) push(x *exchange) {
	x.next, x.queued = nil, true
	if q.tail == nil {
		q.head = x
	} else {
		q.tail.next = x
	}
	q.tail = x
}

func (q *exchangeQueue) pop() *exchange {
	x := q.head
	if x != nil {
		q.head = x.next
		if q.head == nil {
			q.tail = nil
		}
		x.next, x.queued = nil, false
	}
	return x
}

// remove removes a call that was given up. It walks the queue, because giving up is rare.
func (q *exchangeQueue) remove(x *exchange) {
	var rest exchangeQueue
	for y := q.pop(); y != nil; y = q.pop() {
		if y != x {
			rest.push(y)
		}
	}
	*q = rest
}
