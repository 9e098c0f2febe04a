package state

import (
	"maps"
	"time"
)

// In a cluster of servers, clients of a server that is lost reclaim at others. The cluster decides
// when the grace period begins and ends. This server says when its part is done:
//
//	cluster                                     this server
//	a server is lost                            Cluster.Grace: nobody gets new state
//	all servers enforce, locks are released     BeginReclaim: the clients of the lost one may reclaim
//	                                            Recovered: they have done so, or had their time
//	all have recovered                          Cluster.Grace is false; ForgetReclaims

// BeginReclaim lets further clients reclaim until a time: those of a server that is lost.
//
// A client may use several servers with one owner string. Then it has sent RECLAIM_COMPLETE here
// before, and what it has here stays. It may reclaim all the same what it had at the lost server, and
// sends RECLAIM_COMPLETE again.
func (s *Server) BeginReclaim(owners []string, until time.Time) {
	complete := make(map[string]bool)
	for _, c := range s.clientList() {
		c.mu.Lock()
		complete[c.owner] = complete[c.owner] || c.complete
		c.mu.Unlock()
	}
	g := &s.grace
	g.mu.Lock()
	known := maps.Clone(*g.known.Load())
	if g.again == nil {
		g.again = make(map[string]bool)
	}
	for _, o := range owners {
		known[o], g.waiting[o] = true, true
		if complete[o] {
			g.again[o] = true
		}
	}
	if g.until.Before(until) {
		g.until = until
	}
	g.known.Store(&known)
	again := maps.Clone(g.again)
	g.mu.Unlock()
	s.learn(known, again)
}

// ForgetReclaims ends what BeginReclaim and Config.Known have begun: nobody may reclaim.
func (s *Server) ForgetReclaims() {
	g := &s.grace
	g.mu.Lock()
	none := make(map[string]bool)
	g.known.Store(&none)
	clear(g.waiting)
	clear(g.again)
	g.until = time.Time{}
	g.mu.Unlock()
	s.learn(none, none)
}

// learn tells the clients that have come before whether they may reclaim, and whether they may do so
// after RECLAIM_COMPLETE. A client that comes now has looked at grace.known with mu held.
func (s *Server) learn(known, again map[string]bool) {
	for _, c := range s.clientList() {
		c.mu.Lock()
		c.known = known[c.owner]
		c.again = again[c.owner]
		c.mu.Unlock()
	}
}

// Recovered reports whether all clients that may reclaim have done so, or had their time. It removes
// those from the journal that have not reclaimed all, so it may write to disk.
func (s *Server) Recovered(now time.Time) bool {
	g := &s.grace
	g.frozen.RLock()
	defer g.frozen.RUnlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		return true
	}
	if now.Before(g.until) || g.expire() != nil {
		return false
	}
	clear(g.waiting)
	clear(g.again)
	return true
}
