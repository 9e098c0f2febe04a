package client

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// copying answers COPY and SEEK in the place of a server, of files whose data it was
// given. COPY copies a part of what is asked for, unstable, and its verifier changes
// once.
type copying struct {
	mu       sync.Mutex
	src, dst []byte
	data     []Extent
	copies   int
	commits  int
	most     uint64
	none     bool // it has neither
}

func (f *copying) verifier(n int) [8]byte {
	if n < 3 {
		return [8]byte{1}
	}
	return [8]byte{2}
}

// call answers a compound whose last operation is one of those.
func (f *copying) call(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
	if r.Prog != nfs4.Program || r.Vers != nfs4.Version || r.Args == nil {
		return call(r)
	}
	var e xdr.Encoder
	r.Args(&e)
	d := xdr.NewDecoder(e.AppendFlat(nil))
	d.Opaque(tagMax)
	d.Uint32()
	n := d.Uint32()
	var head xdr.Encoder
	var res xdr.Encoder
	done := uint32(0)
	for range n {
		op := d.Uint32()
		done++
		res.Uint32(op)
		switch op {
		case nfs4.OpSequence:
			id := d.Fixed(16)
			seq, slot := d.Uint32(), d.Uint32()
			d.Uint32()
			d.Bool()
			res.Uint32(0)
			res.Fixed(id)
			for _, v := range []uint32{seq, slot, slotsAsked - 1, slotsAsked - 1, 0} {
				res.Uint32(v)
			}
		case nfs4.OpPutFH:
			d.Opaque(nfs4.FHMax)
			res.Uint32(0)
		case nfs4.OpSaveFH:
			res.Uint32(0)
		case nfs4.OpCopy, nfs4.OpSeek, nfs4.OpCommit:
			f.mu.Lock()
			st := f.last(op, &d, &res)
			f.mu.Unlock()
			head.Uint32(uint32(st))
		default:
			return call(r)
		}
	}
	if len(head.B) == 0 {
		return call(r)
	}
	// The server has to see the slot used.
	bare := *r
	bare.Dst = nil
	bare.Args = func(e *xdr.Encoder) {
		var all xdr.Encoder
		r.Args(&all)
		d := xdr.NewDecoder(all.AppendFlat(nil))
		d.Opaque(tagMax)
		minor := d.Uint32()
		d.Uint32()
		e.Uint32(0)
		e.Uint32(minor)
		e.Uint32(1)
		e.B = append(e.B, d.Fixed(4+16+4*4)...)
	}
	bare.Res = nil
	if err := call(&bare); err != nil {
		return err
	}
	head.Uint32(0)
	head.Uint32(done)
	out := xdr.NewDecoder(append(head.B, res.B...))
	return r.Res(&out)
}

func (f *copying) last(op uint32, d *xdr.Decoder, res *xdr.Encoder) nfs.Status {
	fail := func(st nfs.Status) nfs.Status {
		res.Uint32(uint32(st))
		return st
	}
	if f.none && op != nfs4.OpCommit {
		return fail(nfs.ErrNotSupp)
	}
	switch op {
	case nfs4.OpCommit:
		f.commits++
		res.Uint32(0)
		v := f.verifier(f.copies)
		res.Fixed(v[:])
	case nfs4.OpSeek:
		nfs4.DecodeStateid(d)
		off, what := d.Uint64(), d.Uint32()
		if off >= uint64(len(f.src)) {
			return fail(nfs.ErrNXIO)
		}
		at, eof := uint64(len(f.src)), true
		for _, x := range slices.Backward(f.data) {
			switch {
			case what == seekData && x.Off+x.Size > off:
				at, eof = max(x.Off, off), false
			case what == seekHole && off >= x.Off && off < x.Off+x.Size:
				at, eof = x.Off+x.Size, x.Off+x.Size == uint64(len(f.src))
			}
		}
		res.Uint32(0)
		res.Bool(eof)
		res.Uint64(at)
	case nfs4.OpCopy:
		nfs4.DecodeStateid(d)
		nfs4.DecodeStateid(d)
		from, to, n := d.Uint64(), d.Uint64(), d.Uint64()
		n = min(n, f.most)
		copy(f.dst[to:to+n], f.src[from:])
		res.Uint32(0)
		res.Uint32(0)
		res.Uint64(n)
		res.Uint32(uint32(blockstore.Unstable))
		v := f.verifier(f.copies)
		f.copies++
		res.Fixed(v[:])
		res.Bool(true)
		res.Bool(true)
	}
	return nfs.OK
}

// TestCopyAndExtents: the server's part copies are put together, what it lost by a
// restart is copied again, and holes are found.
func TestCopyAndExtents(t *testing.T) {
	s := newServer(t)
	ctx := context.Background()
	const size = 1 << 20
	f := &copying{
		src: fill(1, size), dst: make([]byte, size), most: 300 << 10,
		data: []Extent{{0, 4096}, {100 << 10, 200 << 10}, {size - 5000, 5000}},
	}
	c := s.meddled(Version42, f.call)
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	var files [2]*Node
	for i, name := range []string{"a", "b"} {
		if files[i], err = c.Create(ctx, root.Handle, name, blockstore.Guarded, nil, [8]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := c.Extents(ctx, files[0].Handle, size)
	if err != nil || !slices.Equal(list, f.data) {
		t.Errorf("%v, %v", list, err)
	}
	total := 0
	if err := c.Copy(ctx, files[0].Handle, files[1].Handle, 0, size, func(n int) { total += n }); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(f.src, f.dst) || total != size || f.copies != 8 {
		t.Errorf("%d bytes by %d copies, %d commits", total, f.copies, f.commits)
	}
	f.mu.Lock()
	f.none = true
	f.mu.Unlock()
	if err := c.Copy(ctx, files[0].Handle, files[1].Handle, 0, size, nil); !IsStatus(err, nfs.ErrNotSupp) {
		t.Errorf("a server that cannot: %v", err)
	}
	if _, err := c.Extents(ctx, files[0].Handle, size); !IsStatus(err, nfs.ErrNotSupp) {
		t.Errorf("a server that does not tell: %v", err)
	}
	three := s.meddled(Version3, f.call)
	if root, err = three.Resolve(ctx, "/data"); err != nil {
		t.Fatal(err)
	}
	if err := three.Copy(ctx, root.Handle, root.Handle, 0, size, nil); !IsStatus(err, nfs.ErrNotSupp) {
		t.Errorf("version 3: %v", err)
	}
}

// TestCopyByTheServer is the same with a server of our own: no data comes here.
func TestCopyByTheServer(t *testing.T) {
	s := newServer(t)
	s.vers = Version42
	c := s.client()
	ctx := context.Background()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	data := fill(7, 5<<20+3)
	put(t, c, "/data/from", data)
	from, err := c.Lookup(ctx, root.Handle, "from")
	if err != nil {
		t.Fatal(err)
	}
	to, err := c.Create(ctx, root.Handle, "to", blockstore.Guarded, nil, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	before := s.four.Ops()
	total := 0
	if err := c.Copy(ctx, from.Handle, to.Handle, 0, uint64(len(data)), func(n int) { total += n }); err != nil {
		t.Fatal(err)
	}
	list, err := c.Extents(ctx, to.Handle, uint64(len(data)))
	if err != nil || len(list) == 0 || list[0].Off != 0 {
		t.Errorf("%v, %v", list, err)
	}
	after := s.four.Ops()
	if after["READ"] != before["READ"] || after["WRITE"] != before["WRITE"] || after["COPY"] == 0 || after["SEEK"] == 0 ||
		total != len(data) {
		t.Errorf("%d bytes, operations %v", total, after)
	}
	var b bytes.Buffer
	if _, err := c.Stream(ctx, to.Handle, &b, 0); err != nil || !bytes.Equal(b.Bytes(), data) {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
}
