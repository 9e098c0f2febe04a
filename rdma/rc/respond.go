package rc

import (
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// answers reports whether a response or a CNP can be sent now.
func (q *QP) answers(now rdma.Time) bool {
	r := &q.resp
	if q.cnp.due {
		return true
	}
	if r.active > 0 && q.state != rdma.StateErr {
		return !r.rate.paced(now)
	}
	return r.active > 0 || r.nakDue || r.ackDue
}

// duplicate answers a request that was executed before (IBTA 9.7.5): a SEND or WRITE is
// acknowledged, a READ is read again, the remembered result of an atomic is repeated. Nothing is
// executed twice. A READ may name only a part of the original: the peer requests the missing rest.
//
//	duplicate            answer                              executed again
//	SEND, WRITE          ACK of everything so far            no
//	READ                 the requested part, read anew       read only
//	atomic               the stored result                   no
//	not remembered       none: the peer's retries run out    no
func (q *QP) duplicate(now rdma.Time, p *wire.Packet) {
	q.n.RxDuplicate++
	r := &q.resp
	if p.Op.Is(wire.ClassSend) || p.Op.Is(wire.ClassWrite) {
		r.ackDue = true
		if p.PSN.Before(r.acked) {
			q.repeated(now)
		}
		return
	}
	if r.repeat.on {
		q.armRepeat(now)
	}
	for i := range r.resources {
		h := &r.resources[i]
		d := int(p.PSN.Sub(h.psn))
		if !h.used || d < 0 || d >= h.count {
			continue
		}
		if h.atomic {
			if p.Op != wire.ReadRequest {
				r.activate(h, h.psn, h.psn.Add(1))
				return
			}
			break
		}
		off := uint64(d) * uint64(q.mtu)
		if p.Op != wire.ReadRequest || p.RETH.RKey != h.rkey || p.RETH.VA != h.va+off ||
			uint64(p.RETH.Len)+off > uint64(h.length) {
			break
		}
		// A long repetition shows that the network lost the response. A peer that requests small
		// parts limits its rate itself.
		if h.at.Sub(p.PSN) > repeatMax {
			r.rate.lost(now)
		}
		r.activate(h, p.PSN, p.PSN.Add(q.packets(p.RETH.Len)))
		return
	}
	q.n.RxDuplicateNoResource++
}

// repeatMax is the number of repeated response packets up to which the rate is not reduced.
const repeatMax = 32

// transmitResponses sends what is due to the peer, in PSN order (IBTA 9.7.5.1): READ data and
// atomic results, then the ACK or NAK. An ACK acknowledges everything before it, so it must not
// overtake a response. It returns the rest of the budget.
func (q *QP) transmitResponses(now rdma.Time, b *wire.Batch, budget int) int {
	r := &q.resp
	if q.cnp.due && budget > 0 && !b.Full() {
		q.notify(b)
		budget--
	}
	for r.active > 0 && q.state != rdma.StateErr {
		h := r.first()
		for ; h.at != h.end; budget-- {
			if budget == 0 || b.Full() || r.rate.paced(now) {
				return budget
			}
			if q.respond(now, h, b) {
				continue
			}
			if q.state == rdma.StateErr {
				return budget
			}
			h.at = h.end // the response ends here
			break
		}
		h.active, h.answered = false, true
		r.active--
	}
	if q.state == rdma.StateErr {
		r.active = 0
	}
	if (r.nakDue || r.ackDue) && budget > 0 && !b.Full() {
		if r.repeat.due && r.nakDue && budget > 1 && b.Room() > 1 {
			// rdma_rxe ignores a second NAK for a PSN unless an ACK came in between.
			p := q.packet(wire.Acknowledge, r.epsn.Add(-1))
			p.AETH = wire.AETH{Syndrome: wire.SyndromeAck, MSN: r.msn}
			q.put(b, p, nil)
			budget--
		}
		r.repeat.due = false
		p := q.packet(wire.Acknowledge, r.epsn.Add(-1))
		p.AETH = wire.AETH{Syndrome: wire.SyndromeAck, MSN: r.msn}
		if r.nakDue {
			p.PSN, p.AETH.Syndrome = r.nakPSN, r.nak
		}
		q.put(b, p, nil)
		r.nakDue, r.ackDue, r.acked = false, false, r.epsn
		budget--
	}
	return budget
}

// ackSpan is the number of request packets from which an acknowledgement is not delayed.
const ackSpan = 16

// OwesAck reports whether the only thing to send is an acknowledgement of few packets. The owner
// may delay it briefly: one ACK later acknowledges more packets. It is not delayed while packets
// are missing, because the peer may wait for it.
func (q *QP) OwesAck(now rdma.Time) bool {
	r := &q.resp
	return r.ackDue && !r.nakDue && !r.repeat.on && r.active == 0 && !q.cnp.due && q.state == rdma.StateRTS &&
		r.epsn.Sub(r.acked) < ackSpan && !q.canSend(now)
}

// first is the active resource with the lowest PSN.
func (r *responder) first() *resource {
	var best *resource
	for i := range r.resources {
		if h := &r.resources[i]; h.active && (best == nil || h.at.Before(best.at)) {
			best = h
		}
	}
	return best
}

var readOps = [...]wire.Opcode{wire.ReadRespMiddle, wire.ReadRespFirst, wire.ReadRespLast, wire.ReadRespOnly}

// respond sends one packet of a READ response, or the result of an atomic. The region is checked
// for each packet, because it can be invalidated in between. It reports false if there is nothing
// to send.
func (q *QP) respond(now rdma.Time, h *resource, b *wire.Batch) bool {
	aeth := wire.AETH{Syndrome: wire.SyndromeAck, MSN: q.resp.msn}
	if h.atomic {
		p := q.packet(wire.AtomicAck, h.at)
		p.AETH, p.AtomicAck = aeth, h.value
		q.put(b, p, nil)
		h.at = h.end
		return true
	}
	off := uint32(h.at.Sub(h.psn)) * uint32(q.mtu)
	n := min(uint32(q.mtu), h.length-off)
	parts := q.parts[:0]
	if n > 0 {
		data, st := q.cfg.Mem.Remote(q.cfg.PD, q.cfg.Num, h.rkey, h.va+uint64(off), n, rdma.RemoteRead)
		switch {
		case st == rdma.Success:
		case h.answered:
			// The request is a late duplicate: the peer had the response, or our user would
			// not have invalidated the memory. It is ignored; a NAK would end the connection.
			q.n.RxDuplicateNoResource++
			return false
		default:
			q.refuse(&wire.Packet{PSN: h.at}, wire.NAKRemoteAccess, "a READ of memory that was invalidated")
			return false
		}
		parts = append(parts, data)
	}
	pos := 0 // bit 0: first, bit 1: last
	if h.at == h.start {
		pos |= 1
	}
	if h.at.Add(1) == h.end {
		pos |= 2
	}
	p := q.packet(readOps[pos], h.at)
	p.AETH = aeth
	q.put(b, p, parts)
	q.resp.rate.sent(now, int(n))
	h.at = h.at.Add(1)
	q.n.TxBytesReadResponse += uint64(n)
	return true
}
