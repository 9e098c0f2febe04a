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
	x.do(put, seek(size, contentData)).ok(OpPutFH).fails(OpSeek, nfs.ErrNXIO)
	x.do(put, seek(0, 2)).ok(OpPutFH).fails(OpSeek, nfs.ErrUnionNotSupp)
	x.do(op(OpPutFH, dir), seek(0, 0)).ok(OpPutFH).fails(OpSeek, nfs.ErrIsDir)
	used := func(fh []byte) uint64 { return x.attr(fh, attrSpaceUsed).Uint64() }
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
		return []args{put, op(OpSaveFH), op(OpPutFH, other), op(n, append([]any{src, dst, uint64(size - 100), uint64(5), count}, rest...)...)}
	}
	p := x.do(move(OpCopy, id, otherID, 0, true, true, uint32(0))...).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpCopy)
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
	fails(OpCopy, nfs.ErrNotSupp, move(OpCopy, id, otherID, 0, true, true, uint32(1)))
	fails(OpCopy, nfs.ErrBadXDR, move(OpCopy, id, otherID, 0, true))
	fails(OpClone, nfs.ErrNotSupp, move(OpClone, id, otherID, 0)) // by a store in memory
	fails(OpClone, nfs.ErrBadStateID, move(OpClone, id, id, 0))
	nested := x.handle("one", "nested")
	far, farID := x.make(nested, "file")
	x.do(put, op(OpSaveFH), op(OpPutFH, far), op(OpCopy, id, farID, uint64(0), uint64(0), uint64(0), true, true, uint32(0))).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).fails(OpCopy, nfs.ErrXDev)
	x.do(put, op(OpCopy, id, id, uint64(0), uint64(0), uint64(0), true, true, uint32(0))).ok(OpPutFH).fails(OpCopy, nfs.ErrNoFileHandle)
	r.peer = reader
	x.do(put, op(OpDeallocate, id, uint64(0), uint64(1))).ok(OpPutFH).fails(OpDeallocate, nfs.ErrROFS)
}
