package rc

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

// message is the kind of the message in progress: its first packet has arrived, its last has not.
type message uint8

const (
	noMessage message = iota
	sendMessage
	writeMessage
)

// responder is the serving half (IBTA 9.7.4, 9.7.5): the state of the peer's requests, and the
// responses that are due.
//
//	   duplicates (executed)         expected        ahead: a loss
//	----------------------------+---------------+----------------------> PSN
//	 resources: READs, atomics       epsn            one NAK per gap
type responder struct {
	epsn  wire.PSN // expected PSN: that of the next request packet
	acked wire.PSN // epsn when the last acknowledgement was sent
	msn   uint32   // completed messages, 24 bits (IBTA C9-148)

	in      message
	inRecv  bool   // the message in progress has a receive
	recvOff uint32 // bytes of the receive that are filled
	va      uint64 // the rest of an RDMA WRITE in progress
	rkey    uint32
	left    uint32
	length  uint32

	resources []resource // ring: the last READs and atomics, for duplicates
	oldest    int        // index of the resource to replace next
	active    int        // resources with packets to send
	ackDue    bool
	nakDue    bool
	nak       uint8 // syndrome of the NAK that is due
	nakPSN    wire.PSN
	gap       bool // a NAK for epsn was sent, and epsn has not arrived
	gapSent   rdma.Time
	ahead     wire.PSN // of the last packet behind the gap
	repeat    nakRepeat
	// notReady: an RNR NAK was sent, and the packet that it refused has not arrived again. The
	// peer retransmits by itself after the RNR timer.
	notReady bool
	rate     rate // of READ responses
}

// resource is a READ or atomic request of the peer. The responder remembers as many of the last
// ones as the connection allows at once (responder resources), so that it can answer a
// retransmission without executing an atomic twice (IBTA 9.7.5).
type resource struct {
	used, active, atomic bool
	// answered: the whole response was sent once.
	answered bool
	psn      wire.PSN // first PSN
	count    int
	va       uint64
	rkey     uint32
	length   uint32
	value    uint64 // the atomic's result

	start, at, end wire.PSN // of the response being sent: first, next, behind the last
}

// start initializes the responder for the transition to RTR. depth is the number of resources.
func (r *responder) start(psn wire.PSN, depth int) {
	*r = responder{epsn: psn, acked: psn, resources: make([]resource, depth)}
}

// nakInterval is the least time between two NAKs for the same PSN.
const nakInterval = 20 * rdma.Microsecond

// nakWith makes a NAK due. If another NAK is due already, the new one is dropped: the packet that
// caused it is sent again if it matters. A fatal NAK replaces what is due, see refuse.
func (r *responder) nakWith(syndrome uint8, psn wire.PSN) {
	if !r.nakDue {
		r.nakDue, r.nak, r.nakPSN = true, syndrome, psn
	}
}

// serve handles a request packet, with the checks of IBTA 9.7.4.1 in this order: PSN, opcode
// sequence, opcode and length, rights. A packet behind epsn is a duplicate; one ahead shows a
// loss and causes one NAK per gap.
//
//	check                                              if it fails
//	PSN is not ahead of epsn                           NAK "PSN sequence error", one per gap
//	PSN is not behind epsn                             duplicate: answered again, not executed
//	opcode fits the message in progress                NAK "invalid request"
//	operation is allowed on the QP                     NAK "invalid request"
//	length of packet, message and receive              NAK "invalid request"
//	R_Key, range and rights of the memory              NAK "remote access error"
//	a receive is posted                                RNR NAK; the packet is not executed
//
// After a sequence NAK or an RNR NAK the connection continues. The others end it (refuse).
func (q *QP) serve(now rdma.Time, p *wire.Packet) {
	r := &q.resp
	switch d := p.PSN.Sub(r.epsn); {
	case d > 0:
		q.n.RxOutOfSequence++
		q.missing(now, p.PSN)
		// The NAK is sent again if the PSN is not after that of the last such packet: the peer
		// went back, and its retransmission of epsn was lost too.
		back := r.gap && !p.PSN.After(r.ahead) && now-r.gapSent > nakInterval
		r.ahead = p.PSN
		if !r.gap || back || p.AckReq && now-r.gapSent > nakGuard {
			r.gap, r.gapSent = true, now
			q.n.TxNAKSequence++
			q.summary.TxNAK.add(wire.NAKSequence, r.epsn)
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
	q.arrived(now)
}

// reserved handles a packet with a reserved opcode of RC (IBTA 9.7.4.1). Only a request can have
// one.
func (q *QP) reserved(now rdma.Time, p *wire.Packet) {
	q.n.DropOpcode++
	if p.PSN == q.resp.epsn {
		q.resp.gap, q.resp.notReady = false, false
		q.arrived(now)
		q.refuse(p, wire.NAKInvalidRequest, fmt.Sprintf("the reserved opcode %#02x", uint8(p.Op)))
	}
}

// inOrder checks the opcode against the message in progress (IBTA 9.7.4.1).
func (q *QP) inOrder(op wire.Opcode) bool {
	if op.Is(wire.Starts) {
		return q.resp.in == noMessage
	}
	return op.Is(wire.ClassSend) && q.resp.in == sendMessage || op.Is(wire.ClassWrite) && q.resp.in == writeMessage
}

// refuse makes a fatal NAK due and moves the QP to ERR (IBTA 9.9.3). Transmit still sends the NAK.
func (q *QP) refuse(p *wire.Packet, nak uint8, what string) {
	switch nak {
	case wire.NAKInvalidRequest:
		q.n.TxNAKInvalid++
	case wire.NAKRemoteAccess:
		q.n.TxNAKAccess++
	default:
		q.n.TxNAKOperation++
	}
	q.summary.TxNAK.add(nak, p.PSN)
	r := &q.resp
	r.nakDue = false
	r.nakWith(nak, p.PSN)
	r.ackDue = false
	q.fail(fmt.Errorf("refused a request of %v at PSN %d: %s", q.flow.Dst, p.PSN, what))
}

// rnr makes an RNR NAK due: there is no receive for the packet. Nothing of the packet is executed.
// The peer waits for the time in the syndrome, and then sends the packet and all behind it again.
func (q *QP) rnr(now rdma.Time, psn wire.PSN) {
	syndrome := wire.SyndromeRNR | q.attr.MinRNRTimer&wire.SyndromeValueMask
	q.n.TxRNR++
	q.summary.TxRNR.add(syndrome, psn)
	r := &q.resp
	r.gap, r.gapSent, r.ahead = true, now, psn // the packets in flight behind it need no NAK
	r.notReady, r.repeat = true, nakRepeat{}
	r.nakWith(syndrome, psn)
}

// executed accounts for a request packet that was executed. It used psns PSNs.
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

// badLength checks the length of a packet's payload (IBTA 9.7.4.1.6): first and middle packets
// carry exactly the path MTU, the last 1 byte to the MTU, an only packet 0 bytes to the MTU.
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

// serveSend executes a SEND packet: it copies the payload to the receive of the message. The
// receive is taken by the first packet and completed by the last. In between its memory may be
// partly written. A SEND with invalidate closes the region or window before the receive completes,
// so that the user who sees the completion knows that the peer cannot reach the memory any more.
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

// received is the completion of a receive by the last packet of its message.
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

// serveWrite executes an RDMA WRITE packet. The first packet's RETH is checked for the whole
// message (IBTA 9.7.4.1.5), and the memory again for each packet: the user can invalidate it in
// between.
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
			if _, st := q.cfg.Mem.Remote(q.cfg.PD, q.cfg.Num, p.RETH.RKey, p.RETH.VA, p.RETH.Len,
				rdma.RemoteWrite); st != rdma.Success {
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
		// Nothing of this packet is executed. The fields set above from its RETH, if it has
		// one, are set again by the retransmission.
		q.rnr(now, p.PSN)
		return
	}
	if n > 0 {
		dst, st := q.cfg.Mem.Remote(q.cfg.PD, q.cfg.Num, r.rkey, r.va, n, rdma.RemoteWrite)
		if st != rdma.Success {
			q.refuse(p, wire.NAKRemoteAccess, "an RDMA WRITE to memory that was invalidated")
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
