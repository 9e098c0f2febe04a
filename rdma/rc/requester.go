package rc

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// ackInterval is the number of request packets between two with AckReq. A loss inside of a long
// message then shows before its end.
const ackInterval = 32

// delayedMax is the number of messages between two with AckReq, if their completions are not
// urgent.
const delayedMax = 15

// requester is the sending half: a cursor over the send queue.
//
//	 acknowledged      sent, not acknowledged              never sent
//	---------------+---------------------------------+------------------
//	               una            psn                 next
//
// psn is the next PSN to send. psn < next means that the QP retransmits.
type requester struct {
	cur  int // index in the send queue of the request that psn belongs to
	psn  wire.PSN
	una  wire.PSN
	next wire.PSN

	full wire.PSN // first packet that filled the path MTU; valid with Summary.FullSent

	// ackReqEnd follows the last packet that was sent with AckReq. The peer does not acknowledge the
	// packets between ackReqEnd and next by itself, see probeTail.
	ackReqEnd   wire.PSN
	sinceAckReq int // packets since the last one with AckReq
	delayed     int // messages since then
	// tailProbe: the packet at the cursor is sent again only to request an acknowledgement.
	tailProbe bool
	// reads counts the READ requests and atomics between una and psn, readPSNs the PSNs of their
	// responses.
	reads    int
	readPSNs int

	timers
	pacer
	window window // of SENDs and RDMA WRITEs
	// readWindow bounds the packets of READ responses that are requested.
	readWindow window
}

// start initializes the requester for the transition to RTS: most packets in flight, and mostRead
// packets of READ responses.
func (r *requester) start(now rdma.Time, psn wire.PSN, ackTimeout rdma.Time, most, mostRead int, fixed bool) {
	*r = requester{psn: psn, una: psn, next: psn, ackReqEnd: psn}
	r.window.start(most, fixed)
	r.readWindow.start(mostRead, fixed)
	r.timers.start(now, ackTimeout)
}

// reset deletes all requests. It does not change the next PSN: a late response to an old request
// is then recognized as stale.
func (r *requester) reset() {
	*r = requester{psn: r.next, una: r.next, next: r.next, ackReqEnd: r.next}
}

// inFlight is the number of packets sent and not acknowledged. READs do not count: the peer sends
// the packets of their PSNs.
func (r *requester) inFlight() int { return max(0, int(r.psn.Sub(r.una))-r.readPSNs) }

// canSend reports whether the next packet of the request at the cursor may be sent now.
func (q *QP) canSend(now rdma.Time) bool {
	r := &q.req
	if r.cur >= q.sq.Len() || r.rnrUntil > now {
		return false
	}
	e := q.sq.At(r.cur)
	switch {
	case e.local():
		// Local requests are executed after all requests before them have completed.
		return r.cur == 0 && q.state == rdma.StateRTS
	case r.probing && r.psn != r.una:
		return false // after a timeout only one packet is sent; its ACK shows what is missing
	case !e.started && (q.state == rdma.StateSQD || e.wr.Flags&rdma.Fence != 0 && r.reads > 0):
		return false
	case e.reads():
		return r.reads < int(q.attr.MaxRdAtomic) && (r.reads == 0 || q.readWindowHasRoom(e))
	}
	return (r.tailProbe || r.inFlight() < r.window.packets()) && !r.paced(now)
}

// transmitRequests sends request packets from the cursor on.
func (q *QP) transmitRequests(now rdma.Time, b *wire.Batch, budget int) {
	r := &q.req
	for ; budget > 0 && !b.Full() && q.canSend(now); budget-- {
		e := q.sq.At(r.cur)
		if e.local() {
			if !q.execute(e) {
				return
			}
			continue
		}
		if !e.started && !q.begin(e) {
			return
		}
		retransmit := r.psn.Before(r.next)
		if retransmit && !r.tailProbe {
			q.n.TxRetransmits++
		}
		switch {
		case e.wr.Op == rdma.OpRead:
			if retransmit {
				q.n.ReadReissues++
			}
			p := q.packet(wire.ReadRequest, r.psn)
			p.AckReq = true
			// The request is for packets k to end-1 of the response. After a loss k need not
			// be 0: a partial READ request continues where the response stopped (IBTA
			// 9.4.4).
			k := int(r.psn.Sub(e.psn))
			end := k + e.responsePackets(k)
			off := uint32(k * q.mtu)
			n := min(uint32((end-k)*q.mtu), e.length-off)
			q.fills(int(n))
			p.RETH = wire.RETH{VA: e.wr.RemoteAddr + uint64(off), RKey: e.wr.RKey, Len: n}
			q.put(b, p, nil)
			r.reads++
			r.readPSNs += end - k
			q.sent(now, e.psn.Add(end-1))
		case e.atomic():
			op := wire.CompareSwap
			if e.wr.Op == rdma.OpFetchAdd {
				op = wire.FetchAdd
			}
			p := q.packet(op, r.psn)
			p.AckReq = true
			p.Atomic = wire.Atomic{VA: e.wr.RemoteAddr, RKey: e.wr.RKey, SwapAdd: e.wr.SwapAdd, Compare: e.wr.Compare}
			q.put(b, p, nil)
			r.reads++
			r.readPSNs++
			q.sent(now, r.psn)
		default:
			r.charge(now, q.segment(e, b, retransmit))
			q.sent(now, r.psn)
		}
	}
}

// execute executes a local request: OpLocalInv, OpBindMW or OpReg. It reports false after a
// failure, which has moved the QP to ERR.
func (q *QP) execute(e *sqe) bool {
	if e.wr.Op == rdma.OpLocalInv {
		if s := q.cfg.Mem.Invalidate(q.cfg.PD, q.cfg.Num, e.wr.InvRKey); s != rdma.Success {
			q.failRequest(0, rdma.LocQPOpErr, fmt.Errorf("local invalidate of key %#x: %v", e.wr.InvRKey, s))
			return false
		}
	} else if s := q.cfg.Mem.Bind(q.cfg.PD, q.cfg.Num, &e.wr); s != rdma.Success {
		q.failRequest(0, s, fmt.Errorf("memory could not be bound to key %#x: %v", e.wr.RKey, s))
		return false
	}
	q.completeSend(rdma.Success)
	return true
}

// begin starts a request: it checks its local memory and assigns its PSNs. Regions can be
// deregistered after PostSend, so the check is here.
func (q *QP) begin(e *sqe) bool {
	r := &q.req
	for _, s := range e.sgl {
		if e.wr.Flags&rdma.Inline != 0 {
			break
		}
		if st := q.cfg.Mem.Local(q.cfg.PD, s.LKey, s.Buf, e.reads()); st != rdma.Success {
			q.failRequest(r.cur, rdma.LocProtErr,
				fmt.Errorf("memory of a work request is not in the region of its L_Key %#x: %v", s.LKey, st))
			return false
		}
	}
	e.started, e.psn, e.got, e.count = true, r.psn, 0, 1
	if !e.atomic() {
		e.count = q.packets(e.length)
	}
	e.part = q.readPart()
	return true
}

const (
	// readPartMin is the least part of a READ in bytes while the network loses little.
	readPartMin = 64 << 10
	// readsAhead is the number of READ requests that fill the window while nothing is lost.
	readsAhead = 4
)

// readPart is the number of response packets of one READ request. A longer READ becomes several
// requests on the wire.
//
// The response to one request arrives at the peer's full speed. Smaller requests are the only means
// of a requester to keep a peer of any make from sending more than the network carries. A
// retransmission repeats the same requests, because the responder keeps a state for each (IBTA
// 9.4.4).
//
// While the network loses nothing the parts are long: first and last packets of a response are
// longer than those between, and each change of size ends a run of the peer's segmentation offload.
//
//	READ of e.count packets    |<-- part -->|<-- part -->|<-- part -->|<rest>|
//	READ requests              ^e.psn       ^            ^            ^
func (q *QP) readPart() int {
	a := &q.req.readWindow
	reads := max(1, int(q.attr.MaxRdAtomic))
	if !a.limited() {
		return max(1, a.packets()/min(reads, readsAhead))
	}
	return max(1, min(max(readPartMin/q.mtu, a.most/windowUnit/(2*reads)), a.packets()/2))
}

// readWindowHasRoom reports whether the window has room for the response to the READ request or
// atomic at the cursor. While the network loses nothing, the whole response must fit.
func (q *QP) readWindowHasRoom(e *sqe) bool {
	r := &q.req
	room := r.readWindow.packets() - r.readPSNs
	switch {
	case r.readWindow.limited() || e.atomic():
		return room > 0
	case e.started:
		return room >= e.responsePackets(int(r.psn.Sub(e.psn)))
	}
	return room >= min(q.packets(e.length), q.readPart())
}

// responsePackets is the number of response packets of the READ request that begins at packet k.
func (e *sqe) responsePackets(k int) int { return min(e.part-k%e.part, e.count-k) }

// sent moves the cursor behind the packet or READ request whose last PSN is last. It starts the
// round-trip measurement, never with a retransmission (Karn). The timer runs from the oldest packet
// with AckReq that is in flight, or else from the last packet.
func (q *QP) sent(now rdma.Time, last wire.PSN) {
	r := &q.req
	if !r.psn.Before(r.next) && r.rttAt == 0 && q.pkt.AckReq {
		r.rttAt, r.rttPSN = now, r.psn
	}
	r.psn, r.tailProbe = last.Add(1), false
	if r.expireAt == 0 || !r.ackReqEnd.After(r.una) {
		r.arm(now)
	}
	if q.pkt.AckReq && r.psn.After(r.ackReqEnd) {
		r.ackReqEnd = r.psn
	}
	if r.psn.After(r.next) {
		r.next = r.psn
	}
	if !r.psn.Before(q.sq.At(r.cur).last().Add(1)) {
		r.cur++
	}
}

// delays reports whether the message at the cursor, whose last packet is to be sent, can do without
// AckReq:
//
//   - its completion is not urgent, or it has none,
//   - half of the send queue is free: a full one waits for an acknowledgement,
//   - no local request follows, because that waits for the acknowledgement too,
//   - the round-trip time is known.
func (q *QP) delays(e *sqe) bool {
	r := &q.req
	return (e.wr.Flags&rdma.Signaled == 0 || e.wr.Flags&rdma.DelayAck != 0) && r.delayed < delayedMax && r.srtt != 0 &&
		q.state == rdma.StateRTS && 2*q.sq.Len() <= q.cfg.Caps.MaxSendWR &&
		(r.cur+1 == q.sq.Len() || !q.sq.At(r.cur+1).local())
}

// Opcodes by position in the message: bit 0 is set in the first packet, bit 1 in the last.
var (
	sendOps = [...]wire.Opcode{wire.SendMiddle, wire.SendFirst, wire.SendLast, wire.SendOnly}
	immOps  = [...]wire.Opcode{wire.SendMiddle, wire.SendFirst, wire.SendLastImm, wire.SendOnlyImm}
	invOps  = [...]wire.Opcode{wire.SendMiddle, wire.SendFirst, wire.SendLastInv, wire.SendOnlyInv}
	wrOps   = [...]wire.Opcode{wire.WriteMiddle, wire.WriteFirst, wire.WriteLast, wire.WriteOnly}
	wrImm   = [...]wire.Opcode{wire.WriteMiddle, wire.WriteFirst, wire.WriteLastImm, wire.WriteOnlyImm}
)

// segment sends the packet at the cursor of a SEND or RDMA WRITE, and returns the length of its
// payload. All packets but the last carry exactly the path MTU (IBTA 9.7.4.1.6).
func (q *QP) segment(e *sqe, b *wire.Batch, retransmit bool) int {
	r := &q.req
	k := int(r.psn.Sub(e.psn))
	off := uint32(k * q.mtu)
	n := min(q.mtu, int(e.length-off))
	pos := 0 // index in the tables above
	if k == 0 {
		pos |= 1
	}
	last := k == e.count-1
	if last {
		pos |= 2
	}
	table, write := &sendOps, false
	switch e.wr.Op {
	case rdma.OpSendImm:
		table = &immOps
	case rdma.OpSendInv:
		table = &invOps
	case rdma.OpWrite:
		table, write = &wrOps, true
	case rdma.OpWriteImm:
		table, write = &wrImm, true
	}
	p := q.packet(table[pos], r.psn)
	r.sinceAckReq++
	// AckReq at the end of a message unless its ACK may be delayed, four times per window, and in
	// the last packet that the window allows: nothing else could be sent until an ACK arrives.
	interval := min(ackInterval, max(1, r.window.packets()/4))
	if last && (retransmit || !q.delays(e)) || r.probing ||
		r.sinceAckReq >= interval || r.inFlight()+1 >= r.window.packets() {
		p.AckReq, r.sinceAckReq, r.delayed = true, 0, 0
	} else if last {
		r.delayed++
	}
	p.Solicited = last && e.wr.Flags&rdma.Solicited != 0 && e.wr.Op != rdma.OpWrite
	p.Imm, p.InvRKey = e.wr.Imm, e.wr.InvRKey
	p.RETH = wire.RETH{VA: e.wr.RemoteAddr, RKey: e.wr.RKey, Len: e.length}
	q.fills(n)
	q.put(b, p, q.gather(e.sgl, off, n))
	if e.wr.Volatile != nil {
		d := &b.D[len(b.D)-1]
		d.Volatile, d.Retransmit = e.wr.Volatile, retransmit
	}
	if !retransmit {
		if write {
			q.n.TxBytesWrite += uint64(n)
		} else {
			q.n.TxBytesSend += uint64(n)
		}
	}
	return n
}

// fills records the first packet that fills the path MTU: the packet at the cursor, if it or the
// response that it requests has n bytes of data. See Summary.FullSent.
func (q *QP) fills(n int) {
	if n >= q.mtu && !q.summary.FullSent {
		q.summary.FullSent, q.req.full = true, q.req.psn
	}
}

// seek moves the cursor to psn, which is at or behind una. Nothing between una and psn is in flight
// then.
func (q *QP) seek(psn wire.PSN) {
	r := &q.req
	r.psn, r.reads, r.readPSNs, r.tailProbe = psn, 0, 0, false
	for r.cur = 0; r.cur < q.sq.Len(); r.cur++ {
		if e := q.sq.At(r.cur); !e.started || !e.last().Before(psn) {
			return
		}
	}
}

// goBack retransmits from the oldest packet without acknowledgement (go-back-N). The responder
// accepts packets in order only (IBTA 9.7.4), so everything behind a loss has to be sent again.
// The memory of all requests behind una is still the QP's, because none of them has completed.
func (q *QP) goBack(now rdma.Time) {
	r := &q.req
	r.probing = false
	q.seek(r.una)
	r.rttAt = 0 // an ACK could be for either transmission (Karn)
	r.backAt, r.backPSN = now, r.una
}

// failRequest completes request i with status s, those before it as flushed, and moves the QP to
// ERR (IBTA 9.9.2).
func (q *QP) failRequest(i int, s rdma.Status, why error) {
	for range i {
		q.completeSend(rdma.WRFlushErr)
	}
	if q.sq.Len() > 0 {
		q.completeSend(s)
	}
	if q.state != rdma.StateErr {
		q.summary.Status = s
	}
	q.fail(why)
}
