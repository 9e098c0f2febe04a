package rpc

import (
	"sync"
	"sync/atomic"
	"time"
)

// deferredMax bounds the deferred calls of all clients together. A deferred call keeps its buffers
// and its credit, so a client with many of them cannot send more.
const deferredMax = 1024

// deferred is the set of calls that a procedure deferred until a later time (Call.Defer).
type deferred struct {
	count atomic.Int32 // reserved by Defer, so that the bound holds before the call is in calls

	mu    sync.Mutex
	calls map[*Call]*time.Timer
	now   bool // calls are served without delay, see ServeDeferred
}

func (p *deferred) reserve() bool {
	if p.count.Add(1) > deferredMax {
		p.release()
		return false
	}
	return true
}

func (p *deferred) release() { p.count.Add(-1) }

// Delayer may be implemented by a Call's TransportData. The server calls Delayed(true) when a call
// is deferred and Delayed(false) when it is served or dropped, from any goroutine. A transport
// that cannot refuse single calls stops reading while calls are deferred.
type Delayer interface {
	Delayed(waits bool)
}

func delayed(c *Call, waits bool) {
	if d, ok := c.TransportData.(Delayer); ok {
		d.Delayed(waits)
	}
}

// deferCall starts the timer of a deferred call. When it expires the call goes to a worker. The
// call belongs to deferred.calls until the timer or stop removes it. Lock order: deferred.mu,
// then Server.mu. Delayed is called with deferred.mu locked, so that Delayed(false) cannot come
// first.
func (s *Server) deferCall(c *Call) {
	c.Res.Truncate(c.base)
	c.Detach()
	wait := c.wait
	p := &s.deferred
	p.mu.Lock()
	if p.now {
		wait = 0
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.done.Add(1)
	}
	s.mu.Unlock()
	if closed {
		p.mu.Unlock()
		p.release()
		s.abandon(c)
		return
	}
	delayed(c, true)
	p.calls[c] = time.AfterFunc(wait, func() {
		defer s.done.Done()
		p.mu.Lock()
		delete(p.calls, c)
		p.mu.Unlock()
		p.release()
		delayed(c, false)
		s.enqueue(c)
	})
	p.mu.Unlock()
}

// stop stops the timers of all deferred calls and returns the calls. A call whose timer has fired
// already is left to it. The caller holds mu.
func (p *deferred) stop() (calls []*Call) {
	for c, t := range p.calls {
		if t.Stop() {
			delete(p.calls, c)
			calls = append(calls, c)
		}
	}
	return calls
}

// ServeDeferred serves, if on is set, all deferred calls at once, and calls that are deferred from
// now on without delay. A server that hands over to another process uses it to finish what it has.
func (s *Server) ServeDeferred(on bool) {
	p := &s.deferred
	p.mu.Lock()
	p.now = on
	var due []*Call
	if on {
		due = p.stop()
	}
	p.mu.Unlock()
	for _, c := range due {
		p.release()
		delayed(c, false)
		s.enqueue(c)
		s.done.Done()
	}
}

// dropDeferred drops the deferred calls when the server closes.
func (s *Server) dropDeferred() {
	p := &s.deferred
	p.mu.Lock()
	gone := p.stop()
	p.mu.Unlock()
	for _, c := range gone {
		p.release()
		delayed(c, false)
		s.abandon(c)
		s.done.Done()
	}
}

// abandon ends a call without a reply.
func (s *Server) abandon(c *Call) {
	if c.entry != nil {
		s.cache.finish(c, false, 0)
	}
	c.Reply(c, true)
}
