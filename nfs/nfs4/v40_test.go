package nfs4

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestSetClientID: the cases of RFC 7530 sections 16.33.5 and 16.34.5.
func TestSetClientID(t *testing.T) {
	r := newRig(t)
	confirm := func(id uint64, v [8]byte, want nfs.Status) {
		t.Helper()
		p := r.compound(0, confirmOp(id, v))
		if st := p.next(OpSetClientIDConfirm); st != want {
			t.Errorf("SETCLIENTID_CONFIRM: %v", st)
		}
		p.end()
	}
	renews := func(id uint64, want nfs.Status) {
		t.Helper()
		p := r.compound(0, op(OpRenew, id))
		if st := p.next(OpRenew); st != want {
			t.Errorf("RENEW: %v instead of %v", st, want)
		}
		p.end()
	}
	// No record at all, and then an unconfirmed one, which is replaced.
	c, s := r.setClient("x", 1)
	renews(c, nfs.ErrStaleClientID)
	d, u := r.setClient("x", 1)
	if c == d || s == u {
		t.Error("the same again")
	}
	confirm(c, s, nfs.ErrStaleClientID)
	confirm(d, s, nfs.ErrStaleClientID)
	confirm(d, u, nfs.OK)
	confirm(d, u, nfs.OK) // sent again
	renews(d, nfs.OK)
	have := &client40{r: r, id: d, seqs: make(map[string]uint32)}
	fh, id := have.make("o", "file")
	reads := func(want nfs.Status) {
		t.Helper()
		p := have.on(fh, op(OpRead, id, uint64(0), uint32(1)))
		if st := p.next(OpRead); st != want {
			t.Errorf("READ: %v instead of %v", st, want)
		}
	}
	reads(nfs.OK)
	// The same verifier: other callbacks, the same client.
	e, v := r.setClient("x", 1)
	if e != d || v == u {
		t.Errorf("client %x instead of %x", e, d)
	}
	e, w := r.setClient("x", 1)
	confirm(e, v, nfs.ErrStaleClientID)
	confirm(e, w, nfs.OK)
	confirm(e, w, nfs.OK)
	confirm(e, u, nfs.ErrStaleClientID)
	reads(nfs.OK)
	// Another principal: not while there is something to lose (RFC 7530 section 16.33.5).
	r.uid = 7
	p := r.compound(0, setClientOp("x", 1, "tcp", uaddr))
	if st := p.next(OpSetClientID); st != nfs.ErrClientIDInUse || p.String(10) != "tcp" || p.String(100) != uaddr {
		t.Errorf("SETCLIENTID by somebody else: %v", st)
	}
	p.end()
	confirm(e, w, nfs.ErrClientIDInUse)
	r.uid = 0
	// Another verifier: nothing goes before that is confirmed. An unconfirmed record of it is
	// replaced by the next.
	f, x := r.setClient("x", 2)
	g, y := r.setClient("x", 2)
	if f == d || g == d || f == g || x == y {
		t.Errorf("clients %x %x %x", d, f, g)
	}
	reads(nfs.OK)
	confirm(f, x, nfs.ErrStaleClientID)
	r.uid = 7
	confirm(g, y, nfs.ErrClientIDInUse)
	r.uid = 0
	reads(nfs.OK)
	confirm(g, y, nfs.OK)
	reads(nfs.ErrExpired)
	renews(d, nfs.ErrStaleClientID)
	renews(g, nfs.OK)
	confirm(g+1000, y, nfs.ErrStaleClientID)
	// Another principal may have the name of a client that has nothing; the client of before stays
	// until the other one is confirmed, which it is not if the client has got something to lose
	// meanwhile.
	r.uid = 7
	free, z := r.setClient("x", 5)
	r.uid = 0
	renews(g, nfs.OK)
	have = &client40{r: r, id: g, seqs: make(map[string]uint32)}
	fh, id = have.make("o", "second")
	r.uid = 7
	confirm(free, z, nfs.ErrClientIDInUse)
	r.uid = 0
	reads(nfs.OK)
	have.on(fh, op(OpClose, have.next("o"), id)).ok(OpClose).id()
	r.uid = 7
	confirm(free, z, nfs.OK)
	renews(free, nfs.OK)
	renews(g, nfs.ErrStaleClientID)
	g, y = r.setClient("x", 5)
	confirm(g, y, nfs.OK)
	r.uid = 0
	// One that is not confirmed within its lease is gone.
	late, y := r.setClient("late", 1)
	r.now = r.now.Add(91 * time.Second)
	confirm(late, y, nfs.ErrStaleClientID)
	// Another principal may have the name once the lease has run out.
	r.now = r.now.Add(91 * time.Second)
	r.uid = 7
	h, z := r.setClient("x", 2)
	confirm(h, z, nfs.OK)
	r.uid = 0
	// Of a later version by the same name: it ends the client when it is confirmed.
	y40 := r.client40("both", 1)
	y41 := r.session(1, "both")
	renews(y40.id, nfs.ErrStaleClientID)
	again := r.client40("both", 1)
	renews(again.id, nfs.OK)
	r.compound(1, y41.sequence(y41.seq+1, 0)).fails(OpSequence, nfs.ErrBadSession)
	r.compound(1, op(OpCreateSession, again.id, uint32(1), uint32(0), channelArgs(4096, 4096, 0, 8, 1),
		channelArgs(0, 0, 0, 0, 0), uint32(0), uint32(0))).
		fails(OpCreateSession, nfs.ErrStaleClientID)
	r.compound(1, op(OpDestroyClientID, again.id)).fails(OpDestroyClientID, nfs.ErrStaleClientID)
}

// TestOpenOwner: confirmation, numbers, and answers given again.
func TestOpenOwner(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	dir := r.root()
	same := func(what string, ops ...args) {
		t.Helper()
		first, second := r.twice(append([]args{op(OpPutFH, dir)}, ops...)...)
		if !bytes.Equal(first, second) {
			t.Errorf("%s, sent again:\n% x\n% x", what, first, second)
		}
	}
	// A number is any at first. What was opened is of no use before it is confirmed.
	same("OPEN", c.createOp(77, state.Both, "o", "file"), op(OpGetFH))
	p := r.compound(0, op(OpPutFH, dir), c.createOp(77, state.Both, "o", "file"), op(OpGetFH)).ok(OpPutFH).ok(OpOpen)
	o := p.opened40()
	fh := bytes.Clone(p.ok(OpGetFH).Opaque(FHMax))
	if !o.confirm {
		t.Fatal("need not be confirmed")
	}
	c.on(fh, op(OpWrite, o.id, uint64(0), uint32(2), "x")).fails(OpWrite, nfs.ErrBadStateID)
	c.on(fh, op(OpClose, uint32(78), o.id)).fails(OpClose, nfs.ErrBadStateID)
	c.on(fh, c.lockOp(78, o.id, 0, "l", LockWrite, 0, 1)).fails(OpLock, nfs.ErrBadStateID)
	c.on(fh, op(OpOpenConfirm, o.id, uint32(80))).fails(OpOpenConfirm, nfs.ErrBadSeqID)
	// Another OPEN instead, with any number: the first one counts for nothing.
	p = r.compound(0, op(OpPutFH, dir), c.openOp(5, state.Both, 0, "o", "file")).ok(OpPutFH).ok(OpOpen)
	old := o.id
	o = p.opened40()
	if !o.confirm || o.id.Other == old.Other {
		t.Error("the first OPEN is still there")
	}
	c.on(fh, op(OpOpenConfirm, old, uint32(6))).fails(OpOpenConfirm, nfs.ErrBadStateID)
	first, second := r.twice(op(OpPutFH, fh), op(OpOpenConfirm, o.id, uint32(6)))
	if !bytes.Equal(first, second) {
		t.Errorf("OPEN_CONFIRM, sent again:\n% x\n% x", first, second)
	}
	id := c.on(fh, op(OpOpenConfirm, o.id, uint32(6))).ok(OpOpenConfirm).id()
	c.on(fh, op(OpOpenConfirm, id, uint32(7))).fails(OpOpenConfirm, nfs.ErrBadStateID)
	c.on(fh, op(OpWrite, id, uint64(0), uint32(2), "x")).ok(OpWrite)
	c.on(fh, op(OpRead, o.id, uint64(0), uint32(1))).fails(OpRead, nfs.ErrOldStateID)
	// Numbers. An error counts like a success, but for a few that say so.
	r.compound(0, op(OpPutFH, dir), c.openOp(8, 1, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrBadSeqID)
	r.compound(0, op(OpPutFH, dir), c.openOp(6, 1, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrBadSeqID)
	same("OPEN of nothing", c.openOp(7, 1, 0, "o", "none"))
	r.compound(0, op(OpPutFH, dir), c.openOp(7, 1, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrBadSeqID)
	r.compound(0, op(OpPutFH, dir), c.openOp(8, 4, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrInval)
	r.compound(0, c.openOp(9, 1, 0, "o", "file")).fails(OpOpen, nfs.ErrNoFileHandle)
	// The file handle is that of the file again when the answer is.
	p = r.compound(0, op(OpPutFH, dir), c.openOp(9, 1, 0, "o", "file")).ok(OpPutFH).ok(OpOpen)
	o = p.opened40()
	if o.confirm || o.id.Other != id.Other || o.id.Seq != id.Seq+1 {
		t.Errorf("%v after %v", o.id, id)
	}
	p = r.compound(0, op(OpPutFH, dir), c.openOp(9, 1, 0, "o", "file"), op(OpGetFH)).ok(OpPutFH).ok(OpOpen)
	p.opened40()
	if got := p.ok(OpGetFH).Opaque(FHMax); !bytes.Equal(got, fh) {
		t.Error("another file")
	}
	r.compound(0, op(OpPutFH, dir), op(OpLookup, "nested"),
		c.openOp(9, 1, 0, "o", "file")).ok(OpPutFH).ok(OpLookup).fails(OpOpen, nfs.ErrBadSeqID)
	down := op(OpOpenDowngrade, o.id, uint32(10), uint32(state.Read), uint32(0))
	if first, second := r.twice(op(OpPutFH, fh), down); !bytes.Equal(first, second) {
		t.Errorf("OPEN_DOWNGRADE, sent again:\n% x\n% x", first, second)
	}
	id = c.on(fh, down).ok(OpOpenDowngrade).id()
	c.on(fh, op(OpWrite, id, uint64(0), uint32(2), "x")).fails(OpWrite, nfs.ErrOpenMode)
	c.on(fh, op(OpOpenDowngrade, id, uint32(11), uint32(state.Write), uint32(0))).fails(OpOpenDowngrade, nfs.ErrInval)
	c.on(fh, op(OpOpenDowngrade, id, uint32(12), uint32(0), uint32(0))).fails(OpOpenDowngrade, nfs.ErrInval)
	c.on(fh, op(OpClose, uint32(13), o.id)).fails(OpClose, nfs.ErrOldStateID)
	c.on(dir, op(OpClose, uint32(14), id)).fails(OpClose, nfs.ErrBadStateID)
	// A CLOSE may be sent again until the owner does something else.
	if first, second := r.twice(op(OpPutFH, fh), op(OpClose, uint32(14), id)); !bytes.Equal(first, second) {
		t.Errorf("CLOSE, sent again:\n% x\n% x", first, second)
	}
	c.on(fh, op(OpClose, uint32(14), id)).ok(OpClose).id()
	c.on(fh, op(OpClose, uint32(15), id)).fails(OpClose, nfs.ErrBadStateID)
	c.on(fh, op(OpRead, id, uint64(0), uint32(1))).fails(OpRead, nfs.ErrBadStateID)
	r.compound(0, op(OpPutFH, dir), c.openOp(15, 1, 0, "o", "file")).ok(OpPutFH).ok(OpOpen)
	c.on(fh, op(OpClose, uint32(14), id)).fails(OpClose, nfs.ErrBadStateID)
	if n := r.s.replays.Load(); n < 8 {
		t.Errorf("%d answers given again", n)
	}
}

// TestLockOwner: numbers of lock-owners beside those of open-owners.
func TestLockOwner(t *testing.T) {
	r := newRig(t)
	c, other := r.client40("x", 1), r.client40("y", 1)
	fh, id := c.make("o", "file")
	_, his := other.open(state.Both, 0, "o", "file")
	const held = 8 + 8 + 4 + 8
	twice := func(what string, a args) {
		t.Helper()
		if first, second := r.twice(op(OpPutFH, fh), a); !bytes.Equal(first, second) {
			t.Errorf("%s, sent again:\n% x\n% x", what, first, second)
		}
	}
	a := c.lockOp(c.next("o"), id, 41, "l", LockWrite, 0, 10)
	twice("LOCK", a)
	l := c.on(fh, a).ok(OpLock).id()
	// Refused: the number counts, and who is in the way is told again.
	a = other.lockOp(other.next("o"), his.id, 1, "l", LockRead, 5, 10)
	twice("LOCK refused", a)
	d := other.on(fh, a).fails2(OpLock, nfs.ErrDenied, held+4+4)
	if off, n, typ, id, who := d.Uint64(), d.Uint64(), d.Uint32(), d.Uint64(), d.String(10); off != 0 || n != 10 ||
		typ != LockWrite || id != c.id || who != "l" {
		t.Errorf("%d %d %d %x %q", off, n, typ, id, who)
	}
	other.on(fh, op(OpLockT, LockRead, uint64(0), uint64(1), other.id, "l")).fails2(OpLockT, nfs.ErrDenied, held+4+4)
	c.on(fh, op(OpLockT, LockRead, uint64(0), uint64(1), c.id, "l")).ok(OpLockT).end()
	// By its own stateid.
	c.on(fh, lockMore(41, l, LockWrite, 20, 1)).fails(OpLock, nfs.ErrBadSeqID)
	c.on(fh, lockMore(43, l, LockWrite, 20, 1)).fails(OpLock, nfs.ErrBadSeqID)
	a = lockMore(42, l, LockWrite, 20, 1)
	twice("LOCK by a stateid", a)
	l2 := c.on(fh, a).ok(OpLock).id()
	if l2.Other != l.Other || l2.Seq != l.Seq+1 {
		t.Errorf("%v after %v", l2, l)
	}
	c.on(fh, lockUOp(43, l, 0, 10)).fails(OpLockU, nfs.ErrOldStateID)
	a = lockUOp(44, l2, 0, 10)
	twice("LOCKU", a)
	l = c.on(fh, a).ok(OpLockU).id()
	// Another open and the same lock-owner: both numbers have to be right.
	fh2, id2 := c.make("o", "second")
	c.on(fh2, c.lockOp(c.seqs["o"]+1, id2, 44, "l", LockWrite, 0, 1)).fails(OpLock, nfs.ErrBadSeqID)
	c.on(fh2, c.lockOp(c.seqs["o"]+1, id2, 46, "l", LockWrite, 0, 1)).fails(OpLock, nfs.ErrBadSeqID)
	c.on(fh2, c.lockOp(c.seqs["o"]+5, id2, 45, "l", LockWrite, 0, 1)).fails(OpLock, nfs.ErrBadSeqID)
	c.on(fh2, c.lockOp(c.next("o"), id2, 45, "l", LockWrite, 0, 1)).ok(OpLock).id()
	// What is of another kind, of another file, or another client's.
	c.on(fh, lockMore(46, id, LockWrite, 0, 1)).fails(OpLock, nfs.ErrBadStateID)
	c.on(fh, lockUOp(46, id, 0, 1)).fails(OpLockU, nfs.ErrBadStateID)
	c.on(fh, op(OpClose, uint32(46), l)).fails(OpClose, nfs.ErrBadStateID)
	c.on(fh2, lockMore(46, l, LockWrite, 0, 1)).fails(OpLock, nfs.ErrBadStateID)
	c.on(fh, op(OpLock, LockWrite, false, uint64(0), uint64(1), true, c.seqs["o"]+1, id, uint32(46), other.id,
		"l")).fails(OpLock, nfs.ErrBadStateID)
	c.on(fh, op(OpLock, LockWrite, false, uint64(0), uint64(1), true, c.seqs["o"]+1, id, uint32(46), uint64(1),
		"l")).fails(OpLock, nfs.ErrStaleClientID)
	c.on(fh, op(OpLock, uint32(9), false, uint64(0), uint64(1), false, l, uint32(46))).fails(OpLock, nfs.ErrBadXDR)
	c.on(fh, lockMore(46, l, LockWrite, 5, 0)).fails(OpLock, nfs.ErrInval)
	c.on(fh, lockUOp(47, l, 5, 1<<64-3)).fails(OpLockU, nfs.ErrInval)
	// Released as soon as nothing is locked.
	c.on(fh, op(OpReleaseLockOwner, c.id, "l")).fails(OpReleaseLockOwner, nfs.ErrLocksHeld)
	l = c.on(fh, lockUOp(48, l, 0, lock.ToEnd)).ok(OpLockU).id()
	c.on(fh2, op(OpReleaseLockOwner, c.id, "l")).fails(OpReleaseLockOwner, nfs.ErrLocksHeld)
	c.on(fh2, op(OpClose, c.next("o"), id2)).ok(OpClose)
	c.on(fh, op(OpReleaseLockOwner, c.id, "l")).ok(OpReleaseLockOwner).end()
	c.on(fh, lockMore(49, l, LockWrite, 0, 1)).fails(OpLock, nfs.ErrBadStateID)
	c.on(fh, op(OpReleaseLockOwner, c.id, "l")).ok(OpReleaseLockOwner).end()
	c.on(fh, op(OpReleaseLockOwner, uint64(1), "l")).fails(OpReleaseLockOwner, nfs.ErrStaleClientID)
	// Then it may begin with any number.
	c.on(fh, c.lockOp(c.next("o"), id, 1, "l", LockRead, 0, 1)).ok(OpLock).id()
}

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

// TestReclaim40: state is reclaimed after a restart, by those alone who had it at its end.
func TestReclaim40(t *testing.T) {
	r := newRig(t)
	c, third := r.client40("x", 1), r.client40("z", 1)
	fh, id := c.make("o", "file")
	c.on(fh, c.lockOp(c.next("o"), id, 1, "l", LockWrite, 0, 10)).ok(OpLock)
	third.make("o", "third")
	restart := func(boot uint32) {
		r.locks = lock.New(0)
		r.start(boot)
	}
	lockReclaim := func(c *client40, id state.Stateid, reclaim bool) args {
		return op(OpLock, LockWrite, reclaim, uint64(0), uint64(10), true, c.next("o"), id, uint32(1), c.id, "l")
	}
	restart(8)
	r.compound(0, op(OpRenew, c.id)).fails(OpRenew, nfs.ErrStaleClientID)
	c.on(fh, op(OpRead, id, uint64(0), uint32(1))).fails(OpRead, nfs.ErrStaleStateID)
	c = r.client40("x", 1)
	other := r.client40("y", 1)
	dir := r.root()
	other.on(dir, other.openOp(other.next("o"), 1, 0, "o", "file")).fails(OpOpen, nfs.ErrGrace)
	other.on(fh, other.reclaimOp(other.next("o"), state.Both, "o")).fails(OpOpen, nfs.ErrNoGrace)
	other.on(fh, op(OpRead, state.Anonymous, uint64(0), uint32(1))).fails(OpRead, nfs.ErrGrace)
	c.on(dir, c.openOp(c.next("o"), 1, 0, "o", "file")).fails(OpOpen, nfs.ErrGrace)
	o := c.on(fh, c.reclaimOp(c.next("o"), state.Both, "o")).ok(OpOpen).opened40()
	if o.confirm {
		t.Error("what is reclaimed has to be confirmed")
	}
	c.on(fh, lockReclaim(c, o.id, false)).fails(OpLock, nfs.ErrGrace)
	c.on(fh, lockReclaim(c, o.id, true)).ok(OpLock)
	// The period is over with the lease, and is not kept for z, who has not come back: at the
	// next start z may not reclaim what others had meanwhile (the second edge condition).
	r.now = r.now.Add(91 * time.Second)
	r.compound(0, op(OpRenew, c.id)).ok(OpRenew)
	c.on(fh, c.reclaimOp(c.next("o"), state.Both, "o")).fails(OpOpen, nfs.ErrNoGrace)
	fh3, _ := other.open(state.Both, 0, "p", "third")
	restart(9)
	third = r.client40("z", 1)
	third.on(fh3, third.reclaimOp(third.next("o"), state.Both, "o")).fails(OpOpen, nfs.ErrNoGrace)
	c = r.client40("x", 1)
	o = c.on(fh, c.reclaimOp(c.next("o"), state.Both, "o")).ok(OpOpen).opened40()
	c.on(fh, lockReclaim(c, o.id, true)).ok(OpLock)
	// A client loses its state to somebody else while it cannot be reached, and the server
	// starts again: it is out of the list then (the first edge condition).
	r.now = r.now.Add(200 * time.Second)
	other = r.client40("y", 2)
	_, his := other.open(state.Both, 0, "o", "file")
	other.on(fh, other.lockOp(other.next("o"), his.id, 1, "l", LockWrite, 0, 1)).ok(OpLock)
	restart(10)
	c, other = r.client40("x", 1), r.client40("y", 2)
	c.on(fh, c.reclaimOp(c.next("o"), state.Both, "o")).fails(OpOpen, nfs.ErrNoGrace)
	other.on(fh, other.reclaimOp(other.next("o"), state.Both, "o")).ok(OpOpen)
}

// TestDelegation40: a client is given delegations once it has answered, and is called for
// them; RENEW tells it when it cannot be.
func TestDelegation40(t *testing.T) {
	r := newRig(t)
	back := &callee40{t: t}
	r.called40(back)
	x := r.session(2, "later")
	dir := x.handle("one")
	fh := x.file("file")
	c := r.client40("x", 1)
	if back.null != 1 || back.to != netip.MustParseAddrPort("10.0.0.1:1000") {
		t.Errorf("tried %d times, at %v", back.null, back.to)
	}
	if _, o := c.open(state.Read, 0, "o", "file"); o.deleg != DelegNone {
		t.Error("delegated before the open was confirmed")
	}
	_, o := c.open(state.Read, 0, "o", "file")
	if o.deleg != delegRead || o.recall {
		t.Fatalf("delegation %d", o.deleg)
	}
	if _, again := c.open(state.Read, 0, "o", "file"); again.deleg != DelegNone {
		t.Error("delegated twice")
	}
	c.on(fh, op(OpRead, o.delegID, uint64(0), uint32(1))).ok(OpRead)
	c.on(fh, op(OpGetAttr, BitmapOf(AttrSize))).ok(OpGetAttr)
	x.do(op(OpPutFH, fh), op(OpRead, state.Anonymous, uint64(0), uint32(1))).ok(OpPutFH).ok(OpRead)
	// Wanted.
	x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrJukebox)
	if len(back.recall) != 1 || back.recall[0].id != o.delegID || !bytes.Equal(back.recall[0].fh, fh) {
		t.Fatalf("recalled: %v", back.recall)
	}
	// What it has opened by itself it says, and then gives it back.
	claim := op(OpOpen, c.next("o"), uint32(state.Read), uint32(0), c.id, "o", uint32(OpenNoCreate),
		uint32(claimDelegCur), o.delegID, "file")
	if got := c.on(dir, claim).ok(OpOpen).opened40(); got.confirm || got.deleg != DelegNone {
		t.Errorf("%+v", got)
	}
	c.on(fh, op(OpDelegReturn, o.delegID)).ok(OpDelegReturn).end()
	c.on(fh, op(OpDelegReturn, o.delegID)).fails(OpDelegReturn, nfs.ErrBadStateID)
	claim = op(OpOpen, c.next("o"), uint32(state.Read), uint32(0), c.id, "o", uint32(OpenNoCreate),
		uint32(claimDelegCur), o.delegID, "file")
	c.on(dir, claim).fails(OpOpen, nfs.ErrBadStateID)
	c.seqs["o"]--
	his, _, _ := x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "file")).ok(OpPutFH).ok(OpOpen).opened()
	x.do(op(OpPutFH, fh), op(OpClose, uint32(0), his)).ok(OpPutFH).ok(OpClose)
	if _, o := c.open(state.Read, 0, "o", "file"); o.deleg != DelegNone {
		t.Error("delegated again at once")
	}
	// Not for writing.
	if _, o := c.open(state.Both, 0, "o", "file"); o.deleg != DelegNone {
		t.Errorf("delegation %d", o.deleg)
	}
	// A client that does not answer loses it, and hears before that it cannot be called.
	fh = x.file("second")
	r.compound(0, op(OpRenew, c.id)).ok(OpRenew)
	_, o = c.open(state.Read, 0, "o", "second")
	if o.deleg != delegRead {
		t.Fatal("not delegated")
	}
	back.silent = true
	x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "second")).ok(OpPutFH).fails(OpOpen, nfs.ErrJukebox)
	r.compound(0, op(OpRenew, c.id)).fails(OpRenew, nfs.ErrCBPathDown)
	for range 4 {
		r.now = r.now.Add(30 * time.Second)
		c.on(fh, op(OpRead, o.id, uint64(0), uint32(1))).ok(OpRead)
		x.do(op(OpPutRootFH)).ok(OpPutRootFH)
	}
	x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "second")).ok(OpPutFH).ok(OpOpen)
	if n := r.s.state.Delegations(); n.Revoked != 1 || n.Now != 0 {
		t.Errorf("%+v", n)
	}
	c.on(fh, op(OpRead, o.delegID, uint64(0), uint32(1))).fails(OpRead, nfs.ErrBadStateID)
	r.compound(0, op(OpRenew, c.id)).ok(OpRenew) // it has none now
	x.file("third")
	if _, o := c.open(state.Read, 0, "o", "third"); o.deleg != DelegNone {
		t.Error("delegated to a client that does not answer")
	}
	// It is tried again, but not all the time; at once when it says where it is.
	back.silent = false
	n := back.null
	r.compound(0, op(OpRenew, c.id), op(OpRenew, c.id)).ok(OpRenew).ok(OpRenew)
	r.now = r.now.Add(46 * time.Second)
	r.compound(0, op(OpRenew, c.id)).ok(OpRenew)
	if back.null != n+1 {
		t.Errorf("tried %d times", back.null-n)
	}
	back.silent = true
	id, confirm := r.setClient("x", 1)
	r.compound(0, confirmOp(id, confirm)).ok(OpSetClientIDConfirm)
	back.silent = false
	id, confirm = r.setClient("x", 1)
	r.compound(0, confirmOp(id, confirm)).ok(OpSetClientIDConfirm)
	if _, o := c.open(state.Read, 0, "o", "third"); o.deleg != delegRead {
		t.Error("not delegated to a client that answers again")
	}
}

// TestCallbackAddr: nobody is called but a client itself.
func TestCallbackAddr(t *testing.T) {
	r := newRig(t)
	for _, k := range []struct{ peer, netid, addr, want string }{
		{"10.0.0.1:700", "tcp", "10.0.0.1.3.232", "10.0.0.1:1000"},
		{"10.0.0.1:700", "rdma", "10.0.0.1.3.232", "10.0.0.1:1000"},
		{"[::ffff:10.0.0.1]:700", "tcp", "10.0.0.1.3.232", "10.0.0.1:1000"},
		{"10.0.0.1:700", "tcp", "10.0.0.2.3.232", ""},
		{"10.0.0.1:700", "tcp", "127.0.0.1.3.232", ""},
		{"10.0.0.1:700", "udp", "10.0.0.1.3.232", ""},
		{"10.0.0.1:700", "tcp", "10.0.0.1.0.0", ""},
		{"10.0.0.1:700", "tcp", "10.0.0.1.256.1", ""},
		{"10.0.0.1:700", "tcp", "10.0.0.1", ""},
		{"10.0.0.1:700", "tcp", "", ""},
		{"10.0.0.1:700", "tcp", "...", ""},
		{"10.0.0.1:700", "tcp", "10.0.0.1.3.-1", ""},
		{"10.0.0.1:700", "", "0.0.0.0.0.0", ""},
		{"[2001:db8::1]:700", "tcp6", "2001:db8::1.8.1", "[2001:db8::1]:2049"},
		{"[2001:db8::1]:700", "rdma", "2001:db8::1.8.1", "[2001:db8::1]:2049"},
		{"[2001:db8::1]:700", "rdma6", "2001:db8::1.8.1", "[2001:db8::1]:2049"},
		{"[2001:db8::1]:700", "tcp", "2001:db8::1.8.1", ""},
		{"[fe80::1%eth0]:700", "tcp6", "fe80::1.8.1", "[fe80::1%eth0]:2049"},
		{"[fe80::1%eth0]:700", "tcp6", "fe80::1%eth1.8.1", ""},
	} {
		back := &callee40{t: t}
		r.called40(back)
		r.peer = k.peer
		p := r.compound(0, setClientOp("x", 1, k.netid, k.addr)).ok(OpSetClientID)
		id, confirm := p.Uint64(), decodeVerifier(p.Decoder)
		r.compound(0, confirmOp(id, confirm)).ok(OpSetClientIDConfirm)
		got := ""
		if back.to.IsValid() {
			got = back.to.String()
		}
		if got != k.want {
			t.Errorf("%s %s of %s: %q instead of %q", k.netid, k.addr, k.peer, got, k.want)
		}
		r.s.state.Evict(id)
	}
}

// TestOnce: a call of version 4.0 that is sent again is executed again only where that
// does no harm.
func TestOnce(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	dir := r.root()
	put := op(OpPutFH, dir)
	read := op(OpRead, id, uint64(0), uint32(9))
	harmless := []args{
		put, op(OpSaveFH), op(OpRestoreFH), op(OpLookup, "file"), op(OpGetFH), op(OpAccess, uint32(3)),
		op(OpGetAttr, BitmapOf(AttrSize)), read,
		op(OpWrite, id, uint64(0), uint32(2), "data"), op(OpCommit, uint64(0), uint32(0)),
		op(OpVerify, attrs(BitmapOf(AttrSize), uint64(4))), op(OpLookupP),
		op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), BitmapOf(AttrType)), op(OpSecInfo, "file"),
		op(OpRenew, c.id), op(OpPutPubFH), op(OpPutRootFH), op(OpReadLink),
	}
	for _, k := range []struct {
		name  string
		minor uint32
		ops   []args
		want  bool
	}{
		{"harmless", 0, harmless, false},
		{"and a REMOVE", 0, append(harmless[:len(harmless):len(harmless)], op(OpRemove, "file")), true},
		{"CREATE", 0, []args{put, op(OpCreate, uint32(2), "d", attrs(Bitmap{}))}, true},
		{"SETCLIENTID", 0, []args{setClientOp("x", 1, "", "")}, true},
		{"OPEN", 0, []args{put, c.openOp(1, 1, 0, "o", "file")}, true},
		{"in a session", 1, []args{put, op(OpRemove, "file")}, false},
		{"cut short", 0, []args{op(OpPutFH, uint32(100))}, false},
		{"illegal", 0, []args{op(7777)}, true},
	} {
		var e xdr.Encoder
		encodeCompound(&e, "tag", k.minor, k.ops...)
		if got := Once(xdr.NewDecoder(e.B)); got != k.want {
			t.Errorf("%s: %v", k.name, got)
		}
	}
	// On the wire: the same transaction, the same reply, by another connection too.
	var e xdr.Encoder
	encodeCompound(&e, "tag", 0, put, op(OpCreate, uint32(2), "d", attrs(Bitmap{})), put, op(OpRename, "x", "y"))
	d, _ := r.send(e.B)
	first := bytes.Clone(r.raw)
	if st := nfs.Status(d.Uint32()); st != nfs.ErrNoFileHandle {
		t.Fatal(st)
	}
	r.xid--
	r.peer, r.conn.Conn = "10.0.0.1:999", 1
	r.send(e.B)
	if !bytes.Equal(first, r.raw) {
		t.Errorf("sent again:\n% x\n% x", first, r.raw)
	}
	r.parse(r.send(e.B)).ok(OpPutFH).fails(OpCreate, nfs.ErrExist)
	_ = fh
}

// TestOnceForGood: the answer of what changes names outlives the server; that of what opens
// a file does not, which is not open any more.
func TestOnceForGood(t *testing.T) {
	r := newRig(t)
	journal := make([]byte, 64<<10)
	serve := func() {
		r.srv.Close()
		r.srv = rpc.NewServer(rpc.ServerConfig{Programs: r.s.Programs(), Workers: 2, Journal: journal})
		t.Cleanup(r.srv.Close)
	}
	serve()
	c := r.client40("x", 1)
	put := op(OpPutFH, r.root())
	remove, open := []args{put, op(OpRemove, "file"), op(OpPutRootFH)}, []args{put, c.openOp(9, 1, 0, "p", "other")}
	c.make("o", "file")
	c.make("o", "other")
	for _, k := range []struct {
		name string
		ops  []args
		op   uint32
		want nfs.Status // when sent again to the next server
	}{{"REMOVE", remove, OpRemove, nfs.OK}, {"OPEN", open, OpOpen, nfs.ErrStaleClientID}} {
		var e xdr.Encoder
		encodeCompound(&e, "tag", 0, k.ops...)
		r.parse(r.send(e.B)).ok(OpPutFH).ok(k.op)
		first := bytes.Clone(r.raw)
		r.known = nil
		r.start(20 + k.op)
		serve()
		r.xid--
		p := r.parse(r.send(e.B)).ok(OpPutFH)
		if st := p.next(k.op); st != k.want || k.want == nfs.OK && !bytes.Equal(first, r.raw) {
			t.Errorf("%s, sent again: %v", k.name, st)
		}
		c = r.client40("x", 1)
		open[1] = c.openOp(9, 1, 0, "p", "other")
	}
}

// TestInline40: a READ of version 4.0 is served where nothing may wait.
func TestInline40(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	c.on(fh, op(OpWrite, id, uint64(0), uint32(2), "data")).ok(OpWrite)
	p := c.on(fh, op(OpRead, id, uint64(0), uint32(9))).ok(OpRead)
	if eof, data := p.Bool(), p.String(9); !eof || data != "data" || !r.noBlock {
		t.Errorf("%v %q, without a worker: %v", eof, data, r.noBlock)
	}
	stale := id
	stale.Other[2]++
	c.on(fh, op(OpRead, stale, uint64(0), uint32(9))).fails(OpRead, nfs.ErrStaleStateID)
}

// TestPanic40: a fault of ours costs a call, not the owner its turn.
func TestPanic40(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	dir := r.root()
	r.fs.panics = true
	var e xdr.Encoder
	encodeCompound(&e, "tag", 0, op(OpPutFH, dir), c.openOp(c.seqs["o"]+1, 1, 0, "o", "file"))
	if _, st := r.send(e.B); st != rpc.SystemErr {
		t.Errorf("accept status %d", st)
	}
	r.fs.panics = false
	c.on(fh, op(OpClose, c.next("o"), id)).ok(OpClose)
}

// FuzzCompound40: no arguments of version 4.0 do harm.
func FuzzCompound40(f *testing.F) {
	r := newRig(f)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	dir := r.root()
	l := c.on(fh, c.lockOp(c.next("o"), id, 1, "l", LockWrite, 0, 10)).ok(OpLock).id()
	add := func(ops ...args) {
		var e xdr.Encoder
		for _, o := range ops {
			o(&e)
		}
		f.Add(uint32(len(ops)), e.B)
	}
	add(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(9)))
	add(op(OpPutFH, dir), c.createOp(9, 3, "p", "name"), op(OpGetFH), op(OpGetAttr, supportedBy[1].without(writeOnly)))
	add(op(OpPutFH, dir), c.openOp(c.seqs["o"]+1, 1, 0, "o", "file"), op(OpClose, c.seqs["o"]+2, id))
	add(op(OpPutFH, fh), op(OpOpenDowngrade, id, c.seqs["o"]+1, uint32(1), uint32(0)),
		op(OpOpenConfirm, id, c.seqs["o"]+2))
	add(op(OpPutFH, fh), c.lockOp(c.seqs["o"]+1, id, 1, "m", LockRead, 50, 10), lockMore(2, l, LockWrite, 20, 1),
		lockUOp(3, l, 0, 5))
	add(op(OpPutFH, fh), op(OpLockT, LockRead, uint64(0), uint64(1), c.id, "z"), op(OpReleaseLockOwner, c.id, "l"))
	add(op(OpPutFH, fh), c.reclaimOp(1, 1, "q"), op(OpDelegReturn, id))
	add(setClientOp("y", 1, "tcp", uaddr), confirmOp(c.id+1, [8]byte{7}), op(OpRenew, c.id))
	f.Fuzz(func(t *testing.T, n uint32, b []byte) {
		r.t = t
		var e xdr.Encoder
		e.String("tag")
		e.Uint32(0)
		e.Uint32(n%8 + 1)
		e.B = append(e.B, b...)
		d, st := r.send(e.B)
		if st != rpc.RPCSuccess {
			t.Fatalf("accept status %d", st)
		}
		status := nfs.Status(d.Uint32())
		if d.String(10) != "tag" {
			t.Fatal("tag")
		}
		results := d.Uint32()
		if results < 1 || results > n%8+1 || status == nfs.OK && results != n%8+1 || len(r.raw)%4 != 0 {
			t.Fatalf("%d results of %d, %v, %d bytes", results, n%8+1, status, len(r.raw))
		}
	})
}

// TestMinor0: version 4.0 can be switched off, and be the only one.
func TestMinor0(t *testing.T) {
	for _, served := range []uint32{0, 1} {
		r := newRig(t)
		r.s.cfg.Minors = []uint32{served}
		p := r.compound(0, setClientOp("x", 1, "tcp", uaddr))
		if got := p.status; served == 0 && got != nfs.OK || served != 0 && got != nfs.ErrMinorVersMismatch {
			t.Errorf("4.%d is served: 4.0 ends with %v", served, got)
		}
		p = r.compound(1, exchangeArgs("o", 1, 0))
		if got := p.status; served == 1 && got != nfs.OK || served != 1 && got != nfs.ErrMinorVersMismatch {
			t.Errorf("4.%d is served: 4.1 ends with %v", served, got)
		}
	}
}

// TestDelegationReclaimed40: a delegation for reading is reclaimed with its open, before
// it is known whether the client answers; one for writing there never was.
func TestDelegationReclaimed40(t *testing.T) {
	r := newRig(t)
	back := &callee40{t: t}
	r.called40(back)
	c := r.client40("x", 1)
	c.make("o", "file")
	fh, _ := c.open(state.Read, 0, "o", "file")
	r.start(8)
	kept := &holding{}
	r.s.cfg.CallBack = func(netip.AddrPort) rpc.Caller { return kept }
	c = r.client40("x", 1)
	reclaim := func(owner string, kind uint32) opened40 {
		t.Helper()
		return c.on(fh, op(OpOpen, c.next(owner), uint32(state.Read), uint32(0), c.id, owner, uint32(OpenNoCreate),
			uint32(ClaimPrevious), kind)).ok(OpOpen).opened40()
	}
	if o := reclaim("p", delegWrite); o.deleg != DelegNone {
		t.Errorf("delegation %d", o.deleg)
	}
	o := reclaim("o", delegRead)
	if o.deleg != delegRead || o.confirm {
		t.Errorf("%+v", o)
	}
	c.on(fh, op(OpDelegReturn, o.delegID)).ok(OpDelegReturn)
	if len(kept.calls) != 1 {
		t.Fatalf("%d calls", len(kept.calls))
	}
	kept.calls[0].Done(nil, rpc.ErrTimeout)
	if o := reclaim("q", delegRead); o.deleg != DelegNone {
		t.Error("delegated to a client that does not answer")
	}
}

// holding is a Caller that does not end its calls.
type holding struct{ calls []*rpc.BackwardCall }

func (h *holding) Connected() bool          { return true }
func (h *holding) Call(b *rpc.BackwardCall) { h.calls = append(h.calls, b) }

// TestLongRequestsAreApart: requests with one number that differ far behind their beginnings, here
// behind an owner of 600 bytes, are not taken for each other, in any minor version.
func TestLongRequestsAreApart(t *testing.T) {
	owner := strings.Repeat("o", 600)
	r := newRig(t)
	c := r.client40("x", 1)
	c.make("maker", "file one")
	c.make("maker", "file two")
	c.open(state.Read, 0, owner, "file one")
	open := func(name string) *reply {
		return r.compound(0, op(OpPutFH, r.root()), c.openOp(c.seqs[owner], state.Read, 0, owner, name)).ok(OpPutFH)
	}
	open("file two").fails(OpOpen, nfs.ErrBadSeqID) // the last was the OPEN_CONFIRM
	c.next(owner)
	open("file one").ok(OpOpen).opened40()
	open("file one").ok(OpOpen).opened40()
	open("file two").fails(OpOpen, nfs.ErrBadSeqID)

	x := r.session(1, "y")
	one := openOp(state.Read, 0, owner, "file one")
	x.do(op(OpPutFH, r.root()), one).ok(OpPutFH).ok(OpOpen)
	again := func(cred uint32, ops ...args) *reply {
		defer func() { r.uid = 0 }()
		r.uid = cred
		return r.compound(1, append([]args{x.sequence(x.seq, 0)}, ops...)...)
	}
	again(0, op(OpPutFH, r.root()), one).ok(OpSequence)
	again(0, op(OpPutFH, r.root()), openOp(state.Read, 0, owner, "file two")).fails(OpSequence, nfs.ErrSeqFalseRetry)
	again(1, op(OpPutFH, r.root()), one).fails(OpSequence, nfs.ErrSeqFalseRetry)
	// Values of attributes are the longest that is not data.
	value := make([]byte, 50<<10)
	set := func() args {
		return op(OpSetXattr, uint32(0), "user.x", value)
	}
	y := r.session(2, "z")
	x = y
	fh := y.handle("one", "file one")
	y.do(op(OpPutFH, fh), set()).ok(OpPutFH)
	value[len(value)-1]++
	p := r.compound(2, y.sequence(y.seq, 0), op(OpPutFH, fh), set())
	p.fails(OpSequence, nfs.ErrSeqFalseRetry)
}

// TestUnconfirmedIsReplaced: a SETCLIENTID of the confirmed client takes the place of another
// start's that was not confirmed: a late SETCLIENTID_CONFIRM of that does not end the client (RFC
// 7530 section 16.33.5).
func TestUnconfirmedIsReplaced(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	late, lateVerf := r.setClient("x", 2)
	again, verf := r.setClient("x", 1)
	if again != c.id {
		t.Fatalf("client %x instead of %x", again, c.id)
	}
	r.compound(0, confirmOp(late, lateVerf)).fails(OpSetClientIDConfirm, nfs.ErrStaleClientID)
	r.compound(0, confirmOp(again, verf)).ok(OpSetClientIDConfirm).end()
	c.on(fh, op(OpRead, id, uint64(0), uint32(1))).ok(OpRead)
}
