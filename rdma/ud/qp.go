package ud

import (
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

// Memory is the memory that a QP may access.
type Memory interface {
	// Local checks that buf lies in the region named by lkey in domain pd, and
	// that the region may be written if write is set.
	Local(pd, lkey uint32, buf []byte, write bool) rdma.Status
}

// Config describes a QP to create.
type Config struct {
	Num  uint32 // QP number, 24 bits
	PD   uint32 // protection domain, as Memory knows it
	Mem  Memory
	SRQ  *wq.SRQ // source of receives; nil for a receive queue of the QP's own
	Caps rdma.QPCaps
	Addr netip.Addr // the address of the device
	MTU  rdma.MTU   // the longest payload that is sent
}

// QP is one queue pair for unreliable datagrams. It is not safe for concurrent use. Its
// rings grow on demand up to Config.Caps; in the steady state nothing is allocated.
type QP struct {
	cfg   Config
	n     Counters
	state rdma.QPState
	attr  rdma.QPAttr
	psn   wire.PSN // of the next datagram

	sq   wq.Ring[sqe]
	rq   wq.Queue
	cur  wq.Recv
	send wq.Ring[rdma.WC]
	recv wq.Ring[rdma.WC]

	grh   [rdma.GRHLen]byte
	parts [wire.PartsMax][]byte
}

// sqe is an entry of the send queue. The ring reuses entries, with the memory of their lists.
type sqe struct {
	id     uint64
	op     rdma.SendOp
	flags  rdma.SendFlags
	imm    uint32
	ah     rdma.AH
	sgl    []rdma.SGE
	inline []byte
	length int
	flow   wire.Flow
}

// New makes a QP in RESET.
func New(cfg Config) *QP {
	cfg.Caps.MaxSendSGE = min(max(cfg.Caps.MaxSendSGE, 1), wire.PartsMax)
	cfg.Caps.MaxRecvSGE = min(max(cfg.Caps.MaxRecvSGE, 1), wire.PartsMax)
	cfg.Addr = cfg.Addr.Unmap()
	q := &QP{cfg: cfg}
	q.rq.Most, q.rq.SGEs = cfg.Caps.MaxRecvWR, cfg.Caps.MaxRecvSGE
	return q
}

// State is the current state.
func (q *QP) State() rdma.QPState { return q.state }

// Attr returns the attributes that Modify has set.
func (q *QP) Attr() rdma.QPAttr { return q.attr }

// Counters returns the counters of the QP.
func (q *QP) Counters() *Counters { return &q.n }

// NextPSN is the PSN of the next datagram.
func (q *QP) NextPSN() wire.PSN { return q.psn }

// Modify makes a state transition (IBTA 10.3.1) and sets the attributes that belong to it: P_Key
// and Q_Key with INIT, the first PSN with RTS, and the Q_Key with RTR and RTS if it is not 0. If
// it returns an error the QP is unchanged.
func (q *QP) Modify(a rdma.QPAttr) error {
	s := q.state
	switch {
	case a.State == rdma.StateReset:
		n := q.n
		*q = *New(q.cfg)
		q.n = n
		return nil
	case a.State == rdma.StateErr:
		q.fail()
		return nil
	case a.State == rdma.StateInit && (s == rdma.StateReset || s == rdma.StateInit):
		q.attr.PKey, q.attr.QKey = a.PKey, a.QKey
	case a.State == rdma.StateRTR && s == rdma.StateInit,
		a.State == rdma.StateRTS && (s == rdma.StateRTS || s == rdma.StateSQD || s == rdma.StateSQE),
		a.State == rdma.StateSQD && s == rdma.StateRTS:
	case a.State == rdma.StateRTS && s == rdma.StateRTR:
		q.attr.SQPSN = a.SQPSN
		q.psn = wire.PSN(a.SQPSN & wire.PSNMask)
	default:
		return fmt.Errorf("%w: %v to %v", rdma.ErrBadTransition, s, a.State)
	}
	if a.QKey != 0 {
		q.attr.QKey = a.QKey
	}
	q.state = a.State
	return nil
}

// PostSend queues sends, all or none. Their memory belongs to the QP until they complete; with
// Inline it is copied here. In ERR and SQE they are flushed.
func (q *QP) PostSend(wrs []rdma.SendWR) error {
	switch q.state {
	case rdma.StateRTS, rdma.StateSQD, rdma.StateSQE, rdma.StateErr:
	default:
		return fmt.Errorf("%w: send requests cannot be posted in %v", rdma.ErrBadTransition, q.state)
	}
	if q.sq.Len()+len(wrs) > q.cfg.Caps.MaxSendWR {
		return rdma.ErrQueueFull
	}
	for i := range wrs {
		if err := q.checkSend(&wrs[i]); err != nil {
			return err
		}
	}
	for i := range wrs {
		w, e := &wrs[i], q.sq.Push()
		e.id, e.op, e.flags, e.imm, e.ah = w.ID, w.Op, w.Flags, w.Imm, *w.AH
		e.sgl = append(e.sgl[:0], w.SGL...)
		e.length = int(wq.Length(e.sgl))
		if w.Flags&rdma.Inline != 0 {
			e.inline = e.inline[:0]
			for _, s := range w.SGL {
				e.inline = append(e.inline, s.Buf...)
			}
			clear(e.sgl)
			e.sgl = append(e.sgl[:0], rdma.SGE{Buf: e.inline})
		}
	}
	if q.state == rdma.StateErr || q.state == rdma.StateSQE {
		q.flushSends()
	}
	return nil
}

// checkSend checks a send against the limits of the QP. A destination that cannot be reached from
// the QP's address is an error of the user, and would otherwise be lost silently.
func (q *QP) checkSend(w *rdma.SendWR) error {
	if w.Op != rdma.OpSend && w.Op != rdma.OpSendImm {
		return fmt.Errorf("%w: operation %d on a queue pair for datagrams, which only sends", rdma.ErrInvalidWR, w.Op)
	}
	if len(w.SGL) > q.cfg.Caps.MaxSendSGE {
		return fmt.Errorf("%w: %d gather elements, the QP takes %d", rdma.ErrInvalidWR, len(w.SGL), q.cfg.Caps.MaxSendSGE)
	}
	if w.Flags&rdma.Inline != 0 && wq.Length(w.SGL) > uint64(q.cfg.Caps.MaxInline) {
		return fmt.Errorf("%w: %d bytes inline, the QP takes %d", rdma.ErrInvalidWR, wq.Length(w.SGL), q.cfg.Caps.MaxInline)
	}
	if w.AH == nil {
		return fmt.Errorf("%w: a datagram without an address handle", rdma.ErrInvalidWR)
	}
	to := w.AH.Remote.Unmap()
	if !to.IsValid() || to.Is4() != q.cfg.Addr.Is4() || to.IsMulticast() || to.IsUnspecified() {
		return fmt.Errorf("%w: a datagram from %v to %v", rdma.ErrInvalidWR, q.cfg.Addr, to)
	}
	if w.AH.QPN <= wire.QP1 || w.AH.QPN >= wire.PSNMask {
		return fmt.Errorf("%w: datagrams cannot go to queue pair %#x", rdma.ErrInvalidWR, w.AH.QPN)
	}
	return nil
}

// PostRecv queues receives, all or none. In ERR they are flushed.
func (q *QP) PostRecv(wrs []rdma.RecvWR) error {
	if q.state == rdma.StateReset {
		return fmt.Errorf("%w: receives cannot be posted in RESET", rdma.ErrBadTransition)
	}
	if q.cfg.SRQ != nil {
		return fmt.Errorf("%w: the QP takes its receives from a shared receive queue", rdma.ErrInvalidWR)
	}
	if err := q.rq.Post(wrs, 0); err != nil {
		return err
	}
	if q.state == rdma.StateErr {
		q.flushRecvs()
	}
	return nil
}

// PollSend moves completions of sends into dst, oldest first.
func (q *QP) PollSend(dst []rdma.WC) int { return q.send.Drain(dst) }

// PollRecv moves completions of receives into dst, oldest first.
func (q *QP) PollRecv(dst []rdma.WC) int { return q.recv.Drain(dst) }

// Pending reports whether there are completions to poll.
func (q *QP) Pending() (send, recv bool) { return q.send.Len() > 0, q.recv.Len() > 0 }

// Outstanding is the number of sends and receives that are posted and not completed.
func (q *QP) Outstanding() (send, recv int) { return q.sq.Len(), q.rq.Len() }

// HasWork reports whether Transmit would send something.
func (q *QP) HasWork() bool { return q.state == rdma.StateRTS && q.sq.Len() > 0 }

// Transmit appends at most most datagrams to b, fewer if b is full, and reports whether more
// wait. A datagram completes when it is appended, because nothing acknowledges it. Its memory is
// in use until the link has sent b, so the owner polls completions only after that.
//
// A SEND longer than the MTU completes and is not sent (IBTA C10-93.1.1). A SEND with invalid
// memory moves the QP to SQE and flushes the send queue (IBTA 10.3.1).
func (q *QP) Transmit(b *wire.Batch, most int) (more bool) {
	for q.HasWork() && most > 0 && !b.Full() {
		e := q.sq.Front()
		switch {
		case e.length > int(q.cfg.MTU):
			q.n.TxTooLong++
			q.completeSend(rdma.Success)
		case !q.registered(e):
			q.state = rdma.StateSQE
			q.completeSend(rdma.LocProtErr)
			q.flushSends()
		default:
			q.put(b, e)
			most--
			q.completeSend(rdma.Success)
		}
	}
	return q.HasWork()
}

// registered checks that the memory of a send is registered.
func (q *QP) registered(e *sqe) bool {
	if e.flags&rdma.Inline != 0 {
		return true
	}
	for _, s := range e.sgl {
		if q.cfg.Mem.Local(q.cfg.PD, s.LKey, s.Buf, false) != rdma.Success {
			return false
		}
	}
	return true
}

// controlled is the bit in the Q_Key of a work request that selects the QP's own Q_Key (IBTA
// 10.2.5).
const controlled = 1 << 31

// put appends the datagram of e to b. It refers to e.flow: the ring does not reuse e before the
// batch was sent, because nothing is posted until then.
func (q *QP) put(b *wire.Batch, e *sqe) {
	p := wire.Packet{
		Op: wire.UDSendOnly, Solicited: e.flags&rdma.Solicited != 0, MigReq: true, PKey: q.attr.PKey, DestQPN: e.ah.QPN,
		PSN: q.psn, Imm: e.imm, DETH: wire.DETH{QKey: e.ah.QKey, SrcQPN: q.cfg.Num},
	}
	if e.op == rdma.OpSendImm {
		p.Op = wire.UDSendOnlyImm
	}
	if e.ah.QKey&controlled != 0 {
		p.DETH.QKey = q.attr.QKey
	}
	const ecn = 3
	e.flow = wire.Flow{Src: q.cfg.Addr, Dst: e.ah.Remote.Unmap(), SrcPort: wire.Port, TOS: e.ah.TrafficClass &^ ecn}
	parts := q.parts[:0]
	for _, s := range e.sgl {
		parts = append(parts, s.Buf)
	}
	b.Add(&e.flow, &p, parts)
	clear(parts)
	q.psn = q.psn.Add(1)
	q.n.TxPackets++
	q.n.TxBytes += uint64(e.length)
}

// Receive handles a packet for this QP, whose ICRC was checked. tos is its traffic class. It copies
// the payload before it returns. Packets that fail a check (opcode, state, P_Key, Q_Key, length, no
// receive) are dropped and counted: UD has no NAK (IBTA 9.8.3).
func (q *QP) Receive(p *wire.Packet, tos uint8) {
	q.n.RxPackets++
	switch {
	case p.Op != wire.UDSendOnly && p.Op != wire.UDSendOnlyImm:
		q.n.DropOpcode++
		return
	case q.state != rdma.StateRTR && q.state != rdma.StateRTS && q.state != rdma.StateSQD && q.state != rdma.StateSQE:
		q.n.DropState++
		return
	case !wire.PKeysMatch(p.PKey, q.attr.PKey):
		q.n.DropPKey++
		return
	case p.DETH.QKey != q.attr.QKey:
		q.n.DropQKey++
		return
	}
	next := q.next()
	n := rdma.GRHLen + len(p.Payload)
	switch {
	case next == nil:
		q.n.DropNoReceive++
		return
	case n > int(next.Length):
		q.n.DropTooLong++
		return
	}
	q.take()
	for _, s := range q.cur.SGL {
		if q.cfg.Mem.Local(q.cfg.PD, s.LKey, s.Buf, true) != rdma.Success {
			q.completeRecv(rdma.WC{Status: rdma.LocProtErr})
			q.fail()
			return
		}
	}
	putGRH(&q.grh, p, tos)
	wq.Scatter(q.cur.SGL, 0, q.grh[:])
	wq.Scatter(q.cur.SGL, rdma.GRHLen, p.Payload)
	q.n.RxBytes += uint64(len(p.Payload))
	wc := rdma.WC{ByteLen: uint32(n), SrcQPN: p.DETH.SrcQPN, Flags: rdma.GRH}
	if p.Op == wire.UDSendOnlyImm {
		wc.Flags, wc.Imm = wc.Flags|rdma.WithImm, p.Imm
	}
	if p.Solicited {
		wc.Flags |= rdma.WithEvent
	}
	q.completeRecv(wc)
}

// next is the receive for the next datagram, nil if none is posted.
func (q *QP) next() *wq.Recv {
	switch s := q.cfg.SRQ; {
	case s != nil && s.Len() > 0:
		return s.Front()
	case s == nil && q.rq.Len() > 0:
		return q.rq.Front()
	}
	return nil
}

// take takes the oldest receive. The caller has checked that there is one.
func (q *QP) take() {
	if q.cfg.SRQ != nil {
		q.cfg.SRQ.Take(&q.cur)
	} else {
		q.rq.Take(&q.cur)
	}
}

// completeRecv completes the receive that was taken.
func (q *QP) completeRecv(wc rdma.WC) {
	wc.ID, wc.QPN, wc.Op = q.cur.ID, q.cfg.Num, rdma.WCRecv
	*q.recv.Push() = wc
	clear(q.cur.SGL)
}

// completeSend completes the oldest send. Its entry stays readable until the next PostSend.
func (q *QP) completeSend(s rdma.Status) {
	e := q.sq.Front()
	if s != rdma.Success || e.flags&rdma.Signaled != 0 {
		*q.send.Push() = rdma.WC{ID: e.id, QPN: q.cfg.Num, Status: s, Op: rdma.WCSend}
	}
	clear(e.sgl)
	q.sq.Pop()
}

// fail moves the QP to ERR.
func (q *QP) fail() {
	q.state = rdma.StateErr
	q.flushSends()
	q.flushRecvs()
}

// flushSends completes the sends with WRFlushErr.
func (q *QP) flushSends() {
	for q.sq.Len() > 0 {
		q.completeSend(rdma.WRFlushErr)
	}
}

// flushRecvs completes the receives with WRFlushErr. Those of an SRQ stay for other QPs.
func (q *QP) flushRecvs() {
	for q.rq.Len() > 0 {
		q.rq.Take(&q.cur)
		q.completeRecv(rdma.WC{Status: rdma.WRFlushErr})
	}
}
