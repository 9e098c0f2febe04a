package nfs4

import (
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// times are the access and modification times of a file, as another client gets them.
func (x *sess) times(fh []byte) (access, modify time.Time) {
	x.r.t.Helper()
	d := x.attr(fh, AttrTimeAccess)
	access, _ = decodeTime(d)
	d = x.attr(fh, AttrTimeModify)
	modify, _ = decodeTime(d)
	return access, modify
}

// TestDelegatedTimes: the holder of a delegation with times is asked for them, and gives them back.
func TestDelegatedTimes(t *testing.T) {
	r := newRig(t)
	r.now = time.Now()
	maker := r.session(2, "maker")
	fh := maker.file("f")
	old := time.Now().Add(-time.Hour)
	maker.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrTimeAccSet, AttrTimeModSet),
		uint32(1), timeArgs(old), uint32(1), timeArgs(old)))).ok(OpPutFH).ok(OpSetAttr)
	r.now = r.now.Add(time.Minute) // beyond the time in which a recalled file is not delegated
	ca := newCallee(t)
	a := r.called("a", ca)
	r.back = nil
	p := a.openFH(fh, state.Both|wantWrite|wantTimes, "o").ok(OpOpen)
	p.opened()
	if p.delegKind != delegWriteTimes {
		t.Fatalf("delegation of kind %d, %d", p.delegKind, p.why)
	}
	deleg := p.deleg
	asked := 0
	access, modify := old.Add(10*time.Minute), old.Add(20*time.Minute)
	ca.answer = func(k *callback) verdict {
		if k.getattr == nil || k.asked != BitmapOf(AttrChange, AttrSize).or(delegTimes) {
			t.Errorf("operation %d, asked for %x", k.op, k.asked)
		}
		asked++
		return verdict{result: timedStateArgs(1, 5, access, modify)}
	}
	if at, mt := maker.times(fh); !at.Equal(access) || !mt.Equal(modify) || asked != 2 {
		t.Errorf("accessed %v, modified %v, asked %d times", at, mt, asked)
	}
	// Times that cannot be: before the delegation, and in the future.
	access, modify = old.Add(-time.Minute), r.now.Add(time.Hour)
	if at, mt := maker.times(fh); !at.Equal(old) || !mt.Equal(r.now) {
		t.Errorf("accessed %v, modified %v at %v", at, mt, r.now)
	}
	set := func(x *sess, id state.Stateid, b Bitmap, vals ...any) *reply {
		return x.do(op(OpPutFH, fh), op(OpSetAttr, id, attrs(b, vals...))).ok(OpPutFH)
	}
	// Only the holder may set them, by the stateid of the delegation.
	one := BitmapOf(AttrDelegModify)
	set(maker, state.Anonymous, one, timeArgs(modify)).fails2(OpSetAttr, nfs.ErrBadStateID, 4)
	set(a, state.Anonymous, one, timeArgs(modify)).fails2(OpSetAttr, nfs.ErrBadStateID, 4)
	mine, _, _ := a.openFH(fh, state.Both|WantNoDeleg, "o").ok(OpOpen).opened()
	set(a, mine, one, timeArgs(modify)).fails2(OpSetAttr, nfs.ErrBadStateID, 4)
	set(a, deleg, one, uint64(1), uint32(1e9)).fails2(OpSetAttr, nfs.ErrInval, 4)
	a.do(op(OpPutFH, fh), op(OpGetAttr, delegTimes)).ok(OpPutFH).fails(OpGetAttr, nfs.ErrInval)

	access, modify = old.Add(30*time.Minute), old.Add(40*time.Minute)
	a.do(op(OpPutFH, fh), op(OpWrite, deleg, uint64(0), uint32(2), "later")).ok(OpPutFH).ok(OpWrite)
	p = a.do(op(OpPutFH, fh), op(OpSetAttr, deleg, attrs(delegTimes, timeArgs(access), timeArgs(modify))),
		op(OpDelegReturn, deleg)).ok(OpPutFH).ok(OpSetAttr)
	if got, _ := DecodeBitmap(p.Decoder); got != delegTimes {
		t.Errorf("set %x", got)
	}
	p.ok(OpDelegReturn)
	if at, mt := maker.times(fh); !at.Equal(access) || !mt.Equal(modify) {
		t.Errorf("given back: accessed %v, modified %v", at, mt)
	}
	set(a, deleg, one, timeArgs(modify)).fails2(OpSetAttr, nfs.ErrBadStateID, 4)
}

// TestDelegatedTimesUnasked: a client that does not ask for times, or does not write, has none.
func TestDelegatedTimesUnasked(t *testing.T) {
	r := newRig(t)
	fh := r.session(2, "maker").file("f")
	a := r.called("a", newCallee(t))
	r.back = nil
	p := a.openFH(fh, state.Both, "o").ok(OpOpen)
	p.opened()
	if p.delegKind != delegWrite {
		t.Fatal(p.delegKind)
	}
	a.do(op(OpPutFH, fh), op(OpSetAttr, p.deleg, attrs(BitmapOf(AttrDelegAccess), timeArgs(r.now)))).ok(OpPutFH).fails2(
		OpSetAttr, nfs.ErrBadStateID, 4)
	gh := r.session(2, "maker").file("g")
	p = a.openFH(gh, state.Read|wantTimes, "o").ok(OpOpen)
	if p.opened(); p.delegKind != delegRead {
		t.Fatal(p.delegKind)
	}
	b := r.session(1, "b")
	b.openFH(fh, state.Both|wantTimes, "o").fails(OpOpen, nfs.ErrInval)
	b.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrDelegAccess), timeArgs(r.now)))).ok(
		OpPutFH).fails2(OpSetAttr, nfs.ErrAttrNotSupp, 4)
}
