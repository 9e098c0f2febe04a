package nfs4

import (
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// longBitmap is a bitmap4 of n words with an attribute of the first and with the last bit of the
// last one.
func longBitmap(n int, attr int) args {
	return func(e *xdr.Encoder) {
		e.Uint32(uint32(n))
		e.Uint32(1 << attr)
		for range n - 2 {
			e.Uint32(0)
		}
		e.Uint32(1 << 31)
	}
}

// TestLongBitmaps: attributes that nobody knows, beyond 255 too, are left out where they are asked
// for, and not supported where they are set or compared. A bitmap that does not end with the
// message is BADXDR, whatever it says of its length.
func TestLongBitmaps(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	for _, words := range []int{4, 8, 9, 40, 4000} {
		b := longBitmap(words, AttrType)
		p := x.do(op(OpPutFH, fh), op(OpGetAttr, b)).ok(OpPutFH).ok(OpGetAttr)
		if got, more := DecodeBitmap(p.Decoder); got != BitmapOf(AttrType) || more {
			t.Errorf("%d words: GETATTR has %x", words, got)
		}
		if typ := p.Opaque(4); len(typ) != 4 || typ[3] != 1 {
			t.Errorf("%d words: the type is %x", words, typ)
		}
		p = x.do(op(OpPutFH, dir), op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), b)).ok(OpPutFH).ok(OpReadDir)
		p.Fixed(8)
		if !p.Bool() {
			t.Fatalf("%d words: no entry", words)
		}
		p.Uint64()
		p.String(nameMax)
		if got, more := DecodeBitmap(p.Decoder); got != BitmapOf(AttrType) || more {
			t.Errorf("%d words: READDIR has %x", words, got)
		}
		x.do(op(OpPutFH, fh), op(OpIOAdvise, id, uint64(0), uint64(1), b)).ok(OpPutFH).ok(OpIOAdvise)
		x.do(op(OpPutFH, dir), op(OpGetDirDelegation, false, b, uint64(0), uint32(0), uint64(0), uint32(0), b,
			b)).ok(OpPutFH).ok(OpGetDirDelegation)
		size := part(longBitmap(words, AttrSize), string(make([]byte, 8)))
		for _, c := range []struct {
			fh []byte
			o  args
			n  uint32
		}{
			{fh, op(OpVerify, size), OpVerify},
			{fh, op(OpNVerify, size), OpNVerify},
			{fh, op(OpSetAttr, id, size), OpSetAttr},
			{dir, op(OpCreate, uint32(2), "d", size), OpCreate},
			{dir, openCreateOp(3, "o", "new", CreateUnchecked, size), OpOpen},
			{dir, openCreateOp(3, "o", "new", CreateExclusive41, [8]byte{}, size), OpOpen},
		} {
			if st := x.do(op(OpPutFH, c.fh), c.o).ok(OpPutFH).next(c.n); st != nfs.ErrAttrNotSupp {
				t.Errorf("%d words: %s: %v", words, table[c.n].name, st)
			}
		}
	}
	for _, words := range []uint32{1, 9, 1 << 20, 1 << 30, 1<<32 - 1} {
		x.do(op(OpPutFH, fh), op(OpGetAttr, words)).ok(OpPutFH).fails(OpGetAttr, nfs.ErrBadXDR)
		if st := x.do(op(OpPutFH, fh),
			op(OpSetAttr, state.Anonymous, words)).ok(OpPutFH).next(OpSetAttr); st != nfs.ErrBadXDR {
			t.Errorf("%d words and no more: SETATTR: %v", words, st)
		}
	}
	// What a client says of a file that is delegated to it has the attributes that it was asked for,
	// and no others.
	var e xdr.Encoder
	part(longBitmap(40, AttrSize), strings.Repeat("s", 8))(&e)
	d := xdr.NewDecoder(e.B)
	if f := decodeFileState(&d, BitmapOf(AttrChange, AttrSize)); f.ok {
		t.Errorf("a client was believed that knows too much: %+v", f)
	}
}
