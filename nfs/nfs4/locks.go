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

// decodeOwner reads a state_owner4, whose client ID means nothing in a session.
func decodeOwner(d *xdr.Decoder) []byte {
	d.Uint64()
	return d.Opaque(OwnerMax)
}

// lockRange is LOCK (RFC 8881 section 18.10).
func lockRange(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	a.Exclusive = decodeLockType(d)
	a.Reclaim = d.Bool()
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	if a.ByOpen = d.Bool(); a.ByOpen {
		d.Uint32() // seqid of the open-owner
		a.ID = DecodeStateid(d)
		d.Uint32() // seqid of the lock-owner
		a.Owner = decodeOwner(d)
	} else {
		a.ID = DecodeStateid(d)
		d.Uint32()
	}
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if st := k.regular(); st != nfs.OK {
		return st
	}
	a.ID, a.File = k.stateid(a.ID), k.file()
	id, holder, st := k.client.Lock(k.now, &a)
	switch st {
	case nfs.ErrDenied:
		k.denied(holder)
	case nfs.OK:
		k.curID = id
		EncodeStateid(&k.c.Res, id)
	}
	return badState(st)
}

// denied appends a LOCK4denied, the result of a LOCK or LOCKT that failed.
func (k *compound) denied(h *state.Denied) {
	e := &k.c.Res
	e.Uint64(h.Offset)
	e.Uint64(h.Length)
	if h.Exclusive {
		e.Uint32(LockWrite)
	} else {
		e.Uint32(LockRead)
	}
	e.Uint64(h.Client)
	e.String(h.Owner[:min(len(h.Owner), OwnerMax)])
	k.keep = true
}

// lockTest is LOCKT (section 18.11).
func lockTest(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	a.Exclusive = decodeLockType(d)
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	a.Owner = decodeOwner(d)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	return k.testLock(&a)
}

// testLock tells who holds what is in the way of a lock of the current file.
func (k *compound) testLock(a *state.Lock) nfs.Status {
	if st := k.regular(); st != nfs.OK {
		return st
	}
	a.File = k.file()
	holder, st := k.client.TestLock(k.now, a)
	if st == nfs.ErrDenied {
		k.denied(holder)
	}
	return st
}

// unlock is LOCKU (section 18.12).
func unlock(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	decodeLockType(d)
	d.Uint32() // seqid
	a.ID = k.stateid(DecodeStateid(d))
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case k.cur.x == nil:
		return nfs.ErrBadStateID
	}
	a.File = k.file()
	id, st := k.client.Unlock(&a)
	if st == nfs.OK {
		k.curID = id
		EncodeStateid(&k.c.Res, id)
	}
	return badState(st)
}

// stateidsMax bounds a TEST_STATEID.
const stateidsMax = 1 << 16

// testStateid is TEST_STATEID (section 18.48).
func testStateid(k *compound) nfs.Status {
	d, e := &k.c.Args, &k.c.Res
	n := d.Uint32()
	if k.bad() || n > stateidsMax || int(n)*resStateid > d.Remaining() {
		return nfs.ErrBadXDR
	}
	e.Uint32(n)
	for range n {
		e.Uint32(uint32(badState(k.client.TestStateid(k.stateid(DecodeStateid(d))))))
	}
	if k.bad() {
		return nfs.ErrBadXDR
	}
	return nfs.OK
}

// freeStateid is FREE_STATEID (section 18.38).
func freeStateid(k *compound) nfs.Status {
	id := k.stateid(DecodeStateid(&k.c.Args))
	if k.bad() {
		return nfs.ErrBadXDR
	}
	return badState(k.client.FreeStateid(id))
}
