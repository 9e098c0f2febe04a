package nfs4

import (
	"slices"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// TestOpenXORDelegation: a client that asks for an open or a delegation gets one of both (RFC 9754
// section 4).
func TestOpenXORDelegation(t *testing.T) {
	for _, c := range []struct {
		name         string
		access, deny uint32
		before       uint32 // the access of an open of the same owner; 0: none
		contended    bool
		kind         uint32
		open         bool
	}{
		{"reading", state.Read, 0, 0, false, delegRead, false},
		{"writing", state.Both, 0, 0, false, delegWrite, false},
		{"contended", state.Read, 0, 0, true, DelegNone, true},
		{"denying", state.Read, state.Write, 0, false, delegRead, true},
		{"opened before", state.Both, 0, state.Read, false, delegWrite, true},
		{"a wish for none", state.Read | WantNoDeleg, 0, 0, false, DelegNoneExt, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			maker := r.session(2, "maker")
			fh := maker.file("f")
			x := r.called("x", newCallee(t))
			r.back = nil
			if c.contended {
				maker.openFH(fh, state.Write, "o").ok(OpOpen)
			}
			if c.before != 0 {
				x.openFH(fh, c.before|WantNoDeleg, "owner").ok(OpOpen)
			}
			opens := r.s.state.Counts().Opens
			read := op(OpRead, state.Current, uint64(0), uint32(10))
			p := x.do(op(OpPutFH, fh), op(OpOpen, uint32(0), c.access|wantXor, c.deny, uint64(0), "owner",
				uint32(OpenNoCreate), uint32(ClaimFH)), read).ok(OpPutFH).ok(OpOpen)
			id, _, _ := p.opened()
			if p.delegKind != c.kind || (p.rflags&resultNoOpen == 0) != c.open || (id == state.Stateid{}) == c.open {
				t.Fatalf("delegation of kind %d, flags %x, open %v", p.delegKind, p.rflags, id)
			}
			p.ok(OpRead)
			if c.open != (r.s.state.Counts().Opens > opens) && c.before == 0 {
				t.Errorf("%d opens after %d", r.s.state.Counts().Opens, opens)
			}
			if c.open {
				return
			}
			// The delegation does what an open does, and is recalled like any other.
			x.do(op(OpPutFH, fh), op(OpRead, p.deleg, uint64(0), uint32(10))).ok(OpPutFH).ok(OpRead)
			if c.kind == delegWrite {
				x.do(op(OpPutFH, fh), op(OpWrite, p.deleg, uint64(0), uint32(2), "x")).ok(OpPutFH).ok(OpWrite)
			}
			maker.openFH(fh, state.Both|WantNoDeleg, "o").fails(OpOpen, nfs.ErrJukebox)
			claimed := x.do(op(OpPutFH, fh), op(OpOpen, uint32(0), c.access|wantXor, uint32(0), uint64(0), "owner",
				uint32(OpenNoCreate), uint32(claimDelegCurFH), p.deleg)).ok(OpPutFH).ok(OpOpen)
			mine, _, _ := claimed.opened()
			if claimed.rflags&resultNoOpen != 0 || mine == (state.Stateid{}) {
				t.Errorf("no open for a delegation that is recalled: flags %x", claimed.rflags)
			}
			x.do(op(OpPutFH, fh), op(OpDelegReturn, p.deleg)).ok(OpPutFH).ok(OpDelegReturn)
			x.do(op(OpPutFH, fh), op(OpRead, mine, uint64(0), uint32(10))).ok(OpPutFH).ok(OpRead)
			maker.openFH(fh, state.Both|WantNoDeleg, "o").ok(OpOpen)
		})
	}
	r := newRig(t)
	x := r.session(1, "x")
	x.openFH(x.file("f"), state.Read|wantXor, "o").fails(OpOpen, nfs.ErrInval)
}

// TestOpenXORClientEnds: a delegation without an open ends with its client.
func TestOpenXORClientEnds(t *testing.T) {
	r := newRig(t)
	maker := r.session(2, "maker")
	fh := maker.file("f")
	x := r.called("x", newCallee(t))
	r.back = nil
	x.openFH(fh, state.Both|wantXor, "owner").ok(OpOpen).opened()
	r.now = r.now.Add(10 * r.s.state.Lease())
	maker = r.session(2, "maker")
	maker.openFH(fh, state.Both|WantNoDeleg, "o").ok(OpOpen)
	if n := r.s.state.Counts(); n.Delegations != 0 {
		t.Errorf("%+v", n)
	}
}

// TestOpenArguments: open_arguments has what OPEN takes, and nothing else.
func TestOpenArguments(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "x")
	for _, path := range [][]string{nil, {"one"}} {
		d := x.attr(x.handle(path...), AttrOpenArguments)
		var got []uint32
		for range 5 {
			if n := d.Uint32(); n != 1 {
				t.Fatalf("a bitmap of %d words", n)
			}
			got = append(got, d.Uint32())
		}
		want := []uint32{0b1110, 0b1111, 1<<3 | 1<<4 | 1<<5 | 1<<20 | 1<<21, 0b110111, 0b1111}
		if d.Err() != nil || !slices.Equal(got, want) {
			t.Errorf("%v: %b", path, got)
		}
	}
}
