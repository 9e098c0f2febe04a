package rc

import (
	"encoding/binary"
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

// answer handles a response to our requests (IBTA 9.7.6). Responses outside of una to next are
// duplicates or forgeries and have no effect.
func (q *QP) answer(now rdma.Time, p *wire.Packet) {
	r := &q.req
	if !p.PSN.Before(r.next) {
		q.n.RxGhostAck++ // for a PSN that was never sent (IBTA 9.7.6)
		return
	}
	if p.PSN.Before(r.una) {
		q.n.RxStaleResponse++
		return
	}
	switch {
	case p.Op.Is(wire.ClassRead):
		if p.Op.Is(wire.HasAETH) && p.AETH.Syndrome&wire.SyndromeTypeMask != wire.SyndromeTypeAck {
			q.badResponse("a READ response with a NAK syndrome")
			return
		}
		q.readResponse(now, p)
	case p.Op == wire.AtomicAck:
		q.atomicResponse(now, p)
	default:
		q.acknowledge(now, p)
	}
}

// acknowledge handles an ACK or NAK.
//
//   - ACK acknowledges all PSNs up to its own.
//   - RNR NAK: the peer had no receive for its PSN. After the time in the syndrome all from that
//     PSN on is sent again.
//   - NAK "PSN sequence error" (0x60): the peer expects its PSN; all from there is sent again.
//   - The other NAKs are fatal for the request at their PSN, and for the connection.
//
// A NAK acknowledges all PSNs before its own. Requests before it complete as usual, those behind it
// as flushed. The request at the NAK's PSN completes with (IBTA 9.9.2):
//
//	RNR NAK, retries used up         RNRRetryExcErr     (retry count 7: retried for ever)
//	0x60 sequence, retries used up   RetryExcErr
//	0x61 invalid request             RemInvReqErr
//	0x62 remote access error         RemAccessErr
//	0x63 remote operational error    RemOpErr, as for any other code
//	a reserved type of syndrome      none: the packet is ignored
func (q *QP) acknowledge(now rdma.Time, p *wire.Packet) {
	r := &q.req
	syndrome := p.AETH.Syndrome
	switch syndrome & wire.SyndromeTypeMask {
	case wire.SyndromeTypeAck:
		q.ackTo(now, p.PSN)
		return
	case wire.SyndromeTypeRNR:
		q.n.RxRNR++
		q.summary.RxRNR.add(syndrome, p.PSN)
		if !q.ackBefore(now, p.PSN) {
			return
		}
		r.rnrTries++
		if c := q.attr.RNRRetryCount; c != 7 && r.rnrTries > int(c) {
			q.n.RNRRetryExceeded++
			q.failRequest(0, rdma.RNRRetryExcErr,
				fmt.Errorf("%v had no receive posted, %d times in a row", q.flow.Dst, r.rnrTries))
			return
		}
		q.goBack(now)
		r.rnrUntil = now + rnrTime(syndrome&wire.SyndromeValueMask)
		r.expireAt = 0
		return
	case wire.SyndromeTypeNAK:
	default:
		q.n.RxBadResponse++ // a reserved syndrome
		return
	}
	if syndrome == wire.NAKSequence {
		q.n.RxNAKSequence++
		q.summary.RxNAK.add(syndrome, p.PSN)
		if !q.ackBefore(now, p.PSN) {
			// The NAK is for a request behind a READ whose response is missing, so requests were
			// lost as well. They are sent again with the READ. Sending them at once could take
			// the buffers that the response needs.
			if q.state != rdma.StateErr && p.PSN.After(r.una) && p.PSN.Before(r.next) {
				r.window.lost(now, r.srtt, r.queued())
			}
			return
		}
		if r.backAt != 0 && r.backPSN == r.una && now-r.backAt < r.guard() {
			return
		}
		if q.retry(now) {
			if n := r.una.Sub(r.backPSN); r.backAt != 0 && n > 0 && n <= nakRunStep {
				r.nakRun++
			} else {
				r.nakRun = 0
			}
			r.window.lost(now, r.srtt, r.queued())
			q.goBack(now)
			r.arm(now)
		}
		return
	}
	if !q.ackBefore(now, p.PSN) {
		return
	}
	status, what := rdma.RemOpErr, "a remote operational error"
	switch syndrome {
	case wire.NAKInvalidRequest:
		q.n.RxNAKInvalid++
		status, what = rdma.RemInvReqErr, "an invalid request"
	case wire.NAKRemoteAccess:
		q.n.RxNAKAccess++
		status, what = rdma.RemAccessErr, "a remote access error"
	default:
		q.n.RxNAKOperation++
	}
	q.summary.RxNAK.add(syndrome, p.PSN)
	q.failRequest(0, status,
		fmt.Errorf("%v answered with %s (NAK %#x at PSN %d)", q.flow.Dst, what, syndrome, p.PSN))
}

// A NIC that makes wrong UDP segments delivers the first packet of each retransmitted run, and
// loses the rest. Each loss is then right behind the packet that was sent again. Random losses
// are rarely that close to each other so many times in a row.
const (
	nakRunStep = 2
	nakRunMax  = 16
)

// LosesSegments reports, once, whether requests are lost as if only the first of several segments
// arrives.
func (q *QP) LosesSegments() bool {
	if q.req.nakRun < nakRunMax {
		return false
	}
	q.req.nakRun = 0
	return true
}

// ackBefore acknowledges all PSNs before psn. It reports whether psn is then una: a NAK of any
// other PSN has no effect.
func (q *QP) ackBefore(now rdma.Time, psn wire.PSN) bool {
	q.ackTo(now, psn.Add(-1))
	return q.state != rdma.StateErr && q.sq.Len() > 0 && q.req.una == psn && q.sq.Front().started
}

// ackTo completes the requests up to psn. It stops at a READ or atomic without its response: the
// responder answers in order, so an acknowledgement beyond it means that the response was lost
// (IBTA 9.7.6).
func (q *QP) ackTo(now rdma.Time, psn wire.PSN) {
	r := &q.req
	if psn.Before(r.una) {
		return
	}
	moved, lost, una := false, false, r.una
	for q.sq.Len() > 0 {
		e := q.sq.Front()
		if !e.started || psn.Before(e.psn) {
			break
		}
		if e.reads() {
			lost = true
			break
		}
		moved = true
		if e.last().After(psn) {
			r.una = psn.Add(1)
			break
		}
		r.una = e.last().Add(1)
		q.finish()
	}
	if moved {
		q.caughtUp(now)
		r.window.grow(int(r.una.Sub(una)), r.queued())
	}
	if lost {
		q.lostResponse(now)
	}
}

// finish completes the oldest request. The index of the cursor follows the shift of the queue.
func (q *QP) finish() {
	q.completeSend(rdma.Success)
	if q.req.cur > 0 {
		q.req.cur--
	}
}

// caughtUp is called after una has moved. A retransmission skips what is acknowledged now.
func (q *QP) caughtUp(now rdma.Time) {
	if q.req.psn.Before(q.req.una) {
		q.seek(q.req.una)
	}
	q.progress(now)
}

// lostResponse requests READ data or an atomic's result again that did not arrive although later
// packets did.
func (q *QP) lostResponse(now rdma.Time) {
	r := &q.req
	if r.psn.Before(r.next) && r.psn == r.una {
		return // the retransmission is about to begin
	}
	// The peer finishes the response in progress before it handles the new request. Packets of
	// that response still arrive for a while and show the same loss, not a new one.
	if r.backAt != 0 && r.backPSN == r.una && now-r.backAt < max(2*r.srtt, nakGuard) {
		return
	}
	r.readWindow.lost(now, r.srtt, r.queued())
	q.goBack(now)
	r.arm(now)
}

// atFront acknowledges the requests before a response and returns the request of the response, or
// nil if there is none.
func (q *QP) atFront(now rdma.Time, psn wire.PSN) *sqe {
	q.ackTo(now, psn.Add(-1))
	if q.state == rdma.StateErr || q.sq.Len() == 0 {
		return nil
	}
	e := q.sq.Front()
	if !e.started || psn.Before(e.psn) || psn.After(e.last()) {
		q.n.RxStaleResponse++
		return nil
	}
	return e
}

// readResponse handles a packet of a READ response. It scatters the payload to the memory of the
// work request, but only in order and with exactly the length that is due: the peer cannot write
// anywhere else.
func (q *QP) readResponse(now rdma.Time, p *wire.Packet) {
	r := &q.req
	e := q.readAt(now, p.PSN)
	if e == nil {
		return
	}
	if e.wr.Op != rdma.OpRead {
		q.badResponse("a READ response to another request")
		return
	}
	if p.PSN != r.una {
		q.lostResponse(now)
		return
	}
	n := min(uint32(q.mtu), e.length-e.got)
	if uint32(len(p.Payload)) != n {
		q.badResponse(fmt.Sprintf("a READ response of %d bytes instead of %d", len(p.Payload), n))
		return
	}
	if !p.Placed {
		wq.Scatter(e.sgl, e.got, p.Payload)
	}
	e.got += n
	q.n.RxBytesReadResponse += uint64(n)
	k := int(p.PSN.Sub(e.psn)) + 1
	q.responded(p.PSN, k%e.part == 0 || k == e.count)
	if k == e.count {
		q.finish()
	}
	q.caughtUp(now)
	r.readWindow.grow(1, r.queued())
}

// readAt is atFront for a packet of a READ response. Such a packet acknowledges the requests before
// the READ, but not the earlier packets of the same READ: their data has to arrive.
func (q *QP) readAt(now rdma.Time, psn wire.PSN) *sqe {
	if q.sq.Len() > 0 {
		if e := q.sq.Front(); e.started && e.reads() && !psn.Before(e.psn) && !psn.After(e.last()) {
			return e
		}
	}
	if e := q.atFrontOf(psn); e != nil {
		return q.atFront(now, e.psn)
	}
	q.n.RxStaleResponse++
	return nil
}

// atFrontOf finds the started request that psn belongs to, or nil.
func (q *QP) atFrontOf(psn wire.PSN) *sqe {
	for i := range q.sq.Len() {
		e := q.sq.At(i)
		if !e.started {
			return nil
		}
		if !psn.After(e.last()) {
			return e
		}
	}
	return nil
}

// atomicResponse handles the result of an atomic. It is stored in the byte order of this host, as
// the verbs define it.
func (q *QP) atomicResponse(now rdma.Time, p *wire.Packet) {
	e := q.atFront(now, p.PSN)
	if e == nil {
		return
	}
	if !e.atomic() {
		q.badResponse("an atomic acknowledgement of another request")
		return
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], p.AtomicAck)
	wq.Scatter(e.sgl, 0, b[:])
	q.responded(p.PSN, true)
	q.finish()
	q.caughtUp(now)
}

// responded accounts for the response packet at una. last says that it ends its READ request
// packet.
func (q *QP) responded(psn wire.PSN, last bool) {
	r := &q.req
	r.una = psn.Add(1)
	if !psn.Before(r.psn) {
		return // requested before goBack, and not again yet
	}
	r.readPSNs--
	if last {
		r.reads--
	}
}

// badResponse ends the connection after a response that breaks the protocol (IBTA 9.9.2).
func (q *QP) badResponse(what string) {
	q.n.RxBadResponse++
	q.failRequest(0, rdma.BadRespErr, fmt.Errorf("%v sent %s", q.flow.Dst, what))
}
