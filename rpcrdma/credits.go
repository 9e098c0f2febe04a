package rpcrdma

import (
	"slices"

	"github.com/rstored/rstored/rdma"
)

// arrived handles a received message of n bytes. The number of messages is bounded by the posted
// receives. A client that sends without a credit finds no receive, gets an RNR NAK, and slows
// down only itself.
func (c *serverConn) arrived(index, n int) {
	c.active++
	c.activeNow.Store(int64(c.active))
	if c.active > c.grant-max(c.grant/4, 1) {
		c.grow()
		if c.dead {
			return
		}
	}
	c.slot(index).receive(n)
}

// firstGrant is the first grant to a client that confirmed its connection. The grant doubles when
// more than three quarters of it are in use, so idle clients have few receives with memory.
const firstGrant = 16

// grow doubles the grant as far as there is memory. It posts the receives first: the client learns
// of the grant in a later reply, and then may use it at once.
//
//	grant    posted receives (receives)    next grant at more than
//	    2            4                           1 call in progress
//	   16           32                          12
//	   32           48                          24
//	   64           80                          48
//	  128          144                         none
func (c *serverConn) grow() {
	cfg := &c.l.cfg
	next := c.l.pool.allowed(min(2*c.grant, cfg.Credits), cfg.Receive)
	n := receives(next) // may be owned already, from a larger grant before
	if next <= c.grant || n > c.owned && !c.l.pool.grow((n-c.owned)*cfg.Receive, next, cfg.Receive) {
		return
	}
	c.extend(next, n)
}

// raiseInitial raises the grant of a client that confirmed its connection to firstGrant, unless
// half of the memory for messages is in use.
func (c *serverConn) raiseInitial() {
	cfg := &c.l.cfg
	next := min(cfg.Credits, firstGrant)
	n := receives(next)
	if !c.dead && next > c.grant && n > c.owned && c.l.pool.raiseInitial((n-c.owned)*cfg.Receive) {
		c.extend(next, n)
	}
}

// extend posts receives until n are owned, for grant credits. The pool is charged for them already.
func (c *serverConn) extend(grant, n int) {
	for ; c.owned < n; c.owned++ {
		if last := len(c.unposted) - 1; last >= 0 {
			c.post(c.unposted[last])
			c.unposted = c.unposted[:last]
		} else {
			c.post(c.newReceive())
		}
	}
	c.postReceives()
	c.grant = grant
}

// credits returns the grant of the reply being built (RFC 8166 section 3.3.1): the requested
// number, bounded by the receives, by the shortage of memory and by the client's rate limits. It
// is at least 1, because a client without credits could never send again. A client may request 0
// credits, or 2^32-1. Both are bounded here, and are no error.
func (c *serverConn) credits(requested uint32) uint32 {
	most := c.l.pool.allowed(c.grant, c.l.cfg.Receive)
	n := min(most, c.throttle.cap, int(min(requested, 1<<16)))
	n = max(n, 1)
	c.creditsNow.Store(int64(n))
	return uint32(n)
}

// retireReceive reports whether a receive whose call has ended stays unposted because memory is
// short. It retires one receive per reply at most, and that reply granted one credit less: the
// client cannot have counted on the receive. The buffer is not posted, the pages that it shares with
// no posted one go back to the system, and the pool has its bytes for another connection.
func (c *serverConn) retireReceive(i int) bool {
	cfg := &c.l.cfg
	most := c.l.pool.allowed(c.grant, cfg.Receive)
	if most < c.grant {
		c.l.n.add(creditsShort)
	}
	if c.owned <= receives(max(most, min(floorCredits, cfg.Credits))) {
		return false
	}
	c.owned--
	c.grant = min(c.grant, max(creditsOf(c.owned), 1))
	c.unposted = append(c.unposted, i)
	from, to := pagesOf(i, cfg.Receive, func(j int) bool { return slices.Contains(c.unposted, j) })
	c.l.pool.discard(c.mem[from:min(to, len(c.mem))])
	c.l.pool.shrink(cfg.Receive)
	return true
}

// pagesOf returns the range of memory that nobody uses now that receive i is unposted: the buffer,
// and the unposted ones that share its first and its last page. unposted may be asked about any
// number. A receive is not a whole number of pages.
func pagesOf(i, size int, unposted func(int) bool) (from, to int) {
	const page = rdma.ArenaBlockMin
	first, end := i*size/page*page, (i*size+size+page-1)/page*page
	for from = i * size; from > first && unposted(from/size-1); from -= size {
	}
	for to = i*size + size; to < end && unposted(to/size); to += size {
	}
	return from, to
}
