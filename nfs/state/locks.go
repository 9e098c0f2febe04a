package state

import (
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// locks are the byte-range locks of a lock-owner on a file. Which they are is in
// the lock table.
type locks struct {
	c    *Client
	Key  openKey // of the lock-owner
	Num  uint32
	Seq  uint32
	by   *seqOwner // of version 4.0
	open *open
	Any  bool // there may be some
}

func (l *locks) owner() lock.Owner { return lock.Owner{Client: l.c.name, ID: l.Key.Owner} }

// dropLocks ends a lock stateid and its locks. Call with mu held.
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

// Range is a range of bytes as on the wire: a length of all ones is to the end.
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

// Lock are the arguments of LOCK: by the stateid of an open and a lock-owner, who
// may have locks on the file already, or by a lock stateid.
type Lock struct {
	ByOpen bool
	ID     Stateid
	Owner  []byte // ByOpen
	File   lock.File
	Range
	Exclusive bool
	// Reclaim: the client had it before the server's restart.
	Reclaim bool
	// Turn is that of the owner, in version 4.0.
	Turn *Turn
}

// Denied is a lock that is in the way (LOCK4denied).
type Denied struct {
	Range
	Exclusive bool
	Client    uint64 // 0: of another protocol
	Owner     string
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

// silent is the client of a lock that is in the way, if it has not been heard of for
// a lease.
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

// Silent gives up everything of the client with a lock that is in the way of another
// protocol's, if it has not been heard of for a lease, and reports whether it did.
func (s *Server) Silent(now time.Time, client string) bool {
	c := s.silent(now, &lock.Lock{Owner: lock.Owner{Client: client}})
	return c != nil && s.give(c)
}

// Lock is LOCK (section 18.10.3). It never waits.
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
	holder, ok, err := c.s.cfg.Locks.Lock(a.File, want)
	switch {
	case err != nil:
		return id, holder, nfs.ErrJukebox
	case !ok:
		return id, holder, nfs.ErrDenied
	}
	if isNew {
		l.Num = c.number(l)
		c.locks[l.Key] = l
		if t := a.Turn; t != nil {
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

// TestLock is LOCKT (section 18.11.3).
func (c *Client) TestLock(now time.Time, a *Lock) (*Denied, nfs.Status) {
	end, ok := a.last()
	if !ok {
		return nil, nfs.ErrInval
	}
	if c.s.Grace(now) || c.s.othersReclaim() {
		return nil, nfs.ErrGrace // there may be one that is to be reclaimed
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

// Unlock is LOCKU (section 18.12.3).
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
