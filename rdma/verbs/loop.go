//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/eventloop"
)

// loop is one goroutine with the queue pairs that live on it. It implements rdma.Loop. Everything
// but the inbox belongs to the goroutine.
type loop struct {
	dev   *Device
	index int
	now   rdma.Time

	comp *C.struct_ibv_comp_channel
	cm   *C.struct_rdma_event_channel
	wake int        // an eventfd, negative once it is closed
	bell sync.Mutex // of wake: who submits may be at it while the device ends
	ep   *os.File   // an epoll descriptor of the three, in the runtime's poller
	// ready, look and glance are what wait would allocate each time: take, and take for no result.
	ready  [4]unix.EpollEvent
	look   func(fd uintptr) bool
	glance func(fd uintptr)
	raw    syscall.RawConn

	inbox  eventloop.Inbox
	timers timers
	qps    map[uint32]*qp // by handle, which work requests carry
	srqs   map[uint32]*srq
	cqs    map[uint64]*cq // by cookie
	ids    map[*conn]struct{}
	misc   map[*ident]struct{} // other rdma_cm_ids: requests, questions
	handle uint32

	cmReady bool // the connection manager may have events
	turns   int  // since the epoll descriptor was asked

	hot    []*cq    // may have completions, and are not armed
	events []*cq    // have new completions
	later  []func() // before the users of completions are called
	after  []func() // and after
	spare  struct {
		events       []*cq
		later, after []func()
	}
	yield bool
	over  bool // leaves after this turn

	// spin is for how long the loop looks for completions before it arms and sleeps, spinMax the
	// most; see idle.
	spin      rdma.Time
	spinMax   rdma.Time
	idleSince rdma.Time
	slept     rdma.Time // when it went to sleep last
	misses    int       // how often it has looked for spinMax in vain, one after the other

	n counters

	sends []C.struct_rs_send
	recvs []C.struct_rs_recv
	sges  []C.struct_ibv_sge
	cuts  []rdma.SGE // see cut
	wcs   [pollMax]C.struct_rs_wc
}

var (
	_ rdma.Loop    = (*loop)(nil)
	_ rdma.Yielder = (*loop)(nil)
)

const (
	pollMax   = 128 // completions that cross at once
	pollTurn  = 512 // completions of a queue in a turn
	roundsMax = 4   // how often in a turn the users of completions are called

	// Looking for completions pays off for as long as to sleep and to be woken takes: that is some
	// tens of system calls.
	spinLeast = 50 * rdma.Microsecond
	spinMost  = 200 * rdma.Microsecond
	spinCalls = 20
	// A loop that has looked in vain so often sleeps at once, and tries it again after so many
	// sleeps.
	missesMax  = 4
	retryEvery = 64

	// Turns are mostly empty while a loop looks for completions: what there is beside them, and
	// what time it is, is asked for every so many. With BusyPoll that is every so many, or every so
	// many in which there were completions.
	askEverySpin = 8
	askEvery     = 256
	askEveryFull = 16
)

func newLoop(d *Device, i int) (*loop, error) {
	l := &loop{
		dev: d, index: i, now: clock(), wake: -1, qps: map[uint32]*qp{}, srqs: map[uint32]*srq{}, cqs: map[uint64]*cq{},
		ids: map[*conn]struct{}{}, misc: map[*ident]struct{}{},
	}
	l.look, l.glance = l.take, func(fd uintptr) { l.take(fd) }
	fail := func(what string, err error) (*loop, error) {
		l.free()
		return nil, fmt.Errorf("verbs: %s: %s: %w", d.name, what, cause(err))
	}
	var err error
	if l.comp, err = C.rs_create_channel(d.ctx); l.comp == nil {
		return fail("a completion channel", err)
	}
	if l.cm, err = C.rs_create_event_channel(); l.cm == nil {
		return fail("a channel of the connection manager", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fail("eventfd", err)
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fail("epoll", err)
	}
	if err := unix.SetNonblock(ep, true); err != nil {
		return fail("epoll", errors.Join(err, unix.Close(ep)))
	}
	l.ep = os.NewFile(uintptr(ep), "RDMA events")
	for _, fd := range []int{int(l.comp.fd), int(l.cm.fd), l.wake} {
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return fail("epoll", err)
		}
	}
	if l.raw, err = l.ep.SyscallConn(); err != nil {
		return fail("epoll", err)
	}
	// Without the poller the loop could not be woken.
	if err := l.ep.SetReadDeadline(time.Time{}); err != nil {
		return fail("the runtime's poller does not take epoll", err)
	}
	began := clock()
	_, _ = unix.EpollWait(ep, l.ready[:], 0)
	l.spinMax = min(spinMost, max(spinLeast, spinCalls*(clock()-began)))
	return l, nil
}

// free releases what newLoop took. The goroutine has ended, or never began.
func (l *loop) free() {
	if l.ep != nil {
		_ = l.ep.Close()
	}
	l.bell.Lock()
	if l.wake >= 0 {
		_ = unix.Close(l.wake)
	}
	l.wake = -1
	l.bell.Unlock()
	if l.cm != nil {
		C.rs_destroy_event_channel(l.cm)
	}
	if l.comp != nil {
		C.rs_destroy_channel(l.comp)
	}
}

var epoch = time.Now()

func clock() rdma.Time { return rdma.Time(time.Since(epoch)) + 1 }

// Now implements rdma.Loop.
func (l *loop) Now() rdma.Time { return l.now }

// Yield implements rdma.Yielder.
func (l *loop) Yield() { l.yield = true }

// Submit implements rdma.Loop.
func (l *loop) Submit(fn func()) bool {
	taken, first := l.inbox.Put(fn)
	if first {
		l.ring()
	}
	return taken
}

// one is what the counter of an eventfd is given, in the host's order.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// ring ends the sleep of the loop, or the next one. The number of a descriptor that was closed may
// be another's, a file's even.
func (l *loop) ring() {
	l.bell.Lock()
	defer l.bell.Unlock()
	if l.wake >= 0 {
		_, _ = unix.Write(l.wake, one)
	}
}

func (l *loop) run() {
	defer l.dev.ended.Done()
	l.stayNear()
	for !l.over {
		l.turn()
	}
	l.end()
}

// turn is one round of the loop.
func (l *loop) turn() {
	if l.wait() {
		l.now = clock()
	}
	l.inbox.Run()
	l.connections()
	worked := l.completions()
	if worked {
		l.turns += askEvery/askEveryFull - 1
	}
	l.timers.expire(l.now)
	for range roundsMax {
		if !l.callbacks() {
			break
		}
		worked = true
	}
	l.idle(worked)
	if l.yield {
		l.yield = false
		runtime.Gosched()
	}
}

// polls reports whether the loop never sleeps.
func (l *loop) polls() bool { return l.dev.cfg.BusyPoll && len(l.qps) > 0 }

// busy reports whether there is something to do without waiting.
func (l *loop) busy() bool {
	return l.over || len(l.hot) > 0 || l.polls() || len(l.events) > 0 || len(l.later) > 0 || len(l.after) > 0 ||
		l.inbox.Waits()
}

// wait sleeps until an event, a Submit or the next timer, if there is nothing to do. It reports
// whether it has looked what there is.
func (l *loop) wait() (looked bool) {
	if l.busy() {
		every := 1
		if l.polls() {
			every = askEvery
		} else if l.idleSince != 0 {
			every = askEverySpin
		}
		if l.turns++; l.turns < every {
			return false
		}
		l.turns = 0
		_ = l.raw.Control(l.glance)
		return true
	}
	l.turns = 0
	var at time.Time
	if len(l.timers) > 0 {
		at = epoch.Add(time.Duration(l.timers[0].at))
	}
	_ = l.ep.SetReadDeadline(at)
	l.now = clock()
	l.dozes()
	_ = l.raw.Read(l.look) // an error is that the time has come
	return true
}

// take takes what the epoll descriptor has. It reports whether the wait is over.
func (l *loop) take(fd uintptr) bool {
	n, err := unix.EpollWait(int(fd), l.ready[:], 0)
	for i := range max(n, 0) {
		switch l.ready[i].Fd {
		case int32(l.wake):
			var b [8]byte
			_, _ = unix.Read(l.wake, b[:])
		case int32(l.comp.fd):
			l.heat()
		case int32(l.cm.fd):
			l.cmReady = true
		}
	}
	return n > 0 || err != nil && err != unix.EINTR
}

// heat takes the events of completion queues.
func (l *loop) heat() {
	var who [32]C.uint64_t
	for {
		n := int(C.rs_cq_events(l.comp, &who[0], C.int(len(who))))
		l.n.wakeups.Add(uint64(n))
		for _, c := range who[:n] {
			if q := l.cqs[uint64(c)]; q != nil {
				q.event()
			}
		}
		if n < len(who) {
			return
		}
	}
}

// completions polls what is hot. It reports whether there were completions.
func (l *loop) completions() bool {
	found := false
	hot := l.hot
	l.hot = l.hot[:0]
	spinning := l.polls() || l.spin > 0 && l.idleSince != 0 && l.now-l.idleSince < l.spin
	for _, q := range hot {
		if q.dead {
			q.isHot = false
			continue
		}
		if q.fetch() {
			found = true
			l.hot = append(l.hot, q)
			continue
		}
		if spinning || l.spin > 0 && l.idleSince == 0 {
			l.hot = append(l.hot, q)
			continue
		}
		// One that came between the last look and the arming makes no event.
		if C.rs_arm(q.cq, 0) == 0 && !q.fetch() {
			q.isHot = false
			continue
		}
		found = true
		l.hot = append(l.hot, q)
	}
	clear(hot[len(l.hot):])
	return found
}

// idle decides for how long the loop looks for completions before it sleeps: as long as pays off.
// Who waits for longer between completions than sleeping and waking takes had better sleep, and so
// had who waits for somebody that the looking keeps from the processor.
func (l *loop) idle(worked bool) {
	if l.polls() {
		l.yield = l.yield || l.turns == 0
		return
	}
	if l.dev.cfg.NoSpin {
		return
	}
	if !worked {
		if l.idleSince == 0 {
			l.idleSince = l.now
		}
		l.yield = l.yield || len(l.hot) > 0 && l.turns == 0
		return
	}
	switch {
	case l.slept != 0 && l.now-l.slept >= l.spinMax:
		l.spin /= 2
	case l.slept != 0 && l.misses < missesMax:
		l.spin = min(l.spinMax, max(2*l.spin, 5*rdma.Microsecond))
	case l.slept != 0:
		l.spin = 0
		if l.misses++; l.misses == retryEvery {
			l.misses = 0
		}
	case l.idleSince != 0: // found by looking
		l.misses = 0
	}
	l.slept, l.idleSince = 0, 0
}

// dozes notes that the loop is about to sleep.
func (l *loop) dozes() {
	if l.spin == l.spinMax && l.idleSince != 0 && l.misses < missesMax {
		l.misses++
	}
	l.slept = l.now
}

// callbacks tells users what has happened. It reports whether there was something.
func (l *loop) callbacks() bool {
	later, events, after := l.later, l.events, l.after
	if len(later) == 0 && len(events) == 0 && len(after) == 0 {
		return false
	}
	l.later, l.spare.later = l.spare.later[:0], later
	l.after, l.spare.after = l.spare.after[:0], after
	l.events, l.spare.events = l.spare.events[:0], events
	for i, fn := range later {
		later[i] = nil
		fn()
	}
	for i, q := range events {
		events[i] = nil
		q.pending = false
		if !q.dead {
			q.on()
		}
	}
	for i, fn := range after {
		after[i] = nil
		fn()
	}
	return true
}

// abandon ends all connections of the loop: of a device that is going away.
func (l *loop) abandon(why error) {
	for c := range l.ids {
		c.goDown(rdma.EventDisconnected, 0, nil, why, why != rdma.ErrRemoved)
	}
	for i := range l.misc {
		if i.ended != nil {
			i.ended(why)
		}
	}
}

// leave is the beginning of the end: connections are told, and the loop ends after this turn.
func (l *loop) leave() {
	l.abandon(rdma.ErrClosed)
	l.over = true
}

// end releases what lives on the loop.
func (l *loop) end() {
	for _, fn := range l.inbox.Close() {
		fn()
	}
	for l.callbacks() {
	}
	for c := range l.ids {
		c.Close()
	}
	for i := range l.misc {
		i.destroy()
	}
	for _, q := range l.qps {
		q.Destroy()
	}
	for _, s := range l.srqs {
		s.destroy()
	}
	for _, q := range l.cqs {
		q.destroy()
	}
}

// number is a handle for a queue that completions come from.
func (l *loop) number() uint32 {
	for {
		l.handle = (l.handle + 1) & (1<<31 - 1)
		if l.handle != 0 && l.qps[l.handle] == nil && l.srqs[l.handle] == nil {
			return l.handle
		}
	}
}

// timer is an entry of a loop's heap.
type timer struct {
	at    rdma.Time // 0 = not set
	index int
	fn    func()
}

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

func (h *timers) cancel(t *timer) {
	if t.at != 0 {
		heap.Remove(h, t.index)
		t.at = 0
	}
}

func (h *timers) expire(now rdma.Time) {
	for len(*h) > 0 && (*h)[0].at <= now {
		t := (*h)[0]
		h.cancel(t)
		t.fn()
	}
}

// After implements rdma.Loop.
func (l *loop) After(d rdma.Time, fn func()) func() {
	t := &timer{fn: fn, at: l.now + max(d, 1)}
	heap.Push(&l.timers, t)
	return func() { l.timers.cancel(t) }
}
