package nfs4

import (
	"slices"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestStateidsOfEveryOperation: what each operation that takes a stateid says of each
// kind of stateid (RFC 8881 section 8.2.4).
func TestStateidsOfEveryOperation(t *testing.T) {
	const (
		ok   = nfs.OK
		bad  = nfs.ErrBadStateID
		old  = nfs.ErrOldStateID
		mode = nfs.ErrOpenMode
		held = nfs.ErrLocksHeld
	)
	kinds := []string{
		"open", "old", "to come", "of another start", "of another file", "of another client", "of nothing",
		"anonymous", "bypass", "invalid", "reads", "writes", "lock",
	}
	for _, c := range []struct {
		op   uint32
		make func(id state.Stateid) args
		want []nfs.Status // by kind
	}{
		{
			OpClose, func(id state.Stateid) args { return op(OpClose, uint32(0), id) },
			[]nfs.Status{ok, old, bad, bad, bad, bad, bad, bad, bad, bad, ok, ok, bad},
		},
		{
			OpOpenDowngrade, func(id state.Stateid) args { return op(OpOpenDowngrade, id, uint32(0), uint32(1), uint32(0)) },
			[]nfs.Status{nfs.ErrInval, old, bad, bad, bad, bad, bad, bad, bad, bad, ok, nfs.ErrInval, bad},
		},
		{OpLock, func(id state.Stateid) args {
			return op(OpLock, LockWrite, false, uint64(1), uint64(2), true, uint32(0), id, uint32(0), uint64(0), "new")
		}, []nfs.Status{ok, old, bad, bad, bad, bad, bad, bad, bad, bad, mode, ok, bad}},
		{OpLock, func(id state.Stateid) args {
			return op(OpLock, LockWrite, false, uint64(1), uint64(2), false, id, uint32(0))
		}, []nfs.Status{bad, old, bad, bad, bad, bad, bad, bad, bad, bad, bad, bad, ok}},
		{
			OpLockU, func(id state.Stateid) args { return op(OpLockU, LockWrite, uint32(0), id, uint64(1), uint64(2)) },
			[]nfs.Status{bad, old, bad, bad, bad, bad, bad, bad, bad, bad, bad, bad, ok},
		},
		{
			OpRead, func(id state.Stateid) args { return op(OpRead, id, uint64(0), uint32(1)) },
			[]nfs.Status{ok, old, bad, bad, bad, bad, bad, ok, ok, bad, ok, ok, ok},
		},
		{
			OpWrite, func(id state.Stateid) args { return op(OpWrite, id, uint64(0), uint32(0), "x") },
			[]nfs.Status{ok, old, bad, bad, bad, bad, bad, ok, ok, bad, mode, ok, ok},
		},
		{
			OpSetAttr, func(id state.Stateid) args { return op(OpSetAttr, id, attrs(BitmapOf(AttrSize), uint64(3))) },
			[]nfs.Status{ok, old, bad, bad, bad, bad, bad, ok, ok, bad, mode, ok, ok},
		},
		{ // the mode alone is nobody's open
			OpSetAttr, func(id state.Stateid) args { return op(OpSetAttr, id, attrs(BitmapOf(AttrMode), uint32(0o600))) },
			slices.Repeat([]nfs.Status{ok}, len(kinds)),
		},
		{
			OpDelegReturn, func(id state.Stateid) args { return op(OpDelegReturn, id) },
			[]nfs.Status{bad, old, bad, bad, bad, bad, bad, bad, bad, bad, bad, bad, bad},
		},
		{
			OpFreeStateID, func(id state.Stateid) args { return op(OpFreeStateID, id) },
			[]nfs.Status{held, old, bad, bad, held, bad, bad, bad, bad, bad, held, held, held},
		},
	} {
		for i, kind := range kinds {
			w := newWorld(t)
			p := w.x.do(op(OpPutFH, w.fhs["file"]), c.make(w.ids[kind])).ok(OpPutFH)
			if st := p.next(c.op); st != c.want[i] {
				t.Errorf("%s by the stateid %s: %v instead of %v", table[c.op].name, kind, st, c.want[i])
			}
			// A seqid of 0 is the latest of that state (section 8.2.2).
			if id := w.ids[kind]; kind == "old" || kind == "to come" {
				id.Seq = 0
				w = newWorld(t)
				p := w.x.do(op(OpPutFH, w.fhs["file"]), c.make(id)).ok(OpPutFH)
				if st := p.next(c.op); st != c.want[0] {
					t.Errorf("%s by the stateid %s with seqid 0: %v instead of %v", table[c.op].name, kind, st, c.want[0])
				}
			}
		}
	}
	// TEST_STATEID has a status for each, and never fails itself.
	w := newWorld(t)
	list := []any{uint32(len(kinds))}
	for _, kind := range kinds {
		list = append(list, w.ids[kind])
	}
	p := w.x.do(op(OpTestStateID, list...)).ok(OpTestStateID)
	if n := p.Uint32(); int(n) != len(kinds) {
		t.Fatalf("%d statuses", n)
	}
	for i, want := range []nfs.Status{ok, old, bad, bad, ok, bad, bad, bad, bad, bad, ok, ok, ok} {
		if st := nfs.Status(p.Uint32()); st != want {
			t.Errorf("TEST_STATEID of the stateid %s: %v instead of %v", kinds[i], st, want)
		}
	}
	p.end()
}

// TestThousandsOfOperations: a compound is as long as the session allows, or one operation.
func TestThousandsOfOperations(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	root := op(OpPutRootFH)
	for _, n := range []int{17, 1000, 5000} {
		// None of it is executed, and the slot is as it was.
		r.compound(2, append([]args{x.sequence(x.seq+1, 0)}, slices.Repeat([]args{root}, n)...)...).fails(OpSequence,
			nfs.ErrTooManyOps)
		r.compound(1, slices.Repeat([]args{root}, n)...).fails(OpPutRootFH, nfs.ErrOpNotInSession)
		r.compound(2, append([]args{exchangeArgs("x", 1, 0)}, slices.Repeat([]args{root}, n)...)...).fails(OpExchangeID,
			nfs.ErrNotOnlyOp)
	}
	x.do(slices.Repeat([]args{root}, 15)...).ok(OpPutRootFH)
	if n := r.s.ops[OpPutRootFH].Load(); n != 15+3 { // those without a session are counted as they are refused
		t.Errorf("%d operations were looked at", n)
	}
	// As many as the server grants at most, and more than there are bytes for.
	most := r.sessionOf(2, "most", channelArgs(1<<20, 1<<20, 0, 1<<20, 1))
	most.do(slices.Repeat([]args{root}, opsMax-1)...).ok(OpPutRootFH)
	most.seq++
	for _, claimed := range []uint32{opsMax, 1<<32 - 1} {
		var e xdr.Encoder
		e.String("tag")
		e.Uint32(2)
		e.Uint32(claimed)
		most.sequence(most.seq, 0)(&e)
		root(&e)
		p := r.parse(r.send(e.B))
		if claimed > opsMax {
			p.fails(OpSequence, nfs.ErrTooManyOps)
			continue
		}
		p.ok(OpSequence).Skip(36)
		p.ok(OpPutRootFH).fails(OpIllegal, nfs.ErrBadXDR)
		most.seq++
	}
	for _, minor := range []uint32{3, 4, 255, 1 << 31, 1<<32 - 1} {
		p := r.compound(minor, root)
		if p.end(); p.status != nfs.ErrMinorVersMismatch {
			t.Errorf("version 4.%d: %v", minor, p.status)
		}
	}
}
