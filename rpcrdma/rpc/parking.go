package rpc

import (
	"sync"
	"sync/atomic"
	"time"
)

// parkingMax bounds the calls that wait for their time, of all clients together. Each holds
// what a call holds, its credit of the connection among it, so that who has too many calls
// sends no more.
const parkingMax = 1024

// parking is where calls wait for their time.
type parking struct {
	places atomic.Int32

	mu    sync.Mutex
	calls map[*Call]*time.Timer
	hurry bool // nobody waits
}

func (p *parking) enter() bool {
	if p.places.Add(1) > parkingMax {
		p.leave()
		return false
	}
	return true
}

func (p *parking) leave() { p.places.Add(-1) }

// Delayer is a Call's Carrier that wants to know which of its calls wait for their time: that a
// call begins to wait, and that it ends. It is called from any goroutine.
type Delayer interface {
	Delayed(waits bool)
}

func delayed(c *Call, waits bool) {
	if d, ok := c.Carrier.(Delayer); ok {
		d.Delayed(waits)
	}
}

// park keeps a call for as long as it asked for, and gives it to a worker then.
func (s *Server) park(c *Call) {
	c.Res.Truncate(c.base)
	c.Detach()
	wait := c.wait
	p := &s.parking
	p.mu.Lock()
	if p.hurry {
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
		p.leave()
		s.abandon(c)
		return
	}
	delayed(c, true)
	p.calls[c] = time.AfterFunc(wait, func() {
		defer s.done.Done()
		p.mu.Lock()
		delete(p.calls, c)
		p.mu.Unlock()
		p.leave()
		delayed(c, false)
		s.enqueue(c)
	})
	p.mu.Unlock()
}

// stop ends the wait of all calls that wait still, and returns them. Call with mu held.
func (p *parking) stop() (calls []*Call) {
	for c, t := range p.calls {
		if t.Stop() {
			delete(p.calls, c)
			calls = append(calls, c)
		}
	}
	return calls
}

// unpark drops the calls that wait, when the server closes.
func (s *Server) unpark() {
	p := &s.parking
	p.mu.Lock()
	gone := p.stop()
	p.mu.Unlock()
	for _, c := range gone {
		p.leave()
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
