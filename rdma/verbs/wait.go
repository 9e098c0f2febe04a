//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
)

// spin decides for how long a loop polls the completion queues before it arms them and sleeps. To
// sleep and to be woken costs some tens of system calls. Polling for as long as that costs no more,
// and saves it if a completion arrives meanwhile. It does not pay off if completions are farther
// apart, or if the process that the loop waits for needs this processor.
//
//	found by polling               spinning goes on
//	found after a short sleep      limit doubles, up to most
//	found after a long sleep       limit halves
//	missesMax vain spins in a row  limit 0, tried again after retryEvery sleeps
type spin struct {
	limit     rdma.Time // to poll for
	most      rdma.Time // largest limit: what a sleep costs on this machine
	idleSince rdma.Time // no completion since then, 0 if the last turn had some
	slept     rdma.Time // when the loop went to sleep, 0 if it did not
	misses    int       // spins of the largest limit without a completion, one after the other
}

const (
	spinLeast  = 50 * rdma.Microsecond
	spinMost   = 200 * rdma.Microsecond
	spinStart  = 5 * rdma.Microsecond
	spinCalls  = 20 // system calls that a sleep costs
	missesMax  = 4
	retryEvery = 64

	// Most turns of a loop that polls are empty. So the other descriptors and the clock are read only
	// every askEverySpin turns; with BusyPoll every askEvery turns. A turn with completions counts as
	// askEvery/askEveryFull turns.
	askEverySpin = 8
	askEvery     = 256
	askEveryFull = 16
)

// polls reports whether the loop never sleeps (Config.BusyPoll).
func (l *loop) polls() bool { return l.dev.cfg.BusyPoll && len(l.qps) > 0 }

// busy reports whether there is something to do without waiting.
func (l *loop) busy() bool {
	return l.over || len(l.hot) > 0 || l.polls() || l.events.Len() > 0 || l.later.Len() > 0 || l.after.Len() > 0 ||
		l.inbox.Waits()
}

// wait sleeps until an event, a Submit or the next timer, if there is nothing to do. It reports
// whether it has read the descriptors.
//
//	state                   the loop                            reads the descriptors
//	work is left            goes on at once                     in each turn
//	polls before a sleep    goes on at once                     each 8th turn
//	BusyPoll                goes on at once                     each 256th turn
//	nothing to do           sleeps in the runtime's poller      when woken
func (l *loop) wait() (looked bool) {
	if l.busy() {
		every := 1
		if l.polls() {
			every = askEvery
		} else if l.spin.idleSince != 0 {
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
	if next := l.timers.Next(); next != 0 {
		at = epoch.Add(time.Duration(next))
	}
	_ = l.ep.SetReadDeadline(at)
	l.now = clock()
	l.spin.sleep(l.now)
	_ = l.raw.Read(l.takeEvents) // the error is that the deadline has come
	return true
}

// take handles the ready descriptors. It reports whether the sleep is over.
func (l *loop) take(fd uintptr) bool {
	n, err := unix.EpollWait(int(fd), l.ready[:], 0)
	for i := range max(n, 0) {
		switch l.ready[i].Fd {
		case int32(l.wakeFD):
			var b [8]byte
			_, _ = unix.Read(l.wakeFD, b[:])
		case int32(l.comp.fd):
			l.cqEvents()
		case int32(l.cm.fd):
			l.cmReady = true
		}
	}
	return n > 0 || err != nil && err != unix.EINTR
}

// cqEvents reads the events of armed completion queues.
func (l *loop) cqEvents() {
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

// completions polls the hot queues. It reports whether there were completions. A queue without
// completions is armed once the loop has polled for long enough.
func (l *loop) completions() bool {
	found := false
	hot := l.hot
	l.hot = l.hot[:0]
	s := &l.spin
	spinning := l.polls() || s.limit > 0 && (s.idleSince == 0 || l.now-s.idleSince < s.limit)
	for _, q := range hot {
		if q.dead {
			q.isHot = false
			continue
		}
		// A completion between the last poll and the arming makes no event, so the queue is polled
		// again.
		if q.fetch() || !spinning && (C.rs_arm(q.cq, 0) != 0 || q.fetch()) {
			found = true
		} else if !spinning {
			q.isHot = false
			continue
		}
		l.hot = append(l.hot, q)
	}
	clear(hot[len(l.hot):])
	return found
}

// idle notes whether the turn had work to do, and adapts how long the loop polls.
func (l *loop) idle(worked bool) {
	if l.polls() {
		l.yield = l.yield || l.turns == 0
		return
	}
	if l.dev.cfg.NoSpin {
		return
	}
	s := &l.spin
	if worked {
		s.found(l.now)
		return
	}
	if s.idleSince == 0 {
		s.idleSince = l.now
	}
	l.yield = l.yield || len(l.hot) > 0 && l.turns == 0
}

// found adapts the limit after a turn with completions. A long sleep means that completions are
// farther apart than polling may last, so a shorter limit loses nothing.
func (s *spin) found(now rdma.Time) {
	switch {
	case s.slept != 0 && now-s.slept >= s.most:
		s.limit /= 2
	case s.slept != 0 && s.misses < missesMax:
		s.limit = min(s.most, max(2*s.limit, spinStart))
	case s.slept != 0:
		s.limit = 0
		if s.misses++; s.misses == retryEvery {
			s.misses = 0
		}
	case s.idleSince != 0:
		s.misses = 0
	}
	s.slept, s.idleSince = 0, 0
}

// sleep notes that the loop goes to sleep.
func (s *spin) sleep(now rdma.Time) {
	if s.limit == s.most && s.idleSince != 0 && s.misses < missesMax {
		s.misses++
	}
	s.slept = now
}
