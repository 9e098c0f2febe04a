package nfs4

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// TestErrors40: what an operation of version 4.0 is answered that is wrong.
func TestErrors40(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	dir := r.root()
	x := r.session(1, "later")
	_, other := x.make(x.handle("one"), "theirs")
	file, top := op(OpPutFH, fh), op(OpPutFH, dir)
	stale, never := id, id
	stale.Other[3]++
	never.Other[7] += 100
	unknown := id
	unknown.Other[11] += 100
	later := id
	later.Seq++
	zero := id
	zero.Seq = 0
	open := func(how ...any) args { return op(OpOpen, c.seqs["o"]+1, uint32(1), uint32(0), c.id, "o", part(how...)) }
	for _, k := range []struct {
		name string
		op   uint32
		ops  []args
		want nfs.Status
	}{
		{"of 4.1", OpIllegal, []args{op(OpSequence)}, nfs.ErrOpIllegal},
		{"of 4.1, with a session of it", OpIllegal, []args{x.sequence(x.seq+1, 0)}, nfs.ErrOpIllegal},
		{"EXCHANGE_ID", OpIllegal, []args{exchangeArgs("z", 1, 0)}, nfs.ErrOpIllegal},
		{"of 4.2", OpIllegal, []args{file, op(OpSeek, id, uint64(0), uint32(0))}, nfs.ErrOpIllegal},
		{"of no version", OpIllegal, []args{op(1)}, nfs.ErrOpIllegal},
		{"DELEGPURGE", OpDelegPurge, []args{op(OpDelegPurge, c.id)}, nfs.ErrNotSupp},
		{"OPENATTR", OpOpenAttr, []args{file, op(OpOpenAttr, true)}, nfs.ErrNotSupp},
		{"RENEW of nobody", OpRenew, []args{op(OpRenew, uint64(5))}, nfs.ErrStaleClientID},
		{"RENEW of a later version's", OpRenew, []args{op(OpRenew, x.client)}, nfs.ErrStaleClientID},
		{"RENEW cut short", OpRenew, []args{op(OpRenew, uint32(1))}, nfs.ErrBadXDR},
		{
			"SETCLIENTID, long owner", OpSetClientID,
			[]args{setClientOp(strings.Repeat("x", 1025), 1, "tcp", uaddr)},
			nfs.ErrBadXDR,
		},
		{
			"SETCLIENTID, long address", OpSetClientID,
			[]args{setClientOp("x", 1, "tcp", strings.Repeat("1", 129))},
			nfs.ErrBadXDR,
		},
		{"SETCLIENTID_CONFIRM cut short", OpSetClientIDConfirm, []args{op(OpSetClientIDConfirm, c.id)}, nfs.ErrBadXDR},
		{"OPEN by nobody", OpOpen, []args{top, op(OpOpen, uint32(1), uint32(1), uint32(0), uint64(5), "o", uint32(0),
			uint32(ClaimNull), "file")}, nfs.ErrStaleClientID},
		{"OPEN, EXCLUSIVE4_1", OpOpen, []args{top, open(uint32(OpenCreate), uint32(CreateExclusive41), [8]byte{},
			attrs(Bitmap{}), uint32(ClaimNull), "n")}, nfs.ErrBadXDR},
		{"OPEN, CLAIM_FH", OpOpen, []args{file, open(uint32(OpenNoCreate), uint32(ClaimFH))}, nfs.ErrBadXDR},
		{
			"OPEN, CLAIM_DELEGATE_PREV", OpOpen,
			[]args{top, open(uint32(OpenNoCreate), uint32(claimDelegPrev), "file")},
			nfs.ErrNotSupp,
		},
		{"READ, stale", OpRead, []args{file, op(OpRead, stale, uint64(0), uint32(1))}, nfs.ErrStaleStateID},
		{
			"READ, of a client that never was", OpRead,
			[]args{file, op(OpRead, never, uint64(0), uint32(1))},
			nfs.ErrBadStateID,
		},
		{"READ, of no state", OpRead, []args{file, op(OpRead, unknown, uint64(0), uint32(1))}, nfs.ErrBadStateID},
		{"READ, of later", OpRead, []args{file, op(OpRead, later, uint64(0), uint32(1))}, nfs.ErrBadStateID},
		{
			"READ, zero is not the current one", OpRead,
			[]args{file, op(OpRead, zero, uint64(0), uint32(1))},
			nfs.ErrOldStateID,
		},
		{
			"READ, the current stateid", OpRead,
			[]args{file, op(OpRead, state.Current, uint64(0), uint32(1))},
			nfs.ErrBadStateID,
		},
		{"READ, of a session's client", OpRead, []args{file, op(OpRead, other, uint64(0), uint32(1))}, nfs.ErrBadStateID},
		{
			"READ, of another file", OpRead,
			[]args{top, op(OpLookup, "theirs"), op(OpRead, id, uint64(0), uint32(1))},
			nfs.ErrBadStateID,
		},
		{"CLOSE, special", OpClose, []args{file, op(OpClose, uint32(1), state.Anonymous)}, nfs.ErrBadStateID},
		{"CLOSE, stale", OpClose, []args{file, op(OpClose, uint32(1), stale)}, nfs.ErrStaleStateID},
		{"CLOSE, of the root", OpClose, []args{op(OpPutRootFH), op(OpClose, uint32(1), id)}, nfs.ErrBadStateID},
		{"CLOSE, number", OpClose, []args{file, op(OpClose, uint32(100), id)}, nfs.ErrBadSeqID},
		{"CLOSE, number before stateid", OpClose, []args{file, op(OpClose, uint32(100), later)}, nfs.ErrBadSeqID},
		{"LOCKU, special", OpLockU, []args{file, lockUOp(1, state.Bypass, 0, 1)}, nfs.ErrBadStateID},
		{
			"LOCKT by nobody", OpLockT,
			[]args{file, op(OpLockT, LockRead, uint64(0), uint64(1), uint64(5), "l")},
			nfs.ErrStaleClientID,
		},
		{"LOCKT, empty", OpLockT, []args{file, op(OpLockT, LockRead, uint64(0), uint64(0), c.id, "l")}, nfs.ErrInval},
		{"LOCKT of a directory", OpLockT, []args{top, op(OpLockT, LockRead, uint64(0), uint64(1), c.id, "l")}, nfs.ErrIsDir},
		{"DELEGRETURN of an open", OpDelegReturn, []args{file, op(OpDelegReturn, id)}, nfs.ErrBadStateID},
		{"DELEGRETURN, stale", OpDelegReturn, []args{file, op(OpDelegReturn, stale)}, nfs.ErrStaleStateID},
		{
			"SETATTR of the size of a directory", OpSetAttr,
			[]args{op(OpPutFH, r.root()), op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrSize), uint64(0)))},
			nfs.ErrIsDir,
		},
		{
			"SETATTR, stale", OpSetAttr,
			[]args{file, op(OpSetAttr, stale, attrs(BitmapOf(AttrSize), uint64(0)))},
			nfs.ErrStaleStateID,
		},
		{"READLINK of a file", OpReadLink, []args{file, op(OpReadLink)}, nfs.ErrInval},
		{
			"VERIFY of an attribute of 4.1", OpVerify,
			[]args{file, op(OpVerify, attrs(BitmapOf(AttrExclCreat), Bitmap{}))},
			nfs.ErrAttrNotSupp,
		},
		{"RESTOREFH of nothing", OpRestoreFH, []args{op(OpRestoreFH)}, nfs.ErrRestoreFH},
	} {
		p := r.compound(0, k.ops...)
		for p.left > 1 {
			head := *p.Decoder
			p.ok(head.Uint32()) // of what leads there
		}
		if st := p.next(k.op); st != k.want || p.status != k.want {
			t.Errorf("%s: %v instead of %v", k.name, st, k.want)
		}
	}
	if st := r.compound(3, op(OpPutRootFH)).status; st != nfs.ErrMinorVersMismatch {
		t.Errorf("minor version 3: %v", st)
	}
	// Owner numbers are where they were: none of these counted, or the table would not say so.
	c.on(fh, op(OpClose, c.seqs["o"]+2, id)).ok(OpClose)
	// A compound has no end.
	var long []args
	for range opsMax + 1 {
		long = append(long, op(OpPutRootFH))
	}
	p := r.compound(0, long...)
	for range opsMax {
		p.ok(OpPutRootFH)
	}
	p.fails(OpPutRootFH, nfs.ErrResource)
	// Nor may a reply.
	long = []args{op(OpPutRootFH)}
	for range 200 {
		long = append(long, op(OpSetClientID, [8]byte{}, "x", uint32(1), "tcp", strings.Repeat("9", uaddrMax), uint32(1)))
	}
	c.make("p", "more")
	r.uid = 9
	if p := r.compound(0, long...); p.status != nfs.ErrClientIDInUse {
		t.Error(p.status)
	}
	r.uid = 0
	// SECINFO keeps the file handle; what is asked beyond version 4.0 is left out.
	p = r.compound(0, op(OpPutRootFH), op(OpSecInfo, "one"),
		op(OpGetAttr, BitmapOf(AttrType, AttrExclCreat, AttrXattrSupport))).ok(OpPutRootFH).ok(OpSecInfo)
	p.Skip(12)
	if got, _ := DecodeBitmap(p.ok(OpGetAttr).Decoder); got != BitmapOf(AttrType) {
		t.Errorf("attributes %x", got)
	}
	p = r.compound(0, op(OpPutPubFH), op(OpGetAttr, BitmapOf(AttrSupported))).ok(OpPutPubFH).ok(OpGetAttr)
	DecodeBitmap(p.Decoder)
	p.Uint32()
	if got, more := DecodeBitmap(p.Decoder); got[2] != 0 || more || !got.Has(AttrMountedOn) {
		t.Errorf("supported attributes %x", got)
	}
}

// TestShares40: clients of versions 4.0 and 4.1 share files and locks.
func TestShares40(t *testing.T) {
	r := newRig(t)
	c, x := r.client40("x", 1), r.session(1, "y")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	const held = 8 + 8 + 4 + 8 + 4
	c.on(r.root(), c.openOp(c.next("o"), state.Read, state.Write, "o", "file")).fails(OpOpen, nfs.ErrShareDenied)
	x.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
	_, mine := c.open(state.Both, state.Write, "o", "file")
	x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrShareDenied)
	his, _, _ := x.do(op(OpPutFH, dir), openOp(state.Read, 0, "o", "file")).ok(OpPutFH).ok(OpOpen).opened()
	x.do(op(OpPutFH, fh), op(OpWrite, state.Anonymous, uint64(0), uint32(2), "x")).ok(OpPutFH).fails(OpWrite,
		nfs.ErrLocked)
	c.on(fh, op(OpWrite, state.Anonymous, uint64(0), uint32(2), "x")).fails(OpWrite, nfs.ErrLocked)
	c.on(fh, op(OpRead, state.Anonymous, uint64(0), uint32(9))).ok(OpRead)
	c.on(fh, op(OpRead, state.Bypass, uint64(0), uint32(9))).ok(OpRead)
	l := c.on(fh, c.lockOp(c.next("o"), mine.id, 1, "l", LockWrite, 0, 10)).ok(OpLock).id()
	x.do(op(OpPutFH, fh), op(OpLock, LockRead, false, uint64(0), uint64(10), true, uint32(0), his, uint32(0), uint64(0),
		"o")).ok(OpPutFH).
		fails2(OpLock, nfs.ErrDenied, held+4)
	// Locks go with the open; the other's then stand in the way.
	c.on(fh, op(OpClose, c.next("o"), mine.id)).ok(OpClose)
	c.on(fh, lockUOp(2, l, 0, 1)).fails(OpLockU, nfs.ErrBadStateID)
	x.do(op(OpPutFH, fh), op(OpLock, LockRead, false, uint64(0), uint64(10), true, uint32(0), his, uint32(0), uint64(0),
		"o")).ok(OpPutFH).ok(OpLock)
	_, mine = c.open(state.Both, 0, "o", "file")
	d := c.on(fh, c.lockOp(c.next("o"), mine.id, 1, "l", LockWrite, 0, 10)).fails2(OpLock, nfs.ErrDenied, held+4)
	if d.Skip(8 + 8 + 4); d.Uint64() != x.client {
		t.Error("another holder")
	}
}

// TestLease40: what renews a lease, and what becomes of a client whose lease has run out.
func TestLease40(t *testing.T) {
	r := newRig(t)
	c, other := r.client40("x", 1), r.client40("y", 1)
	fh, id := c.make("o", "file")
	l := c.on(fh, c.lockOp(c.next("o"), id, 1, "l", LockWrite, 0, 10)).ok(OpLock).id()
	_, his := other.open(state.Both, 0, "o", "file")
	seq := uint32(1)
	for name, renewing := range map[string]func(){
		"READ":    func() { c.on(fh, op(OpRead, id, uint64(0), uint32(1))).ok(OpRead) },
		"WRITE":   func() { c.on(fh, op(OpWrite, id, uint64(0), uint32(2), "x")).ok(OpWrite) },
		"SETATTR": func() { c.on(fh, op(OpSetAttr, id, attrs(BitmapOf(AttrSize), uint64(5)))).ok(OpSetAttr) },
		"LOCKT":   func() { c.on(fh, op(OpLockT, LockRead, uint64(0), uint64(1), c.id, "l")).ok(OpLockT) },
		"RENEW":   func() { r.compound(0, op(OpRenew, c.id)).ok(OpRenew) },
		"OPEN":    func() { c.open(1, 0, "o", "file") },
		"LOCK":    func() { seq++; l = c.on(fh, lockMore(seq, l, LockWrite, 0, 10)).ok(OpLock).id() },
		"LOCKU":   func() { seq++; l = c.on(fh, lockUOp(seq, l, 50, 10)).ok(OpLockU).id() },
	} {
		r.now = r.now.Add(80 * time.Second)
		r.compound(0, op(OpRenew, other.id)).ok(OpRenew)
		if name == "OPEN" {
			_, o := c.open(1, 0, "o", "file")
			id = o.id
		}
		renewing()
		if name == "OPEN" {
			id.Seq++
		}
		other.on(fh, other.lockOp(other.next("o"), his.id, 1, "l", LockWrite, 0, 1)).fails2(OpLock, nfs.ErrDenied,
			8+8+4+8+4+4)
	}
	// Silent, but nobody wants anything of it: it is as if nothing had been.
	r.now = r.now.Add(time.Hour)
	r.compound(0, op(OpRenew, other.id)).ok(OpRenew)
	c.on(fh, op(OpRead, id, uint64(0), uint32(1))).ok(OpRead)
	r.now = r.now.Add(91 * time.Second)
	r.compound(0, op(OpRenew, other.id)).ok(OpRenew)
	other.on(fh, other.lockOp(other.next("o"), his.id, 1, "l", LockWrite, 0, 1)).ok(OpLock)
	c.on(fh, op(OpRead, id, uint64(0), uint32(1))).fails(OpRead, nfs.ErrExpired)
	c.on(fh, op(OpClose, c.seqs["o"]+1, id)).fails(OpClose, nfs.ErrExpired)
	r.compound(0, op(OpRenew, c.id)).fails(OpRenew, nfs.ErrExpired)
	r.compound(0, op(OpPutFH, r.root()), c.openOp(1, 1, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrExpired)
	if fmt.Sprint(r.known) != "[y]" {
		t.Errorf("%q may reclaim", r.known)
	}
}
