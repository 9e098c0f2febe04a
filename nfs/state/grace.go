package state

import (
	"sync"
	"sync/atomic"
	"time"
)

// After a restart of the server, clients that had state before may reclaim it. Until they have done
// so, or the grace period is over, nobody gets any new state (RFC 8881 section 8.4.2).
//
// The list of these clients is the Journal, which is on stable storage. Each change of the list is
// stable before the step that needs it:
//
//	step                                        before it
//	a client opens its first file               Add (enlist)
//	others get the state of a silent client     Remove (give, delist)
//	the grace period ends                       Remove of all that did not come back (Grace)
//
// So a second restart does not let a client reclaim what somebody else had meanwhile (RFC 7530
// section 9.6.3.4 calls these the edge conditions). If the list cannot be written, the step does
// not happen: the OPEN is delayed, the silent client keeps its state, the grace period goes on.
//
// A client of version 4.1 or later that has come back, and has not sent RECLAIM_COMPLETE by the
// end, is removed as well: it may lack a part of what it had (RFC 8881 section 8.4.3). It is in the
// list again when it sends RECLAIM_COMPLETE, or opens something.
//
//	start                                          all have reclaimed, or until
//	  |------------------- grace -------------------|------------ normal ------------>
//	  reclaim by a known client: yes                 NO_GRACE
//	  reclaim by another one: NO_GRACE               NO_GRACE
//	  OPEN, LOCK without reclaim: GRACE              yes, from 4.1 on after RECLAIM_COMPLETE
//	  READ, WRITE with a special stateid: GRACE      yes
//
// Clients of version 4.0 have no RECLAIM_COMPLETE. If one of them is known, the period lasts until
// its end time. A server that starts with an empty list has no grace period.

// grace is the period and the list.
type grace struct {
	on    atomic.Bool                     // the period may last; never true again
	until time.Time                       // the latest end
	known atomic.Pointer[map[string]bool] // clients that may reclaim; the map never changes

	// frozen is read-locked by whoever may write the journal, and taken before mu. Server.Freeze
	// locks it for writing.
	frozen sync.RWMutex

	// mu is held while the journal is written: a write to disk under a lock. Only three steps wait for
	// it: the first state of a client, the end of a client, and the end of the period. Client.mu must
	// not be held then, or all requests of the client would wait for the disk.
	mu      sync.Mutex
	waiting map[string]bool    // those of known that have not sent RECLAIM_COMPLETE
	again   map[string]bool    // those of known that had sent it before, see BeginReclaim
	list    map[string]*Client // the clients in the journal; nil: the client has no state since this start
	cluster Cluster            // nil: the period is of this server alone
	journal Journal            // nil: nothing is written, and no client may reclaim after the next start
}

// init fills the list from Config.Known. In a cluster the records of these clients are of an
// earlier epoch, and the list of the new one begins empty. The keys of the maps are owner strings
// with the identity in front, see Identity.known: a client that comes back over TLS as somebody
// else reclaims nothing.
func (g *grace) init(cfg *Config) {
	g.journal = cfg.Journal
	g.until = cfg.GraceUntil
	g.cluster = cfg.Cluster
	known := make(map[string]bool)
	g.waiting, g.list = make(map[string]bool), make(map[string]*Client)
	for _, owner := range cfg.Known {
		known[owner], g.waiting[owner] = true, true
		if g.cluster == nil {
			g.list[owner] = nil
		}
	}
	g.known.Store(&known)
	g.on.Store(len(known) > 0 || g.cluster != nil)
}

// add and remove change the list, on stable storage first. After an error of the journal the list
// is unchanged. Call with mu held, and frozen read-locked.
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

// Grace reports whether the grace period lasts, in which nobody gets new state. The first call
// after the time of the period ends it: Grace then removes from the journal the clients that did
// not come back. So it may write to disk. Callers that must not wait use GracePending.
//
// In a cluster the period ends when the cluster says so, see Recovered.
func (s *Server) Grace(now time.Time) bool {
	g := &s.grace
	if g.cluster != nil {
		return g.cluster.Grace()
	}
	if !g.on.Load() {
		return false
	}
	if !g.frozen.TryRLock() {
		return true // frozen: the period ends when the journal may be written again
	}
	defer g.frozen.RUnlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.on.Load() {
		return false
	}
	if now.Before(g.until) && len(g.waiting) > 0 || g.expire() != nil {
		return true
	}
	g.on.Store(false)
	return false
}

// expire removes from the list the clients that have not come back, and those that have not
// reclaimed all. Call with mu held, and frozen read-locked.
func (g *grace) expire() error {
	var gone []string
	var partly []*Client
	for owner, c := range g.list {
		switch {
		case c == nil:
			gone = append(gone, owner)
		case c.v40 == nil && g.waiting[owner] && !g.again[owner]:
			gone, partly = append(gone, owner), append(partly, c)
		}
	}
	if err := g.remove(gone...); err != nil {
		return err // after a restart they could reclaim what somebody else gets now
	}
	for _, c := range partly {
		c.listed.Store(false)
	}
	return nil
}

// othersReclaim reports whether clients of another protocol may be reclaiming locks: NLM has a
// grace period of its own. A new lock during it could take the range that a client of NLM is about
// to reclaim.
func (s *Server) othersReclaim() bool { return s.cfg.OthersReclaim != nil && s.cfg.OthersReclaim() }

// GracePending reports whether a grace period may last. Unlike Grace it never writes to the
// journal.
func (s *Server) GracePending() bool {
	if g := &s.grace; g.cluster != nil {
		return g.cluster.Grace()
	}
	return s.grace.on.Load()
}

// reclaimed notes RECLAIM_COMPLETE of a client (RFC 8881 section 18.51.3). When the last client
// that the period waits for sends it, the next call of Grace ends the period before its time.
func (g *grace) reclaimed(owner string) {
	if !g.on.Load() {
		return
	}
	g.mu.Lock()
	delete(g.waiting, owner)
	delete(g.again, owner)
	g.mu.Unlock()
}

// enlist adds the client to the list before it gets its first state. It reports false if the
// journal cannot be written: then the request is answered DELAY. All later calls read one flag.
// While the list is frozen enlist waits. Call without the client's mu.
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

// succeed gives a client the place in the list that its earlier start has. The state of the earlier
// start is gone, but the journal still has the client's owner string, and nothing else. So nothing
// needs to be written.
func (c *Client) succeed(old *Client) {
	g := &c.s.grace
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list[c.owner] == old {
		g.list[c.owner] = c
		c.listed.Store(true)
	}
}

// delist removes a client whose state is gone from the list. If a later start of the client has its
// place there, the place stays. delist returns false if the journal cannot be written.
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
// the list and a snapshot agree when they are handed over: the old process must not write the
// journal after the successor has its copy. Grace does not wait: the grace period goes on
// meanwhile.
//
// Freeze(true) waits for a write of the journal under way. A second Freeze(true) without a
// Freeze(false) between blocks for ever.
func (s *Server) Freeze(on bool) {
	if on {
		s.grace.frozen.Lock()
	} else {
		s.grace.frozen.Unlock()
	}
}
