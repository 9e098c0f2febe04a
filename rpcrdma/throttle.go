package rpcrdma

import (
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Pacer is a Handler that bounds what clients do. It is asked for each call with bulk data
// before any memory is taken for it, on the connection's loop, and must not wait. See
// rpc.Server.Pace.
type Pacer interface {
	Pace(c *rpc.Call, msg xdr.Decoder, bulk int, take bool) (limit uint32, wait time.Duration, ok bool)
}

// throttle holds calls of a connection back whose client is over its limits. They have their
// receives, and nothing else: no memory for bulk data, no RDMA READ, no worker. Of those under
// one limit only the first has asked for its turn, so that clients that share the limit have
// theirs one after the other, however many calls each has. While some
// wait the client is granted fewer credits, down to one, so that it sends no more calls than
// can be served; each call that need not wait gives it one more. It belongs to the loop.
type throttle struct {
	c      *serverConn
	pacer  Pacer   // nil if nothing is limited
	cap    int     // the most credits that are granted
	calls  []*slot // in the order in which they came
	cancel func()  // of the timer
	at     rdma.Time
	passed []uint32 // scratch
}

func (t *throttle) init(c *serverConn) { t.c, t.cap = c, c.l.cfg.Credits }

// hold keeps a call back if its time has not come.
func (t *throttle) hold(s *slot) bool {
	if t.pacer == nil || s.hdr.Type != TypeMsg {
		return false // what a call without a head does is seen when it is served
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
	s.held = true
	if len(t.calls) > 0 {
		t.lower()
	}
	t.calls = append(t.calls, s)
	t.arm(now)
	return true
}

// ask asks for a call's turn, and reports whether it is now.
func (t *throttle) ask(s *slot, now rdma.Time) bool {
	_, wait, ok := t.pacer.Pace(&s.call, xdr.NewDecoder(s.inline), s.fetching, true)
	s.due = now + rdma.Time(max(wait, time.Microsecond))
	return ok && wait <= 0
}

// lower halves the credits.
func (t *throttle) lower() {
	c := t.c
	if next := max(min(t.cap, c.grant)/2, 1); next < t.cap {
		t.cap = next
		c.l.n.add(creditsCut)
	}
}

// served takes a call that did not have to wait, or did so where it was served.
func (t *throttle) served(waited bool) {
	switch {
	case !waited:
		t.cap = min(t.cap+1, t.c.l.cfg.Credits)
	case t.c.active > 1:
		t.lower()
	}
}

// arm sets the timer for the first that is due.
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

// expire lets calls go on whose time has come.
func (t *throttle) expire() {
	t.cancel = nil
	c := t.c
	if c.dead {
		return
	}
	now := c.loop.Now()
	t.passed = t.passed[:0] // limits whose next call has its turn still to come
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

// takeBack keeps what waits, as if it had come only now. See Listener.Pause.
func (t *throttle) takeBack() {
	if t.c.dead {
		return
	}
	for _, s := range t.calls {
		t.c.unarrived(s)
	}
	t.calls = nil
	t.stop()
}

// release lets all go on at once, when the connection is to end.
func (t *throttle) release() {
	for _, s := range t.calls {
		s.queue()
	}
	t.calls = nil
	t.stop()
	t.c.pump()
}

func (t *throttle) stop() {
	if t.cancel != nil {
		t.cancel()
	}
	t.cancel = nil
}

// stall finds clients that take nothing: a queue pair waits for a receive of its peer as long
// as that likes, and the replies with their memory wait with it. It belongs to the loop.
type stall struct {
	c        *serverConn
	progress bool // since the last tick
	idle     int  // ticks without
	cancel   func()
}

// stallTicks is how often a client is looked at within SlowTimeout.
const stallTicks = 4

// start begins to watch, when something is about to be posted.
func (w *stall) start() {
	if w.cancel == nil {
		w.progress, w.idle = false, 0
		w.arm()
	}
}

func (w *stall) arm() {
	w.cancel = w.c.loop.After(max(rdma.Time(w.c.l.cfg.SlowTimeout)/stallTicks, 1), w.tick)
}

func (w *stall) tick() {
	w.cancel = nil
	c := w.c
	if c.dead || c.idle() {
		return
	}
	if w.idle++; w.progress {
		w.idle = 0
	}
	w.progress = false
	if w.idle >= stallTicks {
		c.fail(errSlow, fmt.Errorf("the client has taken no reply and given no data for %v; it holds %d bytes of memory", c.l.cfg.SlowTimeout, c.held))
		return
	}
	w.arm()
}

func (w *stall) stop() {
	if w.cancel != nil {
		w.cancel()
	}
	w.cancel = nil
}
