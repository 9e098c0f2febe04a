package eventloop

import (
	"container/heap"

	"github.com/rstored/rstored/rdma"
)

// Timer is an entry of Timers. The zero value is not set; its user sets Fn.
type Timer struct {
	Fn    func() // called on the loop when the time has come
	at    rdma.Time
	index int // in the heap
	set   bool
}

// Timers is a heap of timers, earliest first. It belongs to one loop. The zero value is empty.
type Timers struct{ heap timerHeap }

// Next is the time of the earliest timer, 0 if none is set.
func (t *Timers) Next() rdma.Time {
	if len(t.heap) == 0 {
		return 0
	}
	return t.heap[0].at
}

// Set makes x fire at the given time, or earlier if it is set to an earlier time already.
//
// The retransmission deadline of a queue pair moves with each acknowledgement, nearly always to a
// later time. Its timer stays where it is in the heap: Fn then compares and sets it again, which
// is cheaper than to fix the heap for each acknowledgement.
func (t *Timers) Set(x *Timer, at rdma.Time) {
	switch {
	case !x.set:
		x.at, x.set = at, true
		heap.Push(&t.heap, x)
	case at < x.at:
		x.at = at
		heap.Fix(&t.heap, x.index)
	}
}

// Cancel takes x out of the heap. It does nothing if x is not set.
func (t *Timers) Cancel(x *Timer) {
	if x.set {
		heap.Remove(&t.heap, x.index)
		x.set = false
	}
}

// After calls fn once d nanoseconds have passed since now, as rdma.Loop.After does.
func (t *Timers) After(now, d rdma.Time, fn func()) (cancel func()) {
	x := &Timer{Fn: fn}
	t.Set(x, now+max(d, 1))
	return func() { t.Cancel(x) }
}

// Expire calls the functions of the timers whose time has come, earliest first. A timer is not set
// any more when its function runs.
func (t *Timers) Expire(now rdma.Time) {
	for len(t.heap) > 0 && t.heap[0].at <= now {
		x := t.heap[0]
		t.Cancel(x)
		x.Fn()
	}
}

// timerHeap implements heap.Interface.
type timerHeap []*Timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap) Push(x any) {
	t := x.(*Timer)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *timerHeap) Pop() any {
	n := len(*h) - 1
	t := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return t
}
