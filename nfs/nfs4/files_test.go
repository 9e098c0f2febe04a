package nfs4

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/nfs/state"
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
var unlabelled = settable.without(BitmapOf(AttrSecLabel, AttrTimeCreate))

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
