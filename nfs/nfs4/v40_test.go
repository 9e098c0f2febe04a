package nfs4

import (
	"bytes"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
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
