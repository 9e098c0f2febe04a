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
// The first OPEN of an owner has any seqid, and the client confirms it by OPEN_CONFIRM: it may be
// an old request that the network delivers late.

// seqOwner is an open-owner or a lock-owner of version 4.0.
type seqOwner struct {
	c    *Client
	Name string
	open bool // it is an open-owner

	// turn is held by the request that is being executed. It is taken before every other lock. The
	// turn of an open-owner is taken before that of a lock-owner.
	turn sync.Mutex

	// The client's mu guards these.
	Seq       uint32 // of the last request
	Digest    uint64 // of that; 0: its answer is not kept
	Last      Answer
	Confirmed bool                // an open-owner that need not be confirmed (any more)
	Fresh     bool                // there was no request yet
	uses      int                 // opens or lock stateids
	busy      int                 // requests that have a turn, or wait for it
	Closed    uint32              // number of the stateid that was closed last; 0: of none
	trial     *open               // what it opened and has not confirmed
	locks     map[*locks]struct{} // of a lock-owner
	Used      int64               // when, in nanoseconds of the Unix time
	gone      bool
}

// Answer is one as it was given.
type Answer struct {
	Status nfs.Status
	Result []byte // of the operation, without the status
	// File is the current file afterwards.
	File lock.File
}

// Turn is a request of an owner that is being executed. End must be called.
type Turn struct {
	owner  *seqOwner
	seq    uint32
	digest uint64
	closes bool // it has closed something

	// Of a LOCK by an open's stateid: the lock-owner, if there is one yet.
	locker  *seqOwner
	lockSeq uint32
}

// BeginOpen is the beginning of an OPEN by an open-owner, which it may make. digest tells
// the request from others, and is not 0. The result is a turn, or the answer of before,
// or why there is neither. An open that is reclaimed needs no confirmation.
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
			// What the first OPEN of an owner opened counts for nothing until it is
			// confirmed: it may have been an old one, sent again by the network.
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

// Kind is what a stateid has to be of.
type Kind uint8

// Kinds. OfUnconfirmed is an open that may have to be confirmed.
const (
	OfOpen Kind = iota
	OfUnconfirmed
	OfLock
)

// BeginState is the beginning of another request, of the owner of a stateid.
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

// Locker adds the lock-owner of a LOCK by an open's stateid to its turn.
func (t *Turn) Locker(owner []byte, seq uint32) nfs.Status {
	c := t.owner.c
	t.lockSeq = seq
	for {
		c.mu.Lock()
		o := c.v40.lockOwners[string(owner)]
		if c.dead || o == nil {
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

// take waits for an owner's turn. It reports false, with no lock held, if the owner has ended
// meanwhile. Call with mu held; take releases mu while it waits.
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

// drop releases an owner's turn, and mu.
func (c *Client) drop(o *seqOwner) {
	o.busy--
	o.turn.Unlock()
	c.mu.Unlock()
}

// follows reports whether a number is the one after another: after the largest comes 1
// (RFC 7530 section 9.1.3), or 0, as clients have it that just count.
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

// End ends a turn with its answer, of which it makes a copy.
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
		if l := t.locker; l != nil && !l.gone {
			l.Seq, l.Digest, l.Last = t.lockSeq, 0, Answer{}
		}
	}
	if o.Fresh && o.uses == 0 && o.busy == 1 && !o.gone {
		c.forget(o) // its first request did not count
	}
	if t.locker != nil {
		t.locker.busy--
		t.locker.turn.Unlock()
	}
	c.drop(o)
}

// ConfirmOpen is OPEN_CONFIRM (section 16.18).
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

// Close40 is CLOSE of version 4.0 (section 16.2), in a turn of its owner. Until the
// owner's next request the stateid is known, should this one be sent again (section
// 9.10.1).
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

// ReleaseLockOwner is RELEASE_LOCKOWNER (section 16.37).
func (c *Client) ReleaseLockOwner(owner []byte) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.v40.lockOwners[string(owner)]
	if c.dead || o == nil {
		return nfs.OK
	}
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

// unconfirmed reports whether an open counts for nothing yet.
func (o *open) unconfirmed() bool { return o.by != nil && !o.by.Confirmed }
