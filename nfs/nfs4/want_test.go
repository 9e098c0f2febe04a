package nfs4

import (
	"fmt"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// anyRecalled is a CB_RECALL_ANY.
type anyRecalled struct {
	keep  uint32
	kinds Bitmap
}

// TestWants: what OPEN answers to the wishes that it may come with.
func TestWants(t *testing.T) {
	const none = 999
	for _, c := range []struct {
		name       string
		access     uint32
		want       uint32
		contended  bool
		kind, why  uint32
		minorError nfs.Status
	}{
		{"nothing, reading", state.Read, 0, false, delegRead, none, 0},
		{"nothing, writing", state.Both, 0, false, delegWrite, none, 0},
		{"nothing, only writing", state.Write, 0, false, DelegNone, none, 0},
		{"nothing, contended", state.Read, 0, true, DelegNone, none, 0},
		{"signal, contended", state.Read, wantWhenAvail, true, DelegNoneExt, uint32(state.WhyContention), 0},
		{"push, contended", state.Read, wantWhenFree, true, DelegNoneExt, uint32(state.WhyContention), 0},
		{"both, contended", state.Read, wantRead | wantSignals, true, DelegNoneExt, uint32(state.WhyContention), 0},
		{"signal", state.Read, wantWhenAvail, false, delegRead, none, 0},
		{"read", state.Read, wantRead, false, delegRead, none, 0},
		{"read, contended", state.Read, wantRead, true, DelegNoneExt, uint32(state.WhyContention), 0},
		{"read, writing", state.Both, wantRead, false, DelegNoneExt, uint32(state.WhyResource), 0},
		{"write, reading", state.Read, wantWrite, false, delegWrite, none, 0},
		{"write, only writing", state.Write, wantWrite, false, delegWrite, none, 0},
		{"any", state.Read, wantAny, false, delegRead, none, 0},
		{"any, only writing", state.Write, wantAny, false, delegWrite, none, 0},
		{"none", state.Both, WantNoDeleg, false, DelegNoneExt, whyNotWanted, 0},
		{"none, with a signal", state.Both, WantNoDeleg | wantWhenAvail, false, DelegNoneExt, whyNotWanted, 0},
		{"cancel", state.Both, wantCancel, false, DelegNoneExt, whyWantCancelled, 0},
		{"what there is not", state.Both, 0x600, false, 0, none, nfs.ErrInval},
		{"a bit that there is not", state.Both, 0x40000, false, 0, none, nfs.ErrInval},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			fh := r.session(2, "maker").file("f")
			a := r.called("a", newCallee(t))
			if c.contended {
				r.back = nil
				r.session(2, "other").openFH(fh, state.Write, "o").ok(OpOpen)
			}
			p := a.openFH(fh, c.access|c.want, "o")
			if c.minorError != 0 {
				p.fails(OpOpen, c.minorError)
				return
			}
			p.ok(OpOpen).opened()
			if p.delegKind != c.kind || c.why != none && p.why != c.why {
				t.Errorf("delegation %d, %d instead of %d, %d", p.delegKind, p.why, c.kind, c.why)
			}
		})
	}
}

// TestWantDelegation: delegations without an OPEN.
func TestWantDelegation(t *testing.T) {
	const none = 999
	for _, c := range []struct {
		name      string
		want      uint32
		claim     []any
		have      uint32 // how the client has it delegated
		file      string
		kind, why uint32
		fails     nfs.Status
	}{
		{"read", wantRead, []any{ClaimFH}, 0, "f", delegRead, none, 0},
		{"write", wantWrite, []any{ClaimFH}, 0, "f", delegWrite, none, 0},
		{"any", wantAny | state.Both, []any{ClaimFH}, 0, "f", delegRead, none, 0},
		{"upgrade", wantWrite, []any{ClaimFH}, state.Read, "f", DelegNoneExt, uint32(state.WhyUpgrade), 0},
		{"downgrade", wantRead, []any{ClaimFH}, state.Both, "f", DelegNoneExt, uint32(state.WhyDowngrade), 0},
		{"cancel", wantCancel, []any{ClaimFH}, 0, "f", DelegNoneExt, whyWantCancelled, 0},
		{"nothing", 0, []any{ClaimFH}, 0, "f", 0, none, nfs.ErrInval},
		{"no", WantNoDeleg, []any{ClaimFH}, 0, "f", 0, none, nfs.ErrInval},
		{"signals alone", wantSignals, []any{ClaimFH}, 0, "f", 0, none, nfs.ErrInval},
		{"what there is not", 0x600, []any{ClaimFH}, 0, "f", 0, none, nfs.ErrInval},
		{"of before", wantRead, []any{claimDelegPrevFH}, 0, "f", 0, none, nfs.ErrNotSupp},
		{"reclaimed too late", wantRead, []any{ClaimPrevious, delegRead}, 0, "f", 0, none, nfs.ErrNoGrace},
		{"reclaimed as nothing", wantRead, []any{ClaimPrevious, DelegNone}, 0, "f", 0, none, nfs.ErrInval},
		{"by name", wantRead, []any{ClaimNull}, 0, "f", 0, none, nfs.ErrBadXDR},
		{"a directory", wantRead, []any{ClaimFH}, 0, "", 0, none, nfs.ErrWrongType},
		{"a link, to write", wantWrite, []any{ClaimFH}, 0, "link", DelegNoneExt, whyNoWriteOfType, 0},
		{"a link", wantRead, []any{ClaimFH}, 0, "link", DelegNoneExt, whyNotOfType, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			maker := r.session(2, "maker")
			maker.file("f")
			dir := maker.handle("one")
			maker.do(op(OpPutFH, dir), op(OpCreate, 5, "to", "link", attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
			a := r.called("a", newCallee(t))
			fh := dir
			if c.file != "" {
				fh = a.handle("one", c.file)
			}
			if c.have != 0 {
				a.openFH(fh, c.have, "o").ok(OpOpen)
			}
			p := a.do(op(OpPutFH, fh), op(OpWantDelegation, c.want, part(c.claim...))).ok(OpPutFH)
			if c.fails != 0 {
				p.fails(OpWantDelegation, c.fails)
				return
			}
			p.ok(OpWantDelegation).delegation()
			p.end()
			if p.delegKind != c.kind || c.why != none && p.why != c.why {
				t.Errorf("delegation %d, %d instead of %d, %d", p.delegKind, p.why, c.kind, c.why)
			}
			if c.kind == DelegNoneExt {
				return
			}
			if r.s.state.Free(r.now, r.file(fh), nil, true) {
				t.Error("not delegated")
			}
			a.do(op(OpPutFH, fh), op(OpDelegReturn, p.deleg)).ok(OpPutFH).ok(OpDelegReturn)
			if c.kind == delegRead { // once more: the current stateid is that of the delegation
				r.now = r.now.Add(time.Minute)
				a.do(op(OpPutFH, fh), op(OpWantDelegation, c.want, part(c.claim...)), op(OpDelegReturn, state.Current)).
					ends(nfs.OK)
			}
		})
	}
	r := newRig(t)
	fh := r.session(2, "maker").file("f")
	a := r.called("a", newCallee(t))
	a.do(op(OpPutRootFH), op(OpWantDelegation, uint32(wantRead), ClaimFH)).ok(OpPutRootFH).fails(OpWantDelegation,
		nfs.ErrWrongType)
	r.uid = 4711 // the file is 0644 and root's
	p := a.do(op(OpPutFH, fh), op(OpWantDelegation, uint32(wantWrite), ClaimFH)).ok(OpPutFH).ok(OpWantDelegation)
	if p.delegation(); p.delegKind != DelegNoneExt || p.why != uint32(state.WhyResource) {
		t.Errorf("not to be written: delegation %d, %d", p.delegKind, p.why)
	}
}

// TestRecallAny: a client with nearly as many delegations as it may have is asked to
// give some back, once in a while.
func TestRecallAny(t *testing.T) {
	r := newRig(t)
	r.limits = state.Config{ClientDelegations: 8}
	r.start(8)
	var asked []anyRecalled
	cl := newCallee(t)
	cl.answer = func(k *callback) verdict {
		if k.any != nil {
			asked = append(asked, *k.any)
		}
		return verdict{}
	}
	a := r.called("a", cl)
	dir := a.handle("one")
	for i := range 10 {
		p := a.do(op(OpPutFH, dir), openCreateOp(state.Both, "owner", fmt.Sprint(i), CreateUnchecked, attrs(Bitmap{})))
		p.ok(OpPutFH).ok(OpOpen).opened()
		if want := i < 8; (p.delegKind == delegWrite) != want {
			t.Errorf("file %d: delegation %d", i, p.delegKind)
		}
		if want := i >= 6; len(asked) == 1 != want {
			t.Errorf("file %d: asked %d times", i, len(asked))
		}
	}
	if asked[0].keep != 6 || asked[0].kinds != BitmapOf(recallAnyRead, recallAnyWrite, recallAnyDir) {
		t.Errorf("asked for %+v", asked[0])
	}
	if n := r.s.Faults()[CountRecallAny]; n != 1 {
		t.Errorf("%d counted", n)
	}
}

var _ request = (*relieving)(nil)
