package rpcrdma

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Calls to the client use the connection that the client made (RFC 8167), in messages without
// chunks. The client grants credits for them in its replies; before the first reply there is one.
// The replies arrive in the receives that are posted beyond the client's credits.

// backward is the calls of a connection to its client. It belongs to the loop, except calls.
//
//	state of a call            memory
//	queued                     msg, in Go memory
//	SEND posted                buffer i of mem, until sent
//	SEND completed             none; rpc.Backward waits for the reply
//	reply received             the slot's receive buffer, until receive returns
type backward struct {
	c     *serverConn
	calls *rpc.Backward
	mem   []byte   // message buffers; nil until the first call
	free  []int    // unused message buffers; a buffer is in use until its SEND completes
	queue [][]byte // messages that wait for a buffer
}

// backwardInline is the longest message, and the size of its buffer.
const backwardInline = 4096

// backwardMemory is what the buffers of a connection take.
const backwardMemory = rpc.BackwardCalls * backwardInline

// init makes the Caller of the connection. Calls are built on the goroutine of their caller, and
// sent on the loop. The client grants one call until its first reply grants more (RFC 8167).
func (b *backward) init(c *serverConn) {
	b.c = c
	b.calls = rpc.NewBackward(func(msg []byte) bool {
		return c.loop.Submit(func() { b.send(msg) })
	}, min(c.inlineOut, backwardInline)-minMessage, 1)
}

// send sends a message, or queues it until an earlier SEND completes. The queue is bounded
// because a client can answer calls faster than it acknowledges their SENDs: each answer lets the
// caller make another call.
func (b *backward) send(msg []byte) {
	c := b.c
	if c.dead {
		return
	}
	if b.mem == nil {
		if c.l.pool.extra(backwardMemory) {
			if b.mem = c.l.pool.block(&c.l.pool.backBlocks, backwardMemory); b.mem == nil {
				c.l.pool.shrink(backwardMemory)
			}
		}
		if b.mem == nil {
			c.fail(errSendFailed, fmt.Errorf("the memory does not suffice for %d calls to the client", rpc.BackwardCalls))
			return
		}
		for i := range rpc.BackwardCalls {
			b.free = append(b.free, i)
		}
	}
	if len(b.queue) >= 2*rpc.BackwardCalls {
		c.fail(errBackward, fmt.Errorf("the client answers calls before it receives them"))
		return
	}
	b.queue = append(b.queue, msg)
	b.pump()
}

// pump posts queued messages as far as there are buffers.
func (b *backward) pump() {
	c := b.c
	for len(b.queue) > 0 && len(b.free) > 0 && !c.dead {
		i := b.free[len(b.free)-1]
		b.free = b.free[:len(b.free)-1]
		h := Header{XID: rpc.ReplyXID(b.queue[0]), Version: Version, Credits: rpc.BackwardCalls, Type: TypeMsg}
		m := append(h.Append(b.mem[i*backwardInline:i*backwardInline:(i+1)*backwardInline]), b.queue[0]...)
		b.queue[0] = nil
		b.queue = b.queue[1:]
		c.l.n.add(sentMsg)
		c.l.n.add(sentBackward)
		c.l.n.inline.Add(uint64(len(m)))
		if err := c.conn.QP().PostSend([]rdma.SendWR{{
			ID: workID(idBackward, i), Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{{Buf: m, LKey: c.l.pool.lkey}},
		}}); err != nil {
			c.fail(errSendFailed, fmt.Errorf("posting a call: %w", err))
		}
	}
}

// sent handles the completion of the SEND from buffer i.
func (b *backward) sent(i int) {
	b.free = append(b.free, i)
	b.pump()
}

// receive handles a reply of the client. A reply with chunks, with two XIDs, or that no call waits
// for is counted and ignored. A client can send replies to calls that were never made, or twice:
// XIDs without a call are ignored. The buffer is posted again at once.
func (b *backward) receive(s *slot) {
	h, n := &s.hdr, &b.c.l.n
	if len(h.Reads) > 0 || len(h.Writes) > 0 || h.HasReply || rpc.ReplyXID(s.inline) != h.XID ||
		!b.calls.Receive(s.inline, max(h.Credits, 1)) {
		n.add(errBackward)
	} else {
		n.add(recvBackward)
	}
	s.recycle()
}

// end fails the calls in progress: the connection has ended.
func (b *backward) end() {
	b.queue = nil
	b.calls.Close()
}

// release returns the buffers to the pool.
func (b *backward) release() {
	if b.calls != nil {
		b.calls.Close()
	}
	if b.mem != nil {
		b.c.l.pool.freeBlock(&b.c.l.pool.backBlocks, b.mem)
		b.c.l.pool.shrink(backwardMemory)
		b.mem = nil
	}
}
