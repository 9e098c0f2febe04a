package nfs4

import (
	"slices"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// aclArg is the attribute acl of ACEs.
func aclArg(aces ...acl.ACE) args {
	return func(e *xdr.Encoder) { acl.Encode(e, aces, byNumber{}.Append) }
}

// acl reads the attribute acl of a file.
func (x *sess) acl(fh []byte) []acl.ACE {
	x.r.t.Helper()
	k := compound{s: &Server{cfg: Config{Names: byNumber{}}}}
	s, st, whole := k.decodeACL(x.attr(fh, AttrACL))
	if st != nfs.OK || !whole {
		x.r.t.Fatal(st)
	}
	return s.aces
}

const (
	aclR = acl.ReadData
	aclW = acl.WriteData | acl.AppendData
	aclX = acl.Execute
	aclT = acl.ReadAttributes | acl.ReadACL | acl.Synchronize
	aclO = aclT | acl.WriteAttributes | acl.WriteACL
)

func TestACLs(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, _ := x.make(dir, "file") // mode 0644
	stateid := state.Anonymous
	set := func(list args) args { return op(OpSetAttr, stateid, attrs(BitmapOf(AttrACL), list)) }

	supported, _ := DecodeBitmap(x.attr(fh, AttrSupported))
	pseudo, _ := DecodeBitmap(x.attr(x.handle(), AttrSupported))
	excl, _ := DecodeBitmap(x.attr(fh, AttrExclCreat))
	if !supported.Has(AttrACL) || pseudo.Has(AttrACL) || !excl.Has(AttrACL) {
		t.Error("supported_attrs, suppattr_exclcreat")
	}
	if n := x.attr(fh, AttrACLSupport).Uint32(); n != 3 {
		t.Errorf("aclsupport %d", n)
	}
	if n := x.attr(x.handle(), AttrACLSupport).Uint32(); n != 0 {
		t.Errorf("aclsupport of the pseudo file system %d", n)
	}
	want := []acl.ACE{
		{Mask: aclR | aclW | aclO, Who: acl.Owner},
		{Mask: aclR | aclT, Who: acl.Group},
		{Mask: aclR | aclT, Who: acl.Everyone},
	}
	if got := x.acl(fh); !slices.Equal(got, want) {
		t.Errorf("of the mode: %+v", got)
	}

	// An ACL changes the mode, and the mode the ACL.
	list := []acl.ACE{
		{Mask: aclR | aclW | aclO, Who: acl.Owner},
		{Mask: aclR | aclW | aclT, ID: 1000},
		{Mask: aclR | aclT, Who: acl.Group},
		{Mask: aclT, Flags: acl.IdentifierGroup, ID: 2000},
		{Mask: aclT, Who: acl.Everyone},
	}
	was := x.attr(fh, AttrChange).Uint64()
	p := x.do(op(OpPutFH, fh), set(aclArg(list...))).ok(OpPutFH).ok(OpSetAttr)
	if done, _ := DecodeBitmap(p.Decoder); done != BitmapOf(AttrACL) {
		t.Errorf("set %x", done)
	}
	if got := x.acl(fh); !slices.Equal(got, list) {
		t.Errorf("%+v instead of %+v", got, list)
	}
	if m := x.attr(fh, AttrMode).Uint32(); m != 0o660 || x.attr(fh, AttrChange).Uint64() == was {
		t.Errorf("mode %o", m)
	}
	x.do(op(OpPutFH, fh), op(OpSetAttr, stateid, attrs(BitmapOf(AttrMode), uint32(0o640)))).ok(OpPutFH).ok(OpSetAttr)
	list[1].Mask = aclR | aclT
	if got := x.acl(fh); !slices.Equal(got, list) {
		t.Errorf("after a chmod %+v instead of %+v", got, list)
	}
	// Both at once: the ACL is set last.
	p = x.do(op(OpPutFH, fh), op(OpSetAttr, stateid, attrs(BitmapOf(AttrACL, AttrMode), aclArg(list[0], list[4]),
		uint32(0o4777)))).ok(OpPutFH).ok(OpSetAttr)
	if done, _ := DecodeBitmap(p.Decoder); done != BitmapOf(AttrACL, AttrMode) || x.attr(fh, AttrMode).Uint32() != 0o4600 {
		t.Errorf("set %x, mode %o", done, x.attr(fh, AttrMode).Uint32())
	}

	// VERIFY knows it.
	x.do(op(OpPutFH, fh), op(OpVerify, attrs(BitmapOf(AttrACL), aclArg(x.acl(fh)...)))).ok(OpPutFH).ok(OpVerify)
	x.do(op(OpPutFH, fh), op(OpVerify, attrs(BitmapOf(AttrACL), aclArg()))).ok(OpPutFH).fails(OpVerify, nfs.ErrNotSame)

	// What a directory's children begin with, and the umask that does not count then.
	inherit := []acl.ACE{
		{Mask: aclR | aclW | aclX | acl.DeleteChild | aclO, Who: acl.Owner},
		{Mask: aclR | aclX | aclT, Who: acl.Group},
		{Mask: aclT, Who: acl.Everyone},
		{
			Flags: acl.FileInherit | acl.DirInherit | acl.InheritOnly, Mask: aclR | aclW | aclX | acl.DeleteChild | aclO,
			Who: acl.Owner,
		},
		{Flags: acl.FileInherit | acl.DirInherit | acl.InheritOnly, Mask: aclR | aclW | acl.DeleteChild | aclT, ID: 1000},
		{Flags: acl.FileInherit | acl.DirInherit | acl.InheritOnly, Mask: aclR | aclX | aclT, Who: acl.Group},
		{Flags: acl.FileInherit | acl.DirInherit | acl.InheritOnly, Mask: aclT, Who: acl.Everyone},
	}
	inherit = slices.Insert(inherit, 4, acl.ACE{Type: acl.Deny, Flags: inherit[3].Flags, Mask: aclX, ID: 1000})
	p = x.do(op(OpPutFH, dir), op(OpCreate, uint32(blockstore.TypeDir), "dir",
		attrs(BitmapOf(AttrACL, AttrMode), aclArg(inherit...), uint32(0o700))), op(OpGetFH))
	p.ok(OpPutFH).ok(OpCreate).change()
	if done, _ := DecodeBitmap(p.Decoder); done != BitmapOf(AttrACL, AttrMode) {
		t.Errorf("set %x", done)
	}
	p.ok(OpGetFH)
	below := slices.Clone(p.Opaque(FHMax))
	if got := x.acl(below); !slices.Equal(got, inherit) {
		t.Errorf("%+v instead of %+v", got, inherit)
	}
	umasked := attrs(BitmapOf(AttrModeUmask), uint32(0o666), uint32(0o077))
	for _, how := range []args{
		openCreateOp(state.Both, "owner", "guarded", CreateGuarded, umasked),
		openCreateOp(state.Both, "owner", "exclusive", CreateExclusive41, [8]byte{1}, umasked),
	} {
		p = x.do(op(OpPutFH, below), how, op(OpGetFH))
		p.ok(OpPutFH).ok(OpOpen).opened()
		p.ok(OpGetFH)
		fh := slices.Clone(p.Opaque(FHMax))
		list := x.acl(fh)
		if m := x.attr(fh, AttrMode).Uint32(); m != 0o660 || len(list) != 4 || list[1].ID != 1000 ||
			list[1].Mask != aclR|aclW|aclT {
			t.Errorf("mode %o, %+v", m, list)
		}
	}
	p = x.do(op(OpPutFH, dir), openCreateOp(state.Both, "owner", "without", CreateGuarded, umasked), op(OpGetFH))
	p.ok(OpPutFH).ok(OpOpen).opened()
	p.ok(OpGetFH)
	if m := x.attr(slices.Clone(p.Opaque(FHMax)), AttrMode).Uint32(); m != 0o600 {
		t.Errorf("mode %o", m)
	}
	// Without ACEs to be inherited there is nothing any more.
	x.do(op(OpPutFH, below), set(aclArg(inherit[:3]...))).ok(OpPutFH).ok(OpSetAttr)
	if got := x.acl(below); !slices.Equal(got, inherit[:3]) {
		t.Errorf("%+v", got)
	}

	// OPEN with an ACL.
	p = x.do(op(OpPutFH, dir), openCreateOp(state.Both, "owner", "opened", CreateUnchecked,
		attrs(BitmapOf(AttrACL), aclArg(list...))), op(OpGetFH))
	if _, _, done := p.ok(OpPutFH).ok(OpOpen).opened(); !done.Has(AttrACL) {
		t.Errorf("set %x", done)
	}
	p.ok(OpGetFH)
	if got := x.acl(slices.Clone(p.Opaque(FHMax))); !slices.Equal(got, list) {
		t.Errorf("%+v instead of %+v", got, list)
	}

	for _, c := range []struct {
		a    args
		want nfs.Status
	}{
		{aclArg(acl.ACE{Type: 2, Who: acl.Everyone}), nfs.ErrAttrNotSupp},
		{aclArg(acl.ACE{Flags: acl.FileInherit, Who: acl.Everyone}), nfs.ErrAttrNotSupp},
		{part(uint32(1), uint32(0), uint32(0), uint32(1), "root@example.org"), nfs.ErrBadOwner},
		{part(uint32(1000)), nfs.ErrFBig},
		{part(uint32(0), uint32(0)), nfs.ErrBadXDR},
	} {
		p := x.do(op(OpPutFH, fh), set(c.a)).ok(OpPutFH)
		if st := p.next(OpSetAttr); st != c.want {
			t.Errorf("%v instead of %v", st, c.want)
		}
		if done, _ := DecodeBitmap(p.Decoder); !done.empty() {
			t.Errorf("set %x", done)
		}
	}
	p = x.do(op(OpPutFH, x.handle("deep")), set(aclArg())).ok(OpPutFH)
	if st := p.next(OpSetAttr); st != nfs.ErrAttrNotSupp {
		t.Error(st)
	}
	r.uid = 4242
	p = x.do(op(OpPutFH, fh), set(aclArg(list...))).ok(OpPutFH)
	if st := p.next(OpSetAttr); st != nfs.ErrPerm {
		t.Error(st)
	}
}

func TestFSLocations(t *testing.T) {
	r := newRig(t)
	x := r.session(1, "one")
	for _, c := range []struct{ path, want []string }{
		{nil, nil},
		{[]string{"deep"}, nil},
		{[]string{"one"}, []string{"one"}},
		{[]string{"deep", "two"}, []string{"deep", "two"}},
	} {
		d := x.attr(x.handle(c.path...), AttrFSLocations)
		var got []string
		for range d.Uint32() {
			got = append(got, d.String(100))
		}
		if n := d.Uint32(); n != 0 || !slices.Equal(got, c.want) {
			t.Errorf("%v: root %v, %d locations", c.path, got, n)
		}
	}
}

// withoutACLs is a store that has none, behind what could pass them on.
type withoutACLs struct{ *memfs.FS }

func (f withoutACLs) Limits() blockstore.Limits {
	l := f.FS.Limits()
	l.ACLs = false
	return l
}

func TestNoACLs(t *testing.T) {
	r := newRig(t)
	if err := r.table.Replace([]*nfs.Export{{
		ID: 4, Pseudo: "/plain", FS: withoutACLs{memfs.New(memfs.Options{FSID: 80})},
		Clients: r.table.ByID(1).Clients,
	}}); err != nil {
		t.Fatal(err)
	}
	x := r.session(2, "one")
	dir := x.handle("plain")
	supported, _ := DecodeBitmap(x.attr(dir, AttrSupported))
	if excl, _ := DecodeBitmap(x.attr(dir, AttrExclCreat)); supported.Has(AttrACL) || excl.Has(AttrACL) ||
		x.attr(dir, AttrACLSupport).Uint32() != 0 {
		t.Error("ACLs are said to be supported")
	}
	p := x.do(op(OpPutFH, dir), op(OpGetAttr, BitmapOf(AttrACL))).ok(OpPutFH).ok(OpGetAttr)
	if got, _ := DecodeBitmap(p.Decoder); !got.empty() {
		t.Errorf("%x", got)
	}
	set := attrs(BitmapOf(AttrACL), aclArg())
	if st := x.do(op(OpPutFH, dir),
		op(OpSetAttr, state.Anonymous, set)).ok(OpPutFH).next(OpSetAttr); st != nfs.ErrAttrNotSupp {
		t.Error(st)
	}
	x.do(op(OpPutFH, dir), op(OpCreate, uint32(blockstore.TypeDir), "dir", set)).ok(OpPutFH).fails(OpCreate,
		nfs.ErrAttrNotSupp)
	x.do(op(OpPutFH, dir), openCreateOp(state.Both, "owner", "file", CreateGuarded, set)).ok(OpPutFH).fails(OpOpen,
		nfs.ErrAttrNotSupp)
}
