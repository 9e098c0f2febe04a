package rc

import (
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

// Memory is what a QP may touch. Its methods are called for every packet and
// must not block.
type Memory interface {
	// Local checks that buf lies in the region named by lkey in domain pd, and
	// that the region may be written if write is set.
	Local(pd, lkey uint32, buf []byte, write bool) rdma.Status
	// Remote resolves n bytes at va in the region named by rkey: Success, or
	// RemAccessErr if key, domain, rights or range do not allow it.
	// qpn is the queue pair that the peer's request came to.
	Remote(pd, qpn, rkey uint32, va uint64, n uint32, need rdma.Access) ([]byte, rdma.Status)
	// Invalidate ends remote access through key, for a SEND with invalidate
	// from the peer or a local invalidate.
	Invalidate(pd, qpn, key uint32) rdma.Status
	// Bind carries out an OpBindMW or OpReg.
	Bind(pd, qpn uint32, w *rdma.SendWR) rdma.Status
}

// Defaults of Config.
const (
	DefaultWindow     = 256
	DefaultReadWindow = 2 << 20
	sgeMax            = wire.PartsMax
)

// MessageMax is the longest message (IBTA 9.7.2).
const MessageMax = 1 << 31

// Config describes a QP to be made.
type Config struct {
	Num      uint32 // QP number, 24 bits
	PD       uint32 // protection domain, as Memory knows it
	Mem      Memory
	SRQ      *SRQ // that receives are taken from; nil for a queue of the QP's own
	Caps     rdma.QPCaps
	Counters *Counters // may be shared with other QPs of the loop; nil for its own
	// Window bounds the request packets without an acknowledgement;
	// ReadWindow the bytes of READ requests without a response.
	Window     int
	ReadWindow int
	// Fixed keeps the window as large as it may be, whatever is lost, and sends without
	// ECN: for networks that lose nothing, and to compare with.
	Fixed bool
	// CNPTrafficClass is what congestion notifications are sent with, 0 for that of the connection. Its ECN bits are
	// not used.
	CNPTrafficClass uint8
}

// QP is one reliable connection queue pair. It is not safe for concurrent use.
// Its rings grow on demand up to Config.Caps; in the steady state nothing is
// allocated.
type QP struct {
	cfg   Config
	n     *Counters
	state rdma.QPState
	attr  rdma.QPAttr
	flow  wire.Flow
	data  wire.Flow // of packets whose rate can be lowered
	about wire.Flow // of congestion notifications
	cnp   notifier
	mtu   int
	err   error
	seen  Seen
	now   rdma.Time // of the packet or turn being worked on

	recent recorder

	sq   wq.Ring[sqe]
	rq   wq.Queue
	cur  wq.Recv // the receive of the message in progress
	send wq.Ring[rdma.WC]
	recv wq.Ring[rdma.WC]

	req   requester
	resp  responder
	parts [sgeMax][]byte
	pkt   wire.Packet
}

// sqe is a send work request on its way. Its SGL keeps its memory between uses.
type sqe struct {
	wr      rdma.SendWR
	sgl     []rdma.SGE
	inline  []byte // the data of an inline request
	length  uint32
	started bool
	psn     wire.PSN // first PSN
	count   int      // PSNs it uses
	part    int      // READ: PSNs that one request asks for
	got     uint32   // READ: bytes that have arrived
}

func (e *sqe) last() wire.PSN { return e.psn.Add(e.count - 1) }

// reads reports whether the request is answered by a response with data.
func (e *sqe) reads() bool { return e.wr.Op == rdma.OpRead || e.atomic() }

// local reports whether the request sends nothing.
func (e *sqe) local() bool { return e.wr.Op >= rdma.OpLocalInv }

func (e *sqe) atomic() bool {
	return e.wr.Op == rdma.OpCompareSwap || e.wr.Op == rdma.OpFetchAdd
}

// New makes a QP in RESET.
func New(cfg Config) *QP {
	if cfg.Window <= 0 {
		cfg.Window = DefaultWindow
	}
	if cfg.ReadWindow <= 0 {
		cfg.ReadWindow = DefaultReadWindow
	}
	cfg.Caps.MaxSendSGE = min(max(cfg.Caps.MaxSendSGE, 1), sgeMax)
	cfg.Caps.MaxRecvSGE = min(max(cfg.Caps.MaxRecvSGE, 1), sgeMax)
	if cfg.Counters == nil {
		cfg.Counters = new(Counters)
	}
	return (&QP{cfg: cfg, n: cfg.Counters}).init()
}

func (q *QP) init() *QP {
	q.rq.Most, q.rq.SGEs = q.cfg.Caps.MaxRecvWR, q.cfg.Caps.MaxRecvSGE
	return q
}

// Num is the QP number.
func (q *QP) Num() uint32 { return q.cfg.Num }

// State is the current state.
func (q *QP) State() rdma.QPState { return q.state }

// Attr returns the attributes that Modify has set.
func (q *QP) Attr() rdma.QPAttr { return q.attr }

// Err says why the QP went to ERR; nil if it did not, or was told to.
func (q *QP) Err() error { return q.err }

// Counters are what the QP counts into.
func (q *QP) Counters() *Counters { return q.n }

// Cursor says how far the QP is: the next PSN of its requests, the oldest of them that is
// not acknowledged, the PSN that it expects of its peer, and the smoothed round-trip time
// of its requests in nanoseconds, 0 before the first.
func (q *QP) Cursor() (next, acked, expected wire.PSN, rtt rdma.Time) {
	return q.req.next, q.req.una, q.resp.epsn, q.req.srtt
}

// Modify makes a state transition (IBTA 10.3.1) and takes the attributes that
// belong to it. The QP is unchanged when it returns an error.
func (q *QP) Modify(now rdma.Time, a rdma.QPAttr) error {
	switch {
	case a.State == rdma.StateReset:
		*q = QP{cfg: q.cfg, n: q.n}
		q.init()
		return nil
	case a.State == rdma.StateErr:
		q.fail(nil)
		return nil
	case a.State == rdma.StateInit && (q.state == rdma.StateReset || q.state == rdma.StateInit):
		q.attr.Access, q.attr.PKey = a.Access, a.PKey
	case a.State == rdma.StateRTR && q.state == rdma.StateInit:
		if a.PathMTU.Code() == 0 {
			return fmt.Errorf("%w: path MTU %d is none of 256 to 4096", rdma.ErrInvalidWR, a.PathMTU)
		}
		if !sameFamily(a.LocalAddr, a.RemoteAddr) {
			return fmt.Errorf("%w: addresses %v and %v", rdma.ErrInvalidWR, a.LocalAddr, a.RemoteAddr)
		}
		access, pkey := q.attr.Access, q.attr.PKey
		if a.Access == 0 {
			a.Access = access
		}
		if a.PKey == 0 {
			a.PKey = pkey
		}
		q.attr = a
		q.mtu = int(a.PathMTU)
		q.flows()
		q.resp.start(wire.PSN(a.RQPSN&wire.PSNMask), int(a.MaxDestRd))
		q.resp.rate.start(now, q.mtu, q.cfg.Fixed)
	case a.State == rdma.StateRTS && q.state == rdma.StateRTR:
		q.attr.SQPSN, q.attr.MaxRdAtomic = a.SQPSN, a.MaxRdAtomic
		q.attr.AckTimeout, q.attr.RetryCount, q.attr.RNRRetryCount = a.AckTimeout, a.RetryCount, a.RNRRetryCount
		if a.Access != 0 {
			q.attr.Access = a.Access
		}
		q.req.start(now, wire.PSN(a.SQPSN&wire.PSNMask), q.ackTimeout(), q.cfg.Window, max(1, q.cfg.ReadWindow/q.mtu), q.cfg.Fixed)
	case a.State == rdma.StateRTS && (q.state == rdma.StateRTS || q.state == rdma.StateSQD):
		if a.Access != 0 {
			q.attr.Access = a.Access
		}
	case a.State == rdma.StateSQD && q.state == rdma.StateRTS:
	default:
		return fmt.Errorf("%w: %v to %v", rdma.ErrBadTransition, q.state, a.State)
	}
	q.state = a.State
	return nil
}

func sameFamily(a, b netip.Addr) bool {
	return a.IsValid() && b.IsValid() && a.Unmap().Is4() == b.Unmap().Is4()
}

// ackTimeout is the local ACK timeout of the connection, 0 for none.
func (q *QP) ackTimeout() rdma.Time {
	if q.attr.AckTimeout == 0 {
		return 0
	}
	return rdma.Time(4096) << min(q.attr.AckTimeout, 31)
}

// PostSend queues requests, all or none. In ERR they are flushed.
func (q *QP) PostSend(now rdma.Time, wrs []rdma.SendWR) error {
	switch q.state {
	case rdma.StateRTS, rdma.StateSQD, rdma.StateErr:
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
		e := q.sq.Push()
		e.sgl = append(e.sgl[:0], wrs[i].SGL...)
		e.wr = wrs[i]
		e.wr.SGL = nil
		e.length = uint32(wq.Length(e.sgl))
		if e.wr.Flags&rdma.Inline != 0 {
			e.inline = e.inline[:0]
			for _, s := range e.sgl {
				e.inline = append(e.inline, s.Buf...)
			}
			clear(e.sgl)
			e.sgl = append(e.sgl[:0], rdma.SGE{Buf: e.inline})
		}
		e.started, e.got, e.count = false, 0, 0
	}
	if q.state == rdma.StateErr {
		q.flush()
	}
	return nil
}

func (q *QP) checkSend(w *rdma.SendWR) error {
	if len(w.SGL) > q.cfg.Caps.MaxSendSGE {
		return fmt.Errorf("%w: %d gather elements, the QP takes %d", rdma.ErrInvalidWR, len(w.SGL), q.cfg.Caps.MaxSendSGE)
	}
	n := wq.Length(w.SGL)
	switch w.Op {
	case rdma.OpSend, rdma.OpSendImm, rdma.OpSendInv, rdma.OpWrite, rdma.OpWriteImm, rdma.OpRead:
		if n > MessageMax {
			return fmt.Errorf("%w: a message of %d bytes", rdma.ErrInvalidWR, n)
		}
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		if n != 8 {
			return fmt.Errorf("%w: an atomic returns 8 bytes, the scatter list has %d", rdma.ErrInvalidWR, n)
		}
		if w.RemoteAddr&7 != 0 {
			return fmt.Errorf("%w: atomic on the unaligned address %#x", rdma.ErrInvalidWR, w.RemoteAddr)
		}
	case rdma.OpLocalInv:
	case rdma.OpBindMW, rdma.OpReg:
		if w.Bind == nil || w.Bind.MR == nil || w.Op == rdma.OpBindMW && w.Bind.MW == nil {
			return fmt.Errorf("%w: nothing to bind", rdma.ErrInvalidWR)
		}
	default:
		return fmt.Errorf("%w: unknown operation %d", rdma.ErrInvalidWR, w.Op)
	}
	if w.Flags&rdma.Inline != 0 && (w.Op > rdma.OpWriteImm || n > uint64(q.cfg.Caps.MaxInline)) {
		return fmt.Errorf("%w: %d bytes inline; the QP takes %d, of SENDs and RDMA WRITEs", rdma.ErrInvalidWR, n, q.cfg.Caps.MaxInline)
	}
	if (w.Op == rdma.OpRead || w.Op == rdma.OpCompareSwap || w.Op == rdma.OpFetchAdd) && q.attr.MaxRdAtomic == 0 && q.state != rdma.StateErr {
		return fmt.Errorf("%w: the connection was negotiated without READ and atomics", rdma.ErrInvalidWR)
	}
	return nil
}

// PostRecv queues receives, all or none. In ERR they are flushed.
func (q *QP) PostRecv(_ rdma.Time, wrs []rdma.RecvWR) error {
	if q.state == rdma.StateReset {
		return fmt.Errorf("%w: receives cannot be posted in RESET", rdma.ErrBadTransition)
	}
	if q.cfg.SRQ != nil {
		return fmt.Errorf("%w: the QP takes its receives from a shared receive queue", rdma.ErrInvalidWR)
	}
	taken := 0
	if q.resp.inRecv {
		taken = 1
	}
	if err := q.rq.Post(wrs, taken); err != nil {
		return err
	}
	if q.state == rdma.StateErr {
		q.flush()
	}
	return nil
}

// Drained reports whether the QP is in SQD and every request that was begun has completed.
func (q *QP) Drained() bool {
	return q.state == rdma.StateSQD && (q.sq.Len() == 0 || !q.sq.Front().started)
}

// PollSend moves completions of send requests into dst, oldest first.
func (q *QP) PollSend(dst []rdma.WC) int { return q.send.Drain(dst) }

// PollRecv moves completions of receives into dst, oldest first.
func (q *QP) PollRecv(dst []rdma.WC) int { return q.recv.Drain(dst) }

// Pending reports whether there are completions to poll.
func (q *QP) Pending() (send, recv bool) { return q.send.Len() > 0, q.recv.Len() > 0 }

// Outstanding is the number of send requests and receives that are posted and
// not completed.
func (q *QP) Outstanding() (send, recv int) {
	recv = q.rq.Len()
	if q.resp.inRecv {
		recv++
	}
	return q.sq.Len(), recv
}

// Receive takes one packet that is addressed to this QP and whose ICRC was
// checked. The payload is copied to where it belongs before it returns.
func (q *QP) Receive(now rdma.Time, p *wire.Packet) {
	q.n.RxPackets++
	q.seen.RxPackets++
	if !p.Op.IsRC() && !p.Op.ReservedRC() && p.Op != wire.CNP {
		q.n.DropOpcode++
		return
	}
	switch q.state {
	case rdma.StateRTR, rdma.StateRTS, rdma.StateSQD:
	default:
		q.n.DropState++
		return
	}
	if p.Src != q.flow.Dst || p.Dst != q.flow.Src {
		q.n.DropPeer++
		return
	}
	// Network cards send CNPs with the default P_Key, whatever the connection's partition.
	if !pkeyMatches(p.PKey, q.attr.PKey) && (p.Op != wire.CNP || p.PKey != wire.DefaultPKey) {
		q.n.DropPKey++
		return
	}
	q.recent.add(now, false, p, len(p.Payload))
	if p.Op == wire.CNP {
		q.congested(now)
		return
	}
	if p.Op.ReservedRC() {
		q.reserved(now, p)
		return
	}
	if p.ECN == ecnCE {
		q.marked(now)
	}
	if p.Op.Is(wire.Request) {
		q.serve(now, p)
	} else if q.state == rdma.StateRTR {
		q.n.DropState++
	} else {
		q.answer(now, p)
	}
}

// pkeyMatches implements IBTA 10.9.3: same partition, one of both a full member.
func pkeyMatches(a, b uint16) bool {
	const full = 0x8000
	return (a^b)&^uint16(full) == 0 && (a|b)&full != 0
}

// Transmit appends packets to b until it is full, a turn's share of this QP is
// used up, or there is nothing to send now. Answers go before requests. It
// reports whether there is more.
func (q *QP) Transmit(now rdma.Time, b *wire.Batch) (more bool) {
	q.now = now
	budget := transmitBudget
	budget = q.transmitResponses(now, b, budget)
	if q.state == rdma.StateRTS || q.state == rdma.StateSQD {
		q.transmitRequests(now, b, budget)
	}
	return q.HasWork(now)
}

// transmitBudget bounds the packets of one Transmit, so that a QP with much to
// say does not keep the others of its loop waiting.
const transmitBudget = 64

// HasWork reports whether Transmit would send something now.
func (q *QP) HasWork(now rdma.Time) bool {
	return q.answers(now) || (q.state == rdma.StateRTS || q.state == rdma.StateSQD) && q.canSend(now)
}

// Parting reports whether the QP is in ERR and the NAK that tells the peer why is
// still to be sent. That packet needs nothing of the QP's owner, and Transmit may send
// it when the QP is being destroyed already.
func (q *QP) Parting() bool {
	return q.state == rdma.StateErr && q.resp.nakDue && q.resp.active == 0
}

// Deadline is when Expire has to be called; 0 for never. Ask again after each
// call of Receive, Transmit, Expire, Modify and PostSend.
func (q *QP) Deadline() rdma.Time {
	switch q.state {
	case rdma.StateRTS, rdma.StateSQD:
	case rdma.StateRTR:
		d := q.resp.remind.at
		if q.resp.active > 0 {
			d = rdma.Earlier(d, q.resp.rate.until)
		}
		return d
	default:
		return 0
	}
	d := rdma.Earlier(q.req.deadline(), q.resp.remind.at)
	if q.resp.active > 0 {
		d = rdma.Earlier(d, q.resp.rate.until)
	}
	if q.req.cur < q.sq.Len() {
		d = rdma.Earlier(d, q.req.until)
	}
	return d
}

// packet prepares the scratch packet with what all packets of the QP share.
func (q *QP) packet(op wire.Opcode, psn wire.PSN) *wire.Packet {
	q.pkt = wire.Packet{Op: op, MigReq: true, PKey: q.attr.PKey, DestQPN: q.attr.DestQPN, PSN: psn}
	return &q.pkt
}

// fail moves the QP to ERR. why is nil when the owner asked for it.
func (q *QP) fail(why error) {
	if q.state == rdma.StateErr {
		return
	}
	if q.err == nil {
		q.err = why
	}
	q.state = rdma.StateErr
	q.flush()
}

// flush completes everything that is posted with WRFlushErr, in order.
func (q *QP) flush() {
	for q.sq.Len() > 0 {
		q.completeSend(rdma.WRFlushErr)
	}
	q.req.reset()
	q.cnp.due = false
	flushed := rdma.WC{Status: rdma.WRFlushErr, Op: rdma.WCRecv}
	if q.resp.inRecv {
		q.completeRecv(flushed)
	}
	for q.rq.Len() > 0 {
		q.takeRecv()
		q.completeRecv(flushed)
	}
}

// completeSend completes the oldest send request.
func (q *QP) completeSend(s rdma.Status) {
	e := q.sq.Front()
	if s != rdma.Success || e.wr.Flags&rdma.Signaled != 0 {
		wc := q.send.Push()
		*wc = rdma.WC{ID: e.wr.ID, QPN: q.cfg.Num, Status: s, Op: wcOps[e.wr.Op]}
		if e.reads() && s == rdma.Success {
			wc.ByteLen = e.length
		}
	}
	clear(e.sgl)
	e.wr.Bind, e.wr.Volatile = nil, nil
	q.sq.Pop()
}

var wcOps = [...]rdma.WCOp{
	rdma.OpSend: rdma.WCSend, rdma.OpSendImm: rdma.WCSend, rdma.OpSendInv: rdma.WCSend,
	rdma.OpWrite: rdma.WCWrite, rdma.OpWriteImm: rdma.WCWrite, rdma.OpRead: rdma.WCRead,
	rdma.OpCompareSwap: rdma.WCCompareSwap, rdma.OpFetchAdd: rdma.WCFetchAdd, rdma.OpLocalInv: rdma.WCLocalInv,
	rdma.OpBindMW: rdma.WCBindMW, rdma.OpReg: rdma.WCReg,
}

// gather lists n bytes of sgl from byte off, by reference.
func (q *QP) gather(sgl []rdma.SGE, off uint32, n int) [][]byte {
	parts := q.parts[:0]
	at := int(off)
	for _, s := range sgl {
		if n == 0 {
			break
		}
		if at >= len(s.Buf) {
			at -= len(s.Buf)
			continue
		}
		k := min(n, len(s.Buf)-at)
		parts = append(parts, s.Buf[at:at+k])
		n, at = n-k, 0
	}
	return parts
}

// packets is the number of PSNs of a message of n bytes.
func (q *QP) packets(n uint32) int { return max(1, (int(n)+q.mtu-1)/q.mtu) }
