package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Types of locks (nfs_lock_type4). Those that wait are refused like the others: the
// client comes again.
const (
	LockRead      = 1
	LockWrite     = 2
	lockReadWait  = 3
	lockWriteWait = 4
)

func decodeLockType(d *xdr.Decoder) (exclusive bool) {
	switch d.Uint32() {
	case LockRead, lockReadWait:
	case LockWrite, lockWriteWait:
		return true
	default:
		d.Fail(xdr.ErrValue)
	}
	return false
}

// lockRange is LOCK (RFC 8881 section 18.10, RFC 7530 section 16.10). The client ID of the
// lock-owner means nothing in a session, nor do the sequence numbers: they are version 4.0's.
func lockRange(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	a.Exclusive = decodeLockType(d)
	a.Reclaim = d.Bool()
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	var seq, lockSeq uint32
	var client uint64
	if a.ByOpen = d.Bool(); a.ByOpen {
		seq = d.Uint32()
		a.ID = k.stateid(DecodeStateid(d))
		lockSeq = d.Uint32()
		client, a.Owner = d.Uint64(), d.Opaque(OwnerMax)
	} else {
		a.ID = k.stateid(DecodeStateid(d))
		seq = d.Uint32()
	}
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if k.minor == 0 {
		if done, st := k.lockTurn(&a, client, seq, lockSeq); done {
			return st
		}
	}
	if st := k.regular(); st != nfs.OK {
		return st
	}
	a.File, a.Turn = k.file(), k.turn
	id, holder, st := k.client.Lock(k.now, &a)
	if st == nfs.ErrDenied {
		k.denied(holder)
	}
	return k.stated(id, st)
}

// denied appends a LOCK4denied, the result of a LOCK or LOCKT that failed. The owner of a lock of
// another protocol may be longer than an owner of version 4.
func (k *compound) denied(h *state.Denied) {
	typ := uint32(LockRead)
	if h.Exclusive {
		typ = LockWrite
	}
	e := &k.c.Res
	e.Uint64(h.Offset)
	e.Uint64(h.Length)
	e.Uint32(typ)
	e.Uint64(h.Client)
	e.String(h.Owner[:min(len(h.Owner), OwnerMax)])
	k.keepResult = true
}

// lockTest is LOCKT (RFC 8881 section 18.11, RFC 7530 section 16.11). It needs no stateid and takes
// no lock.
func lockTest(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	a.Exclusive = decodeLockType(d)
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	client := d.Uint64()
	a.Owner = d.Opaque(OwnerMax)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if k.minor == 0 {
		if st := k.byClient(client); st != nfs.OK {
			return st
		}
	}
	if st := k.regular(); st != nfs.OK {
		return st
	}
	a.File = k.file()
	holder, st := k.client.TestLock(k.now, &a)
	if st == nfs.ErrDenied {
		k.denied(holder)
	}
	return st
}

// unlock is LOCKU (RFC 8881 section 18.12, RFC 7530 section 16.12).
func unlock(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	decodeLockType(d) // says nothing: all locks of the range end
	seq := d.Uint32()
	a.ID = k.stateid(DecodeStateid(d))
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	if done, st := k.takeTurn(a.ID, state.OfLock, seq); done {
		return st
	}
	a.File = k.file()
	return k.stated(k.client.Unlock(&a))
}

// stateidsMax bounds a TEST_STATEID.
const stateidsMax = 1 << 16

// testStateid is TEST_STATEID (section 18.48). The result has a status for each stateid. The count
// is the client's: it is compared with the arguments that are there before anything is appended.
func testStateid(k *compound) nfs.Status {
	d, e := &k.c.Args, &k.c.Res
	n := d.Uint32()
	if k.bad() || n > stateidsMax || int(n)*resStateid > d.Remaining() {
		return nfs.ErrBadXDR
	}
	e.Uint32(n)
	for range n {
		e.Uint32(uint32(k.badState(k.client.TestStateid(k.stateid(DecodeStateid(d))))))
	}
	if k.bad() {
		return nfs.ErrBadXDR
	}
	return nfs.OK
}

// freeStateid is FREE_STATEID (section 18.38): a client acknowledges that a state was revoked, or
// gives up a lock stateid. One with locks is LOCKS_HELD; that of an open is too, as it needs a
// CLOSE.
func freeStateid(k *compound) nfs.Status {
	id := k.stateid(DecodeStateid(&k.c.Args))
	if k.bad() {
		return nfs.ErrBadXDR
	}
	return k.badState(k.client.FreeStateid(id))
}
