package state

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// A client of version 4.0 has no session. It names itself by SETCLIENTID. Any request with its
// client ID or one of its stateids renews its lease (RFC 7530 sections 9.1 and 9.5). The server
// calls the client on a connection that the server makes. Opens, locks and delegations are those of
// the later versions, so clients of different versions conflict with each other.
//
//	client                     server
//	  |--SETCLIENTID------------>|  unconfirmed record, or an update of the confirmed one
//	  |<--client ID, verifier----|
//	  |--SETCLIENTID_CONFIRM---->|  the record takes the place of the previous one,
//	  |<--OK---------------------|  or the callback information that of the record
//	  |<--CB_NULL----------------|  on a new connection
//	  |--reply------------------>|  delegations may be granted from now on

// v40 is the part of a client that only version 4.0 has. The client's mu guards the fields.
// Confirm, Callback, Update and Reaped are exported for the snapshot. Restore makes the other
// fields again.
type v40 struct {
	Confirm  Verifier // setclientid_confirm of the last SETCLIENTID that was confirmed
	Callback Callback // how the client is called, since then
	Update   *update  // of a later SETCLIENTID that waits for SETCLIENTID_CONFIRM; nil: there is none
	path     *Path    // nil: the client cannot be called

	openOwners, lockOwners map[string]*seqOwner
	idle                   map[*seqOwner]struct{} // open-owners without an open
	pending                map[*seqOwner]struct{} // open-owners with an open to be confirmed
	closed                 map[uint32]*seqOwner   // stateids whose CLOSE may be sent again, by number
	Reaped                 int64                  // when reap looked last, in Unix nanoseconds
}

// update is new callback information of a confirmed client. A client sends it when its address or
// port changes. Its state stays.
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
	NoExport  bool // no export admits the caller
	Callback  Callback
}

// ClientIDSet is the result of SETCLIENTID. With ErrClientIDInUse only InUse is valid: the callback
// address of the client that has the owner string.
type ClientIDSet struct {
	Client  uint64
	Confirm Verifier
	InUse   Callback
}

// SetClientID is SETCLIENTID (RFC 7530 section 16.33.5). Only SETCLIENTID_CONFIRM gives the result
// an effect: a SETCLIENTID with another client's owner string can end nothing.
//
//	confirmed client with the owner string      result
//	none                                        unconfirmed record, new client ID
//	another principal, with state and a lease   CLID_INUSE
//	version 4.0, same principal and verifier    Update, the same client ID
//	anything else: a restart of the client      unconfirmed record, new client ID
//
// Clients of all minor versions share one space of owner strings. A client that returns with
// another minor version replaces its earlier record when it confirms.
func (s *Server) SetClientID(now time.Time, a *SetClientID) (ClientIDSet, nfs.Status) {
	s.sweep(now)
	known := a.From.known(string(a.Owner))
	s.freeMemory(now, s.mem.peek(a.From.Host), a.NoExport, clientCost+int64(len(known)), nil)
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
		s.dropUnconfirmed(r) // of another start: a late confirmation of it must not end this client
		// A later SETCLIENTID replaces an update that was not confirmed, and with it the verifier.
		u := &update{Confirm: s.nextConfirm(), Callback: a.Callback}
		old.mu.Lock()
		old.v40.Update, old.came = u, now
		old.mu.Unlock()
		return ClientIDSet{Client: old.ID, Confirm: u.Confirm}, nfs.OK
	}
	c := s.record(now, r, known, a.Verifier, a.Principal, &a.From, a.NoExport)
	if c == nil {
		return ClientIDSet{}, nfs.ErrResource
	}
	c.v40 = &v40{Confirm: s.nextConfirm(), Callback: a.Callback}
	c.v40.init()
	return ClientIDSet{Client: c.ID, Confirm: c.v40.Confirm}, nfs.OK
}

// calledAt returns the callback information of a client. It is zero for a client of a later
// version.
func (c *Client) calledAt() Callback {
	if c.v40 == nil {
		return Callback{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v40.Callback
}

// nextConfirm returns a new setclientid_confirm: Config.Boot and a counter. The value is unique, so
// that retries and late confirmations can be told apart. It is not secret: SETCLIENTID_CONFIRM
// compares the principal as well. Call with the server's mu held.
func (s *Server) nextConfirm() (v Verifier) {
	s.confirms++
	binary.BigEndian.PutUint32(v[0:], s.cfg.Boot)
	binary.BigEndian.PutUint32(v[4:], s.confirms)
	return v
}

// ConfirmClientID is SETCLIENTID_CONFIRM (RFC 7530 section 16.34.5). news reports that the callback
// information is new: the caller then makes a path to the client.
//
//	STALE_CLIENTID  no such client ID, a verifier of no pending SETCLIENTID, or not confirmed within
//	                a lease
//	CLID_INUSE      another principal than that of SETCLIENTID
//	OK              confirmed, updated, or a retry, which changes nothing
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
		// The verifier is that of the update. After this the old verifier confirms nothing.
		c.v40.Confirm, c.v40.Callback, c.v40.Update = u.Confirm, u.Callback, nil
		c.mu.Unlock()
		return c, true, nfs.OK
	}
	c.mu.Unlock()
	if c.confirmed.Load() {
		return c, false, nfs.OK // a retry
	}
	st = s.confirm(now, c)
	switch st {
	case nfs.OK:
		c.renew(now)
		return c, true, nfs.OK
	case nfs.ErrStaleClientID:
		// Another SETCLIENTID has replaced c since the look-up above.
		c.release()
	}
	return nil, false, st
}

// expiredMax bounds the client IDs of ended clients that the server remembers. The oldest goes
// first; a client that is forgotten gets STALE_CLIENTID.
const expiredMax = 256

// noteExpired remembers the ID of a client that the server has ended. Such a client gets EXPIRED,
// because its state is gone. After STALE_CLIENTID, which means that the server has restarted, the
// Linux client would try to reclaim. Call with the server's mu held.
func (s *Server) noteExpired(c *Client) {
	if c.v40 == nil || !c.confirmed.Load() {
		return
	}
	if len(s.expired) == expiredMax {
		s.expired = append(s.expired[:0], s.expired[1:]...)
	}
	s.expired = append(s.expired, uint32(c.ID))
}

// Client40 finds a confirmed client of version 4.0 by its ID, and renews its lease (RFC 7530
// section 9.5). A connection with another identity gets STALE_CLIENTID, as if there were no such
// client.
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
	case c == nil && slices.Contains(s.expired, uint32(id)):
		return nil, nfs.ErrExpired
	}
	return nil, nfs.ErrStaleClientID
}

// ClientOf finds the client of version 4.0 to which a stateid was issued, and renews its lease. It
// does not look for the state itself; that is the task of Client.find.
//
//	BAD_STATEID    a special stateid, a client ID that was never issued, or another identity
//	STALE_STATEID  of an earlier start of the server: the client reclaims
//	EXPIRED        of a client that has ended: its state is gone
func (s *Server) ClientOf(now time.Time, id Stateid, from *From) (*Client, nfs.Status) {
	boot, n := binary.BigEndian.Uint32(id.Other[0:]), binary.BigEndian.Uint32(id.Other[4:])
	switch {
	case id.Other == Anonymous.Other || id.Other == Bypass.Other:
		return nil, nfs.ErrBadStateID
	case boot != s.cfg.Boot:
		return nil, nfs.ErrStaleStateID
	}
	// The server issues the numbers of client IDs in order, so one up to next belongs to a client that
	// exists or has existed.
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

// AnonymousIO is IO with a special stateid in version 4.0, where such a request names no client.
func (s *Server) AnonymousIO(now time.Time, f lock.File, write, bypass bool) nfs.Status {
	return s.anonymous(now, f, write, bypass)
}

// init makes the tables. Restore calls it after gob has filled the exported fields.
func (v *v40) init() {
	v.closed = make(map[uint32]*seqOwner)
	v.openOwners, v.lockOwners = make(map[string]*seqOwner), make(map[string]*seqOwner)
	v.idle, v.pending = make(map[*seqOwner]struct{}), make(map[*seqOwner]struct{})
}

// release empties the tables when the client ends. Call with the client's mu held. A request that
// waits for a turn still gets the turn, and its operation fails with EXPIRED.
func (v *v40) release() {
	clear(v.openOwners)
	clear(v.lockOwners)
	clear(v.idle)
	clear(v.pending)
	clear(v.closed)
	v.path = nil
}

// Renewed is the result of RENEW (RFC 7530 section 16.28); Client40 has renewed the lease. A client
// with delegations that the server cannot call gets CB_PATH_DOWN. It then sends SETCLIENTID with a
// new address, or returns the delegations.
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
