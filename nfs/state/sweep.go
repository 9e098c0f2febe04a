package state

import (
	"sync/atomic"
	"time"
)

// sweep removes clients whose lease has run out, if they are unconfirmed or have no state. If the
// table is full, it also removes those with state. Otherwise most calls return at once, because the
// last look was less than half a lease ago.
func (s *Server) sweep(now time.Time) {
	s.mu.Lock()
	full := len(s.clients) >= s.cfg.Clients
	if !full && !s.due(&s.swept, now) {
		s.mu.Unlock()
		return
	}
	s.sweepOf(now, func(c *Client) bool {
		_, states := c.holdings()
		return full || states == 0
	})
}

// Sweep forgets clients that were not confirmed within their lease. It may be called often: most
// calls return at once, because the last look was less than half a lease ago.
func (s *Server) Sweep(now time.Time) {
	if !s.due(&s.sweptNew, now) {
		return
	}
	s.mu.Lock()
	s.sweepOf(now, func(c *Client) bool { return !c.confirmed.Load() })
}

// due reports whether half a lease has passed since last. If so, it sets last to now.
func (s *Server) due(last *atomic.Int64, now time.Time) bool {
	at, n := last.Load(), now.UnixNano()
	return (at == 0 || n-at >= int64(s.cfg.Lease/2)) && last.CompareAndSwap(at, n)
}

// sweepOf removes useless clients whose lease has run out. Call with mu held; sweepOf unlocks it.
func (s *Server) sweepOf(now time.Time, useless func(c *Client) bool) {
	var gone []*Client
	for _, c := range s.clients {
		if c.expired(now) && useless(c) {
			gone = append(gone, c)
		}
	}
	s.mu.Unlock()
	for _, c := range gone {
		s.give(c)
	}
}
