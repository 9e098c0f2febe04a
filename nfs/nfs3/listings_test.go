package nfs3

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

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
	r.fs.folds = true
	st, d = r.nfs(ProcPathConf, fhArgs(root))
	DecodePostOp(d)
	d.Skip(4 * 4)
	if insensitive, preserving := d.Bool(), d.Bool(); st != nfs.OK || !insensitive || !preserving {
		t.Errorf("PATHCONF where case does not count: %v %v %v", st, insensitive, preserving)
	}
	r.end("PATHCONF", d)
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
