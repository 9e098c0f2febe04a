package nfs4

import (
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

func TestExtents(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	other, otherID := x.make(dir, "other")
	put := op(OpPutFH, fh)
	const size = 1 << 20
	x.do(put, op(OpWrite, id, uint64(size-100), uint32(2), strings.Repeat("x", 100))).ok(OpPutFH).ok(OpWrite)
	seek := func(off uint64, what int) args { return op(OpSeek, id, off, what) }
	for _, c := range []struct {
		off  uint64
		what int
		eof  bool
		want uint64
	}{
		{0, contentHole, false, 0},
		{size - 50, contentData, false, size - 50},
		{size - 50, contentHole, true, size},
	} {
		p := x.do(put, seek(c.off, c.what)).ok(OpPutFH).ok(OpSeek)
		if eof, at := p.Bool(), p.Uint64(); eof != c.eof || at != c.want {
			t.Errorf("from %d to %d: %d, %v", c.off, c.what, at, eof)
		}
		p.end()
	}
	x.do(put, op(OpSetAttr, id, attrs(BitmapOf(AttrSize), uint64(size+1<<20)))).ok(OpPutFH).ok(OpSetAttr)
	p := x.do(put, seek(size+5, contentData)).ok(OpPutFH).ok(OpSeek)
	if eof, at := p.Bool(), p.Uint64(); !eof || at != size+1<<20 {
		t.Errorf("data behind all data: %d, %v", at, eof)
	}
	x.do(put, op(OpSetAttr, id, attrs(BitmapOf(AttrSize), uint64(size)))).ok(OpPutFH).ok(OpSetAttr)
	x.do(put, seek(size, contentData)).ok(OpPutFH).fails(OpSeek, nfs.ErrNXIO)
	x.do(put, seek(0, 2)).ok(OpPutFH).fails(OpSeek, nfs.ErrUnionNotSupp)
	x.do(op(OpPutFH, dir), seek(0, 0)).ok(OpPutFH).fails(OpSeek, nfs.ErrIsDir)
	used := func(fh []byte) uint64 { return x.attr(fh, AttrSpaceUsed).Uint64() }
	before := used(fh)
	x.do(put, op(OpAllocate, id, uint64(0), uint64(1<<18))).ok(OpPutFH).ok(OpAllocate).end()
	if n := used(fh); n < before+1<<18 {
		t.Errorf("%d bytes used, before %d", n, before)
	}
	x.do(put, op(OpDeallocate, id, uint64(0), uint64(1<<18))).ok(OpPutFH).ok(OpDeallocate).end()
	if n := used(fh); n != before {
		t.Errorf("%d bytes used, before %d", n, before)
	}
	x.do(put, op(OpAllocate, id, uint64(0), uint64(0))).ok(OpPutFH).fails(OpAllocate, nfs.ErrInval)
	x.do(put, op(OpDeallocate, id, uint64(1<<63), uint64(1))).ok(OpPutFH).fails(OpDeallocate, nfs.ErrFBig)
	ro, _, _ := x.do(op(OpPutFH, dir), openOp(1, 0, "reads", "file")).ok(OpPutFH).ok(OpOpen).opened()
	x.do(put, op(OpAllocate, ro, uint64(0), uint64(1))).ok(OpPutFH).fails(OpAllocate, nfs.ErrOpenMode)

	move := func(n uint32, src, dst state.Stateid, count uint64, rest ...any) []args {
		return []args{
			put, op(OpSaveFH), op(OpPutFH, other),
			op(n, append([]any{src, dst, uint64(size - 100), uint64(5), count}, rest...)...),
		}
	}
	p = x.do(move(OpCopy, id, otherID, 0, true, true, uint32(0))...).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpCopy)
	if ids, n, how := p.Uint32(), p.Uint64(), p.Uint32(); ids != 0 || n != 100 || how != 0 {
		t.Errorf("%d stateids, %d bytes, stable as %d", ids, n, how)
	}
	decodeVerifier(p.Decoder)
	if consecutive, synchronous := p.Bool(), p.Bool(); !consecutive || !synchronous {
		t.Error("not as it was done")
	}
	p.end()
	p = x.do(op(OpPutFH, other), op(OpRead, otherID, uint64(0), uint32(200))).ok(OpPutFH).ok(OpRead)
	p.Bool()
	if got := p.String(200); got != "\x00\x00\x00\x00\x00"+strings.Repeat("x", 100) {
		t.Errorf("%q", got)
	}
	fails := func(n uint32, want nfs.Status, ops []args) {
		t.Helper()
		x.do(ops...).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).fails(n, want)
	}
	fails(OpCopy, nfs.ErrBadStateID, move(OpCopy, otherID, otherID, 0, true, true, uint32(0)))
	fails(OpCopy, nfs.ErrBadXDR, move(OpCopy, id, otherID, 0, true, true, uint32(1)))
	fails(OpCopy, nfs.ErrOffloadDenied,
		move(OpCopy, id, otherID, 0, true, true, uint32(1), address("tcp", "10.0.0.2.8.1")))
	fails(OpCopy, nfs.ErrBadXDR, move(OpCopy, id, otherID, 0, true))
	fails(OpClone, nfs.ErrNotSupp, move(OpClone, id, otherID, 0)) // by a store in memory
	fails(OpClone, nfs.ErrBadStateID, move(OpClone, id, id, 0))
	nested := x.handle("one", "nested")
	far, farID := x.make(nested, "file")
	fails(OpClone, nfs.ErrXDev, []args{
		put, op(OpSaveFH), op(OpPutFH, far),
		op(OpClone, id, farID, uint64(0), uint64(0), uint64(0)),
	})
	// To another export the bytes go through the server.
	p = x.do(put, op(OpSaveFH), op(OpPutFH, far),
		op(OpCopy, id, farID, uint64(size-150), uint64(7), uint64(120), false, false, uint32(0)),
		op(OpRead, farID, uint64(0), uint32(200)))
	p.ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpCopy)
	if p.Uint32(); p.Uint64() != 120 {
		t.Error("not all was copied")
	}
	p.Skip(4 + VerifierLen + 4)
	if !p.Bool() {
		t.Error("the copy is not synchronous")
	}
	p.ok(OpRead).Bool()
	if got := p.String(200); got != strings.Repeat("\x00", 57)+strings.Repeat("x", 70) {
		t.Errorf("%q", got)
	}
	p.end()
	at := func(n uint32, src, dst, count uint64) []args {
		rest := []any{id, id, src, dst, count}
		if n == OpCopy {
			rest = append(rest, true, true, uint32(0))
		}
		return []args{put, op(OpSaveFH), op(OpPutFH, fh), op(n, rest...)}
	}
	for _, c := range []struct{ src, dst, count uint64 }{
		{size + 1, 0, 0},
		{size - 5, 0, 6},
		{1, 0, 1<<64 - 1},
		{size - 100, size - 50, 0},
		{0, 5, 100},
		{5, 5, 1},
	} {
		fails(OpCopy, nfs.ErrInval, at(OpCopy, c.src, c.dst, c.count))
	}
	fails(OpCopy, nfs.ErrFBig, at(OpCopy, 0, 1<<63, 1))
	fails(OpClone, nfs.ErrInval, at(OpClone, size-5, 0, 6))
	fails(OpCopy, nfs.ErrIsDir, []args{
		op(OpPutFH, dir), op(OpSaveFH), put,
		op(OpCopy, id, id, uint64(0), uint64(0), uint64(0), true, true, uint32(0)),
	})
	fails(OpClone, nfs.ErrIsDir, []args{
		put, op(OpSaveFH), op(OpPutFH, dir),
		op(OpClone, id, id, uint64(0), uint64(0), uint64(0)),
	})
	fails(OpCopy, nfs.ErrOpenMode,
		[]args{
			op(OpPutFH, other), op(OpSaveFH), put,
			op(OpCopy, otherID, ro, uint64(0), uint64(0), uint64(0), true, true, uint32(0)),
		})
	// The end of the source may be where it begins.
	if p := x.do(at(OpCopy, size, 0, 0)...).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpCopy); p.Uint32() != 0 ||
		p.Uint64() != 0 {
		t.Error("something was copied from behind the end")
	}
	r.fs.clones = true
	x.do(at(OpClone, size-100, 50, 10)...).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpClone).end()
	p = x.do(put, op(OpRead, id, uint64(45), uint32(20))).ok(OpPutFH).ok(OpRead)
	p.Bool()
	if got := p.String(200); got != "\x00\x00\x00\x00\x00xxxxxxxxxx\x00\x00\x00\x00\x00" {
		t.Errorf("%q", got)
	}
	// A share reservation counts for those without a stateid.
	y := r.session(2, "two")
	y.do(op(OpPutFH, dir), openCreateOp(state.Read, "makes", "reserved", CreateUnchecked,
		attrs(Bitmap{}))).ok(OpPutFH).ok(OpOpen)
	y.do(op(OpPutFH, dir), openOp(state.Read, state.Both, "denies", "reserved")).ok(OpPutFH).fails(OpOpen,
		nfs.ErrShareDenied)
	y.do(op(OpPutFH, dir), openOp(state.Read, state.Write, "denies", "reserved")).ok(OpPutFH).ok(OpOpen)
	reserved := op(OpPutFH, x.handle("one", "reserved"))
	x.do(reserved, op(OpAllocate, state.Anonymous, uint64(0), uint64(1))).ok(OpPutFH).fails(OpAllocate, nfs.ErrLocked)
	fails(OpCopy, nfs.ErrLocked, []args{
		put, op(OpSaveFH), reserved,
		op(OpCopy, id, state.Anonymous, uint64(0), uint64(0), uint64(0), true, true, uint32(0)),
	})
	x.do(reserved, op(OpSeek, state.Anonymous, uint64(0), 0)).ok(OpPutFH).fails(OpSeek, nfs.ErrNXIO)
	x.do(put, op(OpCopy, id, id, uint64(0), uint64(0), uint64(0), true, true, uint32(0))).ok(OpPutFH).fails(OpCopy,
		nfs.ErrNoFileHandle)
	r.peer = reader
	x.do(put, op(OpDeallocate, id, uint64(0), uint64(1))).ok(OpPutFH).fails(OpDeallocate, nfs.ErrROFS)
}

// TestLongCopy: a COPY that takes long is answered with what there is, and goes on
// from there when it is asked to; one that fails on the way is a short one too.
func TestLongCopy(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	from, fromID := x.make(dir, "from")
	to, toID := x.make(dir, "to")
	const size = 20 << 20
	x.do(op(OpPutFH, from), op(OpWrite, fromID, uint64(size-4), 0, "tail")).ok(OpPutFH).ok(OpWrite)
	copied := func(off uint64) uint64 {
		p := x.do(op(OpPutFH, from), op(OpSaveFH), op(OpPutFH, to),
			op(OpCopy, fromID, toID, off, off, size-off, true, false, uint32(0)))
		p.ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpCopy).Uint32()
		return p.Uint64()
	}
	calls := 0
	r.fs.copies = func() { calls++; r.now = r.now.Add(copyTime / 2) }
	n := copied(0)
	if n == 0 || n >= size || calls != 2 {
		t.Fatalf("%d bytes in %d steps", n, calls)
	}
	for n < size {
		m := copied(n)
		if m == 0 {
			t.Fatal("no progress")
		}
		n += m
	}
	p := x.do(op(OpPutFH, to), op(OpRead, toID, uint64(size-6), uint32(100))).ok(OpPutFH).ok(OpRead)
	if eof, got := p.Bool(), p.String(100); !eof || got != "\x00\x00tail" {
		t.Errorf("%q, eof %v", got, eof)
	}
}
