package state

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// A client of version 4.0 has no session: it says who it is by SETCLIENTID, renews its
// lease by whatever names its client ID or a stateid of it, and is called on a connection
// that the server makes (RFC 7530 sections 9.1 and 9.5). What it opens and locks is what
// clients of later versions open and lock.

// v40 is what a client of version 4.0 has beside that. Its client's mu guards it.
type v40 struct {
	Confirm  Verifier // setclientid_confirm of the record
	Callback Callback
	Update   *update // waits for SETCLIENTID_CONFIRM
	path     *Path   // nil: the client cannot be called

	openOwners, lockOwners map[string]*seqOwner
	idle                   map[*seqOwner]struct{} // open-owners without an open
	pending                map[*seqOwner]struct{} // open-owners with an open to be confirmed
	closed                 map[uint32]*seqOwner   // stateids whose CLOSE may be sent again, by number
	Reaped                 int64                  // when, in nanoseconds of the Unix time
}

// update is callback information of a client that is known already.
type update struct {
	Confirm  Verifier
	Callback Callback
}

// SetClientID are the arguments of SETCLIENTID.
type SetClientID struct {
	Owner     []byte
	Verifier  Verifier
	Principal Principal
	From      From
	Stranger  bool // no export admits the caller
	Callback  Callback
}

// ClientIDSet is its result. Of ErrClientIDInUse it has InUse alone: how the client that
// has the owner string wants to be called.
type ClientIDSet struct {
	Client  uint64
	Confirm Verifier
	InUse   Callback
}

// SetClientID is SETCLIENTID (RFC 7530 section 16.33.5). The owner strings of all minor
// versions are of one kind: a client that comes back by another version ends the one
// that it was, once it has confirmed that.
func (s *Server) SetClientID(now time.Time, a *SetClientID) (ClientIDSet, nfs.Status) {
	s.sweep(now)
	known := a.From.known(string(a.Owner))
	s.relieve(now, s.mem.peek(a.From.Host), a.Stranger, clientCost+int64(len(known)), nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.owners[known]
	if r == nil {
		r = &records{}
	}
	old := r.confirmed
	switch {
	case old == nil:
	case old.principal != a.Principal:
		if old.inUse(now) {
			return ClientIDSet{InUse: old.calledAt()}, nfs.ErrClientIDInUse
		}
	case old.v40 != nil && old.verifier == a.Verifier:
		s.dropUnconfirmed(r) // of another start: its confirmation is late, and must not end this one
		u := &update{Confirm: s.nextConfirm(), Callback: a.Callback}
		old.mu.Lock()
		old.v40.Update = u
		old.mu.Unlock()
		return ClientIDSet{Client: old.ID, Confirm: u.Confirm}, nfs.OK
	}
	c := s.record(now, r, known, a.Verifier, a.Principal, &a.From, a.Stranger)
	if c == nil {
		return ClientIDSet{}, nfs.ErrResource
	}
	c.v40 = &v40{Confirm: s.nextConfirm(), Callback: a.Callback}
	c.v40.init()
	return ClientIDSet{Client: c.ID, Confirm: c.v40.Confirm}, nfs.OK
}

// calledAt is how a client wants to be called; nothing for one of a later version.
func (c *Client) calledAt() Callback {
	if c.v40 == nil {
		return Callback{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v40.Callback
}

// nextConfirm is a setclientid_confirm that there was not before. Call with the server's
// mu held.
func (s *Server) nextConfirm() (v Verifier) {
	s.confirms++
	binary.BigEndian.PutUint32(v[0:], s.cfg.Boot)
	binary.BigEndian.PutUint32(v[4:], s.confirms)
	return v
}

// ConfirmClientID is SETCLIENTID_CONFIRM (section 16.34.5). News reports whether how the
// client is called has changed: the caller then gives it a path.
func (s *Server) ConfirmClientID(
	now time.Time, id uint64, confirm Verifier, p Principal,
) (c *Client, news bool, st nfs.Status) {
	c = s.client(id)
	if c == nil || c.v40 == nil {
		return nil, false, nfs.ErrStaleClientID
	}
	c.mu.Lock()
	u := c.v40.Update
	switch {
	case c.dead, c.unused(now), c.v40.Confirm != confirm && (u == nil || u.Confirm != confirm):
		c.mu.Unlock()
		return nil, false, nfs.ErrStaleClientID
	case c.principal != p:
		c.mu.Unlock()
		return nil, false, nfs.ErrClientIDInUse
	case c.v40.Confirm != confirm:
		c.v40.Confirm, c.v40.Callback, c.v40.Update = u.Confirm, u.Callback, nil
		c.mu.Unlock()
		return c, true, nfs.OK
	}
	c.mu.Unlock()
	if c.confirmed.Load() {
		return c, false, nfs.OK // sent again
	}
	st = s.confirm(now, c)
	switch st {
	case nfs.OK:
		c.renew(now)
		return c, true, nfs.OK
	case nfs.ErrStaleClientID:
		c.release()
	}
	return nil, false, st
}

// lapsedMax is how many clients are remembered whose lease is known to have run out.
const lapsedMax = 256

// lapse remembers that a client has lost what it had. Call with the server's mu held.
func (s *Server) lapse(c *Client) {
	if c.v40 == nil || !c.confirmed.Load() {
		return
	}
	if len(s.lapsed) == lapsedMax {
		s.lapsed = append(s.lapsed[:0], s.lapsed[1:]...)
	}
	s.lapsed = append(s.lapsed, uint32(c.ID))
}

// Client40 finds a confirmed client of version 4.0 by its ID, and renews its lease.
func (s *Server) Client40(now time.Time, id uint64, from *From) (*Client, nfs.Status) {
	if uint32(id>>32) != s.cfg.Boot {
		return nil, nfs.ErrStaleClientID
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	c := s.clients[uint32(id)]
	switch {
	case c != nil && c.v40 != nil && c.confirmed.Load() && c.is(&from.Identity):
		c.renew(now)
		return c, nfs.OK
	case c == nil && slices.Contains(s.lapsed, uint32(id)):
		return nil, nfs.ErrExpired
	}
	return nil, nfs.ErrStaleClientID
}

// ClientOf finds the client of version 4.0 that a stateid was issued to, and renews its lease.
func (s *Server) ClientOf(now time.Time, id Stateid, from *From) (*Client, nfs.Status) {
	boot, n := binary.BigEndian.Uint32(id.Other[0:]), binary.BigEndian.Uint32(id.Other[4:])
	switch {
	case id.Other == Anonymous.Other || id.Other == Bypass.Other:
		return nil, nfs.ErrBadStateID
	case boot != s.cfg.Boot:
		return nil, nfs.ErrStaleStateID
	}
	s.mu.RLock()
	c, issued := s.clients[n], n != 0 && n <= s.next
	s.mu.RUnlock()
	switch {
	case c != nil && c.v40 != nil && c.confirmed.Load() && c.is(&from.Identity):
		c.renew(now)
		return c, nfs.OK
	case c == nil && issued:
		return nil, nfs.ErrExpired
	}
	return nil, nfs.ErrBadStateID
}

// AnonymousIO is IO of somebody of whom nothing is known.
func (s *Server) AnonymousIO(now time.Time, f lock.File, write, bypass bool) nfs.Status {
	return s.anonymous(now, f, write, bypass)
}

func (v *v40) init() {
	v.closed = make(map[uint32]*seqOwner)
	v.openOwners, v.lockOwners = make(map[string]*seqOwner), make(map[string]*seqOwner)
	v.idle, v.pending = make(map[*seqOwner]struct{}), make(map[*seqOwner]struct{})
}

func (v *v40) release() {
	clear(v.openOwners)
	clear(v.lockOwners)
	clear(v.idle)
	clear(v.pending)
	clear(v.closed)
	v.path = nil
}

// Renewed is RENEW (section 16.28) of a client that was found: it hears that it cannot be
// called, if it has a delegation that it might be called for.
func (c *Client) Renewed() nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return nfs.ErrExpired
	}
	if live, _ := c.calledBack(); !live && len(c.delegs) > 0 {
		return nfs.ErrCBPathDown
	}
	return nfs.OK
}
