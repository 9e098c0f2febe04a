//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

// The ID of a work request of the device says what its completion is about:
//
//	63    62             32 31                         0
//	| recv | handle of queue | number, or place in slots |
//
// recv is recvBit. The number counts the requests of a send queue.
const recvBit = 1 << 63

func sendID(handle, number uint32) C.uint64_t { return C.uint64_t(uint64(handle)<<32 | uint64(number)) }

// sent is a request in the send queue of the device. A READ that is posted in parts has several.
type sent struct {
	id         uint64    // of the user
	at         rdma.Time // when it was posted
	op         rdma.WCOp
	unsignaled bool // the user wants no completion of success
	part       bool // more parts of the request follow
	over       bool // an earlier part of the request has failed, and so completed it
	fin        bool // the device has completed it, see quirks.disorder
	bound      *mw
	key        uint32 // of bound, or the key to invalidate
	ah         *ah
}

// done releases what a request uses: its window, address handle or key. ok says that the request
// was executed.
func (s *sent) done(q *qp, ok bool) {
	switch {
	case s.bound != nil:
		s.bound.bindDone(s.key, ok)
		s.bound = nil
	case s.ah != nil:
		s.ah.release()
		s.ah = nil
	case s.op == rdma.WCLocalInv && ok:
		q.invalidated(s.key)
	}
}

// at is the request of a number.
func (q *qp) at(number uint32) *sent { return &q.sq[number%uint32(len(q.sq))] }

// discard releases what the requests from sqTail up to tail use, which were not posted.
func (q *qp) discard(tail uint32) {
	for i := q.sqTail; i != tail; i++ {
		q.at(i).done(q, false)
	}
}

// sendOps are the opcodes of requests and of their completions, by operation.
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

// PostSend implements rdma.QP. The device uses the memory of the requests until their completions.
func (q *qp) PostSend(wrs []rdma.SendWR) error {
	if q.dead {
		return rdma.ErrClosed
	}
	if q.state != rdma.StateRTS && q.state != rdma.StateSQD && q.state != rdma.StateErr && q.state != rdma.StateSQE {
		return fmt.Errorf("%w: sending in state %v", rdma.ErrInvalidWR, q.state)
	}
	l := q.l
	need := 0
	for i := range wrs {
		if err := q.check(&wrs[i]); err != nil {
			return err
		}
		need += q.parts(wrs[i].Op, len(l.cut(&wrs[i])))
	}
	if len(wrs) > q.caps.MaxSendWR || int(q.sqTail-q.sqHead)+need > len(q.sq) {
		return rdma.ErrQueueFull
	}
	// The requests are built in the arrays of the loop. Nothing of the queue pair changes before
	// the device has taken them.
	l.sends, l.sges = l.sends[:0], l.sges[:0]
	tail, unsignaled := q.sqTail, q.unsignaled
	for i := range wrs {
		w := &wrs[i]
		s, x, err := q.translateSend(w)
		if err != nil {
			q.discard(tail)
			return err
		}
		sgl := l.cut(w)
		for n := q.parts(w.Op, len(sgl)); n > 0; n-- {
			part := sgl
			if s.part = n > 1; s.part {
				part = sgl[:l.dev.readSGEs]
			}
			y := x
			y.id, y.sge = sendID(q.handle, tail), C.uint32_t(len(l.sges))
			// A request without a completion keeps its place until a later one completes, so at
			// least each fourth part of the queue has one.
			unsignaled++
			if !s.unsignaled && !s.part || unsignaled >= max(len(q.sq)/4, 1) || l.dev.quirks.disorder {
				y.flags |= C.IBV_SEND_SIGNALED
				unsignaled = 0
			}
			y.nsge = C.uint32_t(l.gather(part))
			for i := range part {
				x.raddr += C.uint64_t(len(part[i].Buf))
			}
			sgl = sgl[len(part):]
			l.sends = append(l.sends, y)
			*q.at(tail) = s
			tail++
		}
	}
	if len(l.sends) == 0 {
		return nil
	}
	e := C.int(syscall.ENOTCONN)
	if q.flushes() {
		// C has the addresses of the data as integers, which keep nothing alive: the wrs do.
		e = C.rs_post_send(q.qp, &l.sends[0], C.int(len(l.sends)), l.elements())
		runtime.KeepAlive(wrs)
	}
	if e != 0 {
		// The device has room for all of them, because their number was checked. In ERR, requests
		// complete as flushed; if the device refuses them, they are completed here.
		q.discard(tail)
		if q.state == rdma.StateErr {
			q.send.fetch()
			for i := range wrs {
				q.send.push(rdma.WC{ID: wrs[i].ID, QPN: q.num, Status: rdma.WRFlushErr, Op: sendOps[wrs[i].Op].wc})
			}
			return nil
		}
		return fmt.Errorf("%w: %s does not take the request: %w", rdma.ErrInvalidWR, l.dev.name, errno(e))
	}
	l.n.postsSend.Add(1)
	l.n.sends.Add(uint64(len(l.sends)))
	q.recordPosted(wrs)
	q.sqTail, q.unsignaled = tail, unsignaled
	return nil
}

// translateSend makes a request of the device, without its elements, of a checked one. If there is
// no error, sent.done releases the address handle or the window.
func (q *qp) translateSend(w *rdma.SendWR) (s sent, x C.struct_rs_send, err error) {
	s = sent{id: w.ID, at: q.l.now, op: sendOps[w.Op].wc, unsignaled: w.Flags&rdma.Signaled == 0}
	x = C.struct_rs_send{
		op: C.uint32_t(sendOps[w.Op].op), raddr: C.uint64_t(w.RemoteAddr), rkey: C.uint32_t(w.RKey),
		imm: C.uint32_t(w.Imm), compare: C.uint64_t(w.Compare), swap_add: C.uint64_t(w.SwapAdd),
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
		x.rkey = x.imm // where libsiw reads it
	case rdma.OpBindMW:
		s.bound, s.key = q.bind(w, &x), w.RKey
	}
	if q.typ == rdma.UD {
		if s.ah, err = q.pd.handle(w.AH, q.l.now); err != nil {
			return s, x, err
		}
		x.ah, x.qpn, x.qkey = unsafe.Pointer(s.ah.ah), C.uint32_t(w.AH.QPN), C.uint32_t(w.AH.QKey)
		if w.AH.QKey>>31 != 0 {
			x.qkey = C.uint32_t(q.qkey) // rdma_rxe does not implement the meaning of bit 31
		}
	}
	return s, x, nil
}

// readNothing posts a READ of no bytes, whose completion the user does not see. It does nothing if
// the queue is full, or the queue pair has failed: siw would never complete it.
func (q *qp) readNothing() {
	if q.state != rdma.StateRTS || int(q.sqTail-q.sqHead) == len(q.sq) {
		return
	}
	l := q.l
	l.sends = append(l.sends[:0], C.struct_rs_send{
		op: C.IBV_WR_RDMA_READ, flags: C.IBV_SEND_SIGNALED, id: sendID(q.handle, q.sqTail),
	})
	l.sges = l.sges[:0]
	if C.rs_post_send(q.qp, &l.sends[0], 1, l.elements()) == 0 {
		*q.at(q.sqTail) = sent{at: l.now, op: rdma.WCRead, unsignaled: true, over: true}
		q.sqTail++
	}
}

// parts is how many requests of the device a request with so many elements takes.
func (q *qp) parts(op rdma.SendOp, elements int) int {
	if n := q.l.dev.readSGEs; op == rdma.OpRead && elements > n {
		return (elements + n - 1) / n
	}
	return 1
}

// flushes reports whether the device completes what is posted now.
func (q *qp) flushes() bool { return q.state != rdma.StateErr || !q.l.dev.quirks.noFlush }

// unsupported is the error for what the device does not have.
func (d *Device) unsupported(what string) error {
	return fmt.Errorf("%w: %s of %s", rdma.ErrUnsupported, what, d.name)
}

func (d *Device) noDatagrams() error { return d.unsupported("datagrams") }

// check refuses requests that the device would refuse, or execute wrongly.
func (q *qp) check(w *rdma.SendWR) error {
	d := q.l.dev
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", rdma.ErrInvalidWR, fmt.Sprintf(format, a...))
	}
	var err error
	switch w.Op {
	case rdma.OpReg:
		err = errNoFastRegions
	case rdma.OpBindMW:
		err = q.checkBind(w)
	case rdma.OpLocalInv:
		err = q.checkInv(w.InvRKey)
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		if !d.limits.Atomics {
			err = d.unsupported("atomics")
		}
	case rdma.OpSendImm, rdma.OpWriteImm:
		if d.iwarp {
			err = d.unsupported("immediate data")
		}
	}
	if err != nil {
		return err
	}
	n := 0
	for i := range w.SGL {
		n += len(w.SGL[i].Buf)
	}
	inline := w.Flags&rdma.Inline != 0
	switch {
	case int(w.Op) >= len(sendOps):
		return bad("operation %d", w.Op)
	case len(w.SGL) > q.caps.MaxSendSGE:
		return bad("%d elements; the most is %d", len(w.SGL), q.caps.MaxSendSGE)
	case n > 1<<31:
		return bad("a message of %d bytes; the most is 2 GiB", n)
	case inline && n > q.caps.MaxInline:
		return bad("%d bytes inline; the most is %d", n, q.caps.MaxInline)
	case inline && w.Op > rdma.OpWriteImm: // the operations that carry no data of ours come after it
		return bad("operation %d with inline data", w.Op)
	case inline && w.Op == rdma.OpSendInv && d.quirks.siw: // siw would never complete it
		return d.unsupported("inline data of a SEND that invalidates")
	case q.typ != rdma.UD && w.AH != nil:
		return bad("an address on a connected queue pair")
	case q.typ == rdma.UD && (w.AH == nil || w.Op != rdma.OpSend && w.Op != rdma.OpSendImm):
		return bad("operation %d, address %v, on a queue pair of datagrams", w.Op, w.AH)
	case q.typ == rdma.UD && (w.AH.QPN < 2 || w.AH.QPN >= 1<<24):
		return bad("datagrams cannot go to queue pair %d", w.AH.QPN)
	}
	return nil
}

// gather adds a list to the elements of the loop and returns how many it added. Empty elements are
// left out: a device may take a length of 0 for 2 GiB.
func (l *loop) gather(sgl []rdma.SGE) (n int) {
	for i := range sgl {
		if b := sgl[i].Buf; len(b) > 0 {
			l.sges = append(l.sges, C.struct_ibv_sge{
				addr: C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), length: C.uint32_t(len(b)),
				lkey: C.uint32_t(sgl[i].LKey),
			})
			n++
		}
	}
	return n
}

// elements are the elements of the loop for C, which takes no empty array.
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
	switch {
	case err != nil || e == 0:
		return err
	case q.state != rdma.StateErr:
		return q.l.dev.recvRefused(e)
	}
	q.recv.fetch()
	for i := range wrs {
		q.recv.push(rdma.WC{ID: wrs[i].ID, QPN: q.num, Status: rdma.WRFlushErr, Op: rdma.WCRecv})
	}
	return nil
}

func (d *Device) recvRefused(e C.int) error {
	return fmt.Errorf("%w: %s does not take the receive: %w", rdma.ErrInvalidWR, d.name, errno(e))
}

// postRecv posts receives to the queue pair q or the shared queue s. It returns the errno of the
// device apart from other errors.
func (l *loop) postRecv(q *C.struct_ibv_qp, s *C.struct_ibv_srq, handle uint32, to *slots, sgesMax int,
	wrs []rdma.RecvWR,
) (C.int, error) {
	if len(wrs) > len(to.free) {
		return 0, rdma.ErrQueueFull
	}
	for i := range wrs {
		if n := len(wrs[i].SGL); n > sgesMax {
			return 0, fmt.Errorf("%w: %d elements; the most is %d", rdma.ErrInvalidWR, n, sgesMax)
		}
	}
	if len(wrs) == 0 {
		return 0, nil
	}
	l.recvs, l.sges = l.recvs[:0], l.sges[:0]
	for i := range wrs {
		at := to.take(wrs[i].ID)
		x := C.struct_rs_recv{id: recvBit | sendID(handle, at), sge: C.uint32_t(len(l.sges))}
		x.nsge = C.uint32_t(l.gather(wrs[i].SGL))
		l.recvs = append(l.recvs, x)
	}
	e := C.rs_post_recv(q, s, &l.recvs[0], C.int(len(l.recvs)), l.elements())
	runtime.KeepAlive(wrs)
	if e != 0 {
		for i := range l.recvs {
			to.release(uint32(l.recvs[i].id))
		}
		return e, nil
	}
	l.n.postsRecv.Add(1)
	l.n.recvs.Add(uint64(len(l.recvs)))
	return 0, nil
}
