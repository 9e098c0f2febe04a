package nfs4

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// readPlus reads a READ_PLUS4resok, which has to begin at off and to go on without
// gaps, and returns its bytes and how many of them are of holes.
func (p *reply) readPlus(off uint64) (got []byte, holes int, eof bool) {
	p.t.Helper()
	eof = p.Bool()
	for range p.Uint32() {
		what := p.Uint32()
		if at := p.Uint64(); at != off+uint64(len(got)) {
			p.t.Fatalf("a part at %d instead of %d", at, off+uint64(len(got)))
		}
		switch what {
		case contentData:
			b := p.Opaque(nfs.MaxIO)
			if len(b) == 0 {
				p.t.Fatal("a part without data")
			}
			got = append(got, b...)
		case contentHole:
			n := int(p.Uint64())
			got = append(got, make([]byte, n)...)
			holes += n
		default:
			p.t.Fatalf("content %d", what)
		}
	}
	return got, holes, eof
}

func TestReadPlus(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	put := op(OpPutFH, fh)
	const size = 1 << 20
	want := make([]byte, size)
	for _, at := range []int{100, 200_000, 200_512, 400_000, size - 70_000} {
		data := bytes.Repeat([]byte("data"), 300)
		copy(want[at:], data)
		x.do(put, op(OpWrite, id, uint64(at), 0, string(data))).ok(OpPutFH).ok(OpWrite)
	}
	x.do(put, op(OpSetAttr, id, attrs(BitmapOf(AttrSize), uint64(size)))).ok(OpPutFH).ok(OpSetAttr)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 500 {
		off := uint64(rnd.IntN(size + 1000))
		count := uint32(rnd.IntN(300_000))
		switch i {
		case 0:
			off, count = 0, 1<<32-1
		case 1:
			off, count = size, 100
		case 2:
			off, count = 1<<64-1, 1<<32-1
		case 3:
			off, count = 5, 0
		case 4:
			off, count = size-1, 1
		}
		p := x.do(put, op(OpReadPlus, id, off, count)).ok(OpPutFH).ok(OpReadPlus)
		if n := p.Remaining(); n > int(count)+4+4+partHole+3 {
			t.Fatalf("%d bytes for %d at %d", n, count, off)
		}
		got, holes, eof := p.readPlus(off)
		p.end()
		start := min(off, size)
		end := start + uint64(len(got))
		switch {
		case len(got) > int(count), end > size, !bytes.Equal(got, want[start:end]):
			t.Fatalf("%d bytes at %d are not what was written, or too many: %d", count, off, len(got))
		case eof != (end == size && (count > 0 || off >= size)):
			t.Fatalf("%d bytes at %d: %d bytes, eof %v", count, off, len(got), eof)
		case len(got) == 0 && off < size && count > partData:
			t.Fatalf("%d bytes at %d: nothing", count, off)
		case i == 0 && len(got) <= 512<<10:
			t.Fatalf("%d bytes of a large request", len(got))
		case holes == 0 && off < 60_000 && count > 190_000:
			t.Fatalf("%d bytes at %d: no hole", count, off)
		}
	}
	// The whole, piece by piece.
	var all []byte
	for eof := false; !eof; {
		var b []byte
		b, _, eof = x.do(put, op(OpReadPlus, id, uint64(len(all)),
			uint32(65536))).ok(OpPutFH).ok(OpReadPlus).readPlus(uint64(len(all)))
		if all = append(all, b...); len(b) == 0 && !eof {
			t.Fatal("no progress")
		}
	}
	if !bytes.Equal(all, want) {
		t.Error("the pieces are not the whole")
	}
	// Parts that take more than what is in them do not make the reply longer than the
	// client has reckoned with.
	r.fs.stripes = true
	for _, count := range []int{1, 8, 100, 1000, 5000} {
		const off = size - 60_000 // zeros
		p := x.do(put, op(OpReadPlus, id, uint64(off), count)).ok(OpPutFH).ok(OpReadPlus)
		if n := p.Remaining(); n > count+4+4+partHole+3 {
			t.Errorf("%d bytes for %d", n, count)
		}
		got, holes, eof := p.readPlus(off)
		if eof || len(got) == 0 || !bytes.Equal(got, want[off:off+len(got)]) ||
			count >= 100 && (holes == 0 || holes == len(got)) {
			t.Errorf("%d bytes of %d, %d of holes, eof %v", len(got), count, holes, eof)
		}
		p.end()
	}
	r.fs.stripes = false
	// What does not fit into the session's replies is left for the next.
	small := r.sessionOf(2, "small", channelArgs(4096, 1024, 1024, 16, 8))
	p := small.do(op(OpPutFH, fh), op(OpReadPlus, state.Bypass, uint64(200_000), uint32(65536))).ok(OpPutFH).ok(OpReadPlus)
	if got, _, eof := p.readPlus(200_000); eof || len(got) < 100 || !bytes.Equal(got, want[200_000:200_000+len(got)]) {
		t.Errorf("%d bytes, eof %v", len(got), eof)
	}
	if len(r.raw) > 1024 {
		t.Errorf("a reply of %d bytes", len(r.raw))
	}
	r.fs.reads = func(bool) error { return blockstore.ErrIO }
	x.do(put, op(OpReadPlus, id, uint64(100), uint32(50))).ok(OpPutFH).fails(OpReadPlus, nfs.ErrIO)
	r.fs.reads = nil

	x.do(op(OpPutFH, dir), op(OpReadPlus, id, uint64(0), uint32(1))).ok(OpPutFH).fails(OpReadPlus, nfs.ErrIsDir)
	x.do(op(OpPutRootFH), op(OpReadPlus, id, uint64(0), uint32(1))).ok(OpPutRootFH).fails(OpReadPlus, nfs.ErrIsDir)
	x.do(put, op(OpReadPlus, id, uint64(0))).ok(OpPutFH).fails(OpReadPlus, nfs.ErrBadXDR)
	bad := id
	bad.Seq += 7
	x.do(put, op(OpReadPlus, bad, uint64(0), uint32(1))).ok(OpPutFH).fails(OpReadPlus, nfs.ErrBadStateID)
	r.uid = 1000
	x.do(op(OpPutFH, fh), op(OpReadPlus, state.Anonymous, uint64(0), uint32(1))).ok(OpPutFH).ok(OpReadPlus)
	r.uid = 0
	x.do(put, op(OpSetAttr, id, attrs(BitmapOf(AttrMode), uint32(0o600)))).ok(OpPutFH).ok(OpSetAttr)
	r.uid = 1000
	x.do(op(OpPutFH, fh), op(OpReadPlus, state.Anonymous, uint64(0), uint32(1))).ok(OpPutFH).fails(OpReadPlus,
		nfs.ErrAcces)
}

// plain is a store without extents.
type plain struct{ blockstore.FS }

func TestReadPlusWithoutExtents(t *testing.T) {
	r := newRig(t)
	rules := r.table.ByID(1).Clients
	for _, fs := range []blockstore.FS{plain{r.fs}, noSeek{r.fs}} {
		x := r.session(2, "one")
		dir := x.handle("one")
		fh, id := x.make(dir, "file")
		x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(100_000), 0, "data")).ok(OpPutFH).ok(OpWrite)
		if err := r.table.Replace([]*nfs.Export{{ID: 1, Pseudo: "/one", FS: fs, Clients: rules}}); err != nil {
			t.Fatal(err)
		}
		got, holes, eof := x.do(op(OpPutFH, fh),
			op(OpReadPlus, id, uint64(99_000), uint32(5000))).ok(OpPutFH).ok(OpReadPlus).readPlus(99_000)
		if string(got) != strings.Repeat("\x00", 1000)+"data" || holes != 0 || !eof {
			t.Errorf("%d bytes, %d of holes, eof %v", len(got), holes, eof)
		}
		x.do(op(OpPutFH, fh), op(OpSeek, id, uint64(0), 0)).ok(OpPutFH).fails(OpSeek, nfs.ErrNotSupp)
		want := nfs.ErrNotSupp
		if _, ok := fs.(blockstore.Xattrs); ok {
			want = nfs.ErrNoXattr
		}
		x.do(op(OpPutFH, fh), op(OpGetXattr, "a")).ok(OpPutFH).fails(OpGetXattr, want)
	}
}

// noSeek is a store whose file system does not know where its holes are.
type noSeek struct{ *store }

func (noSeek) Seek(*blockstore.Cred, blockstore.Handle, uint64, bool) (uint64, error) {
	return 0, blockstore.ErrNotSupp
}

func TestIOAdvise(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	put := op(OpPutFH, fh)
	advise := func(off, n uint64) args { return op(OpIOAdvise, id, off, n, BitmapOf(1, 4)) }
	p := x.do(put, advise(0, 0)).ok(OpPutFH).ok(OpIOAdvise)
	if hints, more := DecodeBitmap(p.Decoder); !hints.empty() || more {
		t.Errorf("hints %x", hints)
	}
	for _, takes := range []bool{true, false} {
		var got [2]uint64
		r.fs.willNeed = func(off, n uint64) bool { got = [2]uint64{off, n}; return takes }
		p := x.do(put, advise(3, 9)).ok(OpPutFH).ok(OpIOAdvise)
		hints, _ := DecodeBitmap(p.Decoder)
		if got != [2]uint64{3, 9} || hints.Has(4) != takes || hints.Has(1) {
			t.Errorf("hints %x, read %v", hints, got)
		}
	}
	r.fs.willNeed = nil
	p.end()
	for _, takes := range []bool{true, false} {
		var got [2]uint64
		r.fs.dontNeed = func(off, n uint64) bool { got = [2]uint64{off, n}; return takes }
		p := x.do(put, op(OpIOAdvise, id, uint64(4), uint64(8), BitmapOf(2, 6))).ok(OpPutFH).ok(OpIOAdvise)
		hints, _ := DecodeBitmap(p.Decoder)
		if got != [2]uint64{4, 8} || hints.Has(6) != takes || hints.Has(2) {
			t.Errorf("hints %x, dropped %v", hints, got)
		}
		got = [2]uint64{}
		if x.do(put, advise(3, 9)).ok(OpPutFH).ok(OpIOAdvise); got != [2]uint64{} {
			t.Errorf("dropped %v without a hint", got)
		}
	}
	x.do(put, advise(2, 1<<64-2)).ok(OpPutFH).fails(OpIOAdvise, nfs.ErrInval)
	x.do(put, op(OpIOAdvise, id, uint64(0), uint64(0))).ok(OpPutFH).fails(OpIOAdvise, nfs.ErrBadXDR)
	x.do(op(OpPutFH, dir), advise(0, 0)).ok(OpPutFH).fails(OpIOAdvise, nfs.ErrIsDir)
	x.do(op(OpPutRootFH), advise(0, 0)).ok(OpPutRootFH).fails(OpIOAdvise, nfs.ErrIsDir)
	x.do(op(OpPutFH, dir), op(OpIOAdvise, state.Anonymous, uint64(0), uint64(0), Bitmap{})).ok(OpPutFH).fails(OpIOAdvise,
		nfs.ErrIsDir)
}

// TestRefused: what nobody has to do is refused for what it is, and not as unknown.
func TestRefused(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	fh, _ := x.make(x.handle("one"), "file")
	for _, n := range []uint32{
		OpLayoutError, OpLayoutStats,
		OpLayoutGet, OpLayoutCommit, OpLayoutReturn, OpGetDeviceInfo, OpGetDeviceList,
	} {
		x.do(op(OpPutFH, fh), op(n)).ok(OpPutFH).fails(n, nfs.ErrNotSupp)
	}
	x.do(op(OpSetSSV, "a", "b")).fails(OpSetSSV, nfs.ErrInval) // SP4_SSV is not served
}
