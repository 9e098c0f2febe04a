package rpcrdma

import (
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Pacer is a Handler that limits the rates of clients. Pace is called for each call with bulk data,
// on the connection's loop, before memory is reserved for the call. It must not wait. See
// rpc.Server.Pace.
type Pacer interface {
	Pace(c *rpc.Call, msg xdr.Decoder, bulk int, take bool) (limit uint32, wait time.Duration, ok bool)
}

// throttle delays the calls of a connection whose client is over its rate limits. A delayed call
// occupies its receive and nothing else: no bulk memory, no RDMA READ, no worker.
//
// For each limit only the first delayed call has a time reserved at the limiter. So clients that
// share a limit take turns, however many calls each has.
//
// While calls are delayed the client is granted fewer credits, down to one, so that it sends no
// more than can be served. Each call that was not delayed raises the grant by one.
//
// throttle belongs to the loop.
//
//	limit    arrival order    due
//	  7      call 1           in 3 ms      the first of its limit: it has requested its turn
//	  7      call 2           none         behind call 1
//	  9      call 3           in 1 ms
type throttle struct {
	c     *serverConn
	pacer Pacer   // nil if there are no limits
	cap   int     // bound of the credits to grant
	calls []*slot // delayed calls, in the order of arrival
	timer
	at     rdma.Time // when the timer expires
	passed []uint32  // scratch
}

func (t *throttle) init(c *serverConn) { t.c, t.cap = c, c.l.cfg.Credits }

// delay reports whether it delayed a call because of a limit. The first call to Pace only asks
// which limit applies and takes nothing from it (take is false). A call behind another one of its
// limit does not ask for a time at all.
func (t *throttle) delay(s *slot) bool {
	if t.pacer == nil || s.hdr.Type != TypeMsg {
		return false // the RPC header is in a chunk; the limit is applied when the call is served
	}
	limit, _, _ := t.pacer.Pace(&s.call, xdr.NewDecoder(s.inline), s.fetching, false)
	if limit == 0 {
		return false
	}
	s.limit = limit
	now := t.c.loop.Now()
	if behind := slices.ContainsFunc(t.calls, func(o *slot) bool { return o.limit == limit }); !behind && t.ask(s, now) {
		return false
	}
	t.c.l.n.add(throttled)
	s.delayed = true
	if len(t.calls) > 0 {
		t.lower()
	}
	t.calls = append(t.calls, s)
	t.arm(now)
	return true
}

// ask asks the limit for the call's turn, and reports whether that is now.
func (t *throttle) ask(s *slot, now rdma.Time) bool {
	_, wait, ok := t.pacer.Pace(&s.call, xdr.NewDecoder(s.inline), s.fetching, true)
	s.due = now + rdma.Time(max(wait, time.Microsecond))
	return ok && wait <= 0
}

// lower halves the most credits that the connection is granted.
func (t *throttle) lower() {
	c := t.c
	if next := max(min(t.cap, c.grant)/2, 1); next < t.cap {
		t.cap = next
		c.l.n.add(creditsCut)
	}
}

// served adjusts the bound of the credits after a call that was not delayed here. deferred says
// that the handler deferred it.
func (t *throttle) served(deferred bool) {
	switch {
	case !deferred:
		t.cap = min(t.cap+1, t.c.l.cfg.Credits)
	case t.c.active-t.c.repliesInFlight > 1:
		t.lower()
	}
}

// arm sets the timer for the earliest due time.
func (t *throttle) arm(now rdma.Time) {
	if len(t.calls) == 0 {
		return
	}
	at := rdma.Time(0)
	for _, s := range t.calls {
		if s.due != 0 { // else it has not asked
			at = rdma.Earlier(at, s.due)
		}
	}
	if t.cancel != nil && t.at <= at {
		return
	}
	t.stop()
	t.at = at
	t.cancel = t.c.loop.After(max(at-now, 1), t.expire)
}

// expire queues the calls that are due.
func (t *throttle) expire() {
	t.cancel = nil
	c := t.c
	if c.dead {
		return
	}
	now := c.loop.Now()
	t.passed = t.passed[:0] // limits whose first call is not due yet: their other calls wait too
	t.calls = slices.DeleteFunc(t.calls, func(s *slot) bool {
		if slices.Contains(t.passed, s.limit) {
			return false
		}
		if s.due > now || !s.call.Paid && !t.ask(s, now) {
			t.passed = append(t.passed, s.limit)
			return false
		}
		s.queue()
		return true
	})
	t.arm(now)
	c.pump()
}

// postponeAll turns the delayed calls into postponed messages, see Listener.Pause.
func (t *throttle) postponeAll() {
	if t.c.dead {
		return
	}
	for _, s := range t.calls {
		t.c.postponeCall(s)
	}
	t.calls = nil
	t.stop()
}

// release queues all delayed calls at once, because the connection is to end. The limits are
// exceeded once by the calls of this connection. Delayed calls would otherwise prolong the stop
// of the server.
func (t *throttle) release() {
	for _, s := range t.calls {
		s.queue()
	}
	t.calls = nil
	t.stop()
	t.c.pump()
}

// watchdog ends a connection if none of its work requests completes for SlowTimeout. A queue pair
// with infinite RNR retries waits for a receive of its peer forever, and replies with their
// memory wait with it. watchdog belongs to the loop.
//
//	PostSend: start --tick--tick--tick--tick--> SlowTimeout without a completion: the connection ends
//	                    |
//	                    +--a completion: idle ticks begin anew; nothing in flight: no more ticks
type watchdog struct {
	c        *serverConn
	progress bool // something completed since the last tick
	idle     int  // ticks without progress
	timer
}

// watchdogTicks is the number of ticks in SlowTimeout.
const watchdogTicks = 4

// start starts the ticks when something is about to be posted.
func (w *watchdog) start() {
	if w.cancel == nil {
		w.progress, w.idle = false, 0
		w.arm()
	}
}

func (w *watchdog) arm() {
	w.cancel = w.c.loop.After(max(rdma.Time(w.c.l.cfg.SlowTimeout)/watchdogTicks, 1), w.tick)
}

// tick ends the connection after watchdogTicks ticks without progress, while something is in
// flight.
func (w *watchdog) tick() {
	w.cancel = nil
	c := w.c
	if c.dead || c.idle() {
		return
	}
	if w.idle++; w.progress {
		w.idle = 0
	}
	w.progress = false
	if w.idle >= watchdogTicks {
		c.fail(errSlow, fmt.Errorf("the client took no reply and served no RDMA READ for %v; its calls hold %d bytes of "+
			"memory",
			c.l.cfg.SlowTimeout, c.bulkHeld))
		return
	}
	w.arm()
}
