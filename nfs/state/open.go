package state

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Bits of share_access and share_deny.
const (
	Read  = 1
	Write = 2
	Both  = Read | Write
)

// openKey tells an open, or the locks, of a client: there is one of an owner for
// each file.
type openKey struct {
	Owner string
	File  lock.File
}

// open is an open of a file by an open-owner. Its client's mu guards it, but the
// reservation, which others look at, is changed with the file's shard held too.
type open struct {
	c   *Client
	Key openKey
	Num uint32
	Seq uint32
	by  *seqOwner // of version 4.0
	// Pinned: Config.Unpin is called when it ends.
	Pinned bool
	Share  reservation
	Locks  []*locks
}

// reservation is what an open has reserved, and the modes of the OPENs that made it
// so, as bits: OPEN_DOWNGRADE may go back to a union of those and nothing else.
type reservation struct {
	Access, Deny      uint8
	Accesses, Denials uint8
}

// conflicts reports whether an OPEN for access that denies deny is refused because of r.
func (r *reservation) conflicts(access, deny uint8) bool {
	return access&r.Deny != 0 || deny&r.Access != 0
}

// Open are the arguments of an OPEN, or what is to be opened of it.
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
	// Confirm: it has to be confirmed, in version 4.0.
	Confirm bool

	o       *open
	prev    reservation
	prevSeq uint32
}

// Open opens a file, or adds to an open of the same owner (section 9.8).
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

// admit decides whether the client may open or lock, or reclaim, anything now.
func (c *Client) admit(now time.Time, reclaim bool) nfs.Status {
	c.mu.Lock()
	dead, complete := c.dead, c.complete
	c.mu.Unlock()
	switch {
	case dead:
		return nfs.ErrExpired
	case reclaim && (complete || !c.known || !c.s.Grace(now)):
		return nfs.ErrNoGrace
	case !reclaim && (!complete && c.v40 == nil || c.s.Grace(now)):
		return nfs.ErrGrace
	}
	return nfs.OK
}

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

// Revert takes back what Open did, if nothing has been done with it since.
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

// share sets the reservation of o, unless one of the file is in the way: that of an open, whose
// client share returns, or one of another protocol. What the owner itself has reserved counts like
// that of others (RFC 8881 section 9.7): "with no exception for an existing OPEN for the same
// open-owner".
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
		// Those of clients that are there come first: they are not to be undone.
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
	// What the owner has open already was compared when it was opened.
	k = sh.clash(now, o.Key.File, o.c, access&Write != 0 || deny != 0, s.cfg.Lease)
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

// Close is CLOSE (section 18.2.3). Locks that are left go too.
func (c *Client) Close(id Stateid, f lock.File) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, st := c.findOpen(id, f)
	if st == nfs.OK {
		c.dropOpen(o)
	}
	return st
}

// Downgrade is OPEN_DOWNGRADE (section 18.18.3).
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

// DropExport ends the opens and locks of an export that is no longer served. Its
// clients find out by their file handles.
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

// IO checks the stateid of a READ, a WRITE, or what is like one. A file that is open
// for writing only may be read: a client has to, to change a part of a page.
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

// anonymous checks what is done without an open against the reservations.
func (s *Server) anonymous(now time.Time, f lock.File, write, bypass bool) nfs.Status {
	if s.Grace(now) {
		return nfs.ErrGrace // it may be reserved by somebody who has not reclaimed it yet
	}
	if bypass && !write {
		return nfs.OK
	}
	if s.Denied(now, f, netip.Addr{}, write, true) {
		return nfs.ErrLocked
	}
	return nfs.OK
}
