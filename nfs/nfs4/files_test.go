package nfs4

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// list reads a whole directory by READDIRs of at most n bytes.
func (x *sess) list(dir []byte, n uint32, want Bitmap) (names []string, rounds int) {
	x.r.t.Helper()
	var cookie uint64
	for {
		p := x.do(op(OpPutFH, dir), op(OpReadDir, cookie, [8]byte{}, n, n, want)).ok(OpPutFH).ok(OpReadDir)
		at := p.Remaining()
		p.Skip(8)
		for p.Bool() {
			if cookie = p.Uint64(); cookie <= cookieReserved {
				x.r.t.Errorf("cookie %d", cookie)
			}
			names = append(names, p.String(nameMax))
			DecodeBitmap(p.Decoder)
			p.Opaque(fattrMax)
		}
		eof := p.Bool()
		if at-p.Remaining() > int(n) {
			x.r.t.Errorf("a READDIR4resok of %d bytes, %d were asked for", at-p.Remaining(), n)
		}
		p.end()
		rounds++
		if eof {
			return names, rounds
		}
		if rounds > 1000 {
			x.r.t.Fatal("no end")
		}
	}
}

// attr reads one attribute of a handle.
func (x *sess) attr(fh []byte, n int) *xdr.Decoder {
	x.r.t.Helper()
	p := x.do(op(OpPutFH, fh), op(OpGetAttr, BitmapOf(n))).ok(OpPutFH).ok(OpGetAttr)
	if got, _ := DecodeBitmap(p.Decoder); got != BitmapOf(n) {
		x.r.t.Fatalf("attribute %d: Bitmap %x", n, got)
	}
	d := xdr.NewDecoder(p.Opaque(fattrMax))
	p.end()
	return &d
}

// TestPseudo: the tree above the exports, as different clients see it.
func TestPseudo(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	for _, c := range []struct {
		peer, path string
		want       nfs.Status
		names      string // what is in it
	}{
		{friend, "", nfs.OK, "deep one"},
		{friend, "deep", nfs.OK, "two"},
		{friend, "deep two", nfs.OK, ""},
		{friend, "one nested", nfs.OK, ""},
		{friend, "two", nfs.ErrNoEnt, ""},
		{friend, "one two", nfs.ErrNoEnt, ""},
		{reader, "", nfs.OK, "deep one"},
		{stranger, "", nfs.OK, "deep"},
		{stranger, "one", nfs.ErrNoEnt, ""},
		{stranger, "deep two", nfs.OK, ""},
	} {
		r.peer = c.peer
		fh, st := x.tryHandle(strings.Fields(c.path)...)
		if st != c.want {
			t.Errorf("%s at %q: %v", c.peer, c.path, st)
			continue
		}
		if st == nfs.OK {
			if names, _ := x.list(fh, 4096, BitmapOf(AttrRdattrError, AttrFSID, AttrMountedOn)); strings.Join(names,
				" ") != c.names {
				t.Errorf("%s at %q: %q", c.peer, c.path, names)
			}
		}
	}
	r.peer = friend
	root, deep, two, one, nested := x.handle(), x.handle("deep"), x.handle("deep", "two"), x.handle("one"),
		x.handle("one", "nested")
	// Up again, out of the exports.
	for _, c := range []struct{ from, to []byte }{{deep, root}, {two, deep}, {one, root}, {nested, one}} {
		p := x.do(op(OpPutFH, c.from), op(OpLookupP), op(OpGetFH)).ok(OpPutFH).ok(OpLookupP).ok(OpGetFH)
		if got := p.Opaque(FHMax); !bytes.Equal(got, c.to) {
			t.Errorf("above %x is %x, not %x", c.from, got, c.to)
		}
	}
	x.do(op(OpPutFH, root), op(OpLookupP)).ok(OpPutFH).fails(OpLookupP, nfs.ErrNoEnt)
	// Every file system has its own fsid, and its roots tell on what they are mounted.
	seen := make(map[[2]uint64]bool)
	for _, fh := range [][]byte{root, one, two, nested} {
		d := x.attr(fh, AttrFSID)
		id := [2]uint64{d.Uint64(), d.Uint64()}
		if seen[id] {
			t.Errorf("fsid %v twice", id)
		}
		seen[id] = true
	}
	if a, b := x.attr(one, AttrMountedOn).Uint64(), x.attr(one, AttrFileID).Uint64(); a == b || a == 0 {
		t.Errorf("mounted on %d, is %d", a, b)
	}
	if a, b := x.attr(deep, AttrMountedOn).Uint64(), x.attr(deep, AttrFileID).Uint64(); a != b {
		t.Errorf("a pseudo directory is mounted on %d, is %d", a, b)
	}
	// Nothing can be changed there.
	attr := attrs(BitmapOf(AttrMode), uint32(0o755))
	x.do(op(OpPutFH, root), op(OpCreate, uint32(2), "d", attr)).ok(OpPutFH).fails(OpCreate, nfs.ErrROFS)
	x.do(op(OpPutFH, root), op(OpRemove, "one")).ok(OpPutFH).fails(OpRemove, nfs.ErrROFS)
	x.do(op(OpPutFH, root), openOp(1, 0, "o", "one")).ok(OpPutFH).fails(OpOpen, nfs.ErrIsDir)
	x.do(op(OpPutFH, root), openOp(1, 0, "o", "none")).ok(OpPutFH).fails(OpOpen, nfs.ErrNoEnt)
	x.do(op(OpPutFH, root), openCreateOp(2, "o", "new", CreateUnchecked, attrs(Bitmap{}))).ok(OpPutFH).fails(OpOpen,
		nfs.ErrROFS)
	x.do(op(OpPutFH, root), op(OpRead, state.Anonymous, uint64(0), uint32(1))).ok(OpPutFH).fails(OpRead, nfs.ErrIsDir)
	x.do(op(OpPutFH, root), op(OpSetAttr, state.Anonymous, attr)).ok(OpPutFH).fails2(OpSetAttr, nfs.ErrROFS, 4)
	x.do(op(OpPutFH, root), op(OpSaveFH), op(OpPutFH, one),
		op(OpRename, "deep", "x")).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).fails(OpRename, nfs.ErrXDev)
	// An export that goes takes its handles along; the rest stays.
	if err := r.table.Remove("/deep/two"); err != nil {
		t.Fatal(err)
	}
	x.do(op(OpPutFH, two)).fails(OpPutFH, nfs.ErrStale)
	x.do(op(OpPutFH, deep)).fails(OpPutFH, nfs.ErrStale)
	if names, _ := x.list(x.handle(), 4096, BitmapOf(AttrFileID)); strings.Join(names, " ") != "one" {
		t.Errorf("left: %q", names)
	}
	// A table with nothing in it still has a root.
	if err := r.table.Replace(nil); err != nil {
		t.Fatal(err)
	}
	if names, _ := x.list(x.handle(), 4096, BitmapOf(AttrFileID)); len(names) != 0 {
		t.Errorf("left: %q", names)
	}
}

// fails2 is fails for an operation whose failure has a result of n bytes.
func (p *reply) fails2(op uint32, want nfs.Status, n int) *xdr.Decoder {
	p.t.Helper()
	if st := p.next(op); st != want || p.status != want {
		p.t.Errorf("operation %d: %v instead of %v", op, st, want)
	}
	if p.left != 0 || p.Remaining() != n {
		p.t.Errorf("%d results, %d bytes, not %d", p.left, p.Remaining(), n)
	}
	return p.Decoder
}

// TestRootExport: an export at "/" is the root itself, with the others in it.
func TestRootExport(t *testing.T) {
	r := newRig(t)
	all := r.table.Exports()
	if err := r.table.Replace([]*nfs.Export{
		{ID: 9, Pseudo: "/", FS: r.fs, Clients: all[0].Clients},
		{ID: 2, Pseudo: "/deep/two", FS: all[1].FS},
	}); err != nil {
		t.Fatal(err)
	}
	x := r.session(2, "one")
	x.make(x.handle(), "file")
	x.do(op(OpPutRootFH), op(OpCreate, uint32(2), "deep", attrs(Bitmap{}))).ok(OpPutRootFH).ok(OpCreate)
	x.handle("deep")
	if st := func() nfs.Status { _, st := x.tryHandle("deep", "two"); return st }(); st != nfs.ErrNoEnt {
		t.Errorf("a real directory hides the way to an export: %v", st)
	}
	x.do(op(OpPutRootFH), op(OpRemove, "deep")).ok(OpPutRootFH).ok(OpRemove)
	two := x.handle("deep", "two")
	p := x.do(op(OpPutFH, two), op(OpLookupP), op(OpLookupP),
		op(OpGetFH)).ok(OpPutFH).ok(OpLookupP).ok(OpLookupP).ok(OpGetFH)
	if got := p.Opaque(FHMax); !bytes.Equal(got, x.handle()) {
		t.Errorf("above is %x", got)
	}
}

// unlabelled are the attributes that can be set in a store without labels.
var unlabelled = settable.without(BitmapOf(AttrSecLabel))

// TestAttributes: every attribute that is said to be supported is there, as long as
// it should be.
func TestAttributes(t *testing.T) {
	r := newRig(t)
	r.fs.clones, r.fs.quota, r.fs.labels = true, &blockstore.Quota{}, make(map[blockstore.Handle][]byte)
	for minor := uint32(1); minor <= 2; minor++ {
		x := r.session(minor, fmt.Sprint("v", minor))
		dir := x.handle("one")
		fh, _ := x.make(dir, fmt.Sprint("file", minor))
		r.fs.labels[r.file(dir).Handle], r.fs.labels[r.file(fh).Handle] = []byte("l"), []byte("l")
		all, _ := DecodeBitmap(x.attr(fh, AttrSupported))
		if want := supportedBy[minor]; all != want {
			t.Errorf("minor version %d: %x", minor, all)
		}
		for i, o := range [][]byte{x.handle(), dir, fh} {
			all := all
			if i == 0 {
				all = all.without(ofQuota) // the pseudo file system has none of these
				all.clear(AttrACL)
				all.clear(AttrCloneBlock)
				all.clear(AttrTimeCreate)
				all.clear(AttrSecLabel)
			}
			p := x.do(op(OpPutFH, o), op(OpGetAttr, Bitmap{
				^uint32(0), ^uint32(0) &^ writeOnly[1],
				^uint32(0) &^ writeOnly[2],
			})).ok(OpPutFH).ok(OpGetAttr)
			got, _ := DecodeBitmap(p.Decoder)
			if got != all.without(writeOnly) {
				t.Errorf("minor version %d: %x of %x", minor, got, all)
			}
			vals := p.Opaque(fattrMax)
			p.end()
			total := 0
			got.Each(func(n int) {
				one := x.do(op(OpPutFH, o), op(OpGetAttr, BitmapOf(n))).ok(OpPutFH).ok(OpGetAttr)
				DecodeBitmap(one.Decoder)
				v := one.Opaque(fattrMax)
				one.end()
				if len(v) == 0 || !bytes.Equal(vals[total:min(total+len(v), len(vals))], v) {
					t.Errorf("attribute %d is %x", n, v)
				}
				total += len(v)
			})
			if total != len(vals) {
				t.Errorf("%d bytes of %d", total, len(vals))
			}
			// They are what VERIFY compares, but for the error of reading them.
			all = got
			all.clear(AttrRdattrError)
			p = x.do(op(OpPutFH, o), op(OpGetAttr, all)).ok(OpPutFH).ok(OpGetAttr)
			DecodeBitmap(p.Decoder)
			vals = bytes.Clone(p.Opaque(fattrMax))
			x.do(op(OpPutFH, o), op(OpVerify, all, vals)).ok(OpPutFH).ok(OpVerify).end()
			x.do(op(OpPutFH, o), op(OpNVerify, all, vals)).ok(OpPutFH).fails(OpNVerify, nfs.ErrSame)
			vals[len(vals)-1] ^= 1
			x.do(op(OpPutFH, o), op(OpNVerify, all, vals)).ok(OpPutFH).ok(OpNVerify).end()
			x.do(op(OpPutFH, o), op(OpVerify, all, vals)).ok(OpPutFH).fails(OpVerify, nfs.ErrNotSame)
		}
		for _, c := range []struct {
			b    Bitmap
			want nfs.Status
		}{
			{BitmapOf(AttrTimeModSet), nfs.ErrInval},
			{BitmapOf(AttrRdattrError), nfs.ErrInval},
			{BitmapOf(14), nfs.ErrAttrNotSupp},
		} {
			x.do(op(OpPutFH, fh), op(OpVerify, c.b, "")).ok(OpPutFH).fails(OpVerify, c.want)
		}
		x.do(op(OpPutFH, fh), op(OpGetAttr, BitmapOf(AttrTimeAccSet))).ok(OpPutFH).fails(OpGetAttr, nfs.ErrInval)
	}
}

func TestSetAttr(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	fh, id := x.make(x.handle("one"), "file")
	at := uint64(1_000_000_000)
	for _, c := range []struct {
		name string
		id   state.Stateid
		a    args
		want nfs.Status
	}{
		{"everything", id, attrs(unlabelled, uint64(100), aclArg(acl.ACE{Mask: aclR, Who: acl.Everyone}), uint32(0o640),
			"1000", "1001", uint32(1), at, uint32(5), uint32(0)), nfs.OK},
		{"size by another stateid", state.Anonymous, attrs(BitmapOf(AttrSize), uint64(7)), nfs.OK},
		{
			"size by a bad one",
			state.Stateid{Seq: 9, Other: id.Other},
			attrs(BitmapOf(AttrSize), uint64(7)),
			nfs.ErrBadStateID,
		},
		{
			"mode by a bad one, which does not matter",
			state.Stateid{Seq: 9, Other: id.Other},
			attrs(BitmapOf(AttrMode), uint32(0o600)), nfs.OK,
		},
		{"mode with a type", id, attrs(BitmapOf(AttrMode), uint32(0o100644)), nfs.ErrInval},
		{"no name as owner", id, attrs(BitmapOf(AttrOwner), ""), nfs.ErrInval},
		{"no name as group", id, attrs(BitmapOf(AttrOwnerGroup), ""), nfs.ErrInval},
		{"a name as owner", id, attrs(BitmapOf(AttrOwner), "root@localdomain"), nfs.ErrBadOwner},
		{"an owner that is no number quite", id, attrs(BitmapOf(AttrOwner), "007"), nfs.ErrBadOwner},
		{"an owner beyond 32 bits", id, attrs(BitmapOf(AttrOwnerGroup), "4294967296"), nfs.ErrBadOwner},
		{"what can only be read", id, attrs(BitmapOf(AttrFileID), uint64(7)), nfs.ErrInval},
		{"what is not supported", id, attrs(BitmapOf(14), uint32(0)), nfs.ErrAttrNotSupp},
		{"what nobody knows", id, part(uint32(4), uint32(0), uint32(0), uint32(0), uint32(1), ""), nfs.ErrAttrNotSupp},
		{"nanoseconds", id, attrs(BitmapOf(AttrTimeModSet), uint32(1), at, uint32(1_000_000_000)), nfs.ErrInval},
		{"too few values", id, attrs(BitmapOf(AttrMode)), nfs.ErrBadXDR},
		{"too many", id, attrs(BitmapOf(AttrMode), uint32(0), uint32(0)), nfs.ErrBadXDR},
		{"a Bitmap without end", id, part(uint32(1<<30), ""), nfs.ErrBadXDR},
		{"nothing", id, attrs(Bitmap{}), nfs.OK},
	} {
		p := x.do(op(OpPutFH, fh), op(OpSetAttr, c.id, c.a)).ok(OpPutFH)
		if st := p.next(OpSetAttr); st != c.want {
			t.Errorf("%s: %v", c.name, st)
		}
		set, _ := DecodeBitmap(p.Decoder)
		if c.want != nfs.OK && set != (Bitmap{}) || c.name == "everything" && set != unlabelled {
			t.Errorf("%s: set %x", c.name, set)
		}
		p.end()
	}
	d := x.attr(fh, AttrTimeAccess)
	if s, ns := d.Uint64(), d.Uint32(); s != at || ns != 5 {
		t.Errorf("time of access %d.%d", s, ns)
	}
	if u, g := x.attr(fh, AttrOwner).String(100), x.attr(fh, AttrOwnerGroup).String(100); u != "1000" || g != "1001" {
		t.Errorf("owner %s:%s", u, g)
	}
	if n := x.attr(fh, AttrSize).Uint64(); n != 7 {
		t.Errorf("size %d", n)
	}
	x.do(op(OpPutFH, x.handle("one")), op(OpSetAttr, state.Anonymous,
		attrs(BitmapOf(AttrSize), uint64(7)))).ok(OpPutFH).fails2(OpSetAttr, nfs.ErrInval, 4)
	r.peer = reader
	x.do(op(OpPutFH, fh), op(OpSetAttr, id, attrs(BitmapOf(AttrMode), uint32(0)))).ok(OpPutFH).fails2(OpSetAttr,
		nfs.ErrROFS, 4)
}

func TestReadDir(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	want := make(map[string]bool)
	for i := range 100 {
		name := fmt.Sprintf("%0*d", 1+i%40, i)
		x.make(dir, name)
		want[name] = true
	}
	x.do(op(OpPutFH, dir), op(OpCreate, uint32(2), "nested", attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
	want["nested"] = true
	for _, attr := range []Bitmap{
		{},
		BitmapOf(AttrFileID, AttrMountedOn), BitmapOf(AttrACL),
		supportedBy[2].without(writeOnly).without(BitmapOf(AttrACL, AttrOpenArguments)),
	} {
		for _, n := range []uint32{512, 4096, 1 << 20} {
			names, rounds := x.list(dir, n, attr)
			seen := make(map[string]bool)
			for _, name := range names {
				if seen[name] || !want[name] {
					t.Errorf("%q", name)
				}
				seen[name] = true
			}
			if len(seen) != len(want) || n == 512 && rounds < 2 {
				t.Errorf("%d names in %d rounds", len(seen), rounds)
			}
		}
	}
	ask := func(rest ...any) *reply { return x.do(op(OpPutFH, dir), op(OpReadDir, rest...)).ok(OpPutFH) }
	ask(uint64(0), [8]byte{}, uint32(0), uint32(20), Bitmap{}).fails(OpReadDir, nfs.ErrTooSmall)
	ask(uint64(1), [8]byte{}, uint32(0), uint32(4096), Bitmap{}).fails(OpReadDir, nfs.ErrBadCookie)
	ask(uint64(1<<40), [8]byte{}, uint32(0), uint32(4096), Bitmap{}).fails(OpReadDir, nfs.ErrBadCookie)
	ask(uint64(0), [8]byte{}, uint32(0), uint32(4096), BitmapOf(AttrTimeModSet)).fails(OpReadDir, nfs.ErrInval)
	// Where another export is mounted, that is what is seen.
	p := ask(uint64(0), [8]byte{}, uint32(0), uint32(1<<20), BitmapOf(AttrFSID)).ok(OpReadDir)
	p.Skip(8)
	other := 0
	for p.Bool() {
		p.Uint64()
		name := p.String(nameMax)
		DecodeBitmap(p.Decoder)
		v := xdr.NewDecoder(p.Opaque(fattrMax))
		if major := v.Uint64(); (major == 79) != (name == "nested") {
			t.Errorf("%s is of file system %d", name, major)
		} else if major == 79 {
			other++
		}
	}
	if other != 1 {
		t.Errorf("%d of the other export", other)
	}
	fh, _ := x.make(dir, "file")
	x.do(op(OpPutFH, fh), op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096),
		Bitmap{})).ok(OpPutFH).fails(OpReadDir, nfs.ErrNotDir)
}

func TestCookies(t *testing.T) {
	for _, c := range []uint64{1, 2, 3, 1 << 40, cookieMoved - 1, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		if w := toWire(c); w <= cookieReserved || fromWire(w) != c {
			t.Errorf("%d is %d is %d", c, w, fromWire(w))
		}
	}
}

// TestNames: making, finding, moving and removing, with what directories tell of it.
func TestNames(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	before := func() uint64 { return x.attr(dir, AttrChange).Uint64() }
	check := func(c changeInfo, was uint64) {
		t.Helper()
		if !c.atomic || c.before != was || c.after != before() {
			t.Errorf("%+v, was %d, is %d", c, was, before())
		}
	}
	was := before()
	p := x.do(op(OpPutFH, dir), op(OpCreate, uint32(2), "d", attrs(BitmapOf(AttrMode), uint32(0o700))),
		op(OpGetFH)).ok(OpPutFH).ok(OpCreate)
	c := p.change()
	if set, _ := DecodeBitmap(p.Decoder); set != BitmapOf(AttrMode) {
		t.Errorf("set %x", set)
	}
	d := bytes.Clone(p.ok(OpGetFH).Opaque(FHMax))
	p.end()
	check(c, was)
	for _, o := range []args{
		op(OpCreate, uint32(5), "../target", "link", attrs(Bitmap{})),
		op(OpCreate, uint32(7), "fifo", attrs(Bitmap{})),
		op(OpCreate, uint32(6), "sock", attrs(Bitmap{})),
		op(OpCreate, uint32(4), uint32(1), uint32(3), "null", attrs(Bitmap{})),
		op(OpCreate, uint32(3), uint32(8), uint32(1), "disk", attrs(Bitmap{})),
	} {
		x.do(op(OpPutFH, d), o).ok(OpPutFH).ok(OpCreate)
	}
	link := x.handle("one", "d", "link")
	if got := x.do(op(OpPutFH, link), op(OpReadLink)).ok(OpPutFH).ok(OpReadLink).String(100); got != "../target" {
		t.Errorf("target %q", got)
	}
	fh, _ := x.make(dir, "file")
	x.do(op(OpPutFH, fh), op(OpReadLink)).ok(OpPutFH).fails(OpReadLink, nfs.ErrWrongType)
	for _, c := range []struct {
		fh   []byte
		o    args
		n    uint32
		want nfs.Status
	}{
		{dir, op(OpCreate, uint32(1), "x", attrs(Bitmap{})), OpCreate, nfs.ErrBadType},
		{dir, op(OpCreate, uint32(5), "", "x", attrs(Bitmap{})), OpCreate, nfs.ErrInval},
		{dir, op(OpCreate, uint32(2), "", attrs(Bitmap{})), OpCreate, nfs.ErrInval},
		{dir, op(OpCreate, uint32(2), "..", attrs(Bitmap{})), OpCreate, nfs.ErrBadName},
		{dir, op(OpCreate, uint32(2), "a/b", attrs(Bitmap{})), OpCreate, nfs.ErrBadChar},
		{dir, op(OpCreate, uint32(2), "a\x00b", attrs(Bitmap{})), OpCreate, nfs.ErrBadChar},
		{dir, op(OpCreate, uint32(2), strings.Repeat("x", 256), attrs(Bitmap{})), OpCreate, nfs.ErrNameTooLong},
		{dir, op(OpCreate, uint32(2), "d", attrs(Bitmap{})), OpCreate, nfs.ErrExist},
		{fh, op(OpCreate, uint32(2), "d", attrs(Bitmap{})), OpCreate, nfs.ErrNotDir},
		{dir, op(OpLookup, "."), OpLookup, nfs.ErrBadName},
		{dir, op(OpLookup, ""), OpLookup, nfs.ErrInval},
		{fh, op(OpLookup, "x"), OpLookup, nfs.ErrNotDir},
		{link, op(OpLookup, "x"), OpLookup, nfs.ErrSymlink},
		{fh, op(OpLookupP), OpLookupP, nfs.ErrNotDir},
		{link, op(OpLookupP), OpLookupP, nfs.ErrSymlink},
		{link, op(OpCreate, uint32(2), "d", attrs(Bitmap{})), OpCreate, nfs.ErrSymlink},
		{link, op(OpCreate, uint32(5), "to", "l", attrs(Bitmap{})), OpCreate, nfs.ErrSymlink},
		{link, op(OpCreate, uint32(7), "fifo", attrs(Bitmap{})), OpCreate, nfs.ErrSymlink},
		{link, op(OpRemove, "x"), OpRemove, nfs.ErrSymlink},
		{link, op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), Bitmap{}), OpReadDir, nfs.ErrSymlink},
		{link, openOp(1, 0, "o", "x"), OpOpen, nfs.ErrSymlink},
		{link, openCreateOp(3, "o", "x", CreateUnchecked, attrs(Bitmap{})), OpOpen, nfs.ErrSymlink},
		{link, openCreateOp(3, "o", "x", CreateGuarded, attrs(Bitmap{})), OpOpen, nfs.ErrSymlink},
		{link, openCreateOp(3, "o", "x", createExclusive, [8]byte{}), OpOpen, nfs.ErrSymlink},
		{link, op(OpSecInfo, "x"), OpSecInfo, nfs.ErrNotDir},
		{link, op(OpSecInfoNoName, uint32(1)), OpSecInfoNoName, nfs.ErrNotDir},
		{dir, op(OpRemove, "none"), OpRemove, nfs.ErrNoEnt},
		{dir, op(OpRemove, "d"), OpRemove, nfs.ErrNotEmpty},
		{dir, op(OpRemove, ".."), OpRemove, nfs.ErrBadName},
		{fh, op(OpSecInfo, "x"), OpSecInfo, nfs.ErrNotDir},
		{dir, op(OpSecInfoNoName, uint32(2)), OpSecInfoNoName, nfs.ErrBadXDR},
		{dir, op(OpDelegReturn, state.Anonymous), OpDelegReturn, nfs.ErrBadStateID},
		{dir, op(OpOpenAttr, false), OpOpenAttr, nfs.ErrNotSupp},
		{[]byte("none of ours"), op(OpGetFH), OpPutFH, nfs.ErrBadHandle},
	} {
		p := x.do(op(OpPutFH, c.fh), c.o)
		if c.n != OpPutFH {
			p.ok(OpPutFH)
		}
		p.fails(c.n, c.want)
	}
	for _, c := range []struct {
		saved, cur []byte
		o          args
		n          uint32
		want       nfs.Status
	}{
		{fh, link, op(OpLink, "x"), OpLink, nfs.ErrSymlink},
		{fh, fh, op(OpLink, "x"), OpLink, nfs.ErrNotDir},
		{link, dir, op(OpRename, "x", "y"), OpRename, nfs.ErrSymlink},
		{dir, link, op(OpRename, "file", "y"), OpRename, nfs.ErrSymlink},
		{dir, fh, op(OpRename, "file", "y"), OpRename, nfs.ErrNotDir},
	} {
		x.do(op(OpPutFH, c.saved), op(OpSaveFH), op(OpPutFH, c.cur), c.o).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).fails(c.n,
			c.want)
	}
	// LINK and RENAME, with two directories.
	was = before()
	p = x.do(op(OpPutFH, fh), op(OpSaveFH), op(OpPutFH, dir), op(OpLink, "second"), op(OpRestoreFH),
		op(OpGetAttr, BitmapOf(AttrNumLinks)))
	c = p.ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpLink).change()
	p.ok(OpRestoreFH).ok(OpGetAttr)
	DecodeBitmap(p.Decoder)
	if n := p.Opaque(8); n[3] != 2 {
		t.Errorf("links: %x", n)
	}
	check(c, was)
	was = before()
	p = x.do(op(OpPutFH, dir), op(OpSaveFH), op(OpPutFH, d), op(OpRename, "second", "moved"))
	p.ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpRename)
	c = p.change()
	if to := p.change(); !to.atomic || to.before == to.after {
		t.Errorf("target %+v", to)
	}
	p.end()
	check(c, was)
	if got := x.handle("one", "d", "moved"); !bytes.Equal(got, fh) {
		t.Errorf("a rename changed the handle: %x", got)
	}
	nested := x.handle("one", "nested")
	x.do(op(OpPutFH, fh), op(OpSaveFH), op(OpPutFH, nested),
		op(OpLink, "x")).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).fails(OpLink, nfs.ErrXDev)
	x.do(op(OpPutFH, dir), op(OpSaveFH), op(OpPutFH, nested),
		op(OpRename, "file", "x")).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).fails(OpRename, nfs.ErrXDev)
	was = before()
	check(x.do(op(OpPutFH, dir), op(OpRemove, "file")).ok(OpPutFH).ok(OpRemove).change(), was)
	// Whoever may only read does not change anything.
	r.peer = reader
	for n, o := range map[uint32]args{
		OpRemove: op(OpRemove, "d"), OpCreate: op(OpCreate, uint32(2), "x", attrs(Bitmap{})),
		OpWrite: op(OpWrite, state.Anonymous, uint64(0), uint32(0), ""),
		OpOpen:  openOp(2, 0, "o", "d"),
	} {
		want := nfs.ErrROFS
		if n == OpOpen {
			want = nfs.ErrIsDir
		}
		x.do(op(OpPutFH, dir), o).ok(OpPutFH).fails(n, want)
	}
	// of what was written before it was so
	x.do(op(OpPutFH, fh), op(OpCommit, uint64(0), uint32(0))).ok(OpPutFH).ok(OpCommit)
	p = x.do(op(OpPutFH, dir), op(OpAccess, uint32(0x1ff))).ok(OpPutFH).ok(OpAccess)
	if sup, got := p.Uint32(), p.Uint32(); sup != accessDir|accessXattr ||
		got != blockstore.AccessRead|blockstore.AccessLookup|accessXattrRead|accessXattrList {
		t.Errorf("access %x of %x", got, sup)
	}
	r.peer = stranger
	x.do(op(OpPutFH, dir), op(OpAccess, uint32(1))).ok(OpPutFH).fails(OpAccess, nfs.ErrAcces)
}

func TestOpen(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	y := r.session(2, "other")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), uint32(2), "content")).ok(OpPutFH).ok(OpWrite)

	set := BitmapOf(AttrMode)
	how := attrs(set, uint32(0o600))
	noClaim := func(access, deny uint32, claim ...any) args {
		return op(OpOpen, uint32(0), access, deny, uint64(0), "o", uint32(OpenNoCreate), part(claim...))
	}
	for _, c := range []struct {
		name string
		o    args
		want nfs.Status
	}{
		{"there", openOp(1, 0, "o", "file"), nfs.OK},
		{"not there", openOp(1, 0, "o", "none"), nfs.ErrNoEnt},
		{"no access", openOp(0, 0, "o", "file"), nfs.ErrInval},
		{"no such denial", openOp(1, 4, "o", "file"), nfs.ErrInval},
		{"a delegation that is not had", openOp(0x101, 0, "o", "file"), nfs.OK},
		{"none wanted", openOp(0x401, 0, "o", "file"), nfs.OK},
		{"wants nobody knows", openOp(0x601, 0, "o", "file"), nfs.ErrInval},
		{"guarded, there", openCreateOp(1, "o", "file", CreateGuarded, how), nfs.ErrExist},
		{"guarded, new", openCreateOp(1, "o", "guarded", CreateGuarded, how), nfs.OK},
		{"unchecked, there", openCreateOp(1, "o", "file", CreateUnchecked, how), nfs.OK},
		{"exclusive", openCreateOp(1, "o", "excl", CreateExclusive41, [8]byte{1}, how), nfs.OK},
		{"exclusive, again", openCreateOp(1, "o", "excl", CreateExclusive41, [8]byte{1}, how), nfs.OK},
		{"exclusive, by another", openCreateOp(1, "o", "excl", CreateExclusive41, [8]byte{2}, how), nfs.ErrExist},
		{"exclusive of 4.0", openCreateOp(1, "o", "excl0", createExclusive, [8]byte{1}), nfs.OK},
		{"exclusive with a time", openCreateOp(1, "o", "excl2", CreateExclusive41, [8]byte{1},
			attrs(BitmapOf(AttrTimeModSet), uint32(0))), nfs.ErrInval},
		{"a mode of creating nobody knows", openCreateOp(1, "o", "x", 4), nfs.ErrBadXDR},
		{"a directory", openOp(1, 0, "o", "nested"), nfs.ErrIsDir},
		{"a delegation of before", noClaim(1, 0, uint32(claimDelegPrev), "file"), nfs.ErrNotSupp},
		{"by a delegation", noClaim(1, 0, uint32(claimDelegCur), id, "file"), nfs.ErrBadStateID},
		{"a claim nobody knows", noClaim(1, 0, uint32(7)), nfs.ErrBadXDR},
		{"a directory by its handle", noClaim(1, 0, uint32(ClaimFH)), nfs.ErrIsDir},
	} {
		p := x.do(op(OpPutFH, dir), c.o).ok(OpPutFH)
		if st := p.next(OpOpen); st != c.want {
			t.Errorf("%s: %v", c.name, st)
		}
		if p.status == nfs.OK {
			_, change, got := p.opened()
			made := strings.Contains(c.name, "new") || strings.HasPrefix(c.name, "exclusive") && c.name != "exclusive, again"
			if made != (change.before != change.after) {
				t.Errorf("%s: change %+v", c.name, change)
			}
			if strings.HasPrefix(c.name, "guarded") && got != set {
				t.Errorf("%s: set %x", c.name, got)
			}
		}
		p.end()
	}
	// What is open by name is open by handle; truncated only on demand.
	if n := x.attr(fh, AttrSize).Uint64(); n != 7 {
		t.Errorf("size %d", n)
	}
	p := x.do(op(OpPutFH, dir), openCreateOp(2, "o", "file", CreateUnchecked,
		attrs(BitmapOf(AttrSize), uint64(0)))).ok(OpPutFH).ok(OpOpen)
	if _, _, got := p.opened(); got != BitmapOf(AttrSize) {
		t.Errorf("set %x", got)
	}
	if n := x.attr(fh, AttrSize).Uint64(); n != 0 {
		t.Errorf("size %d", n)
	}
	// Reservations are between all clients, and hold for READ without an open too.
	p = y.do(op(OpPutFH, fh), op(OpOpen, uint32(0), uint32(1), uint32(1), uint64(0), "o", uint32(0), uint32(ClaimFH)))
	p.ok(OpPutFH).fails(OpOpen, nfs.ErrShareDenied)
	excl := x.handle("one", "excl0")
	p = y.do(op(OpPutFH, excl), op(OpOpen, uint32(0), uint32(1), uint32(2), uint64(0), "o", uint32(0), uint32(ClaimFH)))
	his, _, _ := p.ok(OpPutFH).ok(OpOpen).opened()
	x.do(op(OpPutFH, excl), op(OpWrite, state.Anonymous, uint64(0), uint32(0), "x")).ok(OpPutFH).fails(OpWrite,
		nfs.ErrLocked)
	x.do(op(OpPutFH, excl), op(OpSetAttr, state.Anonymous,
		attrs(BitmapOf(AttrSize), uint64(0)))).ok(OpPutFH).fails2(OpSetAttr, nfs.ErrLocked, 4)
	x.do(op(OpPutFH, excl), op(OpRead, state.Anonymous, uint64(0), uint32(1))).ok(OpPutFH).ok(OpRead)
	y.do(op(OpPutFH, excl), op(OpWrite, his, uint64(0), uint32(0), "x")).ok(OpPutFH).fails(OpWrite, nfs.ErrOpenMode)
	// The silent lose it.
	r.now = r.now.Add(91 * time.Second)
	x.do(op(OpPutFH, excl), op(OpWrite, state.Anonymous, uint64(0), uint32(0), "x")).ok(OpPutFH).ok(OpWrite)
	r.compound(2, y.sequence(y.seq+1, 0)).fails(OpSequence, nfs.ErrBadSession)

	// Permission.
	z := r.session(2, "third")
	r.uid = 1000
	z.do(op(OpPutFH, dir), openOp(1, 0, "o", "guarded")).ok(OpPutFH).fails(OpOpen, nfs.ErrAcces)
	z.do(op(OpPutFH, dir), openOp(1, 0, "o", "file")).ok(OpPutFH).ok(OpOpen)
	z.do(op(OpPutFH, dir), openOp(2, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrAcces)
	r.uid = 0
	// A file may be made for more than its mode allows.
	z.do(op(OpPutFH, dir), openCreateOp(3, "o", "locked", CreateGuarded, attrs(set, uint32(0)))).ok(OpPutFH).ok(OpOpen)
}

// TestData: READ and WRITE, several in a compound, by the stateid of the operation
// before.
func TestData(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	put := op(OpPutFH, fh)
	p := x.do(put, op(OpWrite, id, uint64(0), uint32(0), "hello"), op(OpWrite, id, uint64(5), uint32(2), " world"),
		op(OpCommit, uint64(0), uint32(0)))
	p.ok(OpPutFH).ok(OpWrite)
	if n, how := p.Uint32(), p.Uint32(); n != 5 || how > 2 {
		t.Errorf("%d bytes, %d", n, how)
	}
	v := decodeVerifier(p.Decoder)
	p.ok(OpWrite)
	if n, how := p.Uint32(), p.Uint32(); n != 6 || how != 2 || decodeVerifier(p.Decoder) != v {
		t.Errorf("%d bytes, %d", n, how)
	}
	p.ok(OpCommit)
	if decodeVerifier(p.Decoder) != v {
		t.Error("another verifier")
	}
	p.end()
	type got struct {
		eof  bool
		data string
	}
	reads := func(p *reply, n int) (out []got) {
		t.Helper()
		for range n {
			p.ok(OpRead)
			out = append(out, got{p.Bool(), p.String(1 << 20)})
		}
		p.end()
		return out
	}
	read := func(id state.Stateid, off uint64, n uint32) args { return op(OpRead, id, off, n) }
	p = x.do(put, read(id, 0, 5), read(state.Bypass, 5, 100), read(state.Anonymous, 100, 5), read(id, 3, 0)).ok(OpPutFH)
	if g := reads(p, 4); fmt.Sprint(g) != "[{false hello} {true  world} {true } {false }]" {
		t.Errorf("%v", g)
	}
	// A carrier that says nothing of further items has a limit for the first.
	r.bulkMax = 3
	if g := reads(x.do(put, read(id, 0, 5), read(id, 0, 5)).ok(OpPutFH), 2); g[0].data != "hel" || g[1].data != "hello" {
		t.Errorf("%v", g)
	}
	r.bulkMax = -1
	// However many there are, they get memory.
	r.blocks = payloads
	many := make([]args, 12)
	for i := range many {
		many[i] = read(id, uint64(i%11), 1)
	}
	if g := reads(x.do(append([]args{put}, many...)...).ok(OpPutFH), len(many)); g[11].data != "h" || g[10].data != "d" {
		t.Errorf("%v", g)
	}
	r.blocks = 0
	// The current stateid goes with the file handle.
	p = x.do(op(OpPutFH, dir), openOp(1, 0, "o", "file"), op(OpSaveFH), read(state.Current, 0, 5), op(OpPutFH, dir),
		op(OpRestoreFH), read(state.Current, 0, 1), op(OpClose, uint32(0), state.Current))
	p.ok(OpPutFH).ok(OpOpen).opened()
	p.ok(OpSaveFH).ok(OpRead)
	p.Skip(4 + 4 + 8)
	p.ok(OpPutFH).ok(OpRestoreFH).ok(OpRead).Skip(4 + 4 + 4)
	if id := DecodeStateid(p.ok(OpClose).Decoder); id != state.Invalid {
		t.Errorf("after CLOSE: %+v", id)
	}
	p.end()
	x.do(put, op(OpClose, uint32(0), state.Current)).ok(OpPutFH).fails(OpClose, nfs.ErrBadStateID)
	// Wrong places.
	x.do(op(OpPutFH, dir), read(id, 0, 1)).ok(OpPutFH).fails(OpRead, nfs.ErrIsDir)
	x.do(op(OpPutFH, dir), op(OpWrite, state.Anonymous, uint64(0), uint32(0), "x")).ok(OpPutFH).fails(OpWrite,
		nfs.ErrIsDir)
	x.do(op(OpPutFH, dir), op(OpCreate, uint32(5), "t", "link", attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
	x.do(op(OpPutFH, x.handle("one", "link")), read(state.Anonymous, 0, 1)).ok(OpPutFH).fails(OpRead, nfs.ErrSymlink)
	x.do(put, op(OpWrite, id, uint64(0), uint32(3), "x")).ok(OpPutFH).fails(OpWrite, nfs.ErrBadXDR)
	x.do(put, op(OpOpenDowngrade, id, uint32(0), uint32(2), uint32(0))).ok(OpPutFH).fails(OpOpenDowngrade, nfs.ErrInval)
	next := DecodeStateid(x.do(put, op(OpOpenDowngrade, id, uint32(0), uint32(3),
		uint32(0))).ok(OpPutFH).ok(OpOpenDowngrade).Decoder)
	x.do(put, op(OpClose, uint32(0), id)).ok(OpPutFH).fails(OpClose, nfs.ErrOldStateID)
	p = x.do(op(OpTestStateID, uint32(3), id, next, state.Anonymous)).ok(OpTestStateID)
	if n, a, b, c := p.Uint32(), nfs.Status(p.Uint32()), nfs.Status(p.Uint32()),
		nfs.Status(p.Uint32()); n != 3 || a != nfs.ErrOldStateID || b != nfs.OK || c != nfs.ErrBadStateID {
		t.Errorf("%d: %v %v %v", n, a, b, c)
	}
	x.do(op(OpTestStateID, uint32(1<<30))).fails(OpTestStateID, nfs.ErrBadXDR)
	x.do(op(OpFreeStateID, next)).fails(OpFreeStateID, nfs.ErrLocksHeld)
	x.do(put, op(OpClose, uint32(0), next)).ok(OpPutFH).ok(OpClose)
	x.do(put, read(next, 0, 1)).ok(OpPutFH).fails(OpRead, nfs.ErrBadStateID)
}

// TestReadInline: a READ is served where it must not wait, and all over again on a
// worker if it has to.
func TestReadInline(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	fh, id := x.make(x.handle("one"), "file")
	x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), uint32(0), "content")).ok(OpPutFH).ok(OpWrite)
	if r.noBlock {
		t.Error("a WRITE on the transport's loop")
	}
	ask := func(id state.Stateid) *reply {
		return x.do(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(100))).ok(OpPutFH)
	}
	ask(id).ok(OpRead)
	if !r.noBlock {
		t.Error("a READ of what is in memory went to a worker")
	}
	x.do().end()
	if !r.noBlock {
		t.Error("a SEQUENCE alone went to a worker")
	}
	calls := 0
	r.fs.reads = func(nowait bool) error {
		if calls++; nowait {
			return blockstore.ErrWouldBlock
		}
		return nil
	}
	if p := ask(id).ok(OpRead); !p.Bool() || p.String(100) != "content" || calls != 2 || r.noBlock {
		t.Errorf("%d calls", calls)
	}
	if r.s.toWorkers.Load() != 1 || r.count.ReadsMoved.Load() != 1 {
		t.Error("not counted")
	}
	// A part that is in memory is not the answer, unless it is the end of the file.
	for _, c := range []struct{ ready, moved uint64 }{{1, 1}, {6, 1}, {7, 0}} {
		calls, r.fs.ready = 0, int(c.ready)
		r.fs.reads = func(bool) error { calls++; return nil }
		before := r.count.ReadsMoved.Load()
		p := ask(id).ok(OpRead)
		if eof, got := p.Bool(), p.String(100); !eof || got != "content" || calls != int(1+c.moved) ||
			r.count.ReadsMoved.Load()-before != c.moved {
			t.Errorf("%d bytes in memory: %q %v, %d calls", c.ready, got, eof, calls)
		}
		if r.noBlock != (c.moved == 0) {
			t.Errorf("%d bytes in memory: on the loop: %v", c.ready, r.noBlock)
		}
	}
	r.fs.ready = 0
	r.fs.reads = func(bool) error { return blockstore.ErrIO }
	ask(id).fails(OpRead, nfs.ErrIO)
	r.fs.reads = func(bool) error { return errors.New("?") }
	ask(id).fails(OpRead, nfs.ErrIO)
	r.fs.reads = nil
	ask(state.Stateid{Seq: 1, Other: [12]byte{0, 0, 0, 7}}).fails(OpRead, nfs.ErrBadStateID)
	ask(id).ok(OpRead)
}

func TestLocks(t *testing.T) {
	r := newRig(t)
	x, y := r.session(2, "one"), r.session(2, "two")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	his, _, _ := y.do(op(OpPutFH, dir), openOp(3, 0, "o", "file")).ok(OpPutFH).ok(OpOpen).opened()
	put := op(OpPutFH, fh)
	byOpen := func(typ int, off, n uint64, id state.Stateid, owner string) args {
		return op(OpLock, typ, false, off, n, true, uint32(0), id, uint32(0), uint64(0), owner)
	}
	p := x.do(put, byOpen(LockWrite, 10, 5, id, "mine")).ok(OpPutFH).ok(OpLock)
	lockID := DecodeStateid(p.Decoder)
	p.end()
	for _, o := range []args{byOpen(LockRead, 0, lock.ToEnd, his, "his"), byOpen(lockWriteWait, 14, 1, his, "his")} {
		d := y.do(put, o).ok(OpPutFH).fails2(OpLock, nfs.ErrDenied, 8+8+4+8+4+4)
		if off, n, typ, client, owner := d.Uint64(), d.Uint64(), d.Uint32(), d.Uint64(), d.String(100); off != 10 ||
			n != 5 || typ != LockWrite || client != x.client || owner != "mine" {
			t.Errorf("denied by %d+%d %d %x %q", off, n, typ, client, owner)
		}
	}
	y.do(put, op(OpLockT, LockRead, uint64(12), uint64(1), uint64(0), "his")).ok(OpPutFH).fails2(OpLockT, nfs.ErrDenied,
		36)
	y.do(put, op(OpLockT, LockRead, uint64(15), uint64(1), uint64(0), "his")).ok(OpPutFH).ok(OpLockT).end()
	x.do(put, op(OpLockT, LockRead, uint64(12), uint64(1), uint64(0), "mine")).ok(OpPutFH).ok(OpLockT).end()
	// A version 3 client's lock is in the way as well.
	f := lock.File{Export: 1}
	_, f.Handle, _ = r.codec.Parse(fh)
	if _, ok, _ := r.locks.Lock(f,
		lock.Lock{Owner: lock.Owner{Client: "10.0.0.9 host", ID: "p"}, Start: 100, End: 200}); !ok {
		t.Fatal("not locked")
	}
	if d := x.do(put, op(OpLock, LockWrite, false, uint64(150), uint64(1), false, lockID,
		uint32(0))).ok(OpPutFH).fails2(OpLock, nfs.ErrDenied, 36); d.Uint64() != 100 || d.Uint64() != 101 ||
		d.Uint32() != LockRead || d.Uint64() != 0 {
		t.Error("denied by something else")
	}
	next := DecodeStateid(x.do(put, op(OpLock, LockRead, false, uint64(150), uint64(1), false, lockID,
		uint32(0))).ok(OpPutFH).ok(OpLock).Decoder)
	if next.Seq != lockID.Seq+1 || next.Other != lockID.Other {
		t.Errorf("%+v after %+v", next, lockID)
	}
	for _, c := range []struct {
		fh   []byte
		o    args
		n    uint32
		want nfs.Status
	}{
		{fh, byOpen(9, 0, 1, id, "mine"), OpLock, nfs.ErrBadXDR},
		{fh, byOpen(LockRead, 0, 0, id, "mine"), OpLock, nfs.ErrInval},
		{fh, byOpen(LockRead, 5, lock.ToEnd-1, id, "mine"), OpLock, nfs.ErrInval},
		{dir, byOpen(LockRead, 0, 1, id, "mine"), OpLock, nfs.ErrIsDir},
		{fh, byOpen(LockRead, 0, 1, state.Anonymous, "mine"), OpLock, nfs.ErrBadStateID},
		{fh, op(OpLock, LockRead, true, uint64(0), uint64(1), false, next, uint32(0)), OpLock, nfs.ErrNoGrace},
		{fh, op(OpLock, LockRead, false, uint64(0), uint64(1), false, lockID, uint32(0)), OpLock, nfs.ErrOldStateID},
		{fh, op(OpLockU, LockRead, uint32(0), next, uint64(0), uint64(0)), OpLockU, nfs.ErrInval},
		{fh, op(OpLockU, LockRead, uint32(0), id, uint64(0), uint64(1)), OpLockU, nfs.ErrBadStateID},
		{dir, op(OpLockU, LockRead, uint32(0), next, uint64(0), uint64(1)), OpLockU, nfs.ErrBadStateID},
	} {
		x.do(op(OpPutFH, c.fh), c.o).ok(OpPutFH).fails(c.n, c.want)
	}
	x.do(op(OpFreeStateID, next)).fails(OpFreeStateID, nfs.ErrLocksHeld)
	last := DecodeStateid(x.do(put, op(OpLockU, LockRead, uint32(0), next, uint64(0),
		uint64(lock.ToEnd))).ok(OpPutFH).ok(OpLockU).Decoder)
	x.do(op(OpFreeStateID, last)).ok(OpFreeStateID).end()
	y.do(put, byOpen(LockWrite, 10, 5, his, "his")).ok(OpPutFH).ok(OpLock)
	y.do(put, op(OpClose, uint32(0), his)).ok(OpPutFH).ok(OpClose)
	x.do(put, byOpen(LockWrite, 10, 5, id, "mine")).ok(OpPutFH).ok(OpLock)
}

// FuzzCompound has any bytes follow a SEQUENCE. The server stays whole, and what it
// says is a COMPOUND4res whose results are of the operations that were sent.
func FuzzCompound(f *testing.F) {
	r := newRig(f)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	add := func(ops ...args) {
		var e xdr.Encoder
		for _, o := range ops {
			o(&e)
		}
		f.Add(uint32(len(ops)), e.B)
	}
	add(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(9)))
	add(op(OpPutFH, dir), openCreateOp(3, "o", "name", CreateUnchecked, attrs(BitmapOf(AttrMode), uint32(0o600))),
		op(OpGetFH), op(OpGetAttr, supportedBy[2].without(writeOnly)))
	add(op(OpPutFH, dir), op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), supportedBy[2].without(writeOnly)))
	add(op(OpPutFH, fh), op(OpSetAttr, id, attrs(unlabelled, uint64(100), uint32(0o640), "1", "1", uint32(0), uint32(0))))
	add(op(OpPutFH, fh), op(OpLock, LockWrite, false, uint64(1), uint64(2), true, uint32(0), id, uint32(0), uint64(0),
		"o"))
	add(op(OpPutFH, dir), op(OpSaveFH), op(OpPutFH, dir), op(OpRename, "a", "b"))
	add(op(OpPutFH, dir), op(OpCreate, uint32(5), "t", "link", attrs(Bitmap{})))
	add(op(OpTestStateID, uint32(1), id))
	for _, o := range ops42 {
		add(op(OpPutFH, fh), op(OpSaveFH), o.args(id, id))
	}
	add(op(OpPutFH, fh), op(OpSetXattr, 0, "name", "value"), op(OpGetXattr, "name"), op(OpListXattrs, uint64(0), 100),
		op(OpRemoveXattr, "name"))
	add(exchangeArgs("x", 1, 0))
	add(op(OpCreateSession, x.client, uint32(2), uint32(0), channelArgs(4096, 4096, 0, 8, 1), channelArgs(0, 0, 0, 0, 0),
		uint32(0), uint32(1), uint32(1), uint32(0), "h", uint32(0), uint32(0), uint32(0)))
	f.Fuzz(func(t *testing.T, n uint32, b []byte) {
		r.t, x.r.t = t, t
		if r.s.state.Session(x.id) == nil {
			x = r.session(2, "one")
		}
		x.seq++
		var e xdr.Encoder
		e.String("tag")
		e.Uint32(2)
		e.Uint32(n%8 + 1)
		x.sequence(x.seq, 0)(&e)
		e.B = append(e.B, b...)
		d, st := r.send(e.B)
		if st != rpc.RPCSuccess {
			t.Fatalf("accept status %d", st)
		}
		status := nfs.Status(d.Uint32())
		if d.String(10) != "tag" {
			t.Fatal("tag")
		}
		results := d.Uint32()
		if results < 1 || results > n%8+1 || status == nfs.OK && results != n%8+1 {
			t.Fatalf("%d results of %d, %v", results, n%8+1, status)
		}
		if op, st := d.Uint32(), nfs.Status(d.Uint32()); op != OpSequence || st != nfs.OK {
			t.Fatalf("%d %v", op, st)
		}
		if len(r.raw)%4 != 0 {
			t.Fatalf("%d bytes", len(r.raw))
		}
	})
}
