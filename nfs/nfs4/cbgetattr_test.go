package nfs4

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// fileStateArgs is a CB_GETATTR4resok.
func fileStateArgs(change, size uint64) args {
	return attrs(BitmapOf(AttrChange, AttrSize), change, size)
}

// timedStateArgs is fileStateArgs with times.
func timedStateArgs(change, size uint64, access, modify time.Time) args {
	return attrs(BitmapOf(AttrChange, AttrSize).or(delegTimes), change, size, timeArgs(access), timeArgs(modify))
}

// timeArgs is an nfstime4.
func timeArgs(t time.Time) args { return func(e *xdr.Encoder) { EncodeTime(e, t) } }

// writerRig is a rig with a client that has a file delegated for writing, and another one.
func writerRig(t *testing.T) (r *rig, ca *callee, a, b *sess, fh []byte, deleg state.Stateid) {
	r = newRig(t)
	fh = r.session(2, "maker").file("f")
	ca = newCallee(t)
	a = r.called("a", ca)
	p := a.openFH(fh, state.Both, "o").ok(OpOpen)
	p.opened()
	if p.delegKind != delegWrite {
		t.Fatalf("delegation %d", p.delegKind)
	}
	r.back = nil
	return r, ca, a, r.session(2, "b"), fh, p.deleg
}

// look is a GETATTR of size, change and times.
func (x *sess) look(fh []byte) (size, change uint64, mtime, ctime time.Time, st nfs.Status) {
	x.r.t.Helper()
	p := x.do(op(OpPutFH, fh), op(OpGetAttr, BitmapOf(AttrChange, AttrSize, AttrTimeMetadata, AttrTimeModify))).ok(OpPutFH)
	if st = p.next(OpGetAttr); st != nfs.OK {
		return size, change, mtime, ctime, st
	}
	DecodeBitmap(p.Decoder)
	d := xdr.NewDecoder(p.Opaque(fattrMax))
	change, size = d.Uint64(), d.Uint64()
	ctime, _ = decodeTime(&d)
	mtime, _ = decodeTime(&d)
	if d.Err() != nil {
		x.r.t.Error(d.Err())
	}
	return size, change, mtime, ctime, nfs.OK
}

// TestAsked: what another client sees of a file that its client has changed, or not.
func TestAsked(t *testing.T) {
	r, ca, a, b, fh, deleg := writerRig(t)
	_, base, _, _, st := a.look(fh)
	if st != nfs.OK || len(ca.recall) > 0 {
		t.Fatal(st)
	}
	seen, size := base, uint64(0)
	asked := 0
	ca.answer = func(k *callback) verdict {
		if !bytes.Equal(k.getattr, fh) {
			t.Errorf("asked of %x", k.getattr)
		}
		if len(k.refers) != 2 {
			t.Errorf("refers to %v", k.refers)
		}
		asked++
		return verdict{result: fileStateArgs(seen, size)}
	}
	if n, change, _, _, st := b.look(fh); st != nfs.OK || n != 0 || change != base {
		t.Errorf("unchanged: %d bytes, change %d instead of %d, %v", n, change, base, st)
	}
	seen, size = base+1, 12345
	last := base
	for range 3 {
		n, change, mtime, ctime, st := b.look(fh)
		if st != nfs.OK || n != 12345 || change <= last || mtime.UnixNano() != int64(change) || ctime != mtime {
			t.Errorf("changed: %d bytes, change %d after %d, modified %v, changed %v, %v", n, change, last, mtime, ctime, st)
		}
		last = change
	}
	// By VERIFY as well.
	b.do(op(OpPutFH, fh), op(OpVerify, attrs(BitmapOf(AttrSize), uint64(12345)))).ok(OpPutFH).ok(OpVerify)
	if asked != 5 || ca.recalls() != 0 {
		t.Errorf("asked %d times, %d recalls", asked, ca.recalls())
	}
	// What it does not change nobody is asked for.
	b.attr(fh, AttrMode)
	a.attr(fh, AttrSize)
	if asked != 5 {
		t.Error("asked for nothing")
	}
	if n := r.s.Faults()[CountGetattrs]; n != 5 {
		t.Errorf("%d counted", n)
	}
	// The client writes what it has: the change attribute goes on from there.
	a.do(op(OpPutFH, fh), op(OpWrite, deleg, uint64(0), 2, "written")).ok(OpPutFH).ok(OpWrite)
	seen, size = base, 7
	if n, change, _, _, _ := b.look(fh); n != 7 || change <= base {
		t.Errorf("written: %d bytes, change %d", n, change)
	}
	if ca.recalls() != 0 {
		t.Error("the delegation was asked for")
	}
}

// TestAskedInVain: who does not answer as he should is asked for the delegation.
func TestAskedInVain(t *testing.T) {
	whole := attrs(BitmapOf(AttrChange, AttrSize, AttrMode), uint64(1), uint64(2), uint32(3))
	for _, c := range []struct {
		name string
		v    verdict
	}{
		{"an error", verdict{recall: nfs.ErrBadHandle}},
		{"come again", verdict{recall: nfs.ErrJukebox}},
		{"unknown", verdict{illegal: true}},
		{"nothing behind it", verdict{}},
		{"too little", verdict{result: attrs(BitmapOf(AttrSize), uint64(2))}},
		{"too much", verdict{result: whole}},
		{"short", verdict{result: attrs(BitmapOf(AttrChange, AttrSize), uint64(2))}},
		{"no such session", verdict{sequence: nfs.ErrBadSession}},
		{"executed before", verdict{sequence: nfs.ErrRetryUncachedRep}},
		{"no reply", verdict{err: rpc.ErrTimeout}},
		{"late", verdict{silent: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, ca, a, b, fh, deleg := writerRig(t)
			ca.answer = func(k *callback) verdict {
				if k.getattr != nil {
					if c.v.sequence == nfs.ErrRetryUncachedRep {
						ca.mu.Lock()
						ca.seqs[k.slot] = k.seq
						ca.mu.Unlock()
					}
					return c.v
				}
				return verdict{}
			}
			if _, _, _, _, st := b.look(fh); st != nfs.ErrJukebox {
				t.Error(st)
			}
			if r.s.state.Free(r.now, r.file(fh), nil, false) {
				t.Error("not delegated any more")
			}
			ca.mu.Lock()
			late := ca.calls
			ca.calls = nil
			ca.mu.Unlock()
			for _, call := range late {
				d := xdr.NewDecoder(ca.parse(call.Args).reply(verdict{result: fileStateArgs(1, 2)}))
				call.Done(&d, nil)
			}
			if st := a.do(op(OpPutFH, fh), op(OpDelegReturn, deleg)).ok(OpPutFH).next(OpDelegReturn); st != nfs.OK {
				t.Error(st)
			}
			if n, _, _, _, st := b.look(fh); n != 0 || st != nfs.OK {
				t.Errorf("returned: %d bytes, %v", n, st)
			}
		})
	}
}

// TestAskedWhileRecalled: who was asked for the delegation already is not asked for
// attributes, nor is somebody who is silent.
func TestAskedWhileRecalled(t *testing.T) {
	r, ca, _, b, fh, _ := writerRig(t)
	ca.answer = func(k *callback) verdict {
		if k.getattr != nil {
			t.Error("asked for attributes")
		}
		return verdict{}
	}
	if r.s.state.Free(r.now, r.file(fh), nil, false) {
		t.Fatal("not delegated")
	}
	if _, _, _, _, st := b.look(fh); st != nfs.ErrJukebox {
		t.Error(st)
	}
	r.now = r.now.Add(2 * time.Minute)
	if _, _, _, _, st := b.look(fh); st != nfs.OK {
		t.Error(st)
	}
}

// FuzzFileState: no fattr4 is believed that is not one of what was asked for.
func FuzzFileState(f *testing.F) {
	var e xdr.Encoder
	fileStateArgs(1, 2)(&e)
	f.Add(e.B)
	f.Add(e.B[:len(e.B)-4])
	var times xdr.Encoder
	timedStateArgs(1, 2, time.Unix(3, 4), time.Unix(5, 6))(&times)
	f.Add(times.B)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := xdr.NewDecoder(b)
		asked := BitmapOf(AttrChange, AttrSize)
		if got := decodeFileState(&d, asked.or(delegTimes)); got.ok && got.times != (state.Times{}) {
			return
		}
		d = xdr.NewDecoder(b)
		got := decodeFileState(&d, asked)
		if !got.ok {
			return
		}
		var again xdr.Encoder
		fileStateArgs(got.change, got.size)(&again)
		if n := d.Offset(); n < 16 || !bytes.Equal(again.B[len(again.B)-16:], b[n-16:n]) ||
			binary.BigEndian.Uint64(b[n-8:]) != got.size {
			t.Errorf("%+v of %x", got, b)
		}
	})
}

var _ request = (*cbGetattr)(nil)
