package udp

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
)

// waiter makes the loop of a link sleep, and wakes it. There are two ways to sleep.
//
// A busy loop sleeps in ppoll, as a thread. A packet wakes this thread and no other. If the socket
// were in the runtime's poller, every packet would wake an idle thread of the runtime while the
// loop works, which takes the processor from the loop or from the peer. A loop that no other
// goroutine wakes sleeps in ppoll too, for example one of a server that answers all calls itself.
//
// A loop that serves one call at a time of callers on other goroutines sleeps as a goroutine. The
// loop and its callers then take turns on one thread. The socket is in an epoll instance, which is
// in the runtime's poller and reports the socket only while the loop sleeps.
type waiter struct {
	l *Link
	// state says to wake how the loop sleeps.
	state  atomic.Int32
	passed uint64 // datagrams sent and received before the last sleep
	mean   int    // datagrams between sleeps, see meanUnit

	callers int  // sleeps until the loop counts as one that no other goroutine wakes, see callersMax
	shared  bool // one processor for all goroutines, see callersMax

	event   int        // eventfd that ends ppoll; negative once it is closed
	eventMu sync.Mutex // of event: wake may run while the link is closed
	polls   [2]unix.PollFd
	left    unix.Timespec

	ep    int // epoll instance with the socket
	ev    unix.EpollEvent
	file  *os.File // ep, in the runtime's poller
	raw   syscall.RawConn
	ready func(uintptr) bool // made once, because each use would allocate
	armed rdma.Time          // read deadline of file; unarmed if unknown
}

// States of a waiter.
const (
	running  = iota
	sleeping // as a goroutine
	polling  // in ppoll
	woken
)

// Special values of waiter.armed.
const (
	disarmed rdma.Time = 0
	unarmed  rdma.Time = -1 // unknown
)

// The mean number of datagrams between two sleeps is in parts of meanUnit. Each sleep is a quarter
// of it, and counts up to busyMax datagrams. A loop with a mean over busyMin is busy. One call at a
// time makes about four datagrams.
const (
	meanUnit = 8
	busyMin  = 6
	busyMax  = 32
)

func (w *waiter) open(l *Link) (err error) {
	w.l, w.shared = l, runtime.GOMAXPROCS(0) == 1
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
	// raw.Read also calls ready before it waits. That is necessary: epoll may not report a packet
	// that arrived before the socket was enabled.
	w.ready = func(uintptr) bool { return !w.l.rx.receive() }
	return nil
}

func (w *waiter) close() error {
	w.eventMu.Lock()
	defer w.eventMu.Unlock()
	event := w.event
	w.event = -1
	return errors.Join(w.file.Close(), unix.Close(event))
}

// busy reports whether the loop sent and received much between its last sleeps.
func (w *waiter) busy() bool {
	all := w.l.stats.RxDatagrams + w.l.stats.TxDatagrams
	n := int(min(all-w.passed, busyMax))
	w.passed = all
	w.mean += (n*meanUnit - w.mean) / 4
	return w.mean > busyMin*meanUnit
}

// callersMax is after how many sleeps in a row that no other goroutine ended the loop sleeps in
// ppoll. With a single processor (GOMAXPROCS) it does so only when it is busy: the goroutine that
// the loop has just made ready would wait until the runtime takes the processor from the ppoll.
const callersMax = 16

// resume ends a sleep. It notes whether another goroutine has ended it.
func (w *waiter) resume() {
	switch {
	case w.state.Swap(running) == woken:
		w.callers = callersMax
	case w.callers > 0:
		w.callers--
	}
}

// Called implements link.Caller.
func (l *Link) Called() { l.wait.callers = callersMax }

// wake may be called from any goroutine.
func (w *waiter) wake() {
	switch w.state.Swap(woken) {
	case sleeping:
		// A deadline in the past ends the read. Its error tells the loop that the deadline has
		// changed.
		_ = w.file.SetReadDeadline(time.Unix(1, 0))
	case polling:
		// After close, the number of the descriptor may belong to another file.
		w.eventMu.Lock()
		if one := [8]byte{1}; w.event >= 0 {
			_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(w.event), uintptr(unsafe.Pointer(&one)), 8)
		}
		w.eventMu.Unlock()
	}
}

// sleep waits for a packet and receives it. It returns at the deadline too, if that is not 0, and
// when wake is called.
func (w *waiter) sleep(deadline rdma.Time) error {
	if w.busy() || w.callers == 0 && !w.shared {
		return w.poll(deadline)
	}
	return w.read(deadline)
}

// poll sleeps in the kernel.
func (w *waiter) poll(deadline rdma.Time) error {
	var left *unix.Timespec
	if deadline > 0 {
		w.left = unix.NsecToTimespec(max(0, int64(deadline-w.l.Now())))
		left = &w.left
	}
	if !w.state.CompareAndSwap(running, polling) {
		w.resume()
		return nil
	}
	w.l.stats.Waits++
	_, err := unix.Ppoll(w.polls[:], left, nil)
	w.resume()
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

// read sleeps as a goroutine.
func (w *waiter) read(deadline rdma.Time) error {
	// The deadline is set before the state changes: a wake after that replaces the deadline, not
	// the reverse.
	if err := w.arm(deadline); err != nil {
		return err
	}
	if !w.state.CompareAndSwap(running, sleeping) {
		w.resume()
		return nil
	}
	w.l.stats.Waits++
	w.watch(unix.EPOLLIN)
	err := w.raw.Read(w.ready)
	w.watch(0)
	w.resume()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.armed = unarmed
		return nil
	}
	return err
}

// watch sets what the epoll instance reports of the socket.
func (w *waiter) watch(events uint32) {
	w.ev.Events = events
	_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(w.ep), unix.EPOLL_CTL_MOD, uintptr(w.l.fd),
		uintptr(unsafe.Pointer(&w.ev)), 0, 0)
}

// arm sets the read deadline, unless an earlier one is set. To wake up too early is harmless and
// rare, and to set a deadline for each sleep is not cheap.
func (w *waiter) arm(deadline rdma.Time) error {
	if w.armed == deadline || w.armed > 0 && (deadline == 0 || w.armed < deadline) {
		return nil
	}
	var t time.Time
	if deadline > 0 {
		t = clockBase.Add(time.Duration(deadline))
	}
	if err := w.file.SetReadDeadline(t); err != nil {
		return err
	}
	w.armed = deadline
	return nil
}
