package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Types of locks (nfs_lock_type4). READW and WRITEW say that the client repeats a denied LOCK (RFC
// 8881 section 9.6); see notifylock.go.
const (
	LockRead      = 1
	LockWrite     = 2
	lockReadWait  = 3
	lockWriteWait = 4
)

// decodeLockType reads an nfs_lock_type4. An unknown type is an error of the decoder: BADXDR.
func decodeLockType(d *xdr.Decoder) (exclusive, wait bool) {
	t := d.Uint32()
	if t < LockRead || t > lockWriteWait {
		d.Fail(xdr.ErrValue)
	}
	return t == LockWrite || t == lockWriteWait, t == lockReadWait || t == lockWriteWait
}

// lockRange is LOCK (RFC 8881 section 18.10, RFC 7530 section 16.10). Its arguments:
//
//	locktype        uint32
//	reclaim         bool
//	offset, length  uint64          length of all ones: to the end of the file
//	new_lock_owner  TRUE            open_seqid, open_stateid, lock_seqid, client ID, owner<>
//	                FALSE           lock_stateid, lock_seqid
//
// The server ignores the client ID and both seqids in a session (RFC 8881 section 18.10.3). Version
// 4.0 takes the turn of the open-owner in the first arm, and of the lock-owner in the second.
//
// Statuses that a client has to expect, most of them from state.Client.Lock:
//
//	DENIED            a lock of another owner conflicts; the result is a LOCK4denied
//	DEADLOCK          READW and WRITEW: the owners would wait for each other
//	OPENMODE          the open does not have the access that the lock needs
//	INVAL             length 0, or offset plus length beyond 64 bits
//	GRACE, NO_GRACE   the wrong side of the grace period
//	RECLAIM_CONFLICT  a reclaim meets a lock of another owner
//	DELAY             the table of locks or the client's limit of states is full
//	BAD_STATEID       of another file, client or kind
//
// A conflicting lock of a client whose lease has run out denies nothing: package state ends that
// client first, and then repeats the attempt.
func lockRange(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	a.Exclusive, a.Wait = decodeLockType(d)
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
	// The type is checked in the store, before any lock of package state is taken.
	if st := k.regular(); st != nfs.OK {
		return st
	}
	a.File, a.Turn = k.file(), k.turn
	id, holder, st := k.client.Lock(k.now, &a)
	if st == nfs.ErrDenied {
		k.denied(holder)
		if a.Wait {
			k.s.watchLocks()
		}
	}
	return k.stated(id, st)
}

// denied appends a LOCK4denied, the result of a LOCK or LOCKT that failed: offset, length,
// locktype, client ID, owner<>. The owner of a lock of another protocol may be longer than one of
// version 4, so it is cut off. The client ID of such a lock is 0.
//
// keepResult makes step leave the result in the reply although the status is an error. The row of
// LOCK in the table counts only a stateid. If the LOCK4denied does not fit into the reply, step
// answers REP_TOO_BIG. That is safe, because no lock was taken.
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

// lockTest is LOCKT (RFC 8881 section 18.11, RFC 7530 section 16.11). It needs no stateid, makes no
// state and takes no lock, so it is idempotent. In version 4.0 it takes no turn either: LOCKT has
// no seqid. Locks of the same lock-owner never conflict. In the grace period LOCKT is GRACE,
// because the owner of a conflicting lock may not have reclaimed the lock yet.
func lockTest(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	a.Exclusive, _ = decodeLockType(d)
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

// unlock is LOCKU (RFC 8881 section 18.12, RFC 7530 section 16.12): locktype, seqid, lock_stateid,
// offset, length. A part of a range may be unlocked. A range without any lock is no error, as with
// fcntl(2). The lock stateid stays valid after its last lock was unlocked: the client frees it by
// FREE_STATEID or CLOSE, in version 4.0 by RELEASE_LOCKOWNER.
//
// LOCKU is served in the grace period, and for a client whose export was withdrawn
// (allowedIfDenied): giving up a lock can harm nobody.
func unlock(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	_, _ = decodeLockType(d) // any legal type: it has no effect (RFC 8881 section 18.12.3)
	seq := d.Uint32()
	a.ID = k.stateid(DecodeStateid(d))
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	if done, st := k.takeTurn(a.ID, state.OfLock, seq); done {
		return st
	}
	a.File = k.file()
	return k.stated(k.client.Unlock(&a))
}

// stateidsMax bounds a TEST_STATEID, which takes the client's mutex for every stateid.
const stateidsMax = 1 << 16

// testStateid is TEST_STATEID (RFC 8881 section 18.48). The operation is OK, and the result has a
// status for each stateid: OK, BAD_STATEID, OLD_STATEID, EXPIRED or DELEG_REVOKED. The special
// stateids for anonymous access are BAD_STATEID: nobody can test or free them.
//
// The count comes from the client. It is compared with the length of the arguments before anything
// is appended. A stateid takes 16 bytes of the call and 4 bytes of the reply, so no call makes a
// reply longer than itself.
//
// The Linux client tests its stateids when SEQUENCE has set a flag of revoked state.
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

// freeStateid is FREE_STATEID (RFC 8881 section 18.38): a client acknowledges that a state was
// revoked, or gives up a lock stateid. It needs no file handle.
//
//	revoked delegation         OK; SEQUENCE clears its flag with the last of them
//	lock stateid, no locks     OK
//	lock stateid with locks    LOCKS_HELD: LOCKU first
//	open, delegation           LOCKS_HELD: CLOSE or DELEGRETURN
//	copy                       BAD_STATEID: OFFLOAD_CANCEL ends one
//
// While a client has a revoked delegation that it has not freed, it gets no new delegation.
func freeStateid(k *compound) nfs.Status {
	id := k.stateid(DecodeStateid(&k.c.Args))
	if k.bad() {
		return nfs.ErrBadXDR
	}
	return k.badState(k.client.FreeStateid(id))
}
