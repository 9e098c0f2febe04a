package nfs4

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// file makes a file that nobody has open.
func (x *sess) file(name string) []byte {
	x.r.t.Helper()
	x.r.now = x.r.now.Add(time.Minute)
	fh, id := x.make(x.handle("one"), name)
	x.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
	return fh
}

// TestDelegationRecalled: given by OPEN, and what each who wants the file gets until it
// is returned.
func TestDelegationRecalled(t *testing.T) {
	zero := state.Stateid{}
	size := attrs(BitmapOf(AttrSize), uint64(3))
	mode := attrs(BitmapOf(AttrMode), uint32(0o600))
	for _, c := range []struct {
		name string
		op   uint32
		do   func(dir, fh []byte) []args
		read bool // goes on beside a read delegation
	}{
		{"OPEN to read", OpOpen, func(_, fh []byte) []args { return []args{op(OpPutFH, fh), openFHOp(state.Read)} }, true},
		{"OPEN to write", OpOpen, func(_, fh []byte) []args { return []args{op(OpPutFH, fh), openFHOp(state.Write)} }, false},
		{"OPEN that truncates", OpOpen, func(dir, _ []byte) []args {
			return []args{op(OpPutFH, dir), openCreateOp(state.Read, "o", "f", CreateUnchecked,
				attrs(BitmapOf(AttrSize), uint64(0)))}
		}, false},
		{"READ", OpRead, func(_, fh []byte) []args { return []args{op(OpPutFH, fh), op(OpRead, zero, uint64(0), 10)} }, true},
		{"WRITE", OpWrite, func(_, fh []byte) []args {
			return []args{op(OpPutFH, fh), op(OpWrite, zero, uint64(0), 2, []byte("x"))}
		}, false},
		{
			"SETATTR of the size", OpSetAttr,
			func(_, fh []byte) []args { return []args{op(OpPutFH, fh), op(OpSetAttr, zero, size)} }, false,
		},
		{
			"SETATTR of the mode", OpSetAttr,
			func(_, fh []byte) []args { return []args{op(OpPutFH, fh), op(OpSetAttr, zero, mode)} }, false,
		},
		{"GETATTR of the size", OpGetAttr, func(_, fh []byte) []args {
			return []args{
				op(OpPutFH, fh),
				op(OpGetAttr, BitmapOf(AttrSize)),
			}
		}, true},
		{"VERIFY", OpVerify, func(_, fh []byte) []args {
			return []args{op(OpPutFH, fh), op(OpVerify, attrs(BitmapOf(AttrSize), uint64(0)))}
		}, true},
		{"ALLOCATE", OpAllocate, func(_,
			fh []byte,
		) []args {
			return []args{op(OpPutFH, fh), op(OpAllocate, zero, uint64(0), uint64(10))}
		}, false},
		{"SETXATTR", OpSetXattr, func(_,
			fh []byte,
		) []args {
			return []args{op(OpPutFH, fh), op(OpSetXattr, uint32(0), "x", "value")}
		}, false},
		{"REMOVE", OpRemove, func(dir, _ []byte) []args { return []args{op(OpPutFH, dir), op(OpRemove, "f")} }, false},
		{"RENAME away", OpRename, func(dir, _ []byte) []args {
			return []args{op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "f", "g")}
		}, false},
		{"RENAME over", OpRename, func(dir, _ []byte) []args {
			return []args{op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "other", "f")}
		}, false},
		{"LINK", OpLink, func(dir, fh []byte) []args {
			return []args{op(OpPutFH, fh), op(OpSaveFH), op(OpPutFH, dir), op(OpLink, "g")}
		}, false},
	} {
		for _, access := range []uint32{state.Read, state.Both} {
			t.Run(fmt.Sprint(c.name, " ", access), func(t *testing.T) {
				r := newRig(t)
				ca := newCallee(t)
				a := r.called("a", ca)
				r.back = nil
				b := r.session(2, "b")
				dir := b.handle("one")
				fh := b.file("f")
				b.file("other")
				p := a.openFH(fh, access, "o").ok(OpOpen)
				open, _, _ := p.opened()
				want := uint32(delegRead)
				if access == state.Both {
					want = delegWrite
				}
				if p.delegKind != want || p.recall || p.deleg == open {
					t.Fatalf("delegation %d %v", p.delegKind, p.deleg)
				}
				// The open goes, the delegation stays.
				a.do(op(OpPutFH, fh), op(OpClose, uint32(0), open)).ok(OpPutFH).ok(OpClose)
				a.do(op(OpPutFH, fh), op(OpRead, p.deleg, uint64(0), 10)).ok(OpPutFH).ok(OpRead)
				w := a.do(op(OpPutFH, fh), op(OpWrite, p.deleg, uint64(0), 2, []byte("by a"))).ok(OpPutFH)
				if access == state.Read {
					w.fails(OpWrite, nfs.ErrOpenMode)
				} else {
					w.ok(OpWrite)
				}
				last := func(p *reply) nfs.Status {
					for p.left > 1 {
						switch n := p.Uint32(); {
						case p.Uint32() != 0:
							t.Fatalf("operation %d failed", n)
						}
						p.left--
					}
					return p.next(c.op)
				}
				got := last(b.do(c.do(dir, fh)...))
				if c.read && access == state.Read {
					if (got != nfs.OK && got != nfs.ErrNotSame) || ca.recalls() != 0 {
						t.Errorf("%v, %d recalls", got, ca.recalls())
					}
					return
				}
				if got != nfs.ErrJukebox {
					t.Fatalf("%v while it is delegated", got)
				}
				if ca.recalls() != 1 || ca.recall[0].id != p.deleg || !bytes.Equal(ca.recall[0].fh, fh) {
					t.Fatalf("recalls %+v", ca.recall)
				}
				if got := last(b.do(c.do(dir, fh)...)); got != nfs.ErrJukebox || ca.recalls() != 1 {
					t.Errorf("%v, %d recalls", got, ca.recalls())
				}
				// What the client opened by itself it claims before it returns the delegation.
				a.do(op(OpPutFH, fh), op(OpOpen, uint32(0), uint32(state.Read), uint32(0), uint64(0), "o", uint32(OpenNoCreate),
					uint32(claimDelegCurFH), p.deleg)).ok(OpPutFH).ok(OpOpen).opened()
				a.do(op(OpPutFH, dir), op(OpOpen, uint32(0), uint32(state.Read), uint32(0), uint64(0), "o2", uint32(OpenNoCreate),
					uint32(claimDelegCur), p.deleg, "f")).ok(OpPutFH).ok(OpOpen).opened()
				a.do(op(OpPutFH, fh), op(OpDelegReturn, p.deleg)).ok(OpPutFH).ok(OpDelegReturn).end()
				a.do(op(OpPutFH, fh), op(OpOpen, uint32(0), uint32(state.Read), uint32(0), uint64(0), "o", uint32(OpenNoCreate),
					uint32(claimDelegCurFH), p.deleg)).ok(OpPutFH).fails(OpOpen, nfs.ErrBadStateID)
				if got := last(b.do(c.do(dir, fh)...)); got != nfs.OK && got != nfs.ErrNotSame {
					t.Errorf("%v after it was returned", got)
				}
				if n := r.s.State().Delegations(); n.Revoked != 0 || n.Recalls != 1 {
					t.Errorf("%+v", n)
				}
			})
		}
	}
}

func openFHOp(access uint32) args {
	return op(OpOpen, uint32(0), access, uint32(0), uint64(0), "q", uint32(OpenNoCreate), uint32(ClaimFH))
}

// TestReturnedInTime: who wants a file that is returned at once hears nothing of it.
func TestReturnedInTime(t *testing.T) {
	r := newRig(t)
	ca := newCallee(t)
	a := r.called("a", ca)
	r.back = nil
	b := r.session(2, "b")
	fh := b.file("f")
	p := a.openFH(fh, state.Both, "o").ok(OpOpen)
	open, _, _ := p.opened()
	a.do(op(OpPutFH, fh), op(OpClose, uint32(0), open)).ok(OpPutFH).ok(OpClose)
	f := lock.File{Export: 1}
	_, h, _ := r.codec.Parse(fh)
	f.Handle = h
	ca.answer = func(k *callback) verdict {
		c, _ := r.s.State().Client(a.client)
		time.AfterFunc(time.Millisecond, func() { c.ReturnDelegation(k.recall.id, f) })
		return verdict{}
	}
	// A busy machine may take longer than the server waits.
	for try := 0; ; try++ {
		q := b.openFH(fh, state.Write, "q")
		if st := q.next(OpOpen); st == nfs.OK {
			q.opened()
			break
		} else if st != nfs.ErrJukebox || try > 100 {
			t.Fatal(st)
		}
	}
	if _, ok := r.s.BeginChange(f); ok {
		r.s.EndChange(f)
	}
	if n := r.s.State().Delegations(); n.Now != 0 {
		t.Errorf("%+v", n)
	}
}

// TestWantedDelegations: what the flags of an OPEN get.
func TestWantedDelegations(t *testing.T) {
	for _, c := range []struct {
		want, access uint32
		back         bool
		kind, why    uint32
	}{
		{0, state.Read, true, delegRead, 0},
		{0, state.Write, true, DelegNone, 0},
		{wantAny, state.Write, true, delegWrite, 0},
		{0, state.Both, true, delegWrite, 0},
		{0, state.Read, false, DelegNone, 0},
		{wantRead, state.Read, true, delegRead, 0},
		{wantRead, state.Both, true, DelegNoneExt, 2},
		{wantWrite, state.Read, true, delegWrite, 0},
		{wantAny, state.Read, true, delegRead, 0},
		{wantAny | wantWhenAvail, state.Read, true, delegRead, 0},
		{wantAny, state.Read, false, DelegNoneExt, 2},
		{WantNoDeleg, state.Read, true, DelegNoneExt, whyNotWanted},
		{wantCancel, state.Read, true, DelegNoneExt, whyWantCancelled},
	} {
		r := newRig(t)
		fh := r.session(2, "maker").file("f")
		if c.back {
			r.back = newCallee(t)
		}
		x := r.session(2, "a")
		p := x.openFH(fh, c.access|c.want, "o").ok(OpOpen)
		p.opened()
		if p.delegKind != c.kind || p.why != c.why {
			t.Errorf("want %x, access %d, backchannel %v: %d, %d", c.want, c.access, c.back, p.delegKind, p.why)
		}
		p.end()
		q := x.openFH(fh, c.access, "o").ok(OpOpen)
		q.opened()
		if (c.kind == delegRead || c.kind == delegWrite) && q.delegKind != DelegNone {
			t.Errorf("a second delegation of the same file, %d", q.delegKind)
		}
	}
}

func (r *rig) file(fh []byte) lock.File {
	r.t.Helper()
	id, h, err := r.codec.Parse(fh)
	if err != nil {
		r.t.Fatal(err)
	}
	return lock.File{Export: id, Handle: h}
}
