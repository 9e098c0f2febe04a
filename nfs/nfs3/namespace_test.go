package nfs3

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

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
