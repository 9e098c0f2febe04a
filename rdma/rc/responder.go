package rc

import (
	"encoding/binary"
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

// message is the kind of message whose first packet has arrived and whose last
// has not.
type message uint8

const (
	noMessage message = iota
	sendMessage
	writeMessage
)

// responder is the serving half: what the peer's requests have done so far and
// what they are still owed.
type responder struct {
	epsn wire.PSN // the PSN that is expected next
	told wire.PSN // epsn when the last acknowledgement left
	msn  uint32   // messages completed, 24 bits

	in      message
	inRecv  bool   // a receive was taken for the message in progress
	recvOff uint32 // bytes of it that are filled
	va      uint64 // the rest of an RDMA WRITE
	rkey    uint32
	left    uint32
	length  uint32

	held    []resource // READs and atomics remembered for replay
	oldest  int        // index in held that the next one takes
	active  int        // resources with packets to send
	ackDue  bool
	nakDue  bool
	nak     uint8 // syndrome
	nakPSN  wire.PSN
	gap     bool // a NAK for epsn was sent and epsn has not arrived
	gapSent rdma.Time
	ahead   wire.PSN // of the last packet that came while there was a gap
	remind  reminder
	// notReady: an RNR NAK was sent, and the packet that it refused has not come again. The peer waits, and sends what
	// follows again by itself.
	notReady bool
	rate     rate // of READ responses
}

// resource is a READ or atomic request of the peer, kept until as many later
// ones have come as the connection allows at once, so that a retransmission
// can be answered.
type resource struct {
	used, active, atomic bool
	// answered: the whole answer was sent once.
	answered bool
	psn      wire.PSN // first PSN
	count    int
	va       uint64
	rkey     uint32
	length   uint32
	value    uint64 // the atomic's result

	start, at, end wire.PSN // of the answer that is being sent
}

func (r *responder) start(psn wire.PSN, depth int) {
	*r = responder{epsn: psn, told: psn, held: make([]resource, depth)}
}

// answers reports whether there is something that the peer is owed and may be sent now.
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

// againGuard is the least time between two NAKs of one PSN.
const againGuard = 20 * rdma.Microsecond

// nakWith owes the peer a NAK. One that is owed already goes first and this
// one is not sent: it will come again if it matters.
func (r *responder) nakWith(syndrome uint8, psn wire.PSN) {
	if !r.nakDue {
		r.nakDue, r.nak, r.nakPSN = true, syndrome, psn
	}
}

// serve takes a request packet (IBTA 9.7.4), its checks in the order in which
// the specification has them.
func (q *QP) serve(now rdma.Time, p *wire.Packet) {
	r := &q.resp
	switch d := p.PSN.Sub(r.epsn); {
	case d > 0:
		q.n.RxOutOfSequence++
		q.missing(now, p.PSN)
		// A PSN that is not behind the last one says that the peer went back, and that
		// what it went back to is lost again.
		back := r.gap && !p.PSN.After(r.ahead) && now-r.gapSent > againGuard
		r.ahead = p.PSN
		if !r.gap || back || p.AckReq && now-r.gapSent > nakGuard {
			r.gap, r.gapSent = true, now
			q.n.TxNAKSequence++
			q.seen.TxNAK.add(wire.NAKSequence, r.epsn)
			r.nakWith(wire.NAKSequence, r.epsn)
		}
		return
	case d < 0:
		q.duplicate(now, p)
		return
	}
	r.gap, r.notReady = false, false
	if r.nakDue && r.nak == wire.NAKSequence {
		r.nakDue = false // the gap closed before the NAK left
	}
	if !q.inOrder(p.Op) {
		q.refuse(p, wire.NAKInvalidRequest, fmt.Sprintf("%v out of order", p.Op))
		return
	}
	switch {
	case p.Op.Is(wire.ClassSend):
		q.serveSend(now, p)
	case p.Op.Is(wire.ClassWrite):
		q.serveWrite(now, p)
	case p.Op == wire.ReadRequest:
		q.serveRead(p)
	default:
		q.serveAtomic(p)
	}
	q.came(now)
}

// reserved takes a packet whose opcode the class RC has no meaning for (IBTA 9.7.4.1.5). It can be a request only.
func (q *QP) reserved(now rdma.Time, p *wire.Packet) {
	q.n.DropOpcode++
	if p.PSN == q.resp.epsn {
		q.resp.gap, q.resp.notReady = false, false
		q.came(now)
		q.refuse(p, wire.NAKInvalidRequest, fmt.Sprintf("the reserved opcode %#02x", uint8(p.Op)))
	}
}

// inOrder checks the opcode against the message in progress.
func (q *QP) inOrder(op wire.Opcode) bool {
	if op.Is(wire.Starts) {
		return q.resp.in == noMessage
	}
	return op.Is(wire.ClassSend) && q.resp.in == sendMessage || op.Is(wire.ClassWrite) && q.resp.in == writeMessage
}

// refuse answers with a fatal NAK and moves the QP to ERR.
func (q *QP) refuse(p *wire.Packet, nak uint8, what string) {
	switch nak {
	case wire.NAKInvalidRequest:
		q.n.TxNAKInvalid++
	case wire.NAKRemoteAccess:
		q.n.TxNAKAccess++
	default:
		q.n.TxNAKOperation++
	}
	q.seen.TxNAK.add(nak, p.PSN)
	r := &q.resp
	r.nakDue = false
	r.nakWith(nak, p.PSN)
	r.ackDue = false
	q.fail(fmt.Errorf("refused a request of %v at PSN %d: %s", q.flow.Dst, p.PSN, what))
}

// rnr answers that no receive is posted.
func (q *QP) rnr(now rdma.Time, psn wire.PSN) {
	syndrome := wire.SyndromeRNR | q.attr.MinRNRTimer&wire.SyndromeValueMask
	q.n.TxRNR++
	q.seen.TxRNR.add(syndrome, psn)
	r := &q.resp
	r.gap, r.gapSent, r.ahead = true, now, psn // what follows is out of sequence, and known to be
	r.notReady, r.remind = true, reminder{}
	r.nakWith(syndrome, psn)
}

// executed accounts for a request packet that was carried out.
func (q *QP) executed(p *wire.Packet, psns int) {
	r := &q.resp
	r.epsn = r.epsn.Add(psns)
	if p.Op.Is(wire.Ends) {
		r.msn = (r.msn + 1) & wire.PSNMask
		r.in = noMessage
	}
	if p.AckReq {
		r.ackDue = true
	}
}

// badLength checks a packet's payload against its place in the message.
func (q *QP) badLength(p *wire.Packet) bool {
	n := len(p.Payload)
	switch {
	case !p.Op.Is(wire.Ends):
		return n != q.mtu || p.Pad != 0
	case !p.Op.Is(wire.Starts):
		return n < 1 || n > q.mtu
	}
	return n > q.mtu
}

func (q *QP) serveSend(now rdma.Time, p *wire.Packet) {
	r := &q.resp
	if q.badLength(p) {
		q.refuse(p, wire.NAKInvalidRequest, "a SEND packet of wrong length")
		return
	}
	if p.Op.Is(wire.Starts) {
		if q.noReceive() {
			q.rnr(now, p.PSN)
			return
		}
		for _, s := range q.takeRecv().SGL {
			if st := q.cfg.Mem.Local(q.cfg.PD, s.LKey, s.Buf, true); st != rdma.Success {
				q.completeRecv(rdma.WC{Status: rdma.LocProtErr, Op: rdma.WCRecv})
				q.refuse(p, wire.NAKRemoteOp, "the memory of the receive is not registered")
				return
			}
		}
		r.recvOff, r.in = 0, sendMessage
	}
	e := &q.cur
	if uint64(r.recvOff)+uint64(len(p.Payload)) > uint64(e.Length) {
		q.completeRecv(rdma.WC{Status: rdma.LocLenErr, Op: rdma.WCRecv})
		q.refuse(p, wire.NAKInvalidRequest, fmt.Sprintf("a SEND longer than the receive of %d bytes", e.Length))
		return
	}
	wq.Scatter(e.SGL, r.recvOff, p.Payload)
	r.recvOff += uint32(len(p.Payload))
	q.n.RxBytesSend += uint64(len(p.Payload))
	if p.Op.Is(wire.HasIETH) {
		if st := q.cfg.Mem.Invalidate(q.cfg.PD, q.cfg.Num, p.InvRKey); st != rdma.Success {
			q.refuse(p, wire.NAKRemoteAccess, fmt.Sprintf("a SEND that invalidates the key %#x", p.InvRKey))
			return
		}
	}
	q.executed(p, 1)
	if p.Op.Is(wire.Ends) {
		q.completeRecv(received(p, rdma.WCRecv, r.recvOff))
	}
}

func received(p *wire.Packet, op rdma.WCOp, n uint32) rdma.WC {
	wc := rdma.WC{Op: op, ByteLen: n}
	if p.Op.Is(wire.HasImm) {
		wc.Flags, wc.Imm = rdma.WithImm, p.Imm
	}
	if p.Op.Is(wire.HasIETH) {
		wc.Flags, wc.InvRKey = rdma.WithInv, p.InvRKey
	}
	if p.Solicited {
		wc.Flags |= rdma.WithEvent
	}
	return wc
}

func (q *QP) serveWrite(now rdma.Time, p *wire.Packet) {
	r := &q.resp
	n := uint32(len(p.Payload))
	if p.Op.Is(wire.Starts) {
		if q.attr.Access&rdma.RemoteWrite == 0 {
			q.refuse(p, wire.NAKInvalidRequest, "RDMA WRITE is not allowed on the queue pair")
			return
		}
		if p.RETH.Len > MessageMax {
			q.refuse(p, wire.NAKInvalidRequest, "an RDMA WRITE of more than 2^31 bytes")
			return
		}
		if p.RETH.Len > 0 {
			if _, st := q.cfg.Mem.Remote(q.cfg.PD, q.cfg.Num, p.RETH.RKey, p.RETH.VA, p.RETH.Len, rdma.RemoteWrite); st != rdma.Success {
				q.refuse(p, wire.NAKRemoteAccess, "an RDMA WRITE outside of memory it may write")
				return
			}
		}
		r.va, r.rkey, r.left, r.length = p.RETH.VA, p.RETH.RKey, p.RETH.Len, p.RETH.Len
	}
	ends := p.Op.Is(wire.Ends)
	if q.badLength(p) || ends && n != r.left || !ends && n >= r.left {
		q.refuse(p, wire.NAKInvalidRequest, "an RDMA WRITE packet whose length is not that of its message")
		return
	}
	if p.Op.Is(wire.HasImm) && q.noReceive() {
		// Nothing of this packet is executed. Only its message's first packet
		// set up the rest of the WRITE, which a retransmission sets up again.
		q.rnr(now, p.PSN)
		return
	}
	if n > 0 {
		dst, st := q.cfg.Mem.Remote(q.cfg.PD, q.cfg.Num, r.rkey, r.va, n, rdma.RemoteWrite)
		if st != rdma.Success {
			q.refuse(p, wire.NAKRemoteAccess, "an RDMA WRITE to memory that was withdrawn")
			return
		}
		copy(dst, p.Payload)
	}
	r.va += uint64(n)
	r.left -= n
	r.in = writeMessage
	q.n.RxBytesWrite += uint64(n)
	q.executed(p, 1)
	if p.Op.Is(wire.HasImm) {
		q.takeRecv()
		q.completeRecv(received(p, rdma.WCRecvWithImm, r.length))
	}
}

// hold takes the oldest resource for a new READ or atomic.
func (q *QP) hold(p *wire.Packet, need rdma.Access) *resource {
	r := &q.resp
	if len(r.held) == 0 || q.attr.Access&need == 0 {
		q.refuse(p, wire.NAKInvalidRequest, fmt.Sprintf("%v is not allowed on the queue pair", p.Op))
		return nil
	}
	h := &r.held[r.oldest]
	if h.active && h.answered {
		// It is repeated for a duplicate that came late: who asks for more has it all.
		r.active--
	} else if h.active {
		q.refuse(p, wire.NAKInvalidRequest, fmt.Sprintf("more than %d READs and atomics at once", len(r.held)))
		return nil
	}
	r.oldest = (r.oldest + 1) % len(r.held)
	*h = resource{used: true}
	return h
}

func (q *QP) serveRead(p *wire.Packet) {
	r := &q.resp
	if p.RETH.Len > MessageMax {
		q.refuse(p, wire.NAKInvalidRequest, "a READ of more than 2^31 bytes")
		return
	}
	if q.attr.Access&rdma.RemoteRead != 0 && p.RETH.Len > 0 {
		if _, st := q.cfg.Mem.Remote(q.cfg.PD, q.cfg.Num, p.RETH.RKey, p.RETH.VA, p.RETH.Len, rdma.RemoteRead); st != rdma.Success {
			q.refuse(p, wire.NAKRemoteAccess, "a READ outside of memory it may read")
			return
		}
	}
	h := q.hold(p, rdma.RemoteRead)
	if h == nil {
		return
	}
	h.psn, h.va, h.rkey, h.length = p.PSN, p.RETH.VA, p.RETH.RKey, p.RETH.Len
	h.count = q.packets(h.length)
	ask := p.AckReq
	p.AckReq = false // its response is its acknowledgement
	q.executed(p, h.count)
	p.AckReq = ask
	r.activate(h, h.psn, h.psn.Add(h.count))
}

func (r *responder) activate(h *resource, from, end wire.PSN) {
	if !h.active {
		h.active = true
		r.active++
	}
	h.start, h.at, h.end = from, from, end
}

func (q *QP) serveAtomic(p *wire.Packet) {
	r := &q.resp
	if p.Atomic.VA&7 != 0 {
		q.refuse(p, wire.NAKInvalidRequest, "an atomic on an unaligned address")
		return
	}
	b, st := q.cfg.Mem.Remote(q.cfg.PD, q.cfg.Num, p.Atomic.RKey, p.Atomic.VA, 8, rdma.RemoteAtomic)
	if q.attr.Access&rdma.RemoteAtomic != 0 && st != rdma.Success {
		q.refuse(p, wire.NAKRemoteAccess, "an atomic on memory it may not change")
		return
	}
	h := q.hold(p, rdma.RemoteAtomic)
	if h == nil {
		return
	}
	old := binary.NativeEndian.Uint64(b)
	if p.Op == wire.FetchAdd {
		binary.NativeEndian.PutUint64(b, old+p.Atomic.SwapAdd)
	} else if old == p.Atomic.Compare {
		binary.NativeEndian.PutUint64(b, p.Atomic.SwapAdd)
	}
	h.atomic, h.psn, h.count, h.value = true, p.PSN, 1, old
	ask := p.AckReq
	p.AckReq = false
	q.executed(p, 1)
	p.AckReq = ask
	r.activate(h, h.psn, h.psn.Add(1))
}

// duplicate answers a request that was executed before: it is acknowledged, a
// READ is read again, an atomic's result is repeated (IBTA 9.7.5.1.2).
func (q *QP) duplicate(now rdma.Time, p *wire.Packet) {
	q.n.RxDuplicate++
	r := &q.resp
	if p.Op.Is(wire.ClassSend) || p.Op.Is(wire.ClassWrite) {
		r.ackDue = true
		q.cameAgain(now)
		return
	}
	if r.remind.on {
		q.remindLater(now)
	}
	for i := range r.held {
		h := &r.held[i]
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
		if p.Op != wire.ReadRequest || p.RETH.RKey != h.rkey || p.RETH.VA != h.va+off || uint64(p.RETH.Len)+off > uint64(h.length) {
			break
		}
		// A peer that asks for little at a time keeps to what the network takes by that.
		if h.at.Sub(p.PSN) > repeatMax {
			r.rate.lost(now)
		}
		r.activate(h, p.PSN, p.PSN.Add(q.packets(p.RETH.Len)))
		return
	}
	q.n.RxDuplicateNoResource++
}

// repeatMax is how many packets may be asked for again before that says that the network
// does not take them.
const repeatMax = 32

// transmitResponses sends what the peer is owed, in PSN order: READ data and
// atomic results, then the acknowledgement or NAK, which acknowledges all
// before it and so must not overtake them.
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
			h.at = h.end // the answer ends here
			break
		}
		h.active, h.answered = false, true
		r.active--
	}
	if q.state == rdma.StateErr {
		r.active = 0
	}
	if (r.nakDue || r.ackDue) && budget > 0 && !b.Full() {
		if r.remind.due && r.nakDue && budget > 1 && b.Room() > 1 {
			// rdma_rxe heeds a second NAK only after an ACK.
			p := q.packet(wire.Acknowledge, r.epsn.Add(-1))
			p.AETH = wire.AETH{Syndrome: wire.SyndromeAck, MSN: r.msn}
			q.put(b, p, nil)
			budget--
		}
		r.remind.due = false
		p := q.packet(wire.Acknowledge, r.epsn.Add(-1))
		p.AETH = wire.AETH{Syndrome: wire.SyndromeAck, MSN: r.msn}
		if r.nakDue {
			p.PSN, p.AETH.Syndrome = r.nakPSN, r.nak
		}
		q.put(b, p, nil)
		r.nakDue, r.ackDue, r.told = false, false, r.epsn
		budget--
	}
	return budget
}

// ackSpan is the number of request packets whose acknowledgement does not wait.
const ackSpan = 16

// OwesAck reports whether all there is to send is an acknowledgement of few packets. It
// may wait a moment: one that is sent then stands for those that came due meanwhile. It does not wait while packets are
// missing, as the peer may have stopped until it comes.
func (q *QP) OwesAck(now rdma.Time) bool {
	r := &q.resp
	return r.ackDue && !r.nakDue && !r.remind.on && r.active == 0 && !q.cnp.due && q.state == rdma.StateRTS &&
		r.epsn.Sub(r.told) < ackSpan && !q.canSend(now)
}

// first is the active resource with the lowest PSN.
func (r *responder) first() *resource {
	var best *resource
	for i := range r.held {
		if h := &r.held[i]; h.active && (best == nil || h.at.Before(best.at)) {
			best = h
		}
	}
	return best
}

var readOps = [...]wire.Opcode{wire.ReadRespMiddle, wire.ReadRespFirst, wire.ReadRespLast, wire.ReadRespOnly}

// respond sends one packet of a READ response, or an atomic's result. The
// region is checked for each packet: it may have been withdrawn meanwhile.
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
			// The requester had the answer, or our user would not have withdrawn the
			// memory: the request is a late duplicate, and not worth the connection.
			q.n.RxDuplicateNoResource++
			return false
		default:
			q.refuse(&wire.Packet{PSN: h.at}, wire.NAKRemoteAccess, "a READ of memory that was withdrawn")
			return false
		}
		parts = append(parts, data)
	}
	place := 0
	if h.at == h.start {
		place |= 1
	}
	if h.at.Add(1) == h.end {
		place |= 2
	}
	p := q.packet(readOps[place], h.at)
	p.AETH = aeth
	q.put(b, p, parts)
	q.resp.rate.sent(now, int(n))
	h.at = h.at.Add(1)
	q.n.TxBytesReadResponse += uint64(n)
	return true
}
