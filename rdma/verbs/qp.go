//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

// Work requests carry in their ID what their completion is about: recvBit for receives, the handle of the
// queue in 31 bits, and the place in the queue in 32.
const recvBit = 1 << 63

// kernelWithInv is the flag of a completion for a message that has invalidated a key, by the kernel's number,
// which rdma_rxe gives to programs, where it means something else (IBV_WC_IP_CSUM_OK). The key is in
// the host's order then, as it should be, where immediate data would be in the network's.
const kernelWithInv = 4

func errno(n C.int) error { return syscall.Errno(n) }

var errUntold = errors.New("the library does not say why; is the limit of locked memory, ulimit -l, high enough?")

// cause is the errno of a call that has failed, of which libraries do not always leave one.
func cause(err error) error {
	if err == nil {
		return errUntold
	}
	return err
}

// qp is a queue pair. It implements rdma.QP.
type qp struct {
	l      *loop
	qp     *C.struct_ibv_qp
	id     *C.struct_rdma_cm_id // that it was made with, nil for queue pairs that CM knows nothing of
	conn   *conn
	pd     *pd
	typ    rdma.QPType
	num    uint32
	handle uint32
	since  rdma.Time
	cookie uint64
	caps   rdma.QPCaps
	send   *cq
	recv   *cq
	srq    *srq // nil if it has receives of its own
	on     func(rdma.QPEvent)
	state  rdma.QPState
	last   bool // LastWQEReached was told
	dead   bool

	// Requests that are under way: those of the send queue by their number.
	sq       []sent
	sqHead   uint32 // oldest that may be under way
	sqTail   uint32
	unsigned int // requests since one that completes
	rq       slots
	qkey     uint32 // of a queue pair for datagrams

	// For a post-mortem.
	seen      Seen
	recent    recent
	lastAsync asyncEvent
	cut       int // requests that were flushed, and would have completed aloud
}

// sent is a request that may be under way.
type sent struct {
	id     uint64
	at     rdma.Time // it was posted
	op     rdma.WCOp
	silent bool // its user wants no completion of success
	part   bool // more of the request follows
	over   bool // the request has completed by an earlier part of it
	fin    bool // the device has completed it, see disorder
	bound  *mw
	key    uint32 // of bound, or that is invalidated
	ah     *ah
}

// drop lets go of what the first requests of a list hold that is not posted.
func (q *qp) drop(n int) {
	for i := range n {
		q.sq[(q.sqTail+uint32(i))%uint32(len(q.sq))].done(q, false)
	}
}

// done lets go of what a request has held that was carried out, or was not.
func (s *sent) done(q *qp, ok bool) {
	switch {
	case s.bound != nil:
		s.bound.binds(s.key, ok)
		s.bound = nil
	case s.ah != nil:
		s.ah.release()
		s.ah = nil
	case s.op == rdma.WCLocalInv && ok:
		q.invalidated(s.key)
	}
}

// slots are the receives that are posted, by their place.
type slots struct {
	ids  []uint64
	free []uint32
}

func (s *slots) init(n int) {
	s.ids, s.free = make([]uint64, n), make([]uint32, n)
	for i := range s.free {
		s.free[i] = uint32(n - 1 - i)
	}
}

func (s *slots) take(id uint64) uint32 {
	at := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.ids[at] = id
	return at
}

func (s *slots) give(at uint32) uint64 {
	s.free = append(s.free, at)
	return s.ids[at]
}

// CreateQP implements rdma.Device.
func (d *Device) CreateQP(lp rdma.Loop, c rdma.QPConfig) (rdma.QP, error) {
	l, err := d.loopOf(lp)
	if err != nil {
		return nil, err
	}
	q, err := l.newQP(c, nil)
	if err != nil {
		return nil, err
	}
	return q, nil
}

// newQP makes a queue pair, of an rdma_cm_id if that is not nil.
func (l *loop) newQP(c rdma.QPConfig, id *C.struct_rdma_cm_id) (*qp, error) {
	d := l.dev
	p, ok := c.PD.(*pd)
	if !ok || p.d != d {
		return nil, fmt.Errorf("%w: the queue pair's protection domain belongs to another device", rdma.ErrInvalidWR)
	}
	send, ok1 := c.SendCQ.(*cq)
	recv, ok2 := c.RecvCQ.(*cq)
	if !ok1 || !ok2 || send.l != l || recv.l != l || send.closed || recv.closed {
		return nil, fmt.Errorf("%w: the queue pair's completion queues belong to another loop", rdma.ErrInvalidWR)
	}
	if c.Caps.MaxSendWR < 0 || c.Caps.MaxRecvWR < 0 || d.limits.WRs > 0 && max(c.Caps.MaxSendWR, c.Caps.MaxRecvWR) > d.limits.WRs {
		return nil, fmt.Errorf("%w: queues of %d and %d requests; the most of %s is %d", rdma.ErrInvalidWR, c.Caps.MaxSendWR, c.Caps.MaxRecvWR, d.name, d.limits.WRs)
	}
	if d.limits.SGEs > 0 && max(c.Caps.MaxSendSGE, c.Caps.MaxRecvSGE) > d.limits.SGEs {
		return nil, fmt.Errorf("%w: requests of %d and %d elements; the most of %s is %d", rdma.ErrInvalidWR, c.Caps.MaxSendSGE, c.Caps.MaxRecvSGE, d.name, d.limits.SGEs)
	}
	if c.Caps.MaxInline < 0 || c.Caps.MaxInline > d.limits.Inline {
		return nil, fmt.Errorf("%w: %d bytes inline; the most of %s is %d", rdma.ErrInvalidWR, c.Caps.MaxInline, d.name, d.limits.Inline)
	}
	if c.Type == rdma.UD && !d.limits.Datagrams {
		return nil, fmt.Errorf("%w: %s has no datagrams", rdma.ErrUnsupported, d.name)
	}
	q := &qp{l: l, id: id, pd: p, typ: c.Type, caps: c.Caps, send: send, recv: recv, on: c.OnEvent, handle: l.number(), since: l.now}
	if c.SRQ != nil {
		if q.srq, ok = c.SRQ.(*srq); !ok || q.srq.l != l || q.srq.pd != p || q.srq.dead {
			return nil, fmt.Errorf("%w: the shared receive queue belongs to another loop or protection domain, or is closed", rdma.ErrInvalidWR)
		}
	}
	// READs with more elements than the device takes are posted in parts.
	depth := max(c.Caps.MaxSendWR, 1) * max((c.Caps.MaxSendSGE+d.readSGEs-1)/d.readSGEs, 1)
	sges := max(c.Caps.MaxSendSGE, 1)
	if d.siw {
		depth, sges = 2*depth, max(sges, 2) // see cut
	}
	if d.limits.WRs > 0 {
		depth = max(min(depth, d.limits.WRs), c.Caps.MaxSendWR)
	}
	// Requests that complete silently take their places until a later one completes.
	if more := depth + depth/2 + 1; d.limits.WRs == 0 || more <= d.limits.WRs {
		depth = more
	}
	if err := send.reserve(depth); err != nil {
		return nil, err
	}
	if err := recv.reserve(q.receives()); err != nil {
		send.give(depth)
		return nil, err
	}
	q.sq = make([]sent, depth)
	init := C.struct_rs_qp_init{
		pd: p.pd, send_cq: send.cq, recv_cq: recv.cq, _type: C.IBV_QPT_RC,
		send_wr: C.int(depth), recv_wr: C.int(c.Caps.MaxRecvWR), send_sge: C.int(sges), recv_sge: C.int(max(c.Caps.MaxRecvSGE, 1)),
		inline_data: C.int(c.Caps.MaxInline),
	}
	if c.Type == rdma.UD {
		init._type = C.IBV_QPT_UD
	}
	if q.srq != nil {
		init.srq, init.recv_wr = q.srq.srq, 0
	} else {
		q.rq.init(c.Caps.MaxRecvWR)
		init.recv_wr = max(init.recv_wr, 1)
	}
	q.cookie = cookies.add(q)
	init.cookie = C.uint64_t(q.cookie)
	var err error
	if q.qp, err = C.rs_create_qp(id, &init); q.qp == nil {
		cookies.remove(q.cookie)
		send.give(depth)
		recv.give(q.receives())
		return nil, fmt.Errorf("%w: a queue pair of %s for %d sends and %d receives: %w", rdma.ErrNoResources, d.name, depth, c.Caps.MaxRecvWR, cause(err))
	}
	q.caps.MaxInline = min(q.caps.MaxInline, int(init.inline_data))
	q.num = uint32(q.qp.qp_num)
	if id != nil {
		q.state = rdma.StateInit
	}
	if q.srq != nil {
		q.srq.users++
	}
	l.qps[q.handle] = q
	l.n.qps.Add(1)
	return q, nil
}

// receives is how many completions of receives the queue pair may have under way.
func (q *qp) receives() int {
	if q.srq != nil {
		return len(q.srq.slots.ids)
	}
	return q.caps.MaxRecvWR
}

func (q *qp) home() *loop { return q.l }

// async implements eventful.
func (q *qp) async(kind int) {
	if q.dead {
		return
	}
	q.lastAsync = asyncEvent{kind, q.l.now}
	switch kind {
	case C.IBV_EVENT_QP_FATAL, C.IBV_EVENT_QP_REQ_ERR, C.IBV_EVENT_QP_ACCESS_ERR:
		q.state = rdma.StateErr
		if q.conn != nil {
			why := map[int]string{
				C.IBV_EVENT_QP_FATAL:      "the device reports a fatal error of the queue pair",
				C.IBV_EVENT_QP_REQ_ERR:    "the peer sent a request that is not valid",
				C.IBV_EVENT_QP_ACCESS_ERR: "the peer named memory that it may not use",
			}[kind]
			q.conn.failed(fmt.Errorf("%s", why))
		}
	case C.IBV_EVENT_COMM_EST:
		if q.conn != nil {
			q.conn.traffic()
		}
	case C.IBV_EVENT_SQ_DRAINED:
		q.tell(rdma.SQDrained)
	case C.IBV_EVENT_QP_LAST_WQE_REACHED:
		q.lastReached()
	}
}

func (q *qp) tell(e rdma.QPEvent) {
	if q.on == nil {
		return
	}
	q.l.later = append(q.l.later, func() {
		if !q.dead {
			q.on(e)
		}
	})
}

func (q *qp) lastReached() {
	if q.srq != nil && !q.last {
		q.last = true
		q.tell(rdma.LastWQEReached)
	}
}

// inError is called when the queue pair has come to ERR by our doing.
func (q *qp) inError() {
	q.state = rdma.StateErr
	if q.srq != nil && q.l.dev.soft() {
		// The software drivers do not say it: what is left is in the completion queue already.
		q.lastReached()
	}
}

// Num implements rdma.QP.
func (q *qp) Num() uint32 { return q.num }

// State implements rdma.QP.
func (q *qp) State() rdma.QPState { return q.state }

// sendOps are the operations by their numbers here and there.
var sendOps = [...]struct {
	op uint32
	wc rdma.WCOp
}{
	rdma.OpSend:        {C.IBV_WR_SEND, rdma.WCSend},
	rdma.OpSendImm:     {C.IBV_WR_SEND_WITH_IMM, rdma.WCSend},
	rdma.OpSendInv:     {C.IBV_WR_SEND_WITH_INV, rdma.WCSend},
	rdma.OpWrite:       {C.IBV_WR_RDMA_WRITE, rdma.WCWrite},
	rdma.OpWriteImm:    {C.IBV_WR_RDMA_WRITE_WITH_IMM, rdma.WCWrite},
	rdma.OpRead:        {C.IBV_WR_RDMA_READ, rdma.WCRead},
	rdma.OpCompareSwap: {C.IBV_WR_ATOMIC_CMP_AND_SWP, rdma.WCCompareSwap},
	rdma.OpFetchAdd:    {C.IBV_WR_ATOMIC_FETCH_AND_ADD, rdma.WCFetchAdd},
	rdma.OpLocalInv:    {C.IBV_WR_LOCAL_INV, rdma.WCLocalInv},
	rdma.OpBindMW:      {C.IBV_WR_BIND_MW, rdma.WCBindMW},
}

// PostSend implements rdma.QP.
func (q *qp) PostSend(wrs []rdma.SendWR) error {
	if q.dead {
		return rdma.ErrClosed
	}
	if q.state != rdma.StateRTS && q.state != rdma.StateSQD && q.state != rdma.StateErr && q.state != rdma.StateSQE {
		return fmt.Errorf("%w: sending in state %v", rdma.ErrInvalidWR, q.state)
	}
	l := q.l
	need := len(wrs)
	for i := range wrs {
		if err := q.check(&wrs[i]); err != nil {
			return err
		}
		need += q.parts(wrs[i].Op, len(l.cut(&wrs[i]))) - 1
	}
	if len(wrs) > q.caps.MaxSendWR || int(q.sqTail-q.sqHead)+need > len(q.sq) {
		return rdma.ErrQueueFull
	}
	l.sends, l.sges = l.sends[:0], l.sges[:0]
	unsigned := q.unsigned
	tail := q.sqTail
	for i := range wrs {
		w := &wrs[i]
		s := sent{id: w.ID, at: l.now, op: sendOps[w.Op].wc, silent: w.Flags&rdma.Signaled == 0}
		x := C.struct_rs_send{
			op: C.uint32_t(sendOps[w.Op].op), raddr: C.uint64_t(w.RemoteAddr), rkey: C.uint32_t(w.RKey), imm: C.uint32_t(w.Imm),
			compare: C.uint64_t(w.Compare), swap_add: C.uint64_t(w.SwapAdd),
		}
		if w.Flags&rdma.Fence != 0 {
			x.flags |= C.IBV_SEND_FENCE
		}
		if w.Flags&rdma.Solicited != 0 {
			x.flags |= C.IBV_SEND_SOLICITED
		}
		if w.Flags&rdma.Inline != 0 {
			x.flags |= C.IBV_SEND_INLINE
		}
		switch w.Op {
		case rdma.OpSendInv, rdma.OpLocalInv:
			x.imm, s.key = C.uint32_t(w.InvRKey), w.InvRKey
			x.rkey = x.imm // libsiw looks for it there
		case rdma.OpBindMW:
			s.bound, s.key = q.bind(w, &x), w.RKey
		}
		if w.AH != nil && q.typ == rdma.UD {
			ah, err := q.pd.handle(w.AH, l.now)
			if err != nil {
				q.drop(int(tail - q.sqTail))
				return err
			}
			s.ah = ah
			x.ah, x.qpn, x.qkey = unsafe.Pointer(ah.ah), C.uint32_t(w.AH.QPN), C.uint32_t(w.AH.QKey)
			if w.AH.QKey>>31 != 0 {
				x.qkey = C.uint32_t(q.qkey) // rdma_rxe does not know what the bit means
			}
		}
		sgl := l.cut(w)
		for n := q.parts(w.Op, len(sgl)); n > 0; n-- {
			take := sgl
			if s.part = n > 1; s.part {
				take = sgl[:l.dev.readSGEs]
			}
			y := x
			y.id, y.sge = C.uint64_t(uint64(q.handle)<<32|uint64(tail)), C.uint32_t(len(l.sges))
			unsigned++
			if !s.silent && !s.part || unsigned >= max(len(q.sq)/4, 1) || l.dev.disorder() {
				y.flags |= C.IBV_SEND_SIGNALED
				unsigned = 0
			}
			y.nsge = C.uint32_t(l.gather(take))
			for i := range take {
				x.raddr += C.uint64_t(len(take[i].Buf))
			}
			sgl = sgl[len(take):]
			l.sends = append(l.sends, y)
			q.sq[tail%uint32(len(q.sq))] = s
			tail++
		}
	}
	if len(l.sends) == 0 {
		return nil
	}
	e := C.int(syscall.ENOTCONN)
	if q.flushes() {
		e = C.rs_post_send(q.qp, &l.sends[0], C.int(len(l.sends)), l.elements())
		runtime.KeepAlive(wrs)
	}
	if e != 0 {
		q.drop(int(tail - q.sqTail))
		if q.state == rdma.StateErr {
			q.send.fetch()
			for i := range wrs {
				q.send.push(rdma.WC{ID: wrs[i].ID, QPN: q.Num(), Status: rdma.WRFlushErr, Op: sendOps[wrs[i].Op].wc})
			}
			return nil
		}
		return fmt.Errorf("%w: %s does not take the request: %w", rdma.ErrInvalidWR, l.dev.name, errno(e))
	}
	l.n.postsSend.Add(1)
	l.n.sends.Add(uint64(len(l.sends)))
	q.remember(wrs)
	q.sqTail = tail
	q.unsigned = unsigned
	return nil
}

// readNothing posts a READ of no bytes, without a completion for anybody, if there is room for it and the queue pair has not
// failed, of which the connection may be told later.
func (q *qp) readNothing() {
	if q.state != rdma.StateRTS || int(q.sqTail-q.sqHead) == len(q.sq) {
		return
	}
	l := q.l
	l.sends = append(l.sends[:0], C.struct_rs_send{
		op: C.IBV_WR_RDMA_READ, flags: C.IBV_SEND_SIGNALED, id: C.uint64_t(uint64(q.handle)<<32 | uint64(q.sqTail)),
	})
	l.sges = l.sges[:0]
	if C.rs_post_send(q.qp, &l.sends[0], 1, l.elements()) == 0 {
		q.sq[q.sqTail%uint32(len(q.sq))] = sent{at: l.now, op: rdma.WCRead, silent: true, over: true}
		q.sqTail++
	}
}

// remember keeps what was posted.
func (q *qp) remember(wrs []rdma.SendWR) {
	for i := range wrs {
		n := uint64(0)
		for k := range wrs[i].SGL {
			n += uint64(len(wrs[i].SGL[k].Buf))
		}
		q.recent.add(Request{At: q.l.now, Op: sendOps[wrs[i].Op].wc, Bytes: n})
		q.seen.PostedBytes += n
	}
	q.seen.Posted += uint64(len(wrs))
}

// parts is as how many requests the device is given one of so many elements.
func (q *qp) parts(op rdma.SendOp, elements int) int {
	if n := q.l.dev.readSGEs; op == rdma.OpRead && elements > n {
		return (elements + n - 1) / n
	}
	return 1
}

// disorder reports whether requests complete in another order than that in which they were posted: siw completes what
// it has sent while READs before it wait for their data. Each one has a completion of its own then.
func (d *Device) disorder() bool { return d.siw }

// flushes reports whether the device completes what is posted: siw, and other devices with an error, do not once
// the queue pair is in ERR, and then it is completed here.
func (q *qp) flushes() bool {
	return q.state != rdma.StateErr || !q.l.dev.siw
}

// check refuses what the device would, or would not see.
func (q *qp) check(w *rdma.SendWR) error {
	lim := &q.l.dev.limits
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", rdma.ErrInvalidWR, fmt.Sprintf(format, a...))
	}
	switch w.Op {
	case rdma.OpReg:
		return fmt.Errorf("%w: registration by work request", rdma.ErrUnsupported)
	case rdma.OpBindMW:
		if err := q.checkBind(w); err != nil {
			return err
		}
	case rdma.OpLocalInv:
		if err := q.checkInv(w.InvRKey); err != nil {
			return err
		}
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		if !lim.Atomics {
			return fmt.Errorf("%w: atomics of %s", rdma.ErrUnsupported, q.l.dev.name)
		}
	case rdma.OpSendImm, rdma.OpWriteImm:
		if !lim.Immediate {
			return fmt.Errorf("%w: immediate data of %s", rdma.ErrUnsupported, q.l.dev.name)
		}
	}
	if int(w.Op) >= len(sendOps) {
		return bad("operation %d", w.Op)
	}
	if len(w.SGL) > q.caps.MaxSendSGE {
		return bad("%d elements; the most is %d", len(w.SGL), q.caps.MaxSendSGE)
	}
	n := 0
	for i := range w.SGL {
		n += len(w.SGL[i].Buf)
	}
	if n > 1<<31 {
		return bad("a message of %d bytes; the most is 2 GiB", n)
	}
	if w.Flags&rdma.Inline != 0 {
		if n > q.caps.MaxInline {
			return bad("%d bytes inline; the most is %d", n, q.caps.MaxInline)
		}
		if w.Op != rdma.OpSend && w.Op != rdma.OpSendImm && w.Op != rdma.OpSendInv && w.Op != rdma.OpWrite && w.Op != rdma.OpWriteImm {
			return bad("operation %d with inline data", w.Op)
		}
		if w.Op == rdma.OpSendInv && q.l.dev.siw {
			return fmt.Errorf("%w: inline data of a SEND that invalidates, of %s", rdma.ErrUnsupported, q.l.dev.name) // it would hang
		}
	}
	switch q.typ {
	case rdma.UD:
		if w.AH == nil || w.Op != rdma.OpSend && w.Op != rdma.OpSendImm {
			return bad("operation %d, address %v, on a queue pair of datagrams", w.Op, w.AH)
		}
		return checkAH(w.AH)
	default:
		if w.AH != nil {
			return bad("an address on a connected queue pair")
		}
	}
	return nil
}

// gather adds a list to the loop's elements, and returns their number. Empty ones are left out:
// a device may take a length of 0 for 2 GiB.
func (l *loop) gather(sgl []rdma.SGE) (n int) {
	for i := range sgl {
		if b := sgl[i].Buf; len(b) > 0 {
			l.sges = append(l.sges, C.struct_ibv_sge{addr: C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), length: C.uint32_t(len(b)), lkey: C.uint32_t(sgl[i].LKey)})
			n++
		}
	}
	return n
}

func (l *loop) elements() *C.struct_ibv_sge {
	if len(l.sges) == 0 {
		l.sges = append(l.sges, C.struct_ibv_sge{})
	}
	return &l.sges[0]
}

// PostRecv implements rdma.QP.
func (q *qp) PostRecv(wrs []rdma.RecvWR) error {
	if q.dead {
		return rdma.ErrClosed
	}
	if q.srq != nil {
		return fmt.Errorf("%w: the queue pair takes its receives from a shared queue", rdma.ErrInvalidWR)
	}
	if q.state == rdma.StateReset {
		return fmt.Errorf("%w: receiving in state %v", rdma.ErrInvalidWR, q.state)
	}
	e, err := C.int(syscall.ENOTCONN), error(nil)
	if q.flushes() {
		e, err = q.l.postRecv(q.qp, nil, q.handle, &q.rq, q.caps.MaxRecvSGE, wrs)
	}
	if err == nil && e != 0 {
		if q.state == rdma.StateErr {
			q.recv.fetch()
			for i := range wrs {
				q.recv.push(rdma.WC{ID: wrs[i].ID, QPN: q.Num(), Status: rdma.WRFlushErr, Op: rdma.WCRecv})
			}
			return nil
		}
		err = fmt.Errorf("%w: %s does not take the receive: %w", rdma.ErrInvalidWR, q.l.dev.name, errno(e))
	}
	return err
}

// postRecv posts receives to a queue pair or a shared queue. It returns the device's error apart.
func (l *loop) postRecv(q *C.struct_ibv_qp, s *C.struct_ibv_srq, handle uint32, to *slots, most int, wrs []rdma.RecvWR) (C.int, error) {
	if len(wrs) > len(to.free) {
		return 0, rdma.ErrQueueFull
	}
	for i := range wrs {
		if len(wrs[i].SGL) > most {
			return 0, fmt.Errorf("%w: %d elements; the most is %d", rdma.ErrInvalidWR, len(wrs[i].SGL), most)
		}
	}
	if len(wrs) == 0 {
		return 0, nil
	}
	l.recvs, l.sges = l.recvs[:0], l.sges[:0]
	for i := range wrs {
		at := to.take(wrs[i].ID)
		x := C.struct_rs_recv{id: C.uint64_t(recvBit | uint64(handle)<<32 | uint64(at)), sge: C.uint32_t(len(l.sges))}
		x.nsge = C.uint32_t(l.gather(wrs[i].SGL))
		l.recvs = append(l.recvs, x)
	}
	e := C.rs_post_recv(q, s, &l.recvs[0], C.int(len(l.recvs)), l.elements())
	runtime.KeepAlive(wrs)
	if e != 0 {
		for i := range l.recvs {
			to.give(uint32(l.recvs[i].id))
		}
		return e, nil
	}
	l.n.postsRecv.Add(1)
	l.n.recvs.Add(uint64(len(l.recvs)))
	return 0, nil
}

// translate makes a completion out of the device's. It reports false for one that is nobody's, or that
// nobody wants.
func (l *loop) translate(in *C.struct_rs_wc, out *rdma.WC) bool {
	handle := uint32(uint64(in.id)>>32) &^ (1 << 31)
	at := uint32(in.id)
	*out = rdma.WC{QPN: uint32(in.qpn), Status: rdma.Status(in.status)}
	l.n.completions.Add(1)
	if out.Status != rdma.Success {
		l.n.failure(out.Status)
	}
	if uint64(in.id)&recvBit != 0 {
		return l.received(handle, at, in, out)
	}
	q := l.qps[handle]
	if q == nil {
		return false
	}
	s := &q.sq[at%uint32(len(q.sq))]
	if at-q.sqHead >= q.sqTail-q.sqHead || s.fin {
		return false // of a request that is not under way
	}
	if s.fin = true; l.dev.disorder() {
		for q.sqHead != q.sqTail && q.sq[q.sqHead%uint32(len(q.sq))].fin {
			q.sqHead++
		}
	} else {
		// Those before it that complete silently have succeeded.
		for ; q.sqHead != at; q.sqHead++ {
			q.sq[q.sqHead%uint32(len(q.sq))].done(q, true)
		}
		q.sqHead++
	}
	s.done(q, in.status == C.IBV_WC_SUCCESS)
	out.ID, out.Op = s.id, s.op
	if in.status != C.IBV_WC_SUCCESS {
		over := s.over
		if !over {
			q.failing(s.op, out.Status, uint32(in.vendor))
			if out.Status == rdma.WRFlushErr && q.says(s) {
				q.cut++
			}
		}
		q.erred(out.Status)
		if s.part {
			q.sq[(at+1)%uint32(len(q.sq))].over = true
		}
		return !over
	}
	if s.op == rdma.WCRead || s.op == rdma.WCCompareSwap || s.op == rdma.WCFetchAdd {
		out.ByteLen = uint32(in.byte_len)
	}
	return !s.silent && !s.part
}

// received is translate for receives.
func (l *loop) received(handle, at uint32, in *C.struct_rs_wc, out *rdma.WC) bool {
	q := l.qps[handle]
	if s := l.srqs[handle]; s != nil {
		out.ID = s.slots.give(at)
		q = s.user(uint32(in.qpn))
	} else if q != nil {
		out.ID = q.rq.give(at)
	} else {
		return false
	}
	out.Op = rdma.WCRecv
	if in.status != C.IBV_WC_SUCCESS {
		if q != nil {
			q.failing(out.Op, out.Status, uint32(in.vendor))
			q.erred(out.Status)
		}
		return true
	}
	out.ByteLen = uint32(in.byte_len)
	if q != nil && q.conn != nil {
		q.conn.traffic()
	}
	if in.opcode == C.IBV_WC_RECV_RDMA_WITH_IMM {
		out.Op = rdma.WCRecvWithImm
	}
	if q != nil {
		q.seen.Received++
		q.seen.ReceivedBytes += uint64(out.ByteLen)
		q.recent.add(Request{At: l.now, Did: Received, Op: out.Op, Bytes: uint64(out.ByteLen)})
	}
	if in.flags&C.IBV_WC_WITH_IMM != 0 {
		out.Flags |= rdma.WithImm
		out.Imm = uint32(in.imm)
	}
	if in.flags&C.IBV_WC_WITH_INV != 0 || l.dev.rxe && in.flags&kernelWithInv != 0 {
		out.Flags |= rdma.WithInv
		out.InvRKey = uint32(in.imm)
		if in.flags&C.IBV_WC_WITH_INV == 0 {
			out.InvRKey = bits.ReverseBytes32(out.InvRKey)
		}
		if q != nil {
			q.invalidated(out.InvRKey)
		}
	}
	if in.flags&C.IBV_WC_GRH != 0 {
		out.Flags |= rdma.GRH
	}
	if q != nil && q.typ == rdma.UD {
		out.SrcQPN = uint32(in.src_qp)
	}
	return true
}

// flushPatience is how long a connection whose requests are flushed waits for the reason.
const flushPatience = rdma.Second

var errFlushed = errors.New("the device ended the queue pair, as it does when the peer terminates the connection")

// erred is called for each completion with an error: the first says why the queue pair is in ERR.
func (q *qp) erred(s rdma.Status) {
	if q.typ != rdma.RC {
		if q.state == rdma.StateRTS && s != rdma.WRFlushErr {
			q.state = rdma.StateSQE
			if !q.l.dev.limits.SendErrors {
				q.inError()
			}
		}
		return
	}
	was := q.state
	if was != rdma.StateErr {
		q.inError()
	}
	if q.conn == nil {
		return
	}
	if s != rdma.WRFlushErr {
		q.conn.failed(fmt.Errorf("RDMA request failed: %v", s))
	} else if was != rdma.StateErr {
		// The connection manager is about to say why. Over iWARP it does not always.
		c := q.conn
		q.l.After(flushPatience, func() { c.failed(errFlushed) })
	}
}

// Destroy implements rdma.QP.
func (q *qp) Destroy() {
	if q.dead {
		return
	}
	q.dead = true
	cookies.remove(q.cookie)
	delete(q.l.qps, q.handle)
	q.l.n.qps.Add(-1)
	q.unbind()
	C.rs_destroy_qp(q.id, q.qp)
	q.send.give(len(q.sq))
	q.recv.give(q.receives())
	for ; q.sqHead != q.sqTail; q.sqHead++ {
		q.sq[q.sqHead%uint32(len(q.sq))].done(q, false)
	}
	if q.srq != nil {
		q.srq.users--
	}
}
