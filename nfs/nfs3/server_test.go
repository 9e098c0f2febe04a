package nfs3

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

const (
	friend   = "10.0.0.1:700" // may do everything
	reader   = "10.0.0.2:700" // read-only by its rule
	stranger = "192.0.2.1:700"
)

// failing passes everything on except what its fields say.
type failing struct {
	*memfs.FS
	read  func(nowait bool) error
	ready int // the most bytes that can be read without waiting; 0: all
	folds bool
}

func (f *failing) Limits() blockstore.Limits {
	l := f.FS.Limits()
	l.CaseInsensitive = f.folds
	return l
}

func (f *failing) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool,
	error,
) {
	if f.read != nil {
		if err := f.read(nowait); err != nil {
			return 0, false, err
		}
	}
	if nowait && f.ready > 0 {
		p = p[:min(len(p), f.ready)]
	}
	return f.FS.ReadAt(c, h, p, off, nowait)
}

// rig is a server with two exports.
type rig struct {
	t     testing.TB
	srv   *rpc.Server
	table *nfs.Table
	codec *nfs.Codec
	count nfs.Counters
	fs    *failing
	xid   uint32
	peer  string
	// bulkMax and noMemory are what the carrier is like.
	bulkMax  int
	noMemory bool
	showAll  bool
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, table: nfs.NewTable(nil), codec: nfs.NewCodec([]byte("secret")), peer: friend, bulkMax: -1}
	r.fs = &failing{FS: memfs.New(memfs.Options{FSID: 77})}
	rules := []nfs.ClientRule{
		{CIDR: netip.MustParsePrefix("10.0.0.1/32"), Squash: nfs.NoRootSquash, AnonUID: nfs.AnonID, AnonGID: nfs.AnonID},
		{CIDR: netip.MustParsePrefix("10.0.0.2/32"), Squash: nfs.NoRootSquash, RO: true},
	}
	if err := r.table.Replace([]*nfs.Export{
		{ID: 1, Pseudo: "/one", FS: r.fs, Clients: rules},
		{ID: 2, Pseudo: "/two", FS: memfs.New(memfs.Options{}), ReadOnly: true},
	}); err != nil {
		t.Fatal(err)
	}
	r.srv = rpc.NewServer(rpc.ServerConfig{
		Programs: Programs(nfs.Config{
			Exports: r.table, Codec: r.codec, Counters: &r.count,
			ShowAll: func() bool { return r.showAll },
		}), Workers: 2,
	})
	t.Cleanup(r.srv.Close)
	return r
}

// call sends a call and returns the results of an accepted reply.
func (r *rig) call(prog, proc uint32, args func(*xdr.Encoder)) *xdr.Decoder {
	r.t.Helper()
	d, st := r.try(prog, proc, args)
	if st != rpc.RPCSuccess {
		r.t.Fatalf("procedure %d: accept status %d", proc, st)
	}
	return d
}

func (r *rig) try(prog, proc uint32, args func(*xdr.Encoder)) (*xdr.Decoder, rpc.AcceptStat) {
	r.t.Helper()
	r.xid++
	var e xdr.Encoder
	rpc.EncodeCall(&e, r.xid, prog, 3, proc, &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"})
	if args != nil {
		args(&e)
	}
	done := make(chan []byte, 1)
	c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(r.peer)}, BulkMax: r.bulkMax}
	if r.noMemory {
		c.Alloc = func(int) []byte { return nil }
	}
	c.Reply = func(c *rpc.Call, drop bool) { done <- c.Res.AppendFlat(nil) }
	r.srv.Dispatch(c, xdr.NewDecoder(e.AppendFlat(nil)), false)
	select {
	case b := <-done:
		d := xdr.NewDecoder(b)
		d.Skip(20)
		st := rpc.AcceptStat(d.Uint32())
		return &d, st
	case <-time.After(10 * time.Second):
		r.t.Fatal("no reply")
		return nil, 0
	}
}

// nfs sends an NFS call and returns its status and the rest.
func (r *rig) nfs(proc uint32, args func(*xdr.Encoder)) (nfs.Status, *xdr.Decoder) {
	r.t.Helper()
	d := r.call(Program, proc, args)
	return nfs.Status(d.Uint32()), d
}

// end checks that a reply was decoded to its last byte.
func (r *rig) end(what string, d *xdr.Decoder) {
	r.t.Helper()
	if d.Err() != nil || d.Remaining() != 0 {
		r.t.Errorf("%s: %v, %d bytes left over", what, d.Err(), d.Remaining())
	}
}

func (r *rig) mount(path string) ([]byte, nfs.Status) {
	r.t.Helper()
	d := r.call(MountProgram, MountMnt, func(e *xdr.Encoder) { e.String(path) })
	st := nfs.Status(d.Uint32())
	if st != nfs.OK {
		r.end("MNT", d)
		return nil, st
	}
	h := bytes.Clone(DecodeHandle(d))
	if n := d.Uint32(); n != 1 || rpc.AuthFlavor(d.Uint32()) != rpc.AuthSys {
		r.t.Errorf("%d flavors", n)
	}
	r.end("MNT", d)
	return h, st
}

func (r *rig) root() []byte {
	r.t.Helper()
	h, st := r.mount("/one")
	if st != nfs.OK {
		r.t.Fatal(st)
	}
	return h
}

// dirArgs encodes a directory, a name and what follows.
func dirArgs(dir []byte, name string, more ...func(*xdr.Encoder)) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		EncodeHandle(e, dir)
		e.String(name)
		for _, f := range more {
			f(e)
		}
	}
}

func fhArgs(h []byte, words ...uint32) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		EncodeHandle(e, h)
		for _, w := range words {
			e.Uint32(w)
		}
	}
}

func words(w ...uint32) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		for _, v := range w {
			e.Uint32(v)
		}
	}
}

func sattr(s *blockstore.SetAttr) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) { EncodeSetAttr(e, s) }
}

// make makes an object with a procedure that answers like CREATE.
func (r *rig) make(proc uint32, args func(*xdr.Encoder)) ([]byte, *Attr) {
	r.t.Helper()
	st, d := r.nfs(proc, args)
	if st != nfs.OK {
		r.t.Fatalf("procedure %d: %v", proc, st)
	}
	h := bytes.Clone(DecodePostOpHandle(d))
	a := DecodePostOp(d)
	w := DecodeWcc(d)
	r.end("create", d)
	if h == nil || a == nil || w.Post == nil {
		r.t.Fatalf("procedure %d: handle %x attributes %v directory %v", proc, h, a, w)
	}
	return h, a
}

func (r *rig) file(dir []byte, name, data string) []byte {
	r.t.Helper()
	mode := uint32(0o644)
	h, _ := r.make(ProcCreate, dirArgs(dir, name, words(CreateGuarded), sattr(&blockstore.SetAttr{Mode: &mode})))
	r.write(h, 0, data, blockstore.FileSync)
	return h
}

func (r *rig) write(h []byte, off uint64, data string, how blockstore.Stability) {
	r.t.Helper()
	st, d := r.nfs(ProcWrite, func(e *xdr.Encoder) {
		EncodeHandle(e, h)
		e.Uint64(off)
		e.Uint32(uint32(len(data)))
		e.Uint32(uint32(how))
		e.String(data)
	})
	w := DecodeWcc(d)
	n, committed, v := d.Uint32(), d.Uint32(), DecodeVerifier(d)
	r.end("WRITE", d)
	if st != nfs.OK || w.Post == nil || w.Pre == nil || int(n) != len(data) || committed < uint32(how) ||
		v != r.fs.Verifier() {
		r.t.Fatalf("WRITE: %v %v %d %d %x", st, w, n, committed, v)
	}
}

func readArgs(h []byte, off uint64, n uint32) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		EncodeHandle(e, h)
		e.Uint64(off)
		e.Uint32(n)
	}
}

func (r *rig) read(h []byte, off uint64, n uint32) (string, bool) {
	r.t.Helper()
	st, d := r.nfs(ProcRead, readArgs(h, off, n))
	a := DecodePostOp(d)
	count, eof, data := d.Uint32(), d.Bool(), d.String(nfs.MaxIO)
	r.end("READ", d)
	if st != nfs.OK || a == nil || a.FSID != 77 || int(count) != len(data) {
		r.t.Fatalf("READ: %v %v %d of %d", st, a, count, len(data))
	}
	return data, eof
}

func TestFiles(t *testing.T) {
	r := newRig(t)
	root := r.root()
	h := r.file(root, "f", "hello world")
	for _, tc := range []struct {
		off  uint64
		n    uint32
		max  int
		want string
		eof  bool
	}{
		{0, 5, -1, "hello", false},
		{6, 100, -1, "world", true},
		{0, 11, -1, "hello world", true},
		{100, 5, -1, "", true},
		{0, 100, 3, "hel", false},
		{0, 1<<32 - 1, -1, "hello world", true},
		{0, 0, -1, "", false},
	} {
		r.bulkMax = tc.max
		if got, eof := r.read(h, tc.off, tc.n); got != tc.want || eof != tc.eof {
			t.Errorf("%+v: %q %v", tc, got, eof)
		}
	}
	r.bulkMax = -1
	r.write(h, 6, "there", blockstore.Unstable)
	if got, _ := r.read(h, 0, 100); got != "hello there" {
		t.Errorf("%q", got)
	}

	st, d := r.nfs(ProcCommit, readArgs(h, 0, 0))
	w, v := DecodeWcc(d), DecodeVerifier(d)
	r.end("COMMIT", d)
	if st != nfs.OK || w.Post == nil || v != r.fs.Verifier() {
		t.Errorf("COMMIT: %v %v %x", st, w, v)
	}

	size, mode := uint64(5), uint32(0o600)
	st, d = r.nfs(ProcSetAttr, func(e *xdr.Encoder) {
		EncodeHandle(e, h)
		EncodeSetAttr(e, &blockstore.SetAttr{
			Size: &size, Mode: &mode, MtimeHow: blockstore.TimeClient,
			Mtime: time.Unix(1000, 5),
		})
		e.Bool(false)
	})
	w = DecodeWcc(d)
	r.end("SETATTR", d)
	if st != nfs.OK || w.Post == nil || w.Post.Size != 5 || w.Post.Mode != 0o600 ||
		!w.Post.Mtime.Equal(time.Unix(1000, 5)) {
		t.Errorf("SETATTR: %v %+v", st, w.Post)
	}
	st, d = r.nfs(ProcGetAttr, fhArgs(h))
	a := DecodeAttr(d)
	r.end("GETATTR", d)
	if st != nfs.OK || a != *w.Post {
		t.Errorf("GETATTR: %v %+v, SETATTR said %+v", st, a, *w.Post)
	}
	st, d = r.nfs(ProcSetAttr, func(e *xdr.Encoder) { // the guard is of another time
		EncodeHandle(e, h)
		EncodeSetAttr(e, &blockstore.SetAttr{Mode: &mode})
		e.Bool(true)
		EncodeTime(e, a.Ctime.Add(-time.Second))
	})
	if w = DecodeWcc(d); st != nfs.ErrNotSync || w.Post == nil {
		t.Errorf("guarded SETATTR: %v %v", st, w)
	}
	r.end("SETATTR", d)

	st, d = r.nfs(ProcAccess, fhArgs(h, 63))
	pa, bits := DecodePostOp(d), d.Uint32()
	r.end("ACCESS", d)
	if st != nfs.OK || pa == nil || bits&blockstore.AccessRead == 0 || bits&blockstore.AccessModify == 0 {
		t.Errorf("ACCESS: %v %b", st, bits)
	}
	r.peer = reader
	_, d = r.nfs(ProcAccess, fhArgs(h, 63))
	DecodePostOp(d)
	if bits := d.Uint32(); bits&blockstore.AccessRead == 0 || bits&accessChanges != 0 {
		t.Errorf("ACCESS of a read-only client: %b", bits)
	}
}
