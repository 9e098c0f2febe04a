package state

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ClientInfo is a client as it is at one moment.
type ClientInfo struct {
	ID        uint64
	Owner     string    // as the client sent it: any bytes, also control characters
	Confirmed bool      // false: CREATE_SESSION or SETCLIENTID_CONFIRM has not come yet
	Renewed   time.Time // when it last sent a request that renews its lease
	Expired   bool      // silent for longer than the lease; its state ends when somebody wants it
	Reclaims  bool      // it may reclaim what it had before the server's restart
	// Version is 4.0, or the minor version of a session; empty if there is no session.
	Version  string
	Sessions int
	Opens    int
	Locks    int // lock-owners with a lock stateid, for each file
	// Offloads are copies that go on after their replies.
	Offloads int
	// Delegations counts those that are valid. Revoked counts those that the server has revoked and
	// the client has not freed (FREE_STATEID). Live: the client can be called, as far as is known.
	// Answers: the client has answered a callback.
	Delegations, Revoked int
	Live, Answers        bool
}

// Clients lists the clients by ID. Each one is a copy of one moment, with its mu held; different
// clients are of different moments.
func (s *Server) Clients(now time.Time) []ClientInfo {
	out := []ClientInfo{}
	grace := s.Grace(now)
	for _, c := range s.sortedClients() {
		if c.unused(now) {
			continue // Sweep has not removed it yet
		}
		c.mu.Lock()
		i := ClientInfo{
			ID: c.ID, Owner: ownerOf(c.owner), Confirmed: c.confirmed.Load(),
			Renewed: time.Unix(0, c.renewed.Load()), Expired: c.expired(now), Reclaims: c.known && !c.complete,
			Sessions: len(c.sessions), Opens: len(c.opens), Locks: len(c.locks),
			Delegations: len(c.delegs), Revoked: c.revoked, Offloads: len(c.offloads),
		}
		i.Live, i.Answers = c.calledBack()
		for _, x := range c.sessions {
			i.Version = max(i.Version, fmt.Sprintf("4.%d", x.Minor))
		}
		if c.v40 != nil {
			i.Version, i.Reclaims = "4.0", c.known && grace // version 4.0 has no RECLAIM_COMPLETE
		}
		out = append(out, i)
		c.mu.Unlock()
	}
	return out
}

func (s *Server) sortedClients() []*Client {
	list := s.clientList()
	slices.SortFunc(list, func(a, b *Client) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// SessionInfo is a session as it is at one moment.
type SessionInfo struct {
	ID            string // in hexadecimal
	Client        uint64
	Minor         uint32
	Fore          Channel
	Used          int // slots that were used
	Busy          int // requests being executed
	CachedReplies int // bytes of cached replies
}

// Sessions lists the sessions by client. A session may have been destroyed by the time that its
// slots are counted; it is listed all the same. A session ID is a secret (SessionID): whoever shows
// this list must show it to administrators only.
func (s *Server) Sessions() []SessionInfo {
	out := []SessionInfo{}
	for _, c := range s.sortedClients() {
		c.mu.Lock()
		sessions := make([]*Session, 0, len(c.sessions))
		for _, x := range c.sessions {
			sessions = append(sessions, x)
		}
		c.mu.Unlock()
		slices.SortFunc(sessions, func(a, b *Session) int { return slices.Compare(a.ID[:], b.ID[:]) })
		for _, x := range sessions {
			i := SessionInfo{ID: hex.EncodeToString(x.ID[:]), Client: c.ID, Minor: x.Minor, Fore: x.Fore}
			x.mu.Lock()
			i.Used = len(x.slots)
			for k := range x.slots {
				i.CachedReplies += len(x.slots[k].Reply)
				if x.slots[k].busy {
					i.Busy++
				}
			}
			x.mu.Unlock()
			out = append(out, i)
		}
	}
	return out
}

// Evict ends a client and everything that it has, and reports whether it was there. If the client
// still runs, its next SEQUENCE is answered BADSESSION (in version 4.0 its next operation EXPIRED).
// It makes a new client ID then, and its locks are lost: outside a grace period it cannot reclaim.
//
// Unlike give, Evict ends the client although the journal cannot be written. The client is then
// still in the list, and may reclaim after a restart.
func (s *Server) Evict(id uint64) bool {
	c := s.client(id)
	if c == nil {
		return false
	}
	s.remove(c)
	return true
}

// GraceInfo is the grace period at one moment.
type GraceInfo struct {
	On      bool
	Until   time.Time // the latest end; zero if it is over
	Waiting []string  // owner strings of the clients that it waits for; never nil
}

// GraceState returns the grace period and the clients that it waits for.
func (s *Server) GraceState(now time.Time) GraceInfo {
	i := GraceInfo{On: s.Grace(now), Waiting: []string{}}
	if !i.On {
		return i
	}
	g := &s.grace
	g.mu.Lock()
	defer g.mu.Unlock()
	i.Until = g.until
	for owner := range g.waiting {
		i.Waiting = append(i.Waiting, ownerOf(owner))
	}
	slices.Sort(i.Waiting)
	return i
}

// errGrace is the error of EndGrace if the journal cannot be written, or is frozen for a handover.
var errGrace = errors.New("the list of clients that may reclaim cannot be written, so that the grace period goes on")

// EndGrace ends the grace period: clients that have not reclaimed what they had lose it. Those of
// version 4.1 and later that are in the middle of it lose the rest. Waiting is empty even after an
// error, so the next request that asks for Grace tries again.
func (s *Server) EndGrace(now time.Time) error {
	g := &s.grace
	g.mu.Lock()
	clear(g.waiting)
	g.mu.Unlock()
	if s.Grace(now) {
		return errGrace
	}
	return nil
}
