package rc

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// rqe is a receive.
type rqe struct {
	id     uint64
	sgl    []rdma.SGE
	length uint32
}

// queue is a queue of receives: a QP's own, or one that QPs share.
type queue struct {
	ring[rqe]
	most int
	sges int
}

// post queues receives, all or none, when so many more are taken.
func (q *queue) post(wrs []rdma.RecvWR, taken int) error {
	if q.len()+taken+len(wrs) > q.most {
		return rdma.ErrQueueFull
	}
	for i := range wrs {
		if len(wrs[i].SGL) > q.sges {
			return fmt.Errorf("%w: %d scatter elements, the queue takes %d", rdma.ErrInvalidWR, len(wrs[i].SGL), q.sges)
		}
	}
	for i := range wrs {
		e := q.push()
		e.id = wrs[i].ID
		e.sgl = append(e.sgl[:0], wrs[i].SGL...)
		e.length = sglLen(e.sgl)
	}
	return nil
}

// take moves the oldest receive to e, whose memory the queue gets for it.
func (q *queue) take(e *rqe) {
	f := q.front()
	*e, *f = *f, rqe{sgl: e.sgl[:0]}
	q.pop()
}

// SRQ is a shared receive queue (IBTA 10.2.9): QPs that have it take their receives from
// it, each when the first packet of a message comes. It belongs to the loop of its QPs.
type SRQ struct {
	q     queue
	limit int // 0 = not armed
	low   bool
}

// NewSRQ makes an SRQ for up to depth receives of up to sges elements.
func NewSRQ(depth, sges int) *SRQ {
	return &SRQ{q: queue{most: depth, sges: min(max(sges, 1), sgeMax)}}
}

// PostRecv queues receives, all or none.
func (s *SRQ) PostRecv(wrs []rdma.RecvWR) error { return s.q.post(wrs, 0) }

// Len is the number of receives that wait.
func (s *SRQ) Len() int { return s.q.len() }

// Arm asks for Low to report once that fewer than limit receives are left; 0 for never.
func (s *SRQ) Arm(limit int) { s.limit, s.low = limit, false }

// Low reports, once for each Arm, that fewer receives than its limit were left.
func (s *SRQ) Low() bool {
	low := s.low
	s.low = false
	return low
}

// Drain empties the queue without completions, for its end.
func (s *SRQ) Drain() {
	for s.q.len() > 0 {
		*s.q.front() = rqe{}
		s.q.pop()
	}
}

func (s *SRQ) taken() {
	if s.limit > 0 && s.q.len() < s.limit {
		s.limit, s.low = 0, true
	}
}

// receives is the queue that the QP takes its receives from.
func (q *QP) receives() *queue {
	if q.cfg.SRQ != nil {
		return &q.cfg.SRQ.q
	}
	return &q.rq
}

// takeRecv takes a receive for the message that begins. The caller has seen that there is one.
func (q *QP) takeRecv() *rqe {
	q.receives().take(&q.cur)
	q.resp.inRecv = true
	if q.cfg.SRQ != nil {
		q.cfg.SRQ.taken()
	}
	return &q.cur
}

// completeRecv completes the receive that was taken with wc, whose ID it fills in.
func (q *QP) completeRecv(wc rdma.WC) {
	q.resp.inRecv = false
	wc.ID, wc.QPN = q.cur.id, q.cfg.Num
	*q.recv.push() = wc
	clear(q.cur.sgl)
}
