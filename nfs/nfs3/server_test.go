package nfs3

import (
	"bytes"
	"fmt"
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

func TestNamespace(t *testing.T) {
	r := newRig(t)
	root := r.root()
	dir, a := r.make(ProcMkdir, dirArgs(root, "d", sattr(nil)))
	if a.Type != blockstore.TypeDir {
		t.Errorf("MKDIR made %v", a.Type)
	}
	f := r.file(dir, "f", "data")
	target := func(e *xdr.Encoder) { e.String("f/../g") }
	ln, a := r.make(ProcSymlink, dirArgs(dir, "l", sattr(nil), target))
	if a.Type != blockstore.TypeLnk {
		t.Errorf("SYMLINK made %v", a.Type)
	}
	st, d := r.nfs(ProcReadLink, fhArgs(ln))
	pa, to := DecodePostOp(d), d.String(PathLimit)
	r.end("READLINK", d)
	if st != nfs.OK || pa == nil || to != "f/../g" {
		t.Errorf("READLINK: %v %q", st, to)
	}
	// The room that a carrier promises may be less than it has.
	r.bulkMax = 3
	st, d = r.nfs(ProcReadLink, fhArgs(ln))
	if _, to := DecodePostOp(d), d.String(PathLimit); st != nfs.OK || to != "f/../g" {
		t.Errorf("READLINK with little room: %v %q", st, to)
	}
	r.bulkMax = -1
	_, a = r.make(ProcMknod, dirArgs(dir, "p", words(uint32(blockstore.TypeFifo)), sattr(nil)))
	if a.Type != blockstore.TypeFifo {
		t.Errorf("MKNOD made %v", a.Type)
	}
	_, a = r.make(ProcMknod, dirArgs(dir, "c", words(uint32(blockstore.TypeChr)), sattr(nil), words(4, 7)))
	if a.Type != blockstore.TypeChr || a.Major != 4 || a.Minor != 7 {
		t.Errorf("MKNOD made %+v", a)
	}
	// An exclusive create may be repeated with the same verifier only.
	x1, _ := r.make(ProcCreate, dirArgs(dir, "x", words(CreateExclusive, 1, 2)))
	x2, _ := r.make(ProcCreate, dirArgs(dir, "x", words(CreateExclusive, 1, 2)))
	if !bytes.Equal(x1, x2) {
		t.Error("a repeated exclusive create made something else")
	}
	if st, _ := r.nfs(ProcCreate, dirArgs(dir, "x", words(CreateExclusive, 1, 3))); st != nfs.ErrExist {
		t.Errorf("exclusive create of what is there: %v", st)
	}

	st, d = r.nfs(ProcLookup, dirArgs(dir, "f"))
	got := bytes.Clone(DecodeHandle(d))
	oa, da := DecodePostOp(d), DecodePostOp(d)
	r.end("LOOKUP", d)
	if st != nfs.OK || !bytes.Equal(got, f) || oa == nil || da == nil || da.Type != blockstore.TypeDir {
		t.Errorf("LOOKUP: %v %x, want %x", st, got, f)
	}

	st, d = r.nfs(ProcLink, func(e *xdr.Encoder) { EncodeHandle(e, f); dirArgs(root, "hard")(e) })
	oa, w := DecodePostOp(d), DecodeWcc(d)
	r.end("LINK", d)
	if st != nfs.OK || oa == nil || oa.NLink != 2 || w.Post == nil {
		t.Errorf("LINK: %v %+v", st, oa)
	}
	st, d = r.nfs(ProcRename, func(e *xdr.Encoder) { dirArgs(dir, "f")(e); dirArgs(root, "g")(e) })
	w1, w2 := DecodeWcc(d), DecodeWcc(d)
	r.end("RENAME", d)
	if st != nfs.OK || w1.Post == nil || w2.Post == nil || w1.Post.FileID == w2.Post.FileID {
		t.Errorf("RENAME: %v", st)
	}
	if got, _ := r.read(f, 0, 10); got != "data" {
		t.Errorf("after the rename the handle reads %q", got)
	}
	for _, c := range []struct {
		proc uint32
		dir  []byte
		name string
		want nfs.Status
	}{
		{ProcRmdir, root, "d", nfs.ErrNotEmpty},
		{ProcRemove, root, "hard", nfs.OK},
		{ProcRemove, root, "hard", nfs.ErrNoEnt},
		{ProcRmdir, root, "g", nfs.ErrNotDir},
		{ProcRemove, dir, "l", nfs.OK},
		{ProcRemove, dir, "p", nfs.OK},
		{ProcRemove, dir, "c", nfs.OK},
		{ProcRemove, dir, "x", nfs.OK},
		{ProcRmdir, root, "d", nfs.OK},
	} {
		st, d := r.nfs(c.proc, dirArgs(c.dir, c.name))
		w := DecodeWcc(d)
		r.end(c.name, d)
		if st != c.want || w.Post == nil {
			t.Errorf("procedure %d %s: %v, want %v (%v)", c.proc, c.name, st, c.want, w)
		}
	}
	if st, _ := r.nfs(ProcGetAttr, fhArgs(dir)); st != nfs.ErrStale {
		t.Errorf("GETATTR of a removed directory: %v", st)
	}
}

// TestFailures: every failure has the status it should, and a body of the
// form that its procedure prescribes.
func TestFailures(t *testing.T) {
	r := newRig(t)
	root := r.root()
	f := r.file(root, "f", "data")
	r.peer = stranger
	two, _ := r.mount("/two") // has no rules, so is open to anybody
	r.peer = friend
	forged := bytes.Clone(root)
	forged[len(forged)-1] ^= 1
	gone := r.codec.Append(nil, 9, &blockstore.Handle{Len: 1})
	long := string(bytes.Repeat([]byte{'n'}, 256))

	type body func(*xdr.Decoder)
	none := body(func(*xdr.Decoder) {})
	post := body(func(d *xdr.Decoder) { DecodePostOp(d) })
	wcc := body(func(d *xdr.Decoder) { DecodeWcc(d) })
	postWcc := body(func(d *xdr.Decoder) { DecodePostOp(d); DecodeWcc(d) })
	wccWcc := body(func(d *xdr.Decoder) { DecodeWcc(d); DecodeWcc(d) })
	setArgs := func(h []byte) func(*xdr.Encoder) {
		return func(e *xdr.Encoder) { EncodeHandle(e, h); EncodeSetAttr(e, nil); e.Bool(false) }
	}
	writeArgs := func(h []byte) func(*xdr.Encoder) {
		return func(e *xdr.Encoder) { readArgs(h, 0, 1)(e); e.Uint32(0); e.String("x") }
	}
	list := func(h []byte) func(*xdr.Encoder) { return fhArgs(h, 0, 0, 0, 0, 4096) }
	plus := func(h []byte) func(*xdr.Encoder) { return fhArgs(h, 0, 0, 0, 0, 4096, 8192) }
	mk := func(name string) func([]byte) func(*xdr.Encoder) {
		return func(h []byte) func(*xdr.Encoder) { return dirArgs(h, name, words(CreateGuarded), sattr(nil)) }
	}
	named := func(name string, more ...func(*xdr.Encoder)) func([]byte) func(*xdr.Encoder) {
		return func(h []byte) func(*xdr.Encoder) { return dirArgs(h, name, more...) }
	}
	simple := func(h []byte) func(*xdr.Encoder) { return fhArgs(h) }
	ren := func(h []byte) func(*xdr.Encoder) {
		return func(e *xdr.Encoder) { dirArgs(h, "f")(e); dirArgs(h, "g")(e) }
	}
	lnk := func(h []byte) func(*xdr.Encoder) {
		return func(e *xdr.Encoder) { EncodeHandle(e, h); dirArgs(h, "g")(e) }
	}
	procs := []struct {
		proc    uint32
		args    func([]byte) func(*xdr.Encoder)
		body    body
		changes bool
	}{
		{ProcGetAttr, simple, none, false},
		{ProcSetAttr, setArgs, wcc, true},
		{ProcLookup, named("f"), post, false},
		{ProcAccess, func(h []byte) func(*xdr.Encoder) { return fhArgs(h, 1) }, post, false},
		{ProcReadLink, simple, post, false},
		{ProcRead, func(h []byte) func(*xdr.Encoder) { return readArgs(h, 0, 1) }, post, false},
		{ProcWrite, writeArgs, wcc, true},
		{ProcCreate, mk("n"), wcc, true},
		{ProcMkdir, named("n", sattr(nil)), wcc, true},
		{ProcSymlink, named("n", sattr(nil), func(e *xdr.Encoder) { e.String("t") }), wcc, true},
		{ProcMknod, named("n", words(7), sattr(nil)), wcc, true},
		{ProcRemove, named("f"), wcc, true},
		{ProcRmdir, named("f"), wcc, true},
		{ProcRename, ren, wccWcc, true},
		{ProcLink, lnk, postWcc, true},
		{ProcReadDir, list, post, false},
		{ProcReadDirPlus, plus, post, false},
		{ProcFSStat, simple, post, false},
		{ProcFSInfo, simple, post, false},
		{ProcPathConf, simple, post, false},
		{ProcCommit, func(h []byte) func(*xdr.Encoder) { return readArgs(h, 0, 0) }, wcc, true},
	}
	check := func(name string, proc uint32, args func(*xdr.Encoder), b body, want nfs.Status) {
		t.Helper()
		st, d := r.nfs(proc, args)
		b(d)
		if st != want {
			t.Errorf("%s, procedure %d: %v, want %v", name, proc, st, want)
		}
		r.end(fmt.Sprintf("%s, procedure %d", name, proc), d)
	}
	for _, p := range procs {
		check("not a handle", p.proc, p.args([]byte("junk")), p.body, nfs.ErrBadHandle)
		check("empty handle", p.proc, p.args(nil), p.body, nfs.ErrBadHandle)
		check("forged", p.proc, p.args(forged), p.body, nfs.ErrBadHandle)
		check("no such export", p.proc, p.args(gone), p.body, nfs.ErrStale)
		r.peer = stranger
		check("stranger", p.proc, p.args(root), p.body, nfs.ErrAcces)
		if p.changes {
			check("read-only export", p.proc, p.args(two), p.body, nfs.ErrROFS)
			r.peer = reader
			check("read-only client", p.proc, p.args(root), p.body, nfs.ErrROFS)
		}
		r.peer = friend
		// Arguments cut short are garbage, and so is one handle too long.
		var e xdr.Encoder
		p.args(root)(&e)
		for _, n := range []int{0, 3, 8, len(e.B) - 4} {
			if _, st := r.try(Program, p.proc, func(o *xdr.Encoder) { o.B = append(o.B, e.B[:n]...) }); st != rpc.GarbageArgs {
				t.Errorf("procedure %d with %d of %d bytes: %v", p.proc, n, len(e.B), st)
			}
		}
		if _, st := r.try(Program, p.proc, p.args(make([]byte, 65))); st != rpc.GarbageArgs {
			t.Errorf("procedure %d with a handle of 65 bytes: %v", p.proc, st)
		}
	}

	for _, c := range []struct {
		name string
		proc uint32
		args func(*xdr.Encoder)
		body body
		want nfs.Status
	}{
		{"no such name", ProcLookup, dirArgs(root, "zz"), post, nfs.ErrNoEnt},
		{"empty name", ProcLookup, dirArgs(root, ""), post, nfs.ErrInval},
		{"slash", ProcLookup, dirArgs(root, "a/b"), post, nfs.ErrInval},
		{"NUL", ProcLookup, dirArgs(root, "a\x00b"), post, nfs.ErrInval},
		{"long name", ProcLookup, dirArgs(root, long), post, nfs.ErrNameTooLong},
		{"in a file", ProcLookup, dirArgs(f, "x"), post, nfs.ErrNotDir},
		{"exists", ProcCreate, mk("f")(root), wcc, nfs.ErrExist},
		{"create .", ProcCreate, mk(".")(root), wcc, nfs.ErrExist},
		{"mkdir ..", ProcMkdir, dirArgs(root, "..", sattr(nil)), wcc, nfs.ErrExist},
		{"rmdir .", ProcRmdir, dirArgs(root, "."), wcc, nfs.ErrInval},
		{"mknod of a file", ProcMknod, dirArgs(root, "n", words(1)), wcc, nfs.ErrBadType},
		{"mknod of nonsense", ProcMknod, dirArgs(root, "n", words(99)), wcc, nfs.ErrBadType},
		{"read of a directory", ProcRead, readArgs(root, 0, 1), post, nfs.ErrIsDir},
		{"list a file", ProcReadDir, list(f), post, nfs.ErrNotDir},
		{"no room for a head", ProcReadDir, fhArgs(root, 0, 0, 0, 0, 8), post, nfs.ErrTooSmall},
		{"bad cookie", ProcReadDir, fhArgs(root, 1<<31, 0, 0, 0, 4096), post, nfs.ErrBadCookie},
		{"readlink of a file", ProcReadLink, fhArgs(f), post, nfs.ErrInval},
		{
			"count above the data", ProcWrite, func(e *xdr.Encoder) { readArgs(f, 0, 2)(e); e.Uint32(0); e.String("x") }, wcc,
			nfs.ErrInval,
		},
		{
			"link into another export", ProcLink, func(e *xdr.Encoder) { EncodeHandle(e, f); dirArgs(two, "x")(e) }, postWcc,
			nfs.ErrXDev,
		},
		{
			"rename into another export", ProcRename, func(e *xdr.Encoder) { dirArgs(root, "f")(e); dirArgs(two, "x")(e) },
			wccWcc, nfs.ErrXDev,
		},
		{
			"rename to a dead handle", ProcRename, func(e *xdr.Encoder) { dirArgs(root, "f")(e); dirArgs(gone, "x")(e) }, wccWcc,
			nfs.ErrStale,
		},
	} {
		check(c.name, c.proc, c.args, c.body, c.want)
	}
	for name, args := range map[string]func(*xdr.Encoder){
		"createhow":  dirArgs(root, "q", words(3)),
		"set time":   dirArgs(root, "q", words(0, 0, 0, 0, 0, 3, 0)),
		"flag of 2":  dirArgs(root, "q", words(0, 2)),
		"nanosecond": dirArgs(root, "q", words(0, 0, 0, 0, 0, 2, 1, 1e9, 0)),
	} {
		if _, st := r.try(Program, ProcCreate, args); st != rpc.GarbageArgs {
			t.Errorf("%s: %v", name, st)
		}
	}
	if _, st := r.try(Program, ProcWrite,
		func(e *xdr.Encoder) { readArgs(f, 0, 1)(e); e.Uint32(3); e.String("x") }); st != rpc.GarbageArgs {
		t.Errorf("stable_how 3: %v", st)
	}
	m := r.count.Snapshot()
	for _, k := range []string{
		"nfs_bad_handles", "nfs_forged_handles", "nfs_gone_exports", "nfs_denied_clients",
		"nfs_garbage", "nfs_status_ROFS",
	} {
		if m[k] == 0 {
			t.Errorf("%s was not counted", k)
		}
	}
}

func TestReadWaitsOnWorkers(t *testing.T) {
	r := newRig(t)
	h := r.file(r.root(), "f", "data")
	var waits []bool
	r.fs.read = func(nowait bool) error {
		waits = append(waits, nowait)
		if nowait {
			return blockstore.ErrWouldBlock
		}
		return nil
	}
	if got, eof := r.read(h, 0, 100); got != "data" || !eof || len(waits) != 2 || !waits[0] || waits[1] {
		t.Errorf("%q %v %v", got, eof, waits)
	}
	if r.count.ReadsMoved.Load() != 1 {
		t.Error("not counted")
	}
	// A part that is in memory is not the answer, unless it is the end of the file.
	for _, c := range []struct {
		ready, n, moved int
		want            string
		eof             bool
	}{
		{ready: 1, n: 100, moved: 1, want: "data", eof: true},
		{ready: 3, n: 4, moved: 1, want: "data", eof: true},
		{ready: 2, n: 3, moved: 1, want: "dat"},
		{ready: 3, n: 3, want: "dat"},
		{ready: 4, n: 100, want: "data", eof: true},
		{ready: 1, n: 0, want: ""},
	} {
		waits, r.fs.ready = nil, c.ready
		r.fs.read = func(nowait bool) error { waits = append(waits, nowait); return nil }
		before := r.count.ReadsMoved.Load()
		got, eof := r.read(h, 0, uint32(c.n))
		if moved := r.count.ReadsMoved.Load() - before; got != c.want || eof != c.eof || len(waits) != 1+c.moved ||
			moved != uint64(c.moved) {
			t.Errorf("%+v: %q %v, %v, %d moved", c, got, eof, waits, moved)
		}
	}
	r.fs.ready = 0
	r.fs.read = func(bool) error { return blockstore.ErrJukebox }
	if st, d := r.nfs(ProcRead, readArgs(h, 0, 1)); st != nfs.ErrJukebox || DecodePostOp(d) == nil {
		t.Errorf("try again later: %v", st)
	}
	r.fs.read = nil
	r.noMemory = true
	if st, d := r.nfs(ProcRead, readArgs(h, 0, 1)); st != nfs.ErrJukebox || DecodePostOp(d) == nil {
		t.Errorf("no memory: %v", st)
	}
}

type listing struct {
	names   []string
	last    uint64
	eof     bool
	size    int // of the resok
	plusLen int // of attributes and handles
}

func (r *rig) list(dir []byte, cookie uint64, plus bool, counts ...uint32) (listing, nfs.Status) {
	r.t.Helper()
	proc := uint32(ProcReadDir)
	if plus {
		proc = ProcReadDirPlus
	}
	st, d := r.nfs(proc, func(e *xdr.Encoder) {
		EncodeHandle(e, dir)
		e.Uint64(cookie)
		e.Uint64(0)
		for _, n := range counts {
			e.Uint32(n)
		}
	})
	l := listing{size: d.Remaining(), last: cookie}
	a := DecodePostOp(d)
	if a == nil {
		r.t.Error("no attributes of the directory")
	}
	if st != nfs.OK {
		r.end("list", d)
		return l, st
	}
	DecodeVerifier(d)
	for d.Bool() {
		d.Uint64()
		l.names = append(l.names, d.String(NameLimit))
		l.last = d.Uint64()
		if plus {
			at := d.Offset()
			if DecodePostOp(d) == nil || DecodePostOpHandle(d) == nil {
				r.t.Error("an entry without attributes or handle")
			}
			l.plusLen += d.Offset() - at
		}
	}
	l.eof = d.Bool()
	r.end("list", d)
	return l, st
}

// TestListings: whatever the size asked for, a listing is never larger, is as
// full as it can be, and walks over all entries once.
func TestListings(t *testing.T) {
	r := newRig(t)
	root := r.root()
	want := []string{".", ".."}
	for i := range 40 {
		name := fmt.Sprintf("%0*d", 1+i%9, i)
		r.make(ProcCreate, dirArgs(root, name, words(CreateGuarded), sattr(nil)))
		want = append(want, name)
	}
	for _, plus := range []bool{false, true} {
		for _, count := range []uint32{300, 301, 307, 512, 1000, 4096, 1 << 20, 1<<32 - 1} {
			var names []string
			var cookie uint64
			for range 100 {
				counts := []uint32{count}
				if plus {
					counts = []uint32{count, count}
				}
				l, st := r.list(root, cookie, plus, counts...)
				if st != nfs.OK || len(l.names) == 0 {
					t.Fatalf("plus %v count %d cookie %d: %v", plus, count, cookie, st)
				}
				if l.size > int(count) && count < 1<<31 {
					t.Errorf("plus %v count %d: %d bytes", plus, count, l.size)
				}
				names = append(names, l.names...)
				if l.eof {
					break
				}
				next := entryLen(want[len(names)])
				if plus {
					next += l.plusLen / len(l.names)
				}
				if l.size+next <= int(count) && !plus {
					t.Errorf("count %d: %d bytes, and the next entry has %d", count, l.size, next)
				}
				cookie = l.last
			}
			if fmt.Sprint(names) != fmt.Sprint(want) {
				t.Errorf("plus %v count %d: %q", plus, count, names)
			}
		}
	}
	// The exact size is enough, one byte less is not.
	l, _ := r.list(root, 0, false, 1<<20)
	if k, st := r.list(root, 0, false, uint32(l.size)); st != nfs.OK || !k.eof || k.size != l.size {
		t.Errorf("exact size: %v %d of %d", st, k.size, l.size)
	}
	if k, st := r.list(root, 0, false, uint32(l.size-1)); st != nfs.OK || k.eof || len(k.names) != len(l.names)-1 {
		t.Errorf("a byte less: %v %d names", st, len(k.names))
	}
	// dircount bounds the names alone, but not below one entry.
	if k, st := r.list(root, 0, true, uint32(2*entryLen(".")), 1<<20); st != nfs.OK || len(k.names) != 2 || k.eof {
		t.Errorf("dircount for two: %v %q", st, k.names)
	}
	if k, st := r.list(root, 0, true, 0, 1<<20); st != nfs.OK || len(k.names) != 1 {
		t.Errorf("dircount 0: %v %q", st, k.names)
	}
	if _, st := r.list(root, 0, true, 1<<20, 150); st != nfs.ErrTooSmall {
		t.Errorf("no room for one entry: %v", st)
	}
}

func TestFilesystemProperties(t *testing.T) {
	r := newRig(t)
	root := r.root()
	st, d := r.nfs(ProcFSInfo, fhArgs(root))
	a := DecodePostOp(d)
	var w [7]uint32
	for i := range w {
		w[i] = d.Uint32()
	}
	size := d.Uint64()
	d.Uint64()
	props := d.Uint32()
	r.end("FSINFO", d)
	if st != nfs.OK || a == nil || w != [7]uint32{1 << 20, 1 << 20, 4096, 1 << 20, 1 << 20, 4096, 64 << 10} || size == 0 ||
		props != 0x1B {
		t.Errorf("FSINFO: %v %v %d %x", st, w, size, props)
	}
	st, d = r.nfs(ProcFSStat, fhArgs(root))
	a = DecodePostOp(d)
	total, free := d.Uint64(), d.Uint64()
	d.Skip(4*8 + 4)
	r.end("FSSTAT", d)
	if st != nfs.OK || a == nil || total == 0 || free > total {
		t.Errorf("FSSTAT: %v %d %d", st, total, free)
	}
	st, d = r.nfs(ProcPathConf, fhArgs(root))
	a = DecodePostOp(d)
	links, name := d.Uint32(), d.Uint32()
	flags := []bool{d.Bool(), d.Bool(), d.Bool(), d.Bool()}
	r.end("PATHCONF", d)
	if st != nfs.OK || a == nil || links < 2 || name != 255 || fmt.Sprint(flags) != "[true true false true]" {
		t.Errorf("PATHCONF: %v %d %d %v", st, links, name, flags)
	}
	r.end("NULL", r.call(Program, ProcNull, nil))
	if _, st := r.try(Program, 22, nil); st != rpc.ProcUnavail {
		t.Errorf("procedure 22: %v", st)
	}
}

func TestMount(t *testing.T) {
	r := newRig(t)
	root := r.root()
	r.make(ProcMkdir, dirArgs(root, "sub", sattr(nil)))
	r.file(root, "file", "")
	for _, c := range []struct {
		peer, path string
		want       nfs.Status
	}{
		{friend, "/one", nfs.OK},
		{friend, "/one/", nfs.OK},
		{friend, "/one/sub", nfs.OK},
		{friend, "/one/none", nfs.ErrNoEnt},
		{friend, "/one/file", nfs.ErrNotDir},
		{friend, "/zzz", nfs.ErrNoEnt},
		{friend, "/", nfs.ErrNoEnt},
		{friend, "/one\x00", nfs.ErrInval},
		{friend, "/one/../..", nfs.ErrNoEnt},
		{stranger, "/one", nfs.ErrAcces},
		{stranger, "/two", nfs.OK},
		{friend, "/one/" + string(bytes.Repeat([]byte{'x'}, 300)), nfs.ErrNameTooLong},
	} {
		r.peer = c.peer
		if _, st := r.mount(c.path); st != c.want {
			t.Errorf("%s by %s: %v, want %v", c.path, c.peer, st, c.want)
		}
	}
	r.peer = friend
	if _, st := r.try(MountProgram, MountMnt,
		func(e *xdr.Encoder) { e.Opaque(make([]byte, nfs.PathMax+1)) }); st != rpc.GarbageArgs {
		t.Errorf("a path too long: %v", st)
	}
	dump := func() (out []string) {
		d := r.call(MountProgram, MountDump, nil)
		for d.Bool() {
			out = append(out, d.String(MountNameMax)+" "+d.String(nfs.PathMax))
		}
		r.end("DUMP", d)
		return out
	}
	if got, want := fmt.Sprint(dump()), "[10.0.0.1 /one 10.0.0.1 /one/ 10.0.0.1 /one/sub]"; got != want {
		t.Errorf("DUMP %s, want %s", got, want)
	}
	r.peer = stranger
	if got, want := fmt.Sprint(dump()), "[192.0.2.1 /two]"; got != want {
		t.Errorf("DUMP for a stranger %s, want %s", got, want)
	}
	r.peer, r.showAll = friend, true
	if got, want := fmt.Sprint(dump()), "[10.0.0.1 /one 10.0.0.1 /one/ 10.0.0.1 /one/sub 192.0.2.1 /two]"; got != want {
		t.Errorf("DUMP of all %s, want %s", got, want)
	}
	r.end("UMNT", r.call(MountProgram, MountUmnt, func(e *xdr.Encoder) { e.String("/one") }))
	if n := len(dump()); n != 3 {
		t.Errorf("%d mounts after UMNT", n)
	}
	r.end("UMNTALL", r.call(MountProgram, MountUmntAll, nil))
	if got := fmt.Sprint(dump()); got != "[192.0.2.1 /two]" {
		t.Errorf("after UMNTALL %s", got)
	}
	for _, c := range []struct {
		peer string
		all  bool
		want string
	}{
		{friend, true, "[/one: 10.0.0.1/32 10.0.0.2/32 /two:]"},
		{stranger, true, "[/one: 10.0.0.1/32 10.0.0.2/32 /two:]"},
		{friend, false, "[/one: 10.0.0.1/32 /two:]"},
		{"10.0.0.2:50000", false, "[/one: 10.0.0.2/32 /two:]"},
		{stranger, false, "[/two:]"},
	} {
		r.peer, r.showAll = c.peer, c.all
		d := r.call(MountProgram, MountExport, nil)
		var got []string
		for d.Bool() {
			line := d.String(nfs.PathMax) + ":"
			for d.Bool() {
				line += " " + d.String(MountNameMax)
			}
			got = append(got, line)
		}
		r.end("EXPORT", d)
		if fmt.Sprint(got) != c.want {
			t.Errorf("EXPORT for %s, all %v: %v, want %s", c.peer, c.all, got, c.want)
		}
	}
	var m mounts
	for i := range maxMounts + 10 {
		m.add(mountEntry{path: fmt.Sprint(i)})
	}
	if all := m.all(); len(all) != maxMounts || all[0].path != "10" {
		t.Errorf("%d mounts remembered", len(all))
	}
}

func TestReadDoesNotAllocate(t *testing.T) {
	r := newRig(t)
	h := r.file(r.root(), "f", string(make([]byte, 64<<10)))
	var e xdr.Encoder
	rpc.EncodeCall(&e, 1, Program, Version, ProcRead,
		&rpc.Cred{Flavor: rpc.AuthSys, Machine: "client", Groups: []uint32{1, 2}})
	readArgs(h, 0, 64<<10)(&e)
	mem := make([]byte, 64<<10)
	c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(friend)}}
	c.Alloc = func(n int) []byte { return mem[:n] }
	size := 0
	c.Reply = func(c *rpc.Call, _ bool) { size = c.Res.Len() }
	run := func() {
		c.Reset()
		r.srv.Dispatch(c, xdr.NewDecoder(e.B), false)
	}
	run()
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("%v allocations per READ", n)
	}
	if size != 24+4+PostOpLen+12+64<<10 {
		t.Errorf("the reply has %d bytes", size)
	}
}

func FuzzArguments(f *testing.F) {
	r := newRig(f)
	root := r.root()
	file := r.file(root, "f", "data")
	seed := func(proc uint32, args func(*xdr.Encoder)) {
		var e xdr.Encoder
		args(&e)
		f.Add(proc, e.B)
	}
	for p := range uint32(numProcs) {
		seed(p, dirArgs(root, "f", words(0), sattr(nil)))
		seed(p, readArgs(file, 0, 4))
		seed(p, fhArgs(root, 0, 0, 0, 0, 4096, 8192))
	}
	seed(ProcWrite, func(e *xdr.Encoder) { readArgs(file, 0, 1)(e); e.Uint32(0); e.String("x") })
	seed(ProcRename, func(e *xdr.Encoder) { dirArgs(root, "f")(e); dirArgs(root, "g")(e) })
	f.Fuzz(func(t *testing.T, proc uint32, args []byte) {
		r.t = t
		d, st := r.try(Program, proc%numProcs, func(e *xdr.Encoder) { e.B = append(e.B, args...) })
		switch st {
		case rpc.RPCSuccess:
			if d.Remaining()%4 != 0 {
				t.Errorf("procedure %d: %d bytes of results", proc, d.Remaining())
			}
		case rpc.GarbageArgs:
		default:
			t.Errorf("procedure %d: accept status %d", proc, st)
		}
	})
}

func FuzzDecoders(f *testing.F) {
	var e xdr.Encoder
	EncodeWcc(&e, &blockstore.Wcc{Pre: blockstore.WccAttr{Known: true}, Post: blockstore.WccAttr{Known: true}}, 1)
	f.Add(e.B)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := xdr.NewDecoder(b)
		if w := DecodeWcc(&d); d.Err() == nil {
			var e xdr.Encoder
			in := blockstore.Wcc{}
			var fsid uint64
			if w.Pre != nil {
				in.Pre = blockstore.Known(&blockstore.Attr{Size: w.Pre.Size, Mtime: w.Pre.Mtime, Ctime: w.Pre.Ctime})
			}
			if w.Post != nil {
				in.Post, fsid = blockstore.Known(&w.Post.Attr), w.Post.FSID
			}
			EncodeWcc(&e, &in, fsid)
			if !bytes.Equal(e.B, b[:d.Offset()]) {
				t.Errorf("%x encodes as %x", b[:d.Offset()], e.B)
			}
		}
		d = xdr.NewDecoder(b)
		if s := DecodeSetAttr(&d); d.Err() == nil {
			var e xdr.Encoder
			EncodeSetAttr(&e, &s)
			if !bytes.Equal(e.B, b[:d.Offset()]) {
				t.Errorf("%x encodes as %x", b[:d.Offset()], e.B)
			}
		}
	})
}

// writeArgs are of a WRITE of one byte.
func writeArgs(fh []byte) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		fhArgs(fh, 0, 0, 1, 2)(e)
		e.Opaque([]byte("x"))
	}
}

// setArgs are of a SETATTR.
func setArgs(fh []byte, a *blockstore.SetAttr) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		EncodeHandle(e, fh)
		EncodeSetAttr(e, a)
		e.Bool(false)
	}
}
