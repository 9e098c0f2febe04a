package roce

import (
	"container/heap"

	"github.com/rstored/rstored/rdma"
)

// timer is an entry of a shard's heap: a queue pair's deadline or a function.
type timer struct {
	at    rdma.Time // 0 = not set
	index int
	qp    *qp
	fn    func()
}

// timers is a heap of timers by time. A queue pair's deadline moves with each
// acknowledgement, nearly always to later; its entry stays where it is and is
// put right when it comes up.
type timers []*timer

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *timers) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *timers) Pop() any {
	n := len(*h) - 1
	t := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return t
}

// set makes t come up at the time given, or earlier if it was to already.
func (h *timers) set(t *timer, at rdma.Time) {
	switch {
	case t.at == 0:
		t.at = at
		heap.Push(h, t)
	case at < t.at:
		t.at = at
		heap.Fix(h, t.index)
	}
}

func (h *timers) cancel(t *timer) {
	if t.at != 0 {
		heap.Remove(h, t.index)
		t.at = 0
	}
}

// After implements rdma.Loop.
func (s *shard) After(d rdma.Time, fn func()) func() {
	t := &timer{fn: fn}
	s.timers.set(t, s.now+max(d, 1))
	return func() { s.timers.cancel(t) }
}

// expire runs what has come up.
func (s *shard) expire() {
	for len(s.timers) > 0 && s.timers[0].at <= s.now {
		t := s.timers[0]
		s.timers.cancel(t)
		if t.qp == nil {
			t.fn()
			continue
		}
		d := t.qp.rc.Deadline()
		if d != 0 && d <= s.now {
			t.qp.rc.Expire(s.now)
		}
		s.touch(t.qp) // which sets the timer again
	}
	if s.cm != nil {
		if d := s.cm.Deadline(); d != 0 && d <= s.now {
			s.cm.Expire(s.now)
		}
	}
}
