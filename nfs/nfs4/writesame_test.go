package nfs4

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

func writeSameOp(id state.Stateid, how int, b dataBlocks) args {
	return op(OpWriteSame, id, how, b.offset, b.size, b.count, b.numAt, b.num, b.patternAt, b.pattern)
}

const noNumber = uint64(math.MaxUint64)

// TestWriteSame: what is in a file after a WRITE_SAME, byte for byte.
func TestWriteSame(t *testing.T) {
	for _, c := range []struct {
		name string
		b    dataBlocks
		want func() []byte // of all blocks
	}{
		{
			"a pattern",
			dataBlocks{offset: 3, size: 5, count: 3, numAt: noNumber, patternAt: 1, pattern: []byte("abc")},
			func() []byte { return bytes.Repeat([]byte("\x00abc\x00"), 3) },
		},
		{
			"numbers",
			dataBlocks{offset: 1, size: 6, count: 2, numAt: 2, num: math.MaxUint32, pattern: []byte("ab")},
			func() []byte { return []byte("ab\xff\xff\xff\xffab\x00\x00\x00\x00") },
		},
		{
			"numbers over the pattern",
			dataBlocks{size: 4, count: 2, num: 7, pattern: []byte("abcd")},
			func() []byte { return []byte{0, 0, 0, 7, 0, 0, 0, 8} },
		},
		{"blocks over the pieces that are written", dataBlocks{
			offset: 1, size: 1000, count: 3000, numAt: 996, patternAt: 1,
			pattern: bytes.Repeat([]byte("x"), 995),
		}, func() (p []byte) {
			for i := range uint32(3000) {
				p = append(append(p, 0), bytes.Repeat([]byte("x"), 995)...)
				p = binary.BigEndian.AppendUint32(p, i)
			}
			return p
		}},
		{
			"one byte",
			dataBlocks{size: 1, count: 1 << 16, numAt: noNumber, pattern: []byte("z")},
			func() []byte { return bytes.Repeat([]byte("z"), 1<<16) },
		},
		{
			"zeros",
			dataBlocks{offset: 2, size: 1 << 16, count: 4, numAt: noNumber, pattern: make([]byte, 9)},
			func() []byte { return make([]byte, 4<<16) },
		},
		{"no pattern", dataBlocks{offset: 2, size: 7, count: 3, numAt: noNumber}, func() []byte { return make([]byte, 21) }},
		{"nothing", dataBlocks{offset: 2, size: 7, numAt: noNumber}, func() []byte { return nil }},
	} {
		for how := range 3 {
			r := newRig(t)
			x := r.session(2, "one")
			fh, id := x.make(x.handle("one"), "file")
			const before = "what is there before"
			x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), 0, before)).ok(OpPutFH).ok(OpWrite)
			p := x.do(op(OpPutFH, fh), writeSameOp(id, how, c.b)).ok(OpPutFH).ok(OpWriteSame)
			want := c.want()
			ids, n, got := p.Uint32(), p.Uint64(), p.Uint32()
			if ids != 0 || n != uint64(len(want)) || (got == 0) != (how == 0) {
				t.Errorf("%s: %d stateids, %d bytes, stable as %d", c.name, ids, n, got)
			}
			p.Uint64()
			p.end()
			file := []byte(before)
			if end := int(c.b.offset) + len(want); len(want) > 0 && end > len(file) {
				file = append(file, make([]byte, end-len(file))...)
			}
			copy(file[c.b.offset:], want)
			if n := x.attr(fh, AttrSize).Uint64(); n != uint64(len(file)) {
				t.Errorf("%s: %d bytes instead of %d", c.name, n, len(file))
			}
			data := make([]byte, len(file)+1)
			h := r.file(fh).Handle
			if n, _, err := r.fs.ReadAt(nil, h, data, 0, false); err != nil || !bytes.Equal(data[:n], file) {
				t.Errorf("%s: other bytes, %v", c.name, err)
			}
		}
	}
}

// TestWriteSameBounds: a call writes a part, zeros take no space whatever their number, and what
// makes no sense is refused.
func TestWriteSameBounds(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	put := op(OpPutFH, fh)
	count := func(b dataBlocks) uint64 {
		t.Helper()
		p := x.do(put, writeSameOp(id, 0, b)).ok(OpPutFH).ok(OpWriteSame)
		p.Uint32()
		return p.Uint64()
	}
	many := dataBlocks{size: 3000, count: 1 << 20, numAt: noNumber, pattern: []byte("a")}
	if n := count(many); n != writeSameMax/3000*3000 {
		t.Errorf("%d bytes of blocks", n)
	}
	if n := count(dataBlocks{size: 1 << 30, count: 2, numAt: noNumber, pattern: []byte("a")}); n != writeSameMax {
		t.Errorf("%d bytes of one block", n)
	}
	if n := count(dataBlocks{size: 1 << 30, count: 64, numAt: noNumber}); n != 1<<36 {
		t.Errorf("%d bytes of zeros", n)
	}
	if size, used := x.attr(fh, AttrSize).Uint64(), x.attr(fh, AttrSpaceUsed).Uint64(); size != 1<<36 || used != 0 {
		t.Errorf("%d bytes, %d used", size, used)
	}
	a, huge := []byte("a"), uint64(1<<40)
	const last = 1<<63 - 1
	for name, c := range map[string]struct {
		b    dataBlocks
		want nfs.Status
	}{
		"blocks of nothing":  {dataBlocks{count: 1, numAt: noNumber}, nfs.ErrInval},
		"a pattern beyond":   {dataBlocks{size: 3, count: 1, numAt: noNumber, patternAt: 3, pattern: a}, nfs.ErrInval},
		"a pattern far away": {dataBlocks{size: 3, numAt: noNumber, patternAt: noNumber, pattern: a}, nfs.ErrInval},
		"a pattern too long": {dataBlocks{size: 1, count: 1, numAt: noNumber, pattern: []byte("ab")}, nfs.ErrInval},
		"a number beyond":    {dataBlocks{size: 5, count: 1, numAt: 2}, nfs.ErrInval},
		"a number without":   {dataBlocks{size: 3, count: 1}, nfs.ErrInval},
		"too much":           {dataBlocks{size: huge, count: huge, numAt: noNumber}, nfs.ErrFBig},
		"too far":            {dataBlocks{offset: last, size: 1, count: 1, numAt: noNumber, pattern: a}, nfs.ErrFBig},
		"zeros too far":      {dataBlocks{offset: last, size: 1, count: 1, numAt: noNumber}, nfs.ErrFBig},
	} {
		if st := x.do(put, writeSameOp(id, 0, c.b)).ok(OpPutFH).next(OpWriteSame); st != c.want {
			t.Errorf("%s: %v instead of %v", name, st, c.want)
		}
	}
	one := dataBlocks{size: 1, count: 1, numAt: noNumber, pattern: a}
	x.do(put, writeSameOp(id, 3, one)).ok(OpPutFH).fails(OpWriteSame, nfs.ErrBadXDR)
	x.do(op(OpPutFH, dir), writeSameOp(state.Anonymous, 0, one)).ok(OpPutFH).fails(OpWriteSame, nfs.ErrIsDir)
}
