package nfs4

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

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
