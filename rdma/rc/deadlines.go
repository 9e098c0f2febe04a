package rc

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Bounds of the retransmission timeout. The local ACK timeout of the connection (IBTA 9.7.6.1.3) is
// chosen for the worst network. The measured round-trip time gives a shorter timeout; the local ACK
// timeout is its ceiling before back-off.
const (
	rtoInitial = 20 * rdma.Millisecond
	rtoFloor   = rdma.Millisecond
	// rtoLocal is the least timeout between two processes of one host. A packet is lost there if a
	// socket overflows. All other silence is a peer that waits for a processor, and packets that
	// are sent again take more of its time.
	rtoLocal = 16 * rdma.Millisecond
	// rtoRounds is the least timeout in round trips. The scheduler can delay a peer in user space
	// for longer than the measured variation.
	rtoRounds  = 8
	rtoCeiling = rdma.Second // if the connection has no local ACK timeout
	// rtoKept: a timeout of up to ceiling/rtoKept is retained after an unmeasured ACK.
	rtoKept = 16

	// backGuard is the least time between two retransmissions from the same PSN because of NAKs,
	// before there is a round-trip time, or with a fixed window. Packets that were in flight at
	// the first one cause more NAKs.
	backGuard = 500 * rdma.Microsecond
	// nakGuard is the time after which a packet with AckReq makes the responder send a sequence
	// NAK again: the first one may have been lost.
	nakGuard = 500 * rdma.Microsecond

	// minRTTPeriod: a shortest round trip is used for one to two periods.
	minRTTPeriod = 10 * rdma.Second
	// queueTime: a round trip that is longer than the shortest by this much shows a queue.
	queueTime = 20 * rdma.Microsecond
	// shortTime: if even the shortest round trip is longer, a standing queue is assumed.
	shortTime = 500 * rdma.Microsecond
)

// timers are the deadlines and the round-trip times of the requester.
type timers struct {
	expireAt    rdma.Time    // retransmission timeout; 0 = nothing in flight
	rnrUntil    rdma.Time    // nothing is sent before, because of an RNR NAK; 0 = none
	rto         rdma.Time    // current timeout, with back-off
	ceiling     rdma.Time    // local ACK timeout
	srtt        rdma.Time    // smoothed round-trip time (RFC 6298)
	minRTT      [2]rdma.Time // shortest round trip of this period and of the one before, 0 = none
	minRTTSince rdma.Time    // when this period began
	rttvar      rdma.Time
	rttAt       rdma.Time // when the measured packet was sent, 0 = none
	rttPSN      wire.PSN
	probing     bool // after a timeout: only the oldest packet is sent until a response arrives
	backAt      rdma.Time
	backPSN     wire.PSN
	nakRun      int       // sequence NAKs in a row, each at most nakRunStep PSNs after the one before
	progressAt  rdma.Time // when una last moved
	retries     int       // timeouts and sequence NAKs since progressAt
	rnrTries    int
}

// start initializes the timers. Without a local ACK timeout (code 0) the ceiling is rtoCeiling.
func (t *timers) start(now, ackTimeout rdma.Time) {
	t.progressAt = now
	t.ceiling = ackTimeout
	if t.ceiling == 0 {
		t.ceiling = rtoCeiling
	}
	t.rto = min(rtoInitial, t.ceiling)
}

func (t *timers) deadline() rdma.Time {
	return rdma.Earlier(t.rnrUntil, t.expireAt)
}

// arm starts the retransmission timer anew.
func (t *timers) arm(now rdma.Time) { t.expireAt = now + t.rto }

// measured updates the estimates with a round-trip time (RFC 6298 section 2).
func (t *timers) measured(now, rtt rdma.Time) {
	rtt = max(rtt, 1)
	switch {
	case t.minRTT[0] == 0:
		t.minRTT, t.minRTTSince = [2]rdma.Time{rtt, rtt}, now
	case now-t.minRTTSince > minRTTPeriod:
		t.minRTT, t.minRTTSince = [2]rdma.Time{rtt, t.minRTT[0]}, now
	default:
		t.minRTT[0] = min(t.minRTT[0], rtt)
	}
	if t.srtt == 0 {
		t.srtt, t.rttvar = rtt, rtt/2
	} else {
		d := t.srtt - rtt
		t.rttvar = (3*t.rttvar + max(d, -d)) / 4
		t.srtt = (7*t.srtt + rtt) / 8
	}
}

// queued reports whether packets seem to wait in a queue of the network, or whether that is
// unknown.
func (t *timers) queued() bool {
	rtt := min(t.minRTT[0], t.minRTT[1])
	return t.srtt == 0 || rtt > shortTime || t.srtt-rtt > max(rtt/4, queueTime)
}

// base is the timeout without back-off (RFC 6298 section 2).
func (t *timers) base() rdma.Time {
	if t.srtt == 0 {
		return min(rtoInitial, t.ceiling)
	}
	return min(max(t.srtt+4*t.rttvar, rtoRounds*t.srtt, rtoFloor), t.ceiling)
}

// progress is called after una has moved. It updates the timeout, and resets the retries (IBTA
// 9.9.2).
func (q *QP) progress(now rdma.Time) {
	r := &q.req
	if q.summary.FullSent && !q.summary.FullArrived {
		q.summary.FullArrived = r.una.After(r.full)
	}
	// After a timeout only the oldest packet is sent again. If the ACK is for more, the peer has
	// packets of the first transmission: it is slow. The others may be on their way, so only the one
	// that is the oldest now asks again (compare RFC 5682).
	slow := r.probing && r.una.After(r.backPSN.Add(1)) && r.una != r.next
	if r.rttAt != 0 && r.una.After(r.rttPSN) {
		r.measured(now, now-r.rttAt)
		r.rttAt = 0
		r.rto = r.base()
	} else {
		// The ACK after a timeout is not measured. If the back-off were undone now, everything
		// would be sent twice forever to a peer that has become slow. So the longer timeout
		// stays until a measurement (RFC 6298 section 5), up to a bound that leaves enough
		// retries within the time of RetryCount.
		r.rto = max(r.base(), min(r.rto, r.ceiling/rtoKept))
	}
	if !slow {
		r.window.answered(r.una == r.next)
		r.readWindow.answered(r.una == r.next)
	}
	r.retries, r.rnrTries, r.progressAt, r.probing = 0, 0, now, false
	q.pace(now)
	if r.una == r.next {
		r.expireAt = 0
	} else {
		r.arm(now)
		q.endAckDelay(now)
	}
	if slow {
		q.goBack(now)
		r.probing = true
	}
}

// guard is the least time between two retransmissions from the same PSN because of NAKs.
func (r *requester) guard() rdma.Time {
	if rtt := min(r.minRTT[0], r.minRTT[1]); rtt != 0 && !r.window.fixed {
		return rtt
	}
	return backGuard
}

// pace spreads the window over the round trip once the network has lost or marked packets. The pace
// is twice that rate, so that the window stays the limit, unless the window is at its minimum.
func (q *QP) pace(now rdma.Time) {
	r := &q.req
	w := &r.window
	if w.fixed || !w.limited() || r.srtt == 0 {
		if r.rate != 0 {
			r.pacer.set(now, 0, 0)
		}
		return
	}
	rate := int64(w.size) * int64(q.mtu+headerCharge) * (int64(rdma.Second) / windowUnit) / int64(r.srtt)
	if w.size > windowMin*windowUnit {
		rate *= 2
	}
	r.pacer.set(now, max(rate, 1), int64(max(w.packets()/4, windowMin)*q.mtu))
}

// Expire handles the deadlines that have passed.
func (q *QP) Expire(now rdma.Time) {
	if q.resp.rate.until <= now {
		q.resp.rate.until = 0
	}
	if q.serving() {
		q.repeatNAK(now)
	}
	if q.state != rdma.StateRTS && q.state != rdma.StateSQD {
		return
	}
	r := &q.req
	if r.until <= now {
		r.until = 0
	}
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
	if r.ackDelayed() {
		q.probeTail(now)
		return
	}
	if q.noICRC && r.rto < rtoLocal {
		r.expireAt, r.rto = now+rtoLocal-r.rto, rtoLocal
		return
	}
	q.n.AckTimeouts++
	r.rto = min(2*r.rto, max(r.ceiling, rtoInitial))
	if !q.retry(now) {
		return
	}
	// The peer may have everything and be too busy to acknowledge it. So only the oldest packet
	// is sent again: its ACK says as much as the ACK of all.
	q.goBack(now)
	r.probing = true
	r.window.timedOut()
	r.readWindow.timedOut()
	r.arm(now)
}

// ackDelayed reports whether packets are in flight and none of them has requested an
// acknowledgement. There is no READ or atomic among them: these always do.
func (r *requester) ackDelayed() bool {
	return r.psn == r.next && r.una != r.next && !r.ackReqEnd.After(r.una)
}

// probeTail sends the last packet again, with AckReq. The responder has it and acknowledges it as a
// duplicate, or answers with a NAK for what was lost before it (compare RFC 8985 section 7).
func (q *QP) probeTail(now rdma.Time) {
	r := &q.req
	q.n.TxTailProbes++
	q.seek(r.next.Add(-1))
	r.tailProbe = true
	r.arm(now)
}

// endAckDelay ends the delay of acknowledgements if something waits for them: a local request at
// the cursor, or the transition to SQD.
func (q *QP) endAckDelay(now rdma.Time) {
	r := &q.req
	if r.ackDelayed() && r.expireAt != 0 &&
		(q.state == rdma.StateSQD || r.cur < q.sq.Len() && q.sq.At(r.cur).local()) {
		r.expireAt = now
	}
}

// retry uses one retry, or fails the oldest request with RetryExcErr if there is none left (IBTA
// 9.9.2). Our timeouts are shorter than the local ACK timeout, so in addition the time of
// RetryCount local ACK timeouts must have passed without progress.
func (q *QP) retry(now rdma.Time) bool {
	r := &q.req
	r.retries++
	budget := rdma.Time(q.attr.RetryCount) * r.ceiling
	if q.attr.AckTimeout == 0 || r.retries <= int(q.attr.RetryCount) || now-r.progressAt < budget {
		return true
	}
	q.n.RetryExceeded++
	narrow := ""
	if q.summary.Narrow() {
		narrow = fmt.Sprintf("; it answered before, but no packet with %d bytes of data ever arrived", q.mtu)
	}
	q.failRequest(0, rdma.RetryExcErr, fmt.Errorf("%v did not acknowledge for %d ms, after %d retries%s",
		q.flow.Dst, (now-r.progressAt)/rdma.Millisecond, r.retries, narrow))
	return false
}

// rnrTimes are the times of the RNR timer codes in units of 10 microseconds (IBTA table 45).
var rnrTimes = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

func rnrTime(code uint8) rdma.Time {
	return rdma.Time(rnrTimes[code&31]) * 10 * rdma.Microsecond
}
