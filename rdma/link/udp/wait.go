package udp

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
)

// waiter is how the loop of a link sleeps, and is woken. There are two ways.
//
// A thread that waits in the kernel for the socket is woken by the packet itself, and
// nobody else is. That is best while packets come in numbers: threads of the Go runtime that are idle
// wait for every descriptor that it knows, and each packet that comes while the loop works would wake one of them,
// which takes the processor from the peer, or from the loop.
//
// With one call at a time the loop and its callers take turns, and a loop that waits as a
// goroutine takes them on one thread. The runtime then knows of an epoll instance that has the socket, and
// reports it only while the loop sleeps.
type waiter struct {
	l *Link
	// state is for Wake.
	state  atomic.Int32
	passed uint64 // datagrams until the last sleep
	mean   int    // of datagrams between sleeps, see meanUnit

	event int        // eventfd: ends a wait in the kernel; negative once it is closed
	bell  sync.Mutex // of event: who wakes may be at it while the link is closed
	polls [2]unix.PollFd
	left  unix.Timespec

	ep    int // epoll instance with the socket
	ev    unix.EpollEvent
	file  *os.File
	raw   syscall.RawConn
	ready func(uintptr) bool // made once, it would be allocated each time
	armed rdma.Time          // read deadline that is set; unarmed if unknown
}

// States of a waiter.
const (
	running = iota
	parked  // as a goroutine
	waiting // in the kernel
	woken
)

// Special values of waiter.armed.
const (
	disarmed rdma.Time = 0
	unarmed  rdma.Time = -1 // not known
)

// The mean of what a loop sends and receives between two sleeps is kept in parts of meanUnit,
// each sleep being a quarter of it and counting up to busyMax datagrams. From busyMin on the
// loop counts as busy; one call at a time is about four.
const (
	meanUnit = 8
	busyMin  = 6
	busyMax  = 32
)

func (w *waiter) open(l *Link) (err error) {
	w.l = l
	if w.event, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return err
	}
	w.polls = [2]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}, {Fd: int32(w.event), Events: unix.POLLIN}}
	if w.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return errors.Join(err, unix.Close(w.event))
	}
	err = unix.EpollCtl(w.ep, unix.EPOLL_CTL_ADD, l.fd, &w.ev)
	if err == nil {
		err = unix.SetNonblock(w.ep, true)
	}
	w.file = os.NewFile(uintptr(w.ep), "roce:"+l.addr.String())
	if err == nil {
		w.raw, err = w.file.SyscallConn()
	}
	if err == nil {
		err = w.file.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return errors.Join(err, w.close())
	}
	// It is called before the wait too, and has to be: a packet that came before the epoll instance was told to
	// report it may not be reported.
	w.ready = func(uintptr) bool { return !w.l.rx.receive() }
	return nil
}

func (w *waiter) close() error {
	w.bell.Lock()
	defer w.bell.Unlock()
	event := w.event
	w.event = -1
	return errors.Join(w.file.Close(), unix.Close(event))
}

// busy says whether the loop had much to send and receive between its last sleeps.
func (w *waiter) busy() bool {
	all := w.l.stats.RxDatagrams + w.l.stats.TxDatagrams
	n := int(min(all-w.passed, busyMax))
	w.passed = all
	w.mean += (n*meanUnit - w.mean) / 4
	return w.mean > busyMin*meanUnit
}

func (w *waiter) wake() {
	switch w.state.Swap(woken) {
	case parked:
		// A deadline in the past ends the wait. The loop finds out by the error
		// that the deadline it set is no longer the one that is set.
		_ = w.file.SetReadDeadline(time.Unix(1, 0))
	case waiting:
		// The number of a descriptor that was closed may be another's, a file's even.
		w.bell.Lock()
		if one := [8]byte{1}; w.event >= 0 {
			_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(w.event), uintptr(unsafe.Pointer(&one)), 8)
		}
		w.bell.Unlock()
	}
}

// sleep waits for a packet and receives it, or until the deadline, if that is not 0, or until wake.
func (w *waiter) sleep(deadline rdma.Time) error {
	if w.busy() {
		return w.inKernel(deadline)
	}
	return w.park(deadline)
}

func (w *waiter) inKernel(deadline rdma.Time) error {
	var left *unix.Timespec
	if deadline > 0 {
		w.left = unix.NsecToTimespec(max(0, int64(deadline-w.l.Now())))
		left = &w.left
	}
	if !w.state.CompareAndSwap(running, waiting) {
		w.state.Store(running)
		return nil
	}
	w.l.stats.Waits++
	_, err := unix.Ppoll(w.polls[:], left, nil)
	w.state.Store(running)
	switch {
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return err
	}
	if w.polls[1].Revents != 0 {
		var count [8]byte
		_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(w.event), uintptr(unsafe.Pointer(&count)), 8)
	}
	w.l.rx.receive()
	return nil
}

func (w *waiter) park(deadline rdma.Time) error {
	// The order matters: the deadline is set first, so that a wake after the state changed overrides it and not
	// the reverse.
	if err := w.arm(deadline); err != nil {
		return err
	}
	if !w.state.CompareAndSwap(running, parked) {
		w.state.Store(running)
		return nil
	}
	w.l.stats.Waits++
	w.watch(unix.EPOLLIN)
	err := w.raw.Read(w.ready)
	w.watch(0)
	w.state.Store(running)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.armed = unarmed
		return nil
	}
	return err
}

// watch has the epoll instance report the socket, or not.
func (w *waiter) watch(events uint32) {
	w.ev.Events = events
	_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(w.ep), unix.EPOLL_CTL_MOD, uintptr(w.l.fd), uintptr(unsafe.Pointer(&w.ev)), 0, 0)
}

// arm sets the read deadline, if the one that is set would not do. Waking up
// too early is harmless and rare, setting a deadline for each sleep is not
// cheap: one that is set and earlier stays.
func (w *waiter) arm(deadline rdma.Time) error {
	if w.armed == deadline || deadline == 0 && w.armed > 0 {
		return nil
	}
	if w.armed > 0 && deadline > 0 && w.armed < deadline {
		return nil
	}
	var t time.Time
	if deadline > 0 {
		t = w.l.base.Add(time.Duration(deadline))
	}
	if err := w.file.SetReadDeadline(t); err != nil {
		return err
	}
	w.armed = deadline
	return nil
}
