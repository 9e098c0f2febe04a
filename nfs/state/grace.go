package state

import (
	"sync"
	"sync/atomic"
	"time"
)

// After a restart clients that had state before may reclaim it, and until they have,
// or the grace period is over, nobody gets anything new (RFC 8881 section 8.4.2).
//
// Which clients those are is remembered where it outlives the server. Three rules
// make that safe. A client is in the list before it opens its first file. One whose
// state was given to others, because it was silent, is out of the list before the
// others get it. And those that did not come back in the grace period are out of it
// before anybody gets anything new: a second restart does not let them reclaim what
// somebody else had meanwhile (RFC 7530 section 9.6.3.4 calls these the edge
// conditions). A client of version 4.1 or later that has come back, and has not said
// RECLAIM_COMPLETE by then, did not come back in this sense: it may lack a part of what it had (RFC
// 8881 section 8.4.3). It is in the list again when it says so, or opens something.

// grace is the period and the list.
type grace struct {
	on    atomic.Bool // the period may not be over yet
	until time.Time
	known map[string]bool // who may reclaim; never changed

	// still is held for reading by who may write the list down, and taken before mu; for
	// writing while nobody may. See Server.StandStill.
	frozen sync.RWMutex

	// mu is taken last, and held while the list is written.
	mu      sync.Mutex
	waiting map[string]bool    // of known, who has not said that it has reclaimed
	list    map[string]*Client // who is remembered; nil: without state of this start
	journal Journal            // nil: nothing is remembered
}

func (g *grace) init(cfg *Config) {
	g.journal = cfg.Journal
	g.until = cfg.GraceUntil
	g.known, g.waiting, g.list = make(map[string]bool), make(map[string]bool), make(map[string]*Client)
	for _, owner := range cfg.Known {
		g.known[owner], g.waiting[owner], g.list[owner] = true, true, nil
	}
	g.on.Store(len(g.known) > 0)
}

// add and remove change the list, on stable storage first. Call with mu held.
func (g *grace) add(c *Client) error {
	if _, there := g.list[c.owner]; !there && g.journal != nil {
		if err := g.journal.Add(c.owner); err != nil {
			return err
		}
	}
	g.list[c.owner] = c
	return nil
}

func (g *grace) remove(owners ...string) error {
	if len(owners) > 0 && g.journal != nil {
		if err := g.journal.Remove(owners...); err != nil {
			return err
		}
	}
	for _, o := range owners {
		delete(g.list, o)
	}
	return nil
}

// Grace reports whether nobody may get anything new.
func (s *Server) Grace(now time.Time) bool {
	g := &s.grace
	if !g.on.Load() {
		return false
	}
	if !g.frozen.TryRLock() {
		return true // it ends when that can be written down
	}
	defer g.frozen.RUnlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.on.Load() {
		return false
	}
	if now.Before(g.until) && len(g.waiting) > 0 {
		return true
	}
	var gone []string
	var partly []*Client
	for owner, c := range g.list {
		switch {
		case c == nil:
			gone = append(gone, owner)
		case c.v40 == nil && g.waiting[owner]:
			gone, partly = append(gone, owner), append(partly, c)
		}
	}
	if g.remove(gone...) != nil {
		return true // they could reclaim again what somebody else gets now
	}
	for _, c := range partly {
		c.listed.Store(false)
	}
	g.on.Store(false)
	return false
}

// othersReclaim reports whether clients of another protocol may be reclaiming locks.
func (s *Server) othersReclaim() bool { return s.cfg.OthersReclaim != nil && s.cfg.OthersReclaim() }

// GracePending reports whether a grace period may not be over yet. Unlike Grace it
// never writes anything down.
func (s *Server) GracePending() bool { return s.grace.on.Load() }

// reclaimed notes that a client has said that it has reclaimed what it wants.
func (g *grace) reclaimed(owner string) {
	if !g.on.Load() {
		return
	}
	g.mu.Lock()
	delete(g.waiting, owner)
	g.mu.Unlock()
}

// enlist has the client remembered. It reports false if that was not possible.
func (c *Client) enlist() bool {
	if c.listed.Load() {
		return true
	}
	g := &c.s.grace
	g.frozen.RLock()
	defer g.frozen.RUnlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.add(c) != nil {
		return false
	}
	c.listed.Store(true)
	return true
}

// succeed puts a client into the place of its earlier start. The state of that one is gone, but the
// list goes on naming the client, by its owner string.
func (c *Client) succeed(old *Client) {
	g := &c.s.grace
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list[c.owner] == old {
		g.list[c.owner] = c
		c.listed.Store(true)
	}
}

// delist removes a client whose state is gone from the list, unless another start of it has taken
// its place there. It reports false if the journal cannot be written.
func (c *Client) delist() bool {
	if !c.listed.Load() {
		return true
	}
	g := &c.s.grace
	g.frozen.RLock()
	defer g.frozen.RUnlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list[c.owner] == c && g.remove(c.owner) != nil {
		return false
	}
	c.listed.Store(false)
	return true
}

// Freeze makes every change of the list of clients that may reclaim wait until Freeze(false). So
// the list and a snapshot agree when they are handed over. Grace does not wait: the grace period
// goes on meanwhile.
func (s *Server) Freeze(on bool) {
	if on {
		s.grace.frozen.Lock()
	} else {
		s.grace.frozen.Unlock()
	}
}
