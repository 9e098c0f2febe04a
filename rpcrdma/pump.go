package rpcrdma

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// poll handles completions. It is the callback of the completion queue.
func (c *serverConn) poll() {
	for {
		n := c.cq.Poll(c.wcs[:])
		if n == 0 {
			break
		}
		for i := range c.wcs[:n] {
			if c.dead {
				continue // flushed; end frees the buffers
			}
			c.complete(&c.wcs[i])
		}
	}
	c.pump()
}

// serverFailures is clientFailures for the server.
var serverFailures = [...]struct {
	what string
	counter
}{
	idReceive:  {"receiving", errReceiveFailed},
	idRead:     {"fetching a Read chunk", errReadFailed},
	idWrite:    {"filling a Write or Reply chunk", errWriteFailed},
	idSend:     {"sending a reply", errSendFailed},
	idBackward: {"sending a call", errSendFailed},
	idProbe:    {"probing a client that sends nothing", errPeerSilent},
}

// failed ends the connection because of a work request that failed.
func (c *serverConn) failed(wc *rdma.WC) {
	f := &serverFailures[wc.ID>>32]
	c.fail(f.counter, fmt.Errorf("%s: %v", f.what, wc.Status))
}

// countFailure looks for the completion with the error that ended the connection. The event of the
// connection can arrive before the loop has polled that completion.
func (c *serverConn) countFailure() {
	for !c.dead {
		n := c.cq.Poll(c.wcs[:])
		if n == 0 {
			return
		}
		for _, wc := range c.wcs[:n] {
			if wc.Status != rdma.Success && wc.Status != rdma.WRFlushErr {
				c.failed(&wc)
				return
			}
		}
	}
}

// complete handles a completion. The resources of the work request may be used again:
//
//	receive    the buffer has a message, and belongs to its slot
//	RDMA READ  a part of the slot's chunk memory has arrived
//	SEND       the client's device has the reply; all memory of the call is released
//	probe      nothing
func (c *serverConn) complete(wc *rdma.WC) {
	index, kind := int(uint32(wc.ID)), wc.ID>>32
	if wc.Status == rdma.WRFlushErr {
		c.disconnect() // flushed because the connection ended; its event has the reason
		return
	}
	if wc.Status != rdma.Success {
		c.failed(wc)
		return
	}
	c.probe.progress = true
	switch kind {
	case idProbe:
		c.probe.answered()
	case idBackward:
		c.back.sent(index)
	case idReceive:
		c.received = true
		if !c.postpone(index, int(wc.ByteLen)) {
			c.arrived(index, int(wc.ByteLen))
		}
	case idRead:
		c.watchdog.progress = true
		c.readsFree++
		c.reading -= int(wc.ByteLen)
		c.slots[index].fetched(int(wc.ByteLen))
	case idSend:
		// The SEND is the last request of a reply and the only one signaled. Its completion
		// covers the RDMA WRITEs before it, so all memory of the call is free.
		s := c.slots[index]
		c.watchdog.progress = true
		c.sqFree += s.posted
		c.repliesInFlight--
		if s.final {
			s.call.Delivery().Delivered()
		}
		s.recycle()
		c.repostEarly()
	}
}

// cancelWait removes the connection's allocation from the queue for bulk memory.
func (c *serverConn) cancelWait() {
	if c.waiting != nil {
		c.waiting = nil
		c.l.pool.cancel(&c.allocation)
		c.count()
	}
}

// pump does all work that has become possible: it posts replies that waited for room in the send
// queue, reserves memory for waiting calls, posts RDMA READs and posts receives.
//  1. replies that wait for room         they free memory and buffers
//  2. calls that wait for memory         memWait and memWaitReads, by nextQueue
//  3. RDMA READs                         one list
//  4. receives                           one list
func (c *serverConn) pump() {
	if c.dead {
		return
	}
	for s := c.replies.head; s != nil && c.mayReply(len(s.wrs)); s = c.replies.head {
		c.replies.pop()
		s.postReply(s.wrs)
		s.clearSavedReply()
	}
	c.readWRs, c.readSGEs = c.readWRs[:0], c.readSGEs[:0]
	for q := c.nextQueue(); q != nil && q.head.reserve(); q = c.nextQueue() {
		s := q.head
		q.pop()
		if s.fetching > 0 {
			c.readQueue.push(s)
			c.takeReads()
		} else {
			s.dispatch()
		}
	}
	c.startReads()
	c.postReceives()
}

// postReceives posts the collected receives.
func (c *serverConn) postReceives() {
	if len(c.repost) > 0 && !c.dead && !c.draining {
		if err := c.conn.QP().PostRecv(c.takeRepost()); err != nil {
			c.fail(errReceiveFailed, fmt.Errorf("posting receives: %w", err))
		}
	}
}

// repostEarly posts receives before all completions are handled, once slack of them are collected.
// On kernel devices the client's next calls arrive while this loop still posts replies.
func (c *serverConn) repostEarly() {
	if len(c.repost) >= c.slack() {
		c.postReceives()
	}
}

// slack is half of the receives beyond the credits. That many receives may be unposted, and that
// many more buffers may be in use by replies in flight, while every granted credit still has a
// posted receive.
func (c *serverConn) slack() int { return max(min(extraReceives, c.grant)/2, 1) }

// mayReply reports whether n work requests can be posted now.
//
// On kernel devices the client's next call can arrive before this loop sees the completion of the
// last reply. Replies beyond the spare receives wait there, so that a receive is always posted for
// each credit. A device in user space reports completions before it takes packets, so it needs no
// such bound.
//
//	device          the next call can arrive                   replies in flight
//	in user space   after the completion of the last reply     as many as the send queue takes
//	kernel device   before it                                  slack at most
func (c *serverConn) mayReply(n int) bool {
	return n <= c.sqFree && (!c.l.bounded || c.repliesInFlight < c.slack())
}

// nextQueue returns the queue to serve next, or nil.
//
// The call that waits for memory with the allocation goes first: it may own its memory already, and
// no other call can use that. Otherwise the call that arrived first goes first.
//
// A call with Read chunks gets memory only when its first RDMA READ can be posted. So few blocks
// are in use at a time, the same blocks are used again, and they stay in the processor's caches.
//
//	state                                          served next
//	a slot waits with the allocation               its queue
//	memWaitReads has the older call, an RDMA READ  memWaitReads
//	can be posted, and readQueue is empty
//	memWait has a call                             memWait
//	else                                           none, until a completion
func (c *serverConn) nextQueue() *slotQueue {
	a, f := c.memWait.head, c.memWaitReads.head
	switch {
	case c.waiting != nil && c.waiting == f:
		return &c.memWaitReads
	case c.waiting != nil:
		return &c.memWait
	case f != nil && (a == nil || f.order < a.order) && c.readQueue.head == nil && c.mayRead():
		return &c.memWaitReads
	case a != nil:
		return &c.memWait
	}
	return nil
}

// mayRead reports whether one more RDMA READ may be posted: no more than the client serves at a
// time (its responder resources), and no more bytes than ReadBytes.
func (c *serverConn) mayRead() bool {
	return len(c.readWRs) < c.readsFree && c.reading < c.l.cfg.ReadBytes
}

// takeReads collects the RDMA READs that may be posted now.
func (c *serverConn) takeReads() {
	for s := c.readQueue.head; s != nil && c.mayRead(); s = c.readQueue.head {
		if !s.nextRead() {
			c.readQueue.pop()
		}
	}
}

// startReads posts the collected RDMA READs, and those that became possible since.
func (c *serverConn) startReads() {
	c.takeReads()
	if len(c.readWRs) == 0 || c.dead {
		return
	}
	c.watchdog.start()
	c.readsFree -= len(c.readWRs)
	if err := c.conn.QP().PostSend(c.readWRs); err != nil {
		c.fail(errReadFailed, fmt.Errorf("posting RDMA READs: %w", err))
	}
}

// idle reports whether no reply and no RDMA READ is in flight.
func (c *serverConn) idle() bool {
	return c.sqFree == sendQueueMin+2*c.l.cfg.Credits && c.readsFree == int(c.ords.Load())
}

// addBulk accounts for n bytes of bulk memory more, or less.
func (c *serverConn) addBulk(n int) {
	c.bulkHeld += n
	c.bulkNow.Store(int64(c.bulkHeld))
	c.count()
}

// count keeps the pool's number of users up to date: connections that have bulk memory or wait
// for it. Each of them gets an equal share when memory is short, see Memory.ceiling.
func (c *serverConn) count() {
	switch is := c.bulkHeld > 0 || c.waiting != nil; {
	case is && !c.countedUser:
		c.l.pool.countUser(1)
	case !is && c.countedUser:
		c.l.pool.countUser(-1)
	}
	c.countedUser = c.bulkHeld > 0 || c.waiting != nil
}

// slotQueue is a list of slots. A slot is in one list at most.
type slotQueue struct{ head, tail *slot }

// push appends a slot.
func (q *slotQueue) push(s *slot) {
	s.next = nil
	if q.tail == nil {
		q.head = s
	} else {
		q.tail.next = s
	}
	q.tail = s
}

// pop removes the first slot. The queue is not empty.
func (q *slotQueue) pop() {
	s := q.head
	q.head = s.next
	if q.head == nil {
		q.tail = nil
	}
	s.next = nil
}
