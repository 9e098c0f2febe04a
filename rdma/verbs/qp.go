//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// qp is a queue pair. It implements rdma.QP.
type qp struct {
	l      *loop
	qp     *C.struct_ibv_qp
	id     *C.struct_rdma_cm_id // nil for a queue pair without CM
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
	srq    *srq // nil if the queue pair has receives of its own
	on     func(rdma.QPEvent)
	state  rdma.QPState
	last   bool // the user got LastWQEReached
	dead   bool // destroyed

	// sq are the requests of the send queue that have not completed, as far as completions say, by
	// number modulo its length: from sqHead up to sqTail.
	sq         []sent
	sqHead     uint32
	sqTail     uint32
	unsignaled int // requests since the last one with a completion
	rq         slots
	qkey       uint32 // of a queue pair for datagrams

	// For the failure record.
	summary   Summary
	recent    recent
	lastAsync asyncEvent
	cut       int // flushed requests that would have had a completion
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

// newQP makes a queue pair, of an rdma_cm_id if id is not nil. librdmacm then makes the
// transitions, and the queue pair must be destroyed before the rdma_cm_id.
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
	if err := d.limits.Check(&c.Caps); err != nil {
		return nil, fmt.Errorf("%w (%s)", err, d.name)
	}
	if c.Type == rdma.UD && !d.limits.Datagrams {
		return nil, d.noDatagrams()
	}
	q := &qp{
		l: l, id: id, pd: p, typ: c.Type, caps: c.Caps, send: send, recv: recv, on: c.OnEvent, handle: l.newHandle(),
		since: l.now,
	}
	if c.SRQ != nil {
		if q.srq, ok = c.SRQ.(*srq); !ok || q.srq.l != l || q.srq.pd != p || q.srq.dead {
			return nil, fmt.Errorf("%w: the shared receive queue belongs to another loop or protection domain, or is closed",
				rdma.ErrInvalidWR)
		}
	}
	// The completion queues get room before the queue pair exists: an overflow later would end all
	// their queue pairs.
	depth, sges := q.depth()
	if err := send.reserve(depth); err != nil {
		return nil, err
	}
	if err := recv.reserve(q.receives()); err != nil {
		send.release(depth)
		return nil, err
	}
	q.sq = make([]sent, depth)
	init := C.struct_rs_qp_init{
		pd: p.pd, send_cq: send.cq, recv_cq: recv.cq, _type: C.IBV_QPT_RC, send_wr: C.int(depth),
		recv_wr: C.int(c.Caps.MaxRecvWR), send_sge: C.int(sges), recv_sge: C.int(max(c.Caps.MaxRecvSGE, 1)),
		inline_data: C.int(c.Caps.MaxInline),
	}
	if c.Type == rdma.UD {
		init._type = C.IBV_QPT_UD
	}
	if q.srq != nil { // the queue pair has no receive queue of its own
		init.srq, init.recv_wr = q.srq.srq, 0
	} else {
		q.rq.init(c.Caps.MaxRecvWR)
		init.recv_wr = max(init.recv_wr, 1)
	}
	// The cookie goes into qp_context. Asynchronous events find the queue pair by it.
	q.cookie = newCookie(q)
	init.cookie = C.uint64_t(q.cookie)
	var err error
	if q.qp, err = C.rs_create_qp(id, &init); q.qp == nil {
		dropCookie(q.cookie)
		send.release(depth)
		recv.release(q.receives())
		return nil, fmt.Errorf("%w: creating a queue pair of %s for %d sends and %d receives: %w", rdma.ErrNoResources,
			d.name,
			depth, c.Caps.MaxRecvWR, cause(err))
	}
	q.caps.MaxInline = min(q.caps.MaxInline, int(init.inline_data))
	q.num = uint32(q.qp.qp_num)
	if id != nil {
		q.state = rdma.StateInit // librdmacm has moved it there
	}
	if q.srq != nil {
		q.srq.users++
	}
	l.qps[q.handle] = q
	l.n.qps.Add(1)
	return q, nil
}

// depth is how many requests the send queue of the device needs, and of how many elements.
//
//	READ of 5 elements, a device that takes 2:   3 requests of the device, the last one signaled
//	silent requests:                             half as many places more
func (q *qp) depth() (depth, sges int) {
	d, sends := q.l.dev, max(q.caps.MaxSendWR, 1)
	// A READ with more elements than the device takes is posted in parts.
	depth, sges = sends*max((q.caps.MaxSendSGE+d.readSGEs-1)/d.readSGEs, 1), max(q.caps.MaxSendSGE, 1)
	if d.quirks.siw {
		depth, sges = 2*depth, max(sges, 2) // see cut
	}
	if d.limits.WRs > 0 {
		depth = max(min(depth, d.limits.WRs), q.caps.MaxSendWR)
	}
	// Requests without a completion keep their places until a later request completes.
	if more := depth + depth/2 + 1; d.limits.WRs == 0 || more <= d.limits.WRs {
		depth = more
	}
	return depth, sges
}

// receives is the most completions of receives at once.
func (q *qp) receives() int {
	if q.srq != nil {
		return len(q.srq.slots.ids)
	}
	return q.caps.MaxRecvWR
}

func (q *qp) home() *loop { return q.l }

// async implements eventful. An event may have been on its way when the queue pair was destroyed.
// COMM_EST says that a message came before the RTU.
//
//	event                                   what follows
//	QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR     ERR; the connection ends with that reason
//	COMM_EST                                the connection is established
//	SQ_DRAINED                              SQDrained for the user
//	QP_LAST_WQE_REACHED                     LastWQEReached, once, with a shared receive queue
//	others                                  only the failure record
func (q *qp) async(kind int) {
	if q.dead {
		return
	}
	q.lastAsync = asyncEvent{kind, q.l.now}
	fatal := func(why string) {
		q.state = rdma.StateErr
		if q.conn != nil {
			q.conn.failed(errors.New(why))
		}
	}
	switch kind {
	case C.IBV_EVENT_QP_FATAL:
		fatal("the device reports a fatal error of the queue pair")
	case C.IBV_EVENT_QP_REQ_ERR:
		fatal("the peer sent a request that is not valid")
	case C.IBV_EVENT_QP_ACCESS_ERR:
		fatal("the peer named memory that it may not use")
	case C.IBV_EVENT_COMM_EST:
		if q.conn != nil {
			q.conn.traffic()
		}
	case C.IBV_EVENT_SQ_DRAINED:
		q.notify(rdma.SQDrained)
	case C.IBV_EVENT_QP_LAST_WQE_REACHED:
		q.lastReached()
	}
}

// notify queues the callback of the user for an event.
func (q *qp) notify(e rdma.QPEvent) {
	if q.on == nil {
		return
	}
	q.l.later.Add(func() {
		if !q.dead {
			q.on(e)
		}
	})
}

func (q *qp) lastReached() {
	if q.srq != nil && !q.last {
		q.last = true
		q.notify(rdma.LastWQEReached)
	}
}

// inError notes that the queue pair is in ERR.
func (q *qp) inError() {
	q.state = rdma.StateErr
	if q.l.dev.quirks.lastWQESilent {
		q.lastReached()
	}
}

// Num implements rdma.QP.
func (q *qp) Num() uint32 { return q.num }

// State implements rdma.QP.
func (q *qp) State() rdma.QPState { return q.state }

// Destroy implements rdma.QP. Requests and windows that the device still has are released without
// completions.
//
//	1  cookie, loop.qps    no event and no completion finds the queue pair any more
//	2  unbind              windows that are bound to it
//	3  rs_destroy_qp       the device uses no memory of requests from here on
//	4  release             room in the completion queues, which may be destroyed now
//	5  done                address handles and windows of requests in flight
func (q *qp) Destroy() {
	if q.dead {
		return
	}
	q.dead = true
	dropCookie(q.cookie)
	delete(q.l.qps, q.handle)
	q.l.n.qps.Add(-1)
	q.unbind()
	C.rs_destroy_qp(q.id, q.qp)
	q.send.release(len(q.sq))
	q.recv.release(q.receives())
	for ; q.sqHead != q.sqTail; q.sqHead++ {
		q.at(q.sqHead).done(q, false)
	}
	if q.srq != nil {
		q.srq.users--
	}
}

// slots are the posted receives of a queue. A receive is known by its place, because receives of a
// shared queue may complete in any order.
type slots struct {
	ids  []uint64 // of the user
	free []uint32 // places
}

func (s *slots) init(n int) {
	s.ids, s.free = make([]uint64, n), make([]uint32, n)
	for i := range s.free {
		s.free[i] = uint32(n - 1 - i)
	}
}

// posted is the number of receives.
func (s *slots) posted() int { return len(s.ids) - len(s.free) }

func (s *slots) take(id uint64) uint32 {
	at := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.ids[at] = id
	return at
}

func (s *slots) release(at uint32) (id uint64) {
	s.free = append(s.free, at)
	return s.ids[at]
}
