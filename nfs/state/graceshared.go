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

// BeginReclaim lets further clients reclaim until a time: those of a server that is lost. A client that
// this server serves already has nothing to reclaim here.
func (s *Server) BeginReclaim(owners []string, until time.Time) {
	g := &s.grace
	g.mu.Lock()
	known := maps.Clone(*g.known.Load())
	for _, o := range owners {
		known[o] = true
		if g.list[o] == nil {
			g.waiting[o] = true
		}
	}
	if g.until.Before(until) {
		g.until = until
	}
	g.known.Store(&known)
	g.mu.Unlock()
	s.learn(known)
}

// ForgetReclaims ends what BeginReclaim and Config.Known have begun: nobody may reclaim.
func (s *Server) ForgetReclaims() {
	g := &s.grace
	g.mu.Lock()
	none := make(map[string]bool)
	g.known.Store(&none)
	clear(g.waiting)
	g.until = time.Time{}
	g.mu.Unlock()
	s.learn(none)
}

// learn tells the clients that have come before whether they may reclaim. A client that comes now has
// looked at grace.known with mu held.
func (s *Server) learn(known map[string]bool) {
	for _, c := range s.clientList() {
		c.mu.Lock()
		c.known = known[c.owner]
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
	return true
}
