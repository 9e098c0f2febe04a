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

// Session is a session of a client. All fields but slots stay as CREATE_SESSION has made them. mu
// guards slots; of all locks only Backchannel.mu is taken under it.
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

// slot is one entry of the reply cache (RFC 8881 section 2.10.6.1). The exported fields are of the
// last request that was executed, the others of one in execution:
//
//	idle  --SEQUENCE with Seq+1-->  busy  --Finish-->  idle, Seq+1, reply replaced
//	                                  `--Cancel-->  idle, unchanged
//
// An error of SEQUENCE changes no slot (RFC 8881 section 2.10.6.1.2).
type slot struct {
	Seq    uint32 // 0: before the first request; wraps around to 0
	Digest uint64 // of the request with Seq; 0: none was executed yet
	Cached bool   // Reply is valid
	Reply  []byte
	busy   bool          // seq+1 is being executed
	next   uint64        // its digest
	done   chan struct{} // a retry waits for the end; nil: none does
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
		// The client is to name its verifier in an EXCHANGE_ID first. The Linux client does so after
		// DELAY where it replaces a session (nfs4_reset_session), but not where CREATE_SESSION follows an
		// EXCHANGE_ID (nfs41_init_clientid): then it gets on when its lease has run out. STALE_CLIENTID
		// would cost it its locks.
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

// Request has what SEQUENCE says of a compound, and what the caller knows of the compound.
type Request struct {
	Session  SessionID
	From     From
	Sequence uint32
	Slot     uint32
	Highest  uint32 // highest slot that the client uses
	Digest   uint64 // of arguments and credential, to tell a retry from another request
	Ops      uint32 // operations of the compound
	Size     uint32 // of the whole RPC message in bytes
	Minor    uint32
	MayWait  bool // the caller can wait for Use.Done
}

// Verdict is what the caller does with a request.
type Verdict uint8

// Verdicts of Sequence.
const (
	// Execute it, and then call Use.Finish or Use.Cancel.
	Execute Verdict = iota
	// Replay: answer with Use.Reply.
	Replay
	// Uncached: the request was executed, but the slot has no reply.
	Uncached
	// Wait: the request is being executed. Call Sequence again when Use.Done is closed. Done is nil
	// if the request cannot wait.
	Wait
)

// Use is a slot in use by a request.
type Use struct {
	Session *Session
	Slot    uint32
	// Sequence is that of the request.
	Sequence uint32
	Reply    []byte // Replay: a copy
	Done     <-chan struct{}
}

// Sequence is the part of SEQUENCE that decides about a request (RFC 8881 section 18.46.3). After
// Execute without an error the caller owns the slot until Finish or Cancel. A retry of a request in
// execution waits, or gets DELAY (section 2.10.6.2). One retry of a slot can wait: a client cannot
// tie up more workers than it has slots. An error changes no slot:
//
//	BADSESSION                 no such session, another identity, or another minor version
//	CONN_NOT_BOUND_TO_SESSION  an address from which the client has not named itself, or with state
//	                           protection a connection that the client has not bound
//	BADSLOT, BAD_HIGH_SLOT     beyond the slots of the session
//	SEQ_MISORDERED             neither the next nor the last number of the slot
//	SEQ_FALSE_RETRY            the last number, another request (section 2.10.6.1.3.1)
//	TOO_MANY_OPS, REQ_TOO_BIG  beyond what CREATE_SESSION has granted
func (s *Server) Sequence(now time.Time, r *Request) (Use, Verdict, nfs.Status) {
	x := s.Session(r.Session)
	if x == nil {
		return Use{}, Execute, nfs.ErrBadSession
	}
	if c := x.Client; !c.at(&r.From) {
		s.denied(c, "SEQUENCE", &r.From)
		if !c.is(&r.From.Identity) {
			return Use{}, Execute, nfs.ErrBadSession
		}
		return Use{}, Execute, nfs.ErrConnNotBound // the client may have another address
	}
	switch {
	case !x.attached(r.From.Conn):
		s.denied(x.Client, "SEQUENCE", &r.From)
		return Use{}, Execute, nfs.ErrConnNotBound
	case r.Slot >= x.Fore.MaxSlots:
		return Use{}, Execute, nfs.ErrBadSlot
	case r.Highest >= x.Fore.MaxSlots:
		return Use{}, Execute, nfs.ErrBadHighSlot
	case r.Minor != x.Minor:
		return Use{}, Execute, nfs.ErrBadSession
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.Slot >= uint32(len(x.slots)) {
		x.slots = append(x.slots, make([]slot, r.Slot+1-uint32(len(x.slots)))...) // at most MaxSlots
	}
	k := &x.slots[r.Slot]
	u := Use{Session: x, Slot: r.Slot, Sequence: r.Sequence}
	switch {
	case k.busy && r.Sequence == k.Seq+1 && !r.MayWait:
		return u, Wait, nfs.OK
	case k.busy && r.Sequence == k.Seq+1:
		if r.Digest != k.next || k.done != nil {
			return u, Execute, nfs.ErrJukebox // one may wait, no more
		}
		k.done = make(chan struct{})
		u.Done = k.done
		return u, Wait, nfs.OK
	case k.busy:
		return u, Execute, nfs.ErrSeqMisordered
	case r.Sequence == k.Seq+1:
	case r.Sequence == k.Seq && k.Seq == 0 && k.Digest == 0:
		return u, Execute, nfs.ErrSeqMisordered // nothing was executed here
	case r.Sequence == k.Seq:
		x.Client.renew(now)
		if r.Digest != k.Digest {
			return u, Execute, nfs.ErrSeqFalseRetry
		}
		if !k.Cached {
			return u, Uncached, nfs.OK
		}
		u.Reply = append([]byte(nil), k.Reply...)
		return u, Replay, nfs.OK
	default:
		return u, Execute, nfs.ErrSeqMisordered
	}
	switch {
	case r.Ops > x.Fore.MaxOps:
		return u, Execute, nfs.ErrTooManyOps
	case r.Size > x.Fore.MaxRequest:
		return u, Execute, nfs.ErrReqTooBig
	}
	k.busy, k.next = true, r.Digest
	x.Client.renew(now)
	return u, Execute, nfs.OK
}

// replyMax is the capacity, in bytes, up to which a slot reuses the buffer of its last reply.
const replyMax = 1 << 10

// Finish ends a request that was executed, and copies reply into the slot. After a nil reply a
// retry is Uncached (RETRY_UNCACHED_REP, RFC 8881 section 2.10.6.1.3). Finish runs before the reply
// is sent: a client that loses the reply finds it in the slot.
func (u *Use) Finish(reply []byte) {
	x := u.Session
	x.mu.Lock()
	defer x.mu.Unlock()
	k := &x.slots[u.Slot]
	k.Seq++
	k.Digest = k.next
	k.Cached = reply != nil
	if cap(k.Reply) > replyMax {
		k.Reply = nil
	}
	k.Reply = append(k.Reply[:0], reply...)
	k.free()
}

// Cancel frees the slot of a request of which nothing was executed. The same request may come
// again.
func (u *Use) Cancel() {
	x := u.Session
	x.mu.Lock()
	defer x.mu.Unlock()
	x.slots[u.Slot].free()
}

func (k *slot) free() {
	k.busy = false
	if k.done != nil {
		close(k.done)
		k.done = nil
	}
}
