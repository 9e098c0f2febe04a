package state

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// In version 4.0 each request of an owner that opens or locks has a seqid, and the server caches
// the last answer of each owner. So a request that the client sends again is executed once, over
// any transport and any number of connections (RFC 7530 sections 9.1.7 to 9.1.11):
//
//	seqid = last + 1                executed
//	seqid = last, same arguments    answered from the cache
//	other                           NFS4ERR_BAD_SEQID
//
// A request runs in a turn of its owner. Others of the same owner wait for the turn:
//
//	BeginOpen, BeginState   take the turn, compare the seqid
//	Locker                  takes the turn of a lock-owner too
//	(the operation)
//	End                     caches the answer, advances the seqid, ends the turn
//
// The first OPEN of an owner may have any seqid: it may be an old request that the network delivers
// late. So the open counts for nothing until the client confirms it (RFC 7530 section 9.1.11):
//
//	fresh --OPEN--> unconfirmed --OPEN_CONFIRM--> confirmed
//	   |              |     ^
//	   |              `-----'  another OPEN: the first open ends
//	   `--OPEN with CLAIM_PREVIOUS--> confirmed
//
// An unconfirmed owner gets no delegation. An open that stays unconfirmed for a lease ends (reap).

// seqOwner is an open-owner or a lock-owner of version 4.0. An open-owner outlives its opens, so
// that the next OPEN needs no confirmation (see reap). A lock-owner ends with its last lock
// stateid.
type seqOwner struct {
	c    *Client
	Name string
	open bool // it is an open-owner

	// turn is locked by the request in execution, for the whole operation, calls of the store
	// included. It is taken before every other lock. The turn of an open-owner is taken before that of
	// a lock-owner.
	turn sync.Mutex

	// The client's mu guards these.
	Seq       uint32 // of the last request
	Digest    uint64 // of the last request; 0: its answer is in the open-owner
	Last      Answer
	Confirmed bool                // an open-owner whose OPEN needs no confirmation
	Fresh     bool                // no request has advanced Seq yet
	uses      int                 // opens or lock stateids
	busy      int                 // requests that have a turn, or wait for it: reap skips the owner
	Closed    uint32              // number of the stateid that was closed last; 0: of none
	trial     *open               // the open that waits for OPEN_CONFIRM
	locks     map[*locks]struct{} // the lock stateids of a lock-owner
	Used      int64               // when the last request came, in Unix nanoseconds
	gone      bool                // the owner has ended; a request that waited for it looks again
}

// Answer is the result of an operation, for a retry.
type Answer struct {
	Status nfs.Status
	Result []byte // of the operation, without the status
	// File is the current file after the operation: an OPEN sets it for the operations that follow.
	File lock.File
}

// Turn is a request of an owner in execution. The caller must call End, after errors too: other
// requests of the owner wait until then.
type Turn struct {
	owner  *seqOwner
	seq    uint32
	digest uint64
	closes bool // the request is a CLOSE that has succeeded

	// Of a LOCK by an open's stateid: the lock-owner, if there is one yet.
	locker  *seqOwner
	lockSeq uint32
}

// BeginOpen begins an OPEN. It makes the open-owner if there is none. digest is a hash of the
// operation and its arguments, never 0. The result is one of a turn, the cached answer of a retry,
// and an error:
//
//	EXPIRED    the client has ended
//	RESOURCE   no memory for a new owner
//	BAD_SEQID  neither the next seqid nor a retry of the last request
//
// The same seqid with other arguments is BAD_SEQID too (RFC 7530 section 9.1.9). A reclaim needs no
// confirmation (section 9.1.11).
func (c *Client) BeginOpen(
	now time.Time, owner []byte, seq uint32, digest uint64, reclaim bool,
) (*Turn, *Answer, nfs.Status) {
	for {
		c.mu.Lock()
		if c.dead {
			c.mu.Unlock()
			return nil, nil, nfs.ErrExpired
		}
		o := c.v40.openOwners[string(owner)]
		if o == nil {
			// What the client no longer uses ends before the client is refused an owner.
			c.reap(now)
			if !c.room(int64(ownerCost + len(owner))) {
				c.mu.Unlock()
				return nil, nil, nfs.ErrResource
			}
			o = &seqOwner{Name: string(owner), Fresh: true, Confirmed: reclaim, Used: now.UnixNano()}
			c.addOpenOwner(o)
		}
		if !c.take(o) {
			continue
		}
		t := &Turn{owner: o, seq: seq, digest: digest}
		o.Used = now.UnixNano()
		switch {
		case !o.Fresh && seq == o.Seq && digest == o.Digest:
			r := o.Last
			c.drop(o)
			return nil, &r, nfs.OK
		case !o.Fresh && !o.Confirmed:
			// The earlier OPEN was not confirmed: it may have been an old request. This one begins anew,
			// with whatever seqid it has (RFC 7530 section 16.18.5).
			c.cancel(o)
			o.Confirmed = reclaim
		case !o.Fresh && !follows(seq, o.Seq):
			c.drop(o)
			return nil, nil, nfs.ErrBadSeqID
		}
		c.mu.Unlock()
		return t, nil, nfs.OK
	}
}

// Kind is the kind of state that an operation accepts.
type Kind uint8

// Kinds. OfOpen is an open whose owner is confirmed, OfUnconfirmed any open. OfLock is a lock
// stateid.
const (
	OfOpen Kind = iota
	OfUnconfirmed
	OfLock
)

// BeginState begins a request with a stateid: CLOSE, OPEN_CONFIRM, OPEN_DOWNGRADE, LOCK or LOCKU.
// The owner of the state takes the turn. The caller has found the client by the same stateid.
// BeginState does not compare the seqid of the stateid, because the stateid of a retry is old by
// now. The operation compares it afterwards, in Client.find. So BAD_SEQID takes precedence over
// OLD_STATEID (RFC 7530 section 9.1.9).
//
// The stateid of the last CLOSE of an owner still leads to the owner, for a retry of the CLOSE.
func (c *Client) BeginState(
	now time.Time, id Stateid, kind Kind, seq uint32, digest uint64,
) (*Turn, *Answer, nfs.Status) {
	num := binary.BigEndian.Uint32(id.Other[8:])
	for {
		c.mu.Lock()
		if c.dead {
			c.mu.Unlock()
			return nil, nil, nfs.ErrExpired
		}
		var o *seqOwner
		switch w := c.states[num].(type) {
		case *open:
			if kind != OfLock {
				o = w.by
			}
		case *locks:
			if kind == OfLock {
				o = w.by
			}
		case nil:
			// The state is gone. The request may be the CLOSE that has ended it, sent again.
			if kind != OfLock {
				o = c.v40.closed[num]
			}
		}
		if o == nil {
			c.mu.Unlock()
			return nil, nil, nfs.ErrBadStateID
		}
		if !c.take(o) {
			continue
		}
		o.Used = now.UnixNano()
		switch {
		case seq == o.Seq && o.Digest == digest:
			r := o.Last
			c.drop(o)
			return nil, &r, nfs.OK
		case o.open && !o.Confirmed && kind != OfUnconfirmed:
			c.drop(o)
			return nil, nil, nfs.ErrBadStateID
		case !follows(seq, o.Seq):
			c.drop(o)
			return nil, nil, nfs.ErrBadSeqID
		}
		c.mu.Unlock()
		return &Turn{owner: o, seq: seq, digest: digest}, nil, nfs.OK
	}
}

// Locker adds the lock-owner of a LOCK by an open's stateid to the turn (open_to_lock_owner4). If
// the server does not know the lock-owner, its first lock_seqid may be anything, and Locker only
// notes it (RFC 7530 section 9.1.9). A retry does not come here, because BeginState has answered
// it.
func (t *Turn) Locker(owner []byte, seq uint32) nfs.Status {
	c := t.owner.c
	t.lockSeq = seq
	for {
		c.mu.Lock()
		o := c.v40.lockOwners[string(owner)]
		if c.dead || o == nil {
			// Client.Lock makes the owner, with lockSeq, when the lock is granted.
			c.mu.Unlock()
			return nfs.OK
		}
		if !c.take(o) {
			continue
		}
		if !follows(seq, o.Seq) {
			c.drop(o)
			return nfs.ErrBadSeqID
		}
		c.mu.Unlock()
		t.locker = o
		return nfs.OK
	}
}

// take waits for an owner's turn. On true the caller has the turn and mu. On false it has neither,
// because the owner has ended meanwhile. Call with mu held; take releases mu while it waits,
// because the turn comes before mu. busy keeps reap from ending the owner meanwhile.
func (c *Client) take(o *seqOwner) bool {
	o.busy++
	c.mu.Unlock()
	o.turn.Lock()
	c.mu.Lock()
	if o.gone {
		c.drop(o)
		return false
	}
	return true
}

// drop releases an owner's turn and mu, which take has locked.
func (c *Client) drop(o *seqOwner) {
	o.busy--
	o.turn.Unlock()
	c.mu.Unlock()
}

// follows reports whether seq is the number after last. After the largest comes 1 (RFC 7530 section
// 9.1.3). Clients that just count continue with 0, so 0 is accepted too.
func follows(seq, last uint32) bool { return seq == last+1 || seq == 1 && last == 1<<32-1 }

// advances reports whether a request with this status uses up the owner's seqid. The client knows
// the same list (RFC 7530 section 9.1.7): if the two disagree, every further request is BAD_SEQID.
func advances(st nfs.Status) bool {
	switch st {
	case nfs.ErrStaleClientID, nfs.ErrStaleStateID, nfs.ErrBadStateID, nfs.ErrBadSeqID, nfs.ErrBadXDR, nfs.ErrResource,
		nfs.ErrNoFileHandle, nfs.ErrMoved:
		return false
	}
	return true
}

// End ends a turn with its answer, and copies the answer. The seqid advances on most errors too,
// see advances. The next request of the owner proves that the client has the answer to a CLOSE, so
// the stateid of the CLOSE is forgotten here.
//
// After a LOCK by an open's stateid both owners advance, and the open-owner has the answer.
func (t *Turn) End(r *Answer) {
	o, c := t.owner, t.owner.c
	c.mu.Lock()
	if advances(r.Status) && !c.dead && !o.gone {
		if !t.closes {
			delete(c.v40.closed, o.Closed)
			o.Closed = 0
		}
		o.Fresh, o.Seq, o.Digest = false, t.seq, t.digest
		o.Last = Answer{Status: r.Status, Result: slices.Clone(r.Result), File: r.File}
		// A retry comes with the stateid of the open and finds the open-owner's answer. Digest 0 matches
		// no request, so the lock-owner answers none.
		if l := t.locker; l != nil && !l.gone {
			l.Seq, l.Digest, l.Last = t.lockSeq, 0, Answer{}
		}
	}
	if o.Fresh && o.uses == 0 && o.busy == 1 && !o.gone {
		c.forget(o) // the first request did not advance the seqid: nothing to remember
	}
	if t.locker != nil {
		t.locker.busy--
		t.locker.turn.Unlock()
	}
	c.drop(o)
}

// ConfirmOpen is OPEN_CONFIRM (RFC 7530 section 16.18), in a turn of the owner. An owner that is
// confirmed already gets BAD_STATEID. The stateid's seqid goes up.
func (c *Client) ConfirmOpen(id Stateid, f lock.File) (Stateid, nfs.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, st := c.findOpen(id, f)
	switch {
	case st != nfs.OK:
		return Stateid{}, st
	case o.by == nil || o.by.Confirmed:
		return Stateid{}, nfs.ErrBadStateID
	}
	o.by.Confirmed, o.by.trial = true, nil
	c.settled(o.by)
	o.Seq = bump(o.Seq)
	return c.stateid(o.Num, o.Seq), nfs.OK
}

// Close40 is CLOSE of version 4.0 (RFC 7530 section 16.2), in a turn of the owner. The server
// remembers the stateid until the owner's next request, to answer a retry (section 9.10.1). Each
// owner has at most one such stateid.
func (c *Client) Close40(t *Turn, id Stateid, f lock.File) (Stateid, nfs.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, st := c.findOpen(id, f)
	if st != nfs.OK {
		return Stateid{}, st
	}
	c.dropOpen(o)
	if by := t.owner; by == o.by && !by.gone {
		delete(c.v40.closed, by.Closed)
		c.v40.closed[o.Num], by.Closed, t.closes = by, o.Num, true
	}
	return c.stateid(o.Num, bump(o.Seq)), nfs.OK
}

// ReleaseLockOwner is RELEASE_LOCKOWNER (RFC 7530 section 16.37). The operation has no seqid and
// takes no turn. An owner with a lock gets LOCKS_HELD, and then none of its lock stateids ends. An
// unknown owner is OK: the request may be a retry.
func (c *Client) ReleaseLockOwner(owner []byte) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.v40.lockOwners[string(owner)]
	if c.dead || o == nil {
		return nfs.OK
	}
	// Collect first: dropLocks changes o.locks, and its last call ends o.
	var list []*locks
	for l := range o.locks {
		if l.Any {
			return nfs.ErrLocksHeld
		}
		list = append(list, l)
	}
	for _, l := range list {
		c.dropLocks(l)
	}
	return nfs.OK
}

// unconfirmed reports whether an open waits for OPEN_CONFIRM. Its stateid is BAD_STATEID for I/O.
// Call with the client's mu held.
func (o *open) unconfirmed() bool { return o.by != nil && !o.by.Confirmed }
