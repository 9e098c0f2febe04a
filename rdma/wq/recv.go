package wq

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// Recv is a posted receive. The memory of its SGL is the engine's until the receive completes.
type Recv struct {
	ID     uint64
	SGL    []rdma.SGE
	Length uint32 // bytes of SGL
}

// Queue is a queue of receives: a QP's own, or that of an SRQ.
type Queue struct {
	Ring[Recv]
	Most int // capacity
	SGEs int // most scatter elements of a receive
}

// Post queues receives, all or none. taken are the receives that were taken and have not completed:
// they count against the capacity.
func (q *Queue) Post(wrs []rdma.RecvWR, taken int) error {
	if q.Len()+taken+len(wrs) > q.Most {
		return rdma.ErrQueueFull
	}
	for i := range wrs {
		if len(wrs[i].SGL) > q.SGEs {
			return fmt.Errorf("%w: %d scatter elements, the queue takes %d", rdma.ErrInvalidWR, len(wrs[i].SGL), q.SGEs)
		}
	}
	for i := range wrs {
		e := q.Push()
		e.ID = wrs[i].ID
		e.SGL = append(e.SGL[:0], wrs[i].SGL...)
		e.Length = uint32(Length(e.SGL))
	}
	return nil
}

// Take moves the oldest receive to e. The memory of e's SGL goes to the queue, for reuse.
func (q *Queue) Take(e *Recv) {
	f := q.Front()
	*e, *f = *f, Recv{SGL: e.SGL[:0]}
	q.Pop()
}

// SRQ is a shared receive queue (IBTA 10.2.9). Its QPs take a receive from it when the first packet
// of a message arrives. It belongs to the loop of its QPs.
type SRQ struct {
	q     Queue
	limit int // 0 = not armed
	low   bool
}

// NewSRQ makes an SRQ for up to depth receives of up to sges elements, of 1 to sgeMax.
func NewSRQ(depth, sges, sgeMax int) *SRQ {
	return &SRQ{q: Queue{Most: depth, SGEs: min(max(sges, 1), sgeMax)}}
}

// PostRecv queues receives, all or none.
func (s *SRQ) PostRecv(wrs []rdma.RecvWR) error { return s.q.Post(wrs, 0) }

// Len is the number of posted receives.
func (s *SRQ) Len() int { return s.q.Len() }

// Front is the receive that Take takes next. The queue must not be empty.
func (s *SRQ) Front() *Recv { return s.q.Front() }

// Take moves the oldest receive to e.
func (s *SRQ) Take(e *Recv) {
	s.q.Take(e)
	if s.limit > 0 && s.q.Len() < s.limit {
		s.limit, s.low = 0, true
	}
}

// Arm makes Low report once that fewer than limit receives are left; 0 means never.
func (s *SRQ) Arm(limit int) { s.limit, s.low = limit, false }

// Low reports, once for each Arm, that fewer receives than its limit were left.
func (s *SRQ) Low() bool {
	low := s.low
	s.low = false
	return low
}

// Drain empties the queue without completions, when it is closed.
func (s *SRQ) Drain() {
	for s.q.Len() > 0 {
		*s.q.Front() = Recv{}
		s.q.Pop()
	}
}
