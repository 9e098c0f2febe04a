package state

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Channel are the attributes of one direction of a session (channel_attrs4, RFC 8881 section
// 18.36). Sizes are in bytes, of whole RPC messages. MaxCached bounds a reply that the slot
// retains.
type Channel struct {
	MaxRequest, MaxResponse, MaxCached uint32
	MaxOps, MaxSlots                   uint32
}

// Session is a session of a client. CREATE_SESSION sets all fields, and only slots and conns change
// later. mu guards slots. Of all locks only Backchannel.mu is taken under it.
type Session struct {
	ID     SessionID
	Client *Client
	// Minor is the minor version that made it.
	Minor uint32
	Fore  Channel
	// Back is the other direction, with or without connections; nil: the session has none.
	Back *Backchannel

	conns atomic.Pointer[[]int64] // see attach; nil: any connection may be used

	mu    sync.Mutex
	slots []slot // as many as were used
}

// createSlot is the reply cache of CREATE_SESSION, one per client (RFC 8881 section 18.36.4). It
// begins with Seq 0 and NFS4ERR_SEQ_MISORDERED: a client whose first request looks like a retry
// gets this status. Only success replaces the contents, so a client repeats a CREATE_SESSION that
// failed with the same number.
type createSlot struct {
	Seq    uint32
	Result Created
	Status nfs.Status
}

// CreateSession are the arguments of CREATE_SESSION that this package uses. Fore has the limits
// that the server is ready to grant.
type CreateSession struct {
	Client    uint64
	Sequence  uint32
	Principal Principal
	Integrity bool // of By
	From      From
	NoExport  bool // no export admits the caller
	Minor     uint32
	Fore      Channel
	// If CREATE_SESSION makes a session, it gets the backchannel Back and its connection Path. Each
	// may be nil.
	Back *Backchannel
	Path rpc.Caller
}

// Created is the result of CREATE_SESSION.
type Created struct {
	ID       SessionID
	Sequence uint32
	Fore     Channel
	Bound    bool // Path was bound to the session
}

// CreateSession is CREATE_SESSION (RFC 8881 section 18.36.4). The first one confirms the client,
// and ends the client that had the owner string before.
//
//	STALE_CLIENTID   no such client, of another identity, or ended
//	CLID_INUSE       the principal is not that of EXCHANGE_ID
//	WRONG_CRED       the same with state protection, or the credential does not protect the message
//	SEQ_MISORDERED   neither the next number nor a retry
//	DELAY            an unknown address, too many sessions, or no memory
func (s *Server) CreateSession(now time.Time, a *CreateSession) (Created, nfs.Status) {
	c := s.client(a.Client)
	if c == nil || c.v40 != nil {
		return Created{}, nfs.ErrStaleClientID
	}
	switch {
	case !c.is(&a.From.Identity):
		s.denied(c, "CREATE_SESSION", &a.From)
		return Created{}, nfs.ErrStaleClientID
	case !c.proves(a.Principal, a.Integrity):
		s.denied(c, "CREATE_SESSION", &a.From)
		return Created{}, c.wrong(&By{From: a.From}, nfs.ErrClientIDInUse)
	case !c.at(&a.From):
		s.denied(c, "CREATE_SESSION", &a.From)
		if c.expired(now) {
			return Created{}, nfs.ErrStaleClientID
		}
		// The client is at a new address. It has to name its verifier by EXCHANGE_ID first. DELAY makes
		// the Linux client do so where it replaces a session (nfs4_reset_session). Where CREATE_SESSION
		// follows an EXCHANGE_ID (nfs41_init_clientid) it only repeats the call. It then continues when
		// its lease has run out and it gets STALE_CLIENTID. At once, STALE_CLIENTID would cost the client
		// its locks.
		return Created{}, nfs.ErrJukebox
	}
	s.freeMemory(now, c.account, a.NoExport, a.Fore.cost(), c)
	c.mu.Lock()
	if !a.NoExport {
		c.admitted()
	}
	switch {
	case c.dead, c.unused(now):
		c.mu.Unlock()
		return Created{}, nfs.ErrStaleClientID
	case a.Sequence == c.create.Seq:
		defer c.mu.Unlock()
		return c.create.Result, c.create.Status
	case a.Sequence != c.create.Seq+1:
		c.mu.Unlock()
		return Created{}, nfs.ErrSeqMisordered
	case len(c.sessions) >= s.cfg.Sessions:
		c.mu.Unlock()
		return Created{}, nfs.ErrJukebox
	}
	a.Fore.shrink(s.mem.left(c.account, c.noExport) / sessionPart)
	if !c.room(a.Fore.cost()) {
		c.mu.Unlock()
		return Created{}, nfs.ErrJukebox
	}
	c.charge(a.Fore.cost())
	x := &Session{ID: s.sessionID(), Client: c, Minor: a.Minor, Fore: a.Fore, Back: a.Back}
	x.attach(a.From.Conn)
	bound := a.Back != nil && a.Path != nil
	if bound {
		a.Back.Bind(a.Path)
		s.delegs.possible.Store(true)
	}
	c.create = createSlot{Seq: a.Sequence, Result: Created{ID: x.ID, Sequence: a.Sequence, Fore: a.Fore, Bound: bound}}
	c.sessions[x.ID] = x
	c.renew(now)
	sh := s.shardOf(x.ID)
	sh.mu.Lock()
	sh.m[x.ID] = x
	sh.mu.Unlock()
	res := c.create.Result
	c.mu.Unlock()
	if st := s.confirm(now, c); st != nfs.OK {
		s.remove(c)
		return Created{}, st
	}
	return res, nfs.OK
}

// confirm makes c the client of its owner string and ends the previous one. It returns
// ErrStaleClientID if another EXCHANGE_ID has replaced c meanwhile, and ErrClientIDInUse if another
// principal owns the previous client and that one has sessions or state. Call with no lock held:
// Server.mu comes before Client.mu.
func (s *Server) confirm(now time.Time, c *Client) nfs.Status {
	if c.confirmed.Load() {
		return nfs.OK
	}
	s.mu.Lock()
	r := s.owners[c.owner]
	if r == nil || r.unconfirmed != c {
		defer s.mu.Unlock()
		if c.confirmed.Load() {
			return nfs.OK
		}
		return nfs.ErrStaleClientID
	}
	old := r.confirmed
	if old != nil && old.principal != c.principal && old.inUse(now) {
		s.mu.Unlock()
		return nfs.ErrClientIDInUse
	}
	r.confirmed, r.unconfirmed = c, nil
	if old != nil {
		delete(s.clients, uint32(old.ID))
	}
	c.confirmed.Store(true)
	s.mu.Unlock()
	c.mu.Lock()
	if !c.noExport {
		c.admitted()
	}
	c.mu.Unlock()
	if old != nil {
		c.succeed(old)
		old.release()
		s.changed(old, Replaced)
	}
	s.changed(c, Established)
	return nfs.OK
}

// Session finds a session; nil: there is none. The session may end while the caller uses it.
func (s *Server) Session(id SessionID) *Session {
	sh := s.shardOf(id)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.m[id]
}

func (s *Server) dropSession(id SessionID) {
	sh := s.shardOf(id)
	sh.mu.Lock()
	delete(sh.m, id)
	sh.mu.Unlock()
}

// DestroySession is DESTROY_SESSION (RFC 8881 section 18.37.3). Opens, locks and delegations belong
// to the client and stay. A caller that is not the session's client gets BADSESSION.
func (s *Server) DestroySession(id SessionID, by *By) nfs.Status {
	x := s.Session(id)
	if x == nil {
		return nfs.ErrBadSession
	}
	c := x.Client
	if !c.by(by) {
		s.denied(c, "DESTROY_SESSION", &by.From)
		return c.wrong(by, nfs.ErrBadSession)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[id] == nil {
		return nfs.ErrBadSession
	}
	delete(c.sessions, id)
	c.charge(-x.Fore.cost())
	s.dropSession(id)
	return nfs.OK
}
