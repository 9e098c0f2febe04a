//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
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
// but the inbox and wakeFD belongs to the goroutine.
type loop struct {
	dev   *Device
	index int
	now   rdma.Time // of this turn

	comp *C.struct_ibv_comp_channel
	cm   *C.struct_rdma_event_channel
	// wakeFD is an eventfd, negative once it is closed. Submit may use it while the device is
	// closed.
	wakeFD int
	wakeMu sync.Mutex
	ep     *os.File // an epoll descriptor of comp, cm and wakeFD, in the runtime's poller
	raw    syscall.RawConn
	ready  [4]unix.EpollEvent
	// takeEvents is the method take, and glance the same without a result. They are made once,
	// because each use would allocate.
	takeEvents func(fd uintptr) bool
	glance     func(fd uintptr)

	inbox  eventloop.Inbox
	timers eventloop.Timers
	qps    map[uint32]*qp // by handle, see wrID
	srqs   map[uint32]*srq
	cqs    map[uint64]*cq // by cookie
	conns  map[*conn]struct{}
	ids    map[*cmID]struct{} // of requests and resolutions, not of conns
	handle uint32             // last one given out

	cmReady bool // the connection manager may have events
	turns   int  // since the epoll descriptor was read

	hot    []*cq                   // may have completions, and are not armed
	events eventloop.Batch[*cq]    // have new completions
	later  eventloop.Batch[func()] // callbacks before those of events
	after  eventloop.Batch[func()] // and after them
	yield  bool                    // see Yield
	over   bool                    // the loop ends after this turn
	spin   spin
	n      counters

	// Arrays for the calls into C, reused.
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
	pollMax   = 128 // completions that one call into C returns
	pollTurn  = 512 // completions of a queue in a turn
	roundsMax = 4   // of callbacks in a turn
)

func newLoop(d *Device, i int) (*loop, error) {
	l := &loop{
		dev: d, index: i, now: clock(), wakeFD: -1, qps: map[uint32]*qp{}, srqs: map[uint32]*srq{},
		cqs: map[uint64]*cq{}, conns: map[*conn]struct{}{}, ids: map[*cmID]struct{}{},
	}
	l.takeEvents, l.glance = l.take, func(fd uintptr) { l.take(fd) }
	if what, err := l.open(); what != "" {
		l.free()
		return nil, fmt.Errorf("verbs: %s: %s: %w", d.name, what, cause(err))
	}
	return l, nil
}

// open makes the descriptors of the loop. It names what cannot be made.
func (l *loop) open() (what string, err error) {
	if l.comp, err = C.rs_create_channel(l.dev.ctx); l.comp == nil {
		return "a completion channel", err
	}
	if l.cm, err = C.rs_create_event_channel(); l.cm == nil {
		return "a channel of the connection manager", err
	}
	if l.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return "eventfd", err
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return "epoll", err
	}
	if err := unix.SetNonblock(ep, true); err != nil {
		return "epoll", errors.Join(err, unix.Close(ep))
	}
	l.ep = os.NewFile(uintptr(ep), "RDMA events")
	for _, fd := range []int{int(l.comp.fd), int(l.cm.fd), l.wakeFD} {
		err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
		if err != nil {
			return "epoll", err
		}
	}
	if l.raw, err = l.ep.SyscallConn(); err != nil {
		return "epoll", err
	}
	// Without the runtime's poller nothing could wake the loop.
	if err := l.ep.SetReadDeadline(time.Time{}); err != nil {
		return "the runtime's poller does not take epoll", err
	}
	began := clock()
	_, _ = unix.EpollWait(ep, l.ready[:], 0)
	l.spin.most = min(spinMost, max(spinLeast, spinCalls*(clock()-began)))
	return "", nil
}

// free closes the descriptors. The goroutine has ended, or was never started.
func (l *loop) free() {
	if l.ep != nil {
		_ = l.ep.Close()
	}
	l.wakeMu.Lock()
	if l.wakeFD >= 0 {
		_ = unix.Close(l.wakeFD)
	}
	l.wakeFD = -1
	l.wakeMu.Unlock()
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

// After implements rdma.Loop.
func (l *loop) After(d rdma.Time, fn func()) func() { return l.timers.After(l.now, d, fn) }

// Submit implements rdma.Loop.
func (l *loop) Submit(fn func()) bool {
	queued, first := l.inbox.Put(fn)
	if first {
		l.wake()
	}
	return queued
}

// one is what adds one to the counter of an eventfd.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// wake interrupts the current or next sleep of the loop. It must not write after free: the kernel
// may have given the number of the descriptor to another file.
func (l *loop) wake() {
	l.wakeMu.Lock()
	defer l.wakeMu.Unlock()
	if l.wakeFD >= 0 {
		_, _ = unix.Write(l.wakeFD, one)
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
//
//	wait            sleeps or reads the descriptors
//	inbox           functions of Submit
//	cmEvents        REQs, answers, disconnects: they may queue callbacks
//	completions     of queues that are not armed
//	timers
//	callbacks       at most roundsMax rounds: the rest waits for the next turn
func (l *loop) turn() {
	if l.wait() {
		l.now = clock()
	}
	l.inbox.Run()
	l.cmEvents()
	worked := l.completions()
	if worked {
		l.turns += askEvery/askEveryFull - 1
	}
	l.timers.Expire(l.now)
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

// callbacks runs the callbacks of users. It reports whether there were any.
func (l *loop) callbacks() bool {
	if l.later.Len() == 0 && l.events.Len() == 0 && l.after.Len() == 0 {
		return false
	}
	// Callbacks that these cause wait for the next round.
	after := l.after.Take()
	events := l.events.Take()
	for _, fn := range l.later.Take() {
		fn()
	}
	for _, q := range events {
		q.pending = false
		if !q.dead && !q.closed {
			q.onEvent()
		}
	}
	for _, fn := range after {
		fn()
	}
	return true
}

// abandon ends the connections and resolutions of the loop, because the device is closed or cannot
// be used any more.
func (l *loop) abandon(why error) {
	for c := range l.conns {
		c.goDown(rdma.EventDisconnected, 0, nil, why, why != rdma.ErrRemoved)
	}
	for i := range l.ids {
		if i.ended != nil {
			i.ended(why)
		}
	}
}

// leave begins the end of the loop: connections end, and the goroutine after this turn.
func (l *loop) leave() {
	l.abandon(rdma.ErrClosed)
	l.over = true
}

// end destroys everything that lives on the loop. Users get their last events before the queue
// pairs are destroyed. Queue pairs go before the queues that they use.
func (l *loop) end() {
	for _, fn := range l.inbox.Close() {
		fn()
	}
	for l.callbacks() {
	}
	for c := range l.conns {
		c.Close()
	}
	for i := range l.ids {
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

// newHandle draws a handle for a queue that completions come from.
func (l *loop) newHandle() uint32 {
	for {
		l.handle = (l.handle + 1) & (1<<31 - 1)
		if l.handle != 0 && l.qps[l.handle] == nil && l.srqs[l.handle] == nil {
			return l.handle
		}
	}
}
