package rc

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Bounds of the retransmission timeout. The connection's local ACK timeout is
// made for the worst network; we know our own better by measuring, and use its
// code only as the ceiling.
const (
	rtoInitial = 20 * rdma.Millisecond
	rtoFloor   = rdma.Millisecond
	// rtoRounds is how many round trips nothing has to be heard for. A peer in user space
	// is now and then kept from its work for longer than its usual variation.
	rtoRounds  = 8
	rtoCeiling = rdma.Second // where the connection sets no ACK timeout

	// backGuard is the least time between two goings back to the same PSN on
	// the peer's word: what was under way when we went back is still arriving.
	backGuard = 500 * rdma.Microsecond
	// nakGuard is the time after which a sequence NAK may have been lost and
	// is sent again.
	nakGuard = 500 * rdma.Microsecond
)

// timers of the requester.
type timers struct {
	expireAt rdma.Time // 0 = nothing to wait for
	rnrUntil rdma.Time // 0 = not waiting
	rto      rdma.Time // current, with back-off
	ceiling  rdma.Time
	srtt     rdma.Time
	rttvar   rdma.Time
	rttAt    rdma.Time // when the packet that is timed was sent, 0 = none
	rttPSN   wire.PSN
	probing  bool // only the oldest packet is sent, until something is heard
	backAt   rdma.Time
	backPSN  wire.PSN
	moved    rdma.Time // last progress
	retries  int       // since then
	rnrTries int
}

func (t *timers) start(now, ackTimeout rdma.Time) {
	t.moved = now
	t.ceiling = ackTimeout
	if t.ceiling == 0 {
		t.ceiling = rtoCeiling
	}
	t.rto = min(rtoInitial, t.ceiling)
}

func (t *timers) deadline() rdma.Time {
	if t.rnrUntil != 0 && (t.expireAt == 0 || t.rnrUntil < t.expireAt) {
		return t.rnrUntil
	}
	return t.expireAt
}

func (t *timers) arm(now rdma.Time) { t.expireAt = now + t.rto }

// measured takes a round-trip time (RFC 6298 section 2).
func (t *timers) measured(rtt rdma.Time) {
	if t.srtt == 0 {
		t.srtt, t.rttvar = rtt, rtt/2
	} else {
		d := t.srtt - rtt
		t.rttvar = (3*t.rttvar + max(d, -d)) / 4
		t.srtt = (7*t.srtt + rtt) / 8
	}
}

func (t *timers) base() rdma.Time {
	if t.srtt == 0 {
		return min(rtoInitial, t.ceiling)
	}
	return min(max(t.srtt+4*t.rttvar, rtoRounds*t.srtt, rtoFloor), t.ceiling)
}

// progress is called when una has moved.
func (q *QP) progress(now rdma.Time) {
	r := &q.req
	if r.rttAt != 0 && r.una.After(r.rttPSN) {
		r.measured(now - r.rttAt)
		r.rttAt = 0
	}
	if r.before != 0 {
		r.spoke(r.una == r.next)
	}
	r.retries, r.rnrTries, r.moved, r.probing = 0, 0, now, false
	r.rto = r.base()
	r.grow(r.una)
	if r.una == r.next {
		r.expireAt = 0
	} else {
		r.arm(now)
	}
}

// Expire acts on the deadlines that have passed.
func (q *QP) Expire(now rdma.Time) {
	if q.state != rdma.StateRTS && q.state != rdma.StateSQD {
		return
	}
	r := &q.req
	if r.rnrUntil != 0 && r.rnrUntil <= now {
		r.rnrUntil = 0
	}
	if r.expireAt == 0 || r.expireAt > now {
		return
	}
	r.expireAt = 0
	if r.una == r.next {
		return
	}
	q.n.AckTimeouts++
	r.rto = min(2*r.rto, max(r.ceiling, rtoInitial))
	if !q.retry(now) {
		return
	}
	// The peer may have everything and have been too busy to say so: sending all of it
	// again would keep it busy. It answers one packet as it would answer all.
	q.goBack(now)
	r.probing = true
	r.silent()
	r.arm(now)
}

// retry uses up one retry, or fails the oldest request when there are none
// left. A retry is counted as the peer's timer would: however short our own
// timeouts are, the time of RetryCount ACK timeouts must have passed.
func (q *QP) retry(now rdma.Time) bool {
	r := &q.req
	r.retries++
	budget := rdma.Time(q.attr.RetryCount) * r.ceiling
	if q.attr.AckTimeout == 0 || r.retries <= int(q.attr.RetryCount) || now-r.moved < budget {
		return true
	}
	q.n.RetryExceeded++
	q.failRequest(0, rdma.RetryExcErr, fmt.Errorf("%v did not acknowledge for %d ms, after %d retries",
		q.flow.Dst, (now-r.moved)/rdma.Millisecond, r.retries))
	return false
}

// rnrTimes are the RNR timer codes in units of 10 microseconds (IBTA table 45).
var rnrTimes = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

func rnrTime(code uint8) rdma.Time {
	return rdma.Time(rnrTimes[code&31]) * 10 * rdma.Microsecond
}
