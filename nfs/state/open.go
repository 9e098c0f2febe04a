package state

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Bits of share_access and share_deny (RFC 8881 section 9.7). The decoder of OPEN has
// removed the flags for delegations in the upper bits of share_access.
const (
	Read  = 1
	Write = 2
	Both  = Read | Write
)

// openKey identifies an open, or a lock stateid, among those of one client. An owner has at most
// one of each for a file: a second OPEN of an open-owner changes its first one (RFC 8881 section
// 9.8). Owner is the opaque string of the client and may contain any bytes.
type openKey struct {
	Owner string
	File  lock.File
}

// open is an open of a file by an open-owner. The client's mu guards the fields. Share is also read
// by requests of other clients, which lock the shard of the file only. So a change of Share takes
// both locks, and one of them is enough to read Share.
type open struct {
	c   *Client
	Key openKey
	Num uint32    // key in Client.states; never 0
	Seq uint32    // seqid of the stateid; never 0 once the client has the stateid
	by  *seqOwner // the open-owner in version 4.0, else nil
	// Pinned: Config.Unpin is called when the open ends.
	Pinned bool
	Share  reservation
	Locks  []*locks
}

// reservation is the share reservation of an open. Access and Deny are the unions over all OPENs.
// Bit m of Accesses is set if some OPEN had share_access m (1 to 3); bit m of Denials if some OPEN
// had share_deny m (0 to 3). OPEN_DOWNGRADE needs the single modes (RFC 8881 section 18.18.3).
type reservation struct {
	Access, Deny      uint8
	Accesses, Denials uint8
}

// conflicts reports whether an OPEN for access that denies deny is refused because of r.
func (r *reservation) conflicts(access, deny uint8) bool {
	return access&r.Deny != 0 || deny&r.Access != 0
}

// Open are the arguments of an OPEN whose file has been found or created.
type Open struct {
	Owner        []byte
	File         lock.File
	Access, Deny uint32
	// Reclaim: the client had it before the server's restart.
	Reclaim bool
	// Turn is that of the open-owner, in version 4.0.
	Turn *Turn
	// Pinned: the file was pinned for this OPEN. Config.Unpin is called when the open ends, if
	// Open has made one; otherwise the caller has to unpin the file.
	Pinned bool
}

// Opened is an open that was made or changed.
type Opened struct {
	ID  Stateid
	New bool
	// Confirm: the client must send OPEN_CONFIRM (version 4.0: OPEN4_RESULT_CONFIRM).
	Confirm bool

	o       *open
	prev    reservation
	prevSeq uint32
}

// Open opens a file, or adds to an open of the same owner (RFC 8881 section 9.8). The client enters
// the list of clients that may reclaim, on stable storage, before it has its first open: after a
// crash the server would refuse the reclaim of a client that it does not know.
//
//	EXPIRED           the client has ended
//	GRACE, NO_GRACE   see admit
//	SHARE_DENIED      another open or protocol conflicts, and its client has a lease
//	RECLAIM_CONFLICT  the same, for a reclaim
//	DELAY             a recall is under way, no room, or the list cannot be written
//
// Each round of the loop ends a client with an expired lease, revokes a delegation, or returns.
func (c *Client) Open(now time.Time, a *Open) (Opened, nfs.Status) {
	if st := c.admit(now, a.Reclaim); st != nfs.OK {
		return Opened{}, st
	}
	if !c.enlist() {
		return Opened{}, nfs.ErrJukebox
	}
	for {
		res, st, victim, k := c.open(now, a)
		if k.any() {
			if !c.s.settle(&k) {
				return Opened{}, nfs.ErrJukebox
			}
			continue
		}
		if victim == nil {
			if st == nfs.ErrShareDenied && a.Reclaim {
				st = nfs.ErrReclaimConflict
			}
			return res, st
		}
		if !c.s.give(victim) {
			return Opened{}, nfs.ErrJukebox
		}
	}
}

// admit decides whether the client may open, lock or reclaim anything now (RFC 8881 section 8.4.2,
// RFC 7530 section 9.6.2). A client of version 4.1 or later gets GRACE for a new open until it has
// sent RECLAIM_COMPLETE, even after the grace period (RFC 8881 section 18.51.3).
func (c *Client) admit(now time.Time, reclaim bool) nfs.Status {
	c.mu.Lock()
	dead, known, came := c.dead, c.known, c.came
	complete := c.complete && !(reclaim && c.again)
	c.mu.Unlock()
	switch {
	case dead:
		return nfs.ErrExpired
	case reclaim && !known && c.s.cfg.Cluster != nil && c.s.cfg.Cluster.Undecided(came):
		return nfs.ErrJukebox // its server may be lost, and its records not be here yet
	case reclaim && (complete || !known || !c.s.Grace(now)):
		return nfs.ErrNoGrace
	case !reclaim && (!complete && c.v40 == nil || c.s.Grace(now)):
		return nfs.ErrGrace
	}
	return nfs.OK
}

// open is one attempt of Open. victim is a client with an expired lease whose open conflicts. k are
// delegations that conflict. The caller ends the one and recalls the others after open has released
// mu: each step may take the mu of another client, and no goroutine locks two clients at a time.
func (c *Client) open(now time.Time, a *Open) (res Opened, st nfs.Status, victim *Client, k clash) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return res, nfs.ErrExpired, nil, k
	}
	key := openKey{string(a.Owner), a.File}
	o := c.opens[key]
	if o == nil {
		if c.full(len(a.Owner)) {
			return res, nfs.ErrJukebox, nil, k
		}
		o = &open{c: c, Key: key}
		res.New = true
	}
	want := o.Share
	want.Access |= uint8(a.Access)
	want.Deny |= uint8(a.Deny)
	want.Accesses |= 1 << a.Access
	want.Denials |= 1 << a.Deny
	other, foreign, k := c.s.share(now, o, a, &want, &res.prev, res.New)
	if k.any() {
		return res, nfs.ErrJukebox, nil, k
	}
	if foreign {
		return res, nfs.ErrShareDenied, nil, k
	}
	if other != nil {
		if other != c && other.expired(now) {
			return res, nfs.OK, other, k
		}
		return res, nfs.ErrShareDenied, nil, k
	}
	if res.New {
		o.Num, o.Pinned = c.number(o), a.Pinned
		c.opens[key] = o
		if a.Turn != nil {
			c.openedBy(o, a.Turn.owner)
		}
	}
	res.prevSeq = o.Seq
	o.Seq = bump(o.Seq)
	res.o, res.ID, res.Confirm = o, c.stateid(o.Num, o.Seq), o.unconfirmed()
	return res, nfs.OK, nil, k
}

// Revert undoes Open when a later step of the same OPEN fails, such as truncation. It does nothing
// if another request has changed the open meanwhile: that request's client relies on the result.
func (c *Client) Revert(r *Opened) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := r.o
	if c.dead || c.opens[o.Key] != o || o.Seq != r.ID.Seq {
		return
	}
	if r.New {
		c.dropOpen(o)
		return
	}
	o.Seq = r.prevSeq
	c.s.setShare(o, r.prev)
}

// share sets the reservation of o, unless a reservation of the file conflicts: that of an open,
// whose client share returns, or that of another protocol. The owner's own earlier reservations
// conflict like those of others (RFC 8881 section 9.7): "with no exception for an existing OPEN for
// the same open-owner".
func (s *Server) share(
	now time.Time, o *open, a *Open, want, prev *reservation, isNew bool,
) (denier *Client, foreign bool, k clash) {
	access, deny := uint8(a.Access), uint8(a.Deny)
	sh := s.shardOfFile(o.Key.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	list := sh.m[o.Key.File]
	for _, other := range list {
		if !other.Share.conflicts(access, deny) {
			continue
		}
		// A conflicting client with a lease denies the OPEN. Only if there is none, clients whose lease
		// has run out are ended.
		if denier = other.c; !denier.expired(now) {
			return denier, false, k
		}
	}
	if sh.foreignDeny(o.Key.File, access, deny) {
		return nil, true, k
	}
	if denier != nil {
		return denier, false, k
	}
	// Only the new modes recall delegations: earlier OPENs have recalled for theirs.
	k = sh.clash(now, o.Key.File, o.c, access&Write != 0 || deny != 0, 0, s.cfg.Lease)
	if k.any() {
		return nil, false, k
	}
	*prev = o.Share
	o.Share = *want
	s.shares.changed(prev.Deny, want.Deny)
	if isNew {
		sh.m[o.Key.File] = append(list, o)
	}
	return nil, false, k
}

func (s *Server) setShare(o *open, r reservation) {
	sh := s.shardOfFile(o.Key.File)
	sh.mu.Lock()
	s.shares.changed(o.Share.Deny, r.Deny)
	o.Share = r
	sh.mu.Unlock()
}

// unshare takes an open out of its file's list.
func (s *Server) unshare(o *open) {
	sh := s.shardOfFile(o.Key.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	list := sh.m[o.Key.File]
	i := slices.Index(list, o)
	if i < 0 {
		return
	}
	s.shares.changed(o.Share.Deny, 0)
	if o.Pinned {
		s.cfg.Unpin(o.Key.File)
	}
	if len(list) == 1 {
		delete(sh.m, o.Key.File)
		return
	}
	sh.m[o.Key.File] = slices.Delete(list, i, i+1)
}

// dropOpen ends an open and its locks. Call with mu held.
func (c *Client) dropOpen(o *open) {
	for len(o.Locks) > 0 {
		c.dropLocks(o.Locks[0])
	}
	c.s.unshare(o)
	delete(c.opens, o.Key)
	delete(c.states, o.Num)
	c.charge(-costOf(o))
	if o.by != nil {
		if o.by.trial == o {
			o.by.trial = nil
		}
		c.unuse(o.by)
	}
}

// Close is CLOSE (RFC 8881 section 18.2.3). The section lets a server refuse with LOCKS_HELD; this
// server releases the remaining locks. Another server call would be needed otherwise, at a time
// when the process that owned the locks may be gone.
func (c *Client) Close(id Stateid, f lock.File) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, st := c.findOpen(id, f)
	if st == nfs.OK {
		c.dropOpen(o)
	}
	return st
}

// Downgrade is OPEN_DOWNGRADE (RFC 8881 section 18.18.3, RFC 7530 section 16.19). The new modes
// must be unions of modes of earlier OPENs, else INVAL: after OPEN(Both) alone, Read is no such
// union.
func (c *Client) Downgrade(id Stateid, f lock.File, access, deny uint32) (Stateid, nfs.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, st := c.findOpen(id, f)
	if st != nfs.OK {
		return Stateid{}, st
	}
	r := reservation{Access: uint8(access), Deny: uint8(deny)}
	var union uint8
	for mode := uint8(1); mode <= Both; mode++ {
		if o.Share.Accesses&(1<<mode) != 0 && mode&^r.Access == 0 {
			union |= mode
			r.Accesses |= 1 << mode
		}
	}
	var denied uint8
	for mode := uint8(0); mode <= Both; mode++ {
		if o.Share.Denials&(1<<mode) != 0 && mode&^r.Deny == 0 {
			denied |= mode
			r.Denials |= 1 << mode
		}
	}
	if union != r.Access || denied != r.Deny {
		return Stateid{}, nfs.ErrInval
	}
	c.s.setShare(o, r)
	o.Seq = bump(o.Seq)
	return c.stateid(o.Num, o.Seq), nfs.OK
}

// DropExport ends the opens, locks and delegations of an export that is no longer served. Clients
// learn of that by NFS4ERR_STALE for their file handles.
func (s *Server) DropExport(export uint32) {
	s.sweepForeign(func(f lock.File, _ *foreign) bool { return f.Export == export })
	for _, c := range s.clientList() {
		c.mu.Lock()
		for key, o := range c.opens {
			if key.File.Export == export {
				c.dropOpen(o)
			}
		}
		for f, d := range c.delegs {
			if f.Export == export {
				c.dropDeleg(d)
			}
		}
		c.mu.Unlock()
	}
}

// IO checks the stateid of an operation on data, such as READ, WRITE or a SETATTR of the size. A
// file that is open for writing only may be read (RFC 8881 section 9.1.2): a client reads a page
// before it changes a part of the page. A lock stateid has the modes of its open.
func (c *Client) IO(now time.Time, id Stateid, f lock.File, write bool) nfs.Status {
	if id == Anonymous || id == Bypass {
		return c.s.anonymous(now, f, write, id == Bypass)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	what, st := c.find(id)
	if st != nfs.OK {
		return st
	}
	if d, ok := what.(*deleg); ok {
		return d.io(now, f, write)
	}
	o, ok := what.(*open)
	if !ok {
		o = what.(*locks).open
	}
	switch {
	case o.Key.File != f, o.unconfirmed():
		return nfs.ErrBadStateID
	case write && o.Share.Access&Write == 0:
		return nfs.ErrOpenMode
	}
	return nfs.OK
}

// anonymous checks an operation with a special stateid against the share reservations of all. A
// READ with Bypass passes them, a WRITE with Bypass is like Anonymous (RFC 8881 section 8.2.3).
func (s *Server) anonymous(now time.Time, f lock.File, write, bypass bool) nfs.Status {
	if s.Grace(now) {
		return nfs.ErrGrace // a client may not have reclaimed its reservation yet
	}
	if bypass && !write {
		return nfs.OK
	}
	if s.Denied(now, f, netip.Addr{}, write, true) {
		return nfs.ErrLocked
	}
	return nfs.OK
}
