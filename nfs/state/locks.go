package state

import (
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// locks is a lock stateid: the byte-range locks of a lock-owner on a file (RFC 8881 section 9.1).
// The ranges themselves are in the lock table, together with those of other protocols.
//
//	LOCK, new lock-owner  granted   made, and appended to the Locks of its open
//	LOCK, LOCKU                     seqid one higher, also if the range was locked or free before
//	LOCK                  denied    nothing changes, and a new lock-owner gets no stateid
//	FREE_STATEID                    ended, if no range is locked
//	RELEASE_LOCKOWNER               the same, in version 4.0
//	CLOSE of the open               ended with its ranges
//
// The open that the first LOCK names owns the stateid. The client's mu guards all fields.
type locks struct {
	c    *Client
	Key  openKey // of the lock-owner
	Num  uint32  // among the states of the client
	Seq  uint32
	by   *seqOwner // of version 4.0
	open *open     // never nil; it is not closed before this stateid ends
	Any  bool      // there may be locked ranges; false: there is none, and CLOSE skips the table
}

// owner is the lock-owner as the lock table knows it. The client's ID is a part of it: two clients
// may choose the same lock-owner string.
func (l *locks) owner() lock.Owner { return lock.Owner{Client: l.c.name, ID: l.Key.Owner} }

// dropLocks ends a lock stateid and its locks. The lock table may grant waiting requests of NLM
// then. Call with mu held.
func (c *Client) dropLocks(l *locks) {
	if l.Any {
		c.s.cfg.Locks.Unlock(l.Key.File, l.owner(), 0, lock.ToEnd)
	}
	if i := slices.Index(l.open.Locks, l); i >= 0 {
		l.open.Locks = slices.Delete(l.open.Locks, i, i+1)
	}
	delete(c.locks, l.Key)
	delete(c.states, l.Num)
	c.charge(-costOf(l))
	if l.by != nil {
		delete(l.by.locks, l)
		c.unuse(l.by)
	}
}

// Range is a range of bytes as on the wire: a length of all ones is to the end of the file, however
// long the file becomes (RFC 8881 section 18.10.3).
type Range struct{ Offset, Length uint64 }

// last is the last byte of the range. The length is not zero, and offset and length together fit
// into 64 bits (RFC 8881 section 18.10.3): only a range to the end has the last byte of all.
func (r Range) last() (uint64, bool) {
	switch {
	case r.Length == lock.ToEnd:
		return lock.ToEnd, true
	case r.Length == 0 || r.Length > lock.ToEnd-r.Offset:
		return 0, false
	}
	return r.Offset + r.Length - 1, true
}

// Lock are the arguments of LOCK (RFC 8881 section 18.10.1). LOCKT and LOCKU use it, too:
//
//	locktype     READ_LT 1, WRITE_LT 2, READW_LT 3, WRITEW_LT 4: Exclusive for 2 and 4
//	reclaim      Reclaim
//	offset, length
//	locker4      TRUE   open_seqid  open_stateid  lock_seqid  clientid  owner<>    ByOpen
//	             FALSE  lock_stateid  lock_seqid
//
// The blocking types READW_LT and WRITEW_LT also set Wait (section 9.6). With TRUE the lock-owner
// may have a lock stateid of the file already; then LOCK returns that one. The seqids count in
// version 4.0 only.
//
// File is the current file. Offset and Length come from the client and are checked by last.
type Lock struct {
	ByOpen bool
	ID     Stateid // of an open if ByOpen, else of locks; LOCKT has none
	Owner  []byte  // ByOpen and LOCKT; the caller owns the bytes, which are copied
	File   lock.File
	Range
	Exclusive bool
	// Reclaim: the client had it before the server's restart.
	Reclaim bool
	// Wait: the client sends LOCK again until it has the lock. A denied LOCK gets a place in the
	// queue of the file (lock.Table.Ask).
	Wait bool
	// Turn is that of the owner, in version 4.0; nil in later versions.
	Turn *Turn
}

// Denied is a lock that is in the way (LOCK4denied): offset, length, locktype, clientid and
// owner<>. It describes one of possibly several such locks. Offset and Length are those of the
// whole lock, also where they exceed the range that the client asked for.
type Denied struct {
	Range
	Exclusive bool
	Client    uint64 // client ID; 0: of another protocol, or of a program of the host
	Owner     string // lock-owner as its client named it: any bytes
}

func denied(h *lock.Lock) *Denied {
	d := &Denied{Exclusive: h.Exclusive, Owner: h.Owner.ID}
	d.Client, _ = lockClientID(h.Owner.Client)
	d.Offset, d.Length = h.Start, h.End-h.Start+1
	if h.End == lock.ToEnd {
		d.Length = lock.ToEnd
	}
	return d
}

// silent returns the client of a lock that is in the way, if its lease has run out. Otherwise, and
// for locks of other protocols, which have no lease, it returns nil.
func (s *Server) silent(now time.Time, h *lock.Lock) *Client {
	id, ok := lockClientID(h.Owner.Client)
	if !ok {
		return nil
	}
	if c := s.client(id); c != nil && c.expired(now) {
		return c
	}
	return nil
}

// LockClient returns the client of a lock-owner in the lock table, or nil if it is one of another
// protocol or has ended.
func (s *Server) LockClient(o lock.Owner) *Client {
	if id, ok := lockClientID(o.Client); ok {
		return s.client(id)
	}
	return nil
}

// EndExpired ends the client whose lock is in the way of another protocol's, if its lease has run
// out, and reports whether it did. client is the Owner.Client of the lock. If the journal cannot be
// written, the client keeps its state and EndExpired returns false.
func (s *Server) EndExpired(now time.Time, client string) bool {
	c := s.silent(now, &lock.Lock{Owner: lock.Owner{Client: client}})
	return c != nil && s.give(c)
}

// Lock is LOCK (RFC 8881 section 18.10.3). It never waits for a lock. Statuses:
//
//	INVAL             length 0, or a range beyond 2^64-1
//	EXPIRED           the client has ended
//	NO_GRACE          a reclaim after the grace period or after RECLAIM_COMPLETE, or of a client
//	                  that is not in the list of those that had state
//	GRACE             no reclaim, in the grace period of this protocol or of NLM
//	BAD_STATEID       forged, closed, of another file, or of the wrong kind
//	OLD_STATEID, STALE_STATEID
//	DELAY             no room for a lock stateid or in the lock table, or the journal fails
//	OPENMODE          a write lock needs an open for writing, a read lock one for reading
//	DENIED            with a Denied
//	DEADLOCK          with Wait: the owners would wait for each other
//	RECLAIM_CONFLICT  a reclaim for which DENIED would be the status
//
// A conflicting lock of a client whose lease has run out does not deny: that client ends, and the
// loop tries again. Each round ends one client.
func (c *Client) Lock(now time.Time, a *Lock) (Stateid, *Denied, nfs.Status) {
	end, ok := a.last()
	if !ok {
		return Stateid{}, nil, nfs.ErrInval
	}
	if st := c.admit(now, a.Reclaim); st != nfs.OK {
		return Stateid{}, nil, st
	}
	if !a.Reclaim && c.s.othersReclaim() {
		return Stateid{}, nil, nfs.ErrGrace
	}
	for {
		id, holder, st := c.lock(a, end)
		if st == nfs.ErrDenied && a.Reclaim && c.s.cfg.Cluster != nil {
			return id, nil, nfs.ErrJukebox // the lost server's lock may not be released yet
		}
		if st == nfs.ErrDenied && a.Reclaim {
			return id, nil, nfs.ErrReclaimConflict
		}
		if st == nfs.ErrDenied {
			if victim := c.s.silent(now, &holder); victim != nil && victim != c {
				if !c.s.give(victim) {
					return id, nil, nfs.ErrJukebox
				}
				continue
			}
			return id, denied(&holder), st
		}
		return id, nil, st
	}
}

// lock is one attempt of Lock, up to the byte end inclusive. mu is held over the change of the lock
// table as well. So release (the end of the client) runs before, and the request is answered
// EXPIRED, or it runs later and ends the new lock, too.
//
// A new lock stateid is made after the lock is granted. So a client cannot fill its share of states
// by locks that are denied.
func (c *Client) lock(a *Lock, end uint64) (id Stateid, holder lock.Lock, st nfs.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var l *locks
	isNew := false
	if a.ByOpen {
		o, st := c.findOpen(a.ID, a.File)
		if st != nfs.OK {
			return id, holder, st
		}
		key := openKey{string(a.Owner), a.File}
		if l = c.locks[key]; l == nil {
			if c.full(len(a.Owner)) {
				return id, holder, nfs.ErrJukebox
			}
			l, isNew = &locks{c: c, Key: key, open: o}, true
		}
	} else {
		what, st := c.findState(a.ID)
		if st != nfs.OK {
			return id, holder, st
		}
		var ok bool
		if l, ok = what.(*locks); !ok || l.Key.File != a.File {
			return id, holder, nfs.ErrBadStateID
		}
	}
	switch {
	case a.Reclaim: // it was admitted when it was taken; the open may have been downgraded since
	case a.Exclusive && l.open.Share.Access&Write == 0, !a.Exclusive && l.open.Share.Access&Read == 0:
		return id, holder, nfs.ErrOpenMode
	}
	want := lock.Lock{Owner: l.owner(), Start: a.Offset, End: end, Exclusive: a.Exclusive}
	take := c.s.cfg.Locks.Lock
	switch {
	case a.Reclaim:
		take = c.s.cfg.Locks.Reclaim
	case a.Wait:
		take = c.s.cfg.Locks.Ask
	}
	holder, ok, err := take(a.File, want)
	switch {
	case err == lock.ErrDeadlock:
		return id, holder, nfs.ErrDeadlock
	case err != nil:
		return id, holder, nfs.ErrJukebox
	case !ok:
		return id, holder, nfs.ErrDenied
	}
	if isNew {
		l.Num = c.number(l)
		c.locks[l.Key] = l
		if t := a.Turn; t != nil {
			// The turn is that of the open-owner. The lock-owner begins here, with the lock_seqid
			// that the client chose (RFC 7530 section 9.1.7).
			by := c.v40.lockOwners[l.Key.Owner]
			if by == nil {
				by = &seqOwner{Name: l.Key.Owner, Seq: t.lockSeq}
				c.addLockOwner(by)
			}
			c.lockedBy(l, by)
		}
		l.open.Locks = append(l.open.Locks, l)
	}
	l.Any = true
	l.Seq = bump(l.Seq)
	return c.stateid(l.Num, l.Seq), holder, nfs.OK
}

// TestLock is LOCKT (RFC 8881 section 18.11.3). It has no stateid: neither an open nor a lock
// stateid of the owner is needed, and none is made. Locks of the owner itself do not conflict. The
// host's kernel is asked as well (Probe), which is why no lock of this package is held.
func (c *Client) TestLock(now time.Time, a *Lock) (*Denied, nfs.Status) {
	end, ok := a.last()
	if !ok {
		return nil, nfs.ErrInval
	}
	if c.s.Grace(now) || c.s.othersReclaim() {
		return nil, nfs.ErrGrace // a lock that is not reclaimed yet may conflict
	}
	for {
		holder, free := c.s.cfg.Locks.Probe(a.File, lock.Lock{
			Owner: lock.Owner{Client: c.name, ID: string(a.Owner)}, Start: a.Offset, End: end, Exclusive: a.Exclusive,
		})
		if free {
			return nil, nfs.OK
		}
		victim := c.s.silent(now, &holder)
		if victim == nil || victim == c {
			return denied(&holder), nfs.ErrDenied
		}
		if !c.s.give(victim) {
			return nil, nfs.ErrJukebox
		}
	}
}

// Unlock is LOCKU (RFC 8881 section 18.12.3). Any range is accepted, also a part of a lock, several
// locks, or bytes that are not locked; NFS4ERR_LOCK_RANGE never occurs. LOCKU works in the grace
// period. The stateid stays valid when its last range is unlocked. Otherwise a LOCKU followed by a
// LOCK, which the client may send with the same stateid, would fail.
func (c *Client) Unlock(a *Lock) (Stateid, nfs.Status) {
	end, ok := a.last()
	if !ok {
		return Stateid{}, nfs.ErrInval
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	what, st := c.findState(a.ID)
	if st != nfs.OK {
		return Stateid{}, st
	}
	l, ok := what.(*locks)
	if !ok || l.Key.File != a.File {
		return Stateid{}, nfs.ErrBadStateID
	}
	c.s.cfg.Locks.Unlock(a.File, l.owner(), a.Offset, end)
	l.Any = c.s.cfg.Locks.Owns(a.File, l.owner())
	l.Seq = bump(l.Seq)
	return c.stateid(l.Num, l.Seq), nfs.OK
}
