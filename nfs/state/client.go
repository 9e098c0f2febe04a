package state

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Principal is the user who acts for a client. It is the part of a credential that stays the same
// over all calls of one user of a host. With Kerberos it is the name, under any service.
type Principal struct {
	Flavor rpc.AuthFlavor
	UID    uint32
	Name   string
}

// Verifier is a client's verifier4: it changes when the client restarts.
type Verifier [8]byte

// Client is the record of a client: the result of one EXCHANGE_ID or SETCLIENTID. After a restart
// of the client there is a new Client.
type Client struct {
	ID uint64

	s         *Server
	name      string // in the table of byte-range locks
	owner     string // with the identity in front, see Identity.known
	verifier  Verifier
	principal Principal
	protected *Protection             // nil: it has no state protection; set before others see it
	bound     atomic.Pointer[binding] // nil: no identity was recorded, and any connection may use it
	confirmed atomic.Bool
	renewed   atomic.Int64 // nanoseconds of the Unix time
	account   *account     // of the host that it came from first
	known     bool         // it may have something to reclaim: a journal had it. Guarded by mu
	again     bool         // it may reclaim although complete is true, see BeginReclaim. Guarded by mu
	came      time.Time    // when it sent EXCHANGE_ID or SETCLIENTID last. Guarded by mu
	listed    atomic.Bool  // the journal has it: it may reclaim after a restart

	anyRevoked atomic.Bool // revoked > 0

	mu          sync.Mutex
	dead        bool
	charged     int64 // see memory
	noExport    bool  // no export admits it, as far as is known
	mounted     bool  // it counts in account.mounts
	left        bool  // its memory was subtracted from account; charge does nothing from then on
	complete    bool  // RECLAIM_COMPLETE was done
	sessions    map[SessionID]*Session
	create      createSlot
	opens       map[openKey]*open
	locks       map[openKey]*locks
	delegs      map[lock.File]*deleg // without the revoked ones
	recalledAny int64                // time of the last CB_RECALL_ANY
	revoked     int
	offloads    map[uint32]*Offload // by number
	notices     map[[12]byte]*Notice
	states      map[uint32]any // *open, *locks, *deleg or *Offload, by number
	nstate      uint32
	v40         *v40 // of a client of version 4.0; set before others see it
}

// records are the clients with one owner string: at most one confirmed client, and at most one
// unconfirmed client. CREATE_SESSION or SETCLIENTID_CONFIRM replaces the first by the second.
type records struct{ confirmed, unconfirmed *Client }

func (c *Client) renew(now time.Time) { c.renewed.Store(now.UnixNano()) }

// expired reports whether the lease has run out.
func (c *Client) expired(now time.Time) bool {
	return now.UnixNano()-c.renewed.Load() > int64(c.s.cfg.Lease)
}

// inUse reports whether the client would lose anything if another principal replaced it now:
// sessions or states, while its lease lasts.
func (c *Client) inUse(now time.Time) bool {
	if c.expired(now) {
		return false
	}
	sessions, states := c.holdings()
	return sessions+states > 0
}

// unused reports whether the client was not confirmed within its lease. It then counts as missing
// (RFC 8881 section 18.35.4, RFC 7530 section 9.1.1).
func (c *Client) unused(now time.Time) bool { return !c.confirmed.Load() && c.expired(now) }

// holdings counts the sessions and the states of the client.
func (c *Client) holdings() (sessions, states int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sessions), len(c.states)
}

// lockClient is the client's name in the table of byte-range locks.
func lockClient(id uint64) string { return fmt.Sprintf("nfs4 %016x", id) }

// lockClientID is the inverse of lockClient. ok is false for a client of another protocol.
func lockClientID(name string) (id uint64, ok bool) {
	n, err := fmt.Sscanf(name, "nfs4 %016x", &id)
	return id, n == 1 && err == nil
}

// ExchangeID are the arguments of EXCHANGE_ID (RFC 8881 section 18.35.4).
type ExchangeID struct {
	Owner     []byte
	Verifier  Verifier
	Principal Principal
	Integrity bool        // of By
	Protect   *Protection // what the server would grant; nil: the client asks for no state protection
	From      From
	NoExport  bool // no export admits the caller
	Update    bool // EXCHGID4_FLAG_UPD_CONFIRMED_REC_A
}

// Exchanged is the result of EXCHANGE_ID.
type Exchanged struct {
	Client    uint64
	Sequence  uint32 // of the next CREATE_SESSION
	Confirmed bool
	Protected *Protection // of the client; nil: none
}

// ExchangeID finds the record of a client owner. If there is none it makes one, which the next
// CREATE_SESSION confirms.
func (s *Server) ExchangeID(now time.Time, a *ExchangeID) (Exchanged, nfs.Status) {
	s.sweep(now)
	known := a.From.known(string(a.Owner))
	s.freeMemory(now, s.mem.peek(a.From.Host), a.NoExport, clientCost+int64(len(known)), nil)
	s.mu.Lock()
	r := s.owners[known]
	if r == nil {
		r = &records{}
	}
	old := r.confirmed
	if a.Update {
		defer s.mu.Unlock()
		switch {
		case old == nil || old.v40 != nil:
			return Exchanged{}, nfs.ErrNoEnt
		case old.verifier != a.Verifier:
			return Exchanged{}, nfs.ErrNotSame
		case !old.proves(a.Principal, a.Integrity):
			return Exchanged{}, nfs.ErrPerm
		}
		old.join(a.From.Host)
		return old.exchanged(), nfs.OK
	}
	var gone *Client
	if old != nil && !old.proves(a.Principal, a.Integrity) {
		if old.inUse(now) {
			s.mu.Unlock()
			return Exchanged{}, nfs.ErrClientIDInUse
		}
		// Case 3: two clients have chosen one owner string. The older record ends at once, and no session
		// can be made with its client ID any more.
		delete(s.clients, uint32(old.ID))
		s.noteExpired(old)
		r.confirmed, gone, old = nil, old, nil
	}
	if old != nil && old.v40 == nil && old.verifier == a.Verifier {
		defer s.mu.Unlock()
		old.join(a.From.Host)
		old.mu.Lock()
		old.came = now
		old.mu.Unlock()
		return old.exchanged(), nfs.OK
	}
	c := s.record(now, r, known, a.Verifier, a.Principal, &a.From, a.NoExport)
	if c != nil {
		c.protected = a.Protect
	}
	s.mu.Unlock()
	if gone != nil {
		gone.delist()
		gone.release()
		s.changed(gone, Ended)
	}
	if c == nil {
		return Exchanged{}, nfs.ErrJukebox
	}
	return c.exchanged(), nfs.OK
}

// record makes an unconfirmed record. It replaces an earlier unconfirmed record of the same owner.
// The result is nil if there are too many clients. Call with mu held.
func (s *Server) record(
	now time.Time, r *records, known string, verf Verifier, p Principal, from *From, noExport bool,
) *Client {
	defer func() {
		if *r == (records{}) {
			delete(s.owners, known) // the table or the host has no room for another client
		}
	}()
	s.dropUnconfirmed(r)
	if len(s.clients) >= s.cfg.Clients {
		return nil
	}
	s.next++
	for s.clients[s.next] != nil {
		s.next++
	}
	c := s.newClient(uint64(s.cfg.Boot)<<32|uint64(s.next), known, verf, p)
	if !c.enterAccount(from.Host, noExport) {
		return nil
	}
	c.known, c.came = (*s.grace.known.Load())[c.owner], now
	c.create.Status = nfs.ErrSeqMisordered
	c.bound.Store(&binding{from.Identity, []netip.Addr{from.Host}})
	c.renew(now)
	r.unconfirmed = c
	s.clients[s.next] = c
	s.owners[c.owner] = r
	return c
}

func (s *Server) newClient(id uint64, known string, verf Verifier, p Principal) *Client {
	return &Client{
		ID: id, s: s, name: lockClient(id), owner: known, verifier: verf, principal: p,
		sessions: make(map[SessionID]*Session), opens: make(map[openKey]*open),
		locks: make(map[openKey]*locks), states: make(map[uint32]any),
	}
}

// dropUnconfirmed forgets the unconfirmed client of an owner. Call with mu held.
func (s *Server) dropUnconfirmed(r *records) {
	u := r.unconfirmed
	if u == nil {
		return
	}
	u.mu.Lock()
	u.leaveAccount()
	u.mu.Unlock()
	delete(s.clients, uint32(u.ID))
	r.unconfirmed = nil
}

func (c *Client) exchanged() Exchanged {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Exchanged{
		Client: c.ID, Sequence: c.create.Seq + 1, Confirmed: c.confirmed.Load(), Protected: c.protected,
	}
}

// DestroyClient is DESTROY_CLIENTID (section 18.50.3).
func (s *Server) DestroyClient(id uint64, by *By) nfs.Status {
	c := s.client(id)
	if c == nil || c.v40 != nil {
		return nfs.ErrStaleClientID
	}
	if !c.by(by) || !c.at(&by.From) {
		s.denied(c, "DESTROY_CLIENTID", &by.From)
		return c.wrong(by, nfs.ErrStaleClientID)
	}
	if sessions, states := c.holdings(); sessions+states > 0 {
		return nfs.ErrClientIDBusy
	}
	s.remove(c)
	return nfs.OK
}

// remove ends a client and everything that it has.
func (s *Server) remove(c *Client) {
	s.mu.Lock()
	there := false
	if s.clients[uint32(c.ID)] == c {
		delete(s.clients, uint32(c.ID))
		s.noteExpired(c)
	}
	if r := s.owners[c.owner]; r != nil {
		if there = r.confirmed == c; there {
			r.confirmed = nil
		}
		if r.unconfirmed == c {
			r.unconfirmed = nil
		}
		if r.confirmed == nil && r.unconfirmed == nil {
			delete(s.owners, c.owner)
		}
	}
	s.mu.Unlock()
	if there {
		c.delist()
	}
	c.release()
	if there {
		s.changed(c, Ended)
	}
}

// give ends a client whose lease has run out, so that other clients get its state. It returns false
// if the journal cannot be written. Then the client keeps its state and the other clients wait.
// Otherwise the client could, after a restart of the server, reclaim what they have got meanwhile.
func (s *Server) give(c *Client) bool {
	if !c.delist() {
		return false
	}
	s.remove(c)
	return true
}

// release ends all state of the client. Its calls in progress see dead and fail.
func (c *Client) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return
	}
	c.dead = true
	for id := range c.sessions {
		c.s.dropSession(id)
	}
	for _, o := range c.opens {
		c.s.unshare(o)
	}
	for _, d := range c.delegs {
		c.s.unshareDeleg(d)
	}
	for _, o := range c.offloads {
		c.dropOffload(o)
	}
	for _, n := range c.notices {
		c.dropNotice(n)
	}
	if len(c.locks) > 0 {
		c.s.cfg.Locks.Drop(c.name)
	}
	clear(c.sessions)
	clear(c.opens)
	clear(c.locks)
	clear(c.delegs)
	clear(c.states)
	c.leaveAccount()
	if c.v40 != nil {
		c.v40.release()
	}
}

// ReclaimComplete is RECLAIM_COMPLETE for all file systems (section 18.51.3).
func (c *Client) ReclaimComplete() nfs.Status {
	st, has := c.completes(true)
	if st != nfs.OK {
		return st
	}
	c.s.grace.reclaimed(c.owner)
	if has && !c.enlist() {
		_, _ = c.completes(false)
		return nfs.ErrJukebox
	}
	return nfs.OK
}

// completes records whether the client has sent RECLAIM_COMPLETE. has says whether the client has
// any state.
func (c *Client) completes(yes bool) (st nfs.Status, has bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.dead:
		return nfs.ErrStaleClientID, false
	case c.complete && yes && !c.again:
		return nfs.ErrCompleteAlready, false
	}
	c.complete, c.again = yes, false
	return nfs.OK, len(c.states) > 0
}
