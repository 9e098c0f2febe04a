package nfs4

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// listedXattrs reads all names by LISTXATTRSs of at most n bytes.
func (x *sess) listedXattrs(fh []byte, n uint32) (names []string, rounds int) {
	x.r.t.Helper()
	var cookie uint64
	for {
		p := x.do(op(OpPutFH, fh), op(OpListXattrs, cookie, n)).ok(OpPutFH).ok(OpListXattrs)
		if left := p.Remaining(); left > int(n) {
			x.r.t.Errorf("a LISTXATTRS4resok of %d bytes, %d were asked for", left, n)
		}
		cookie = p.Uint64()
		for range p.Uint32() {
			names = append(names, p.String(nameMax))
		}
		eof := p.Bool()
		p.end()
		if rounds++; eof {
			slices.Sort(names)
			return names, rounds
		}
		if rounds > 1000 {
			x.r.t.Fatal("no end")
		}
	}
}

func TestXattrs(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, _ := x.make(dir, "file")
	put := op(OpPutFH, fh)
	const either, create, replace = 0, 1, 2
	set := func(how int, name, value string) args { return op(OpSetXattr, how, name, value) }
	if !x.attr(fh, AttrXattrSupport).Bool() {
		t.Error("xattr_support is false")
	}
	if names, _ := x.listedXattrs(fh, 4096); len(names) != 0 {
		t.Errorf("a new file has %q", names)
	}
	before := x.attr(fh, AttrChange).Uint64()
	p := x.do(put, set(create, "a/b", "one"), set(replace, "a/b", "two"), set(either, "c", "")).ok(OpPutFH)
	for range 3 {
		c := p.ok(OpSetXattr).change()
		if !c.atomic || c.before != before || c.after <= before {
			t.Errorf("change %+v, was at %d", c, before)
		}
		before = c.after
	}
	p.end()
	for name, want := range map[string]string{"a/b": "two", "c": ""} {
		p := x.do(put, op(OpGetXattr, name)).ok(OpPutFH).ok(OpGetXattr)
		if got := p.String(100); got != want {
			t.Errorf("%s is %q", name, got)
		}
		p.end()
	}
	for _, c := range []struct {
		what string
		op   uint32
		args args
		want nfs.Status
	}{
		{"create what is there", OpSetXattr, set(create, "c", "x"), nfs.ErrExist},
		{"replace what is not", OpSetXattr, set(replace, "d", "x"), nfs.ErrNoXattr},
		{"no such option", OpSetXattr, set(3, "d", "x"), nfs.ErrBadXDR},
		{"too big", OpSetXattr, set(either, "d", strings.Repeat("x", blockstore.XattrValueMax+1)), nfs.ErrXattr2Big},
		{"no name", OpSetXattr, set(either, "", "x"), nfs.ErrInval},
		{"a name with NUL", OpSetXattr, set(either, "a\x00b", "x"), nfs.ErrBadChar},
		{"a long name", OpSetXattr, set(either, strings.Repeat("n", blockstore.XattrNameMax+1), "x"), nfs.ErrNameTooLong},
		{"cut off", OpSetXattr, op(OpSetXattr, either, "d", uint32(5)), nfs.ErrBadXDR},
		{"get what is not", OpGetXattr, op(OpGetXattr, "d"), nfs.ErrNoXattr},
		{"get without a name", OpGetXattr, op(OpGetXattr, ""), nfs.ErrInval},
		{"get, cut off", OpGetXattr, op(OpGetXattr, uint32(9)), nfs.ErrBadXDR},
		{"remove what is not", OpRemoveXattr, op(OpRemoveXattr, "d"), nfs.ErrNoXattr},
		{"remove a long name", OpRemoveXattr, op(OpRemoveXattr, strings.Repeat("n", 300)), nfs.ErrNameTooLong},
		{"list into too little", OpListXattrs, op(OpListXattrs, uint64(0), uint32(16+4)), nfs.ErrTooSmall},
		{"list into nothing", OpListXattrs, op(OpListXattrs, uint64(0), uint32(0)), nfs.ErrTooSmall},
		{"list, cut off", OpListXattrs, op(OpListXattrs, uint64(0)), nfs.ErrBadXDR},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := x.do(put, c.args)
			p.t = t
			p.ok(OpPutFH).fails(c.op, c.want)
		})
	}
	x.do(put, set(either, "big", strings.Repeat("v", blockstore.XattrValueMax)),
		op(OpGetXattr, "big")).ok(OpPutFH).ok(OpSetXattr)
	if p := x.do(put, op(OpRemoveXattr, "c"),
		op(OpGetXattr, "c")).ok(OpPutFH).ok(OpRemoveXattr); p.change().after <= before {
		t.Error("the removal did not change the change attribute")
	}
	// Many names, in pieces, some of which go meanwhile.
	want := []string{"a/b", "big"}
	for i := range 60 {
		name := fmt.Sprintf("name-%02d", i)
		want = append(want, name)
		x.do(put, set(either, name, name)).ok(OpPutFH).ok(OpSetXattr)
	}
	for _, n := range []uint32{64 << 10, 300, 30} {
		names, rounds := x.listedXattrs(fh, n)
		if !slices.Equal(names, want) || n == 300 && rounds < 3 {
			t.Errorf("by %d bytes, in %d rounds: %q", n, rounds, names)
		}
	}
	// Directories have them; links and what leads to the exports do not.
	x.do(op(OpPutFH, dir), set(either, "d", "v"), op(OpGetXattr, "d")).ok(OpPutFH).ok(OpSetXattr)
	x.do(op(OpPutFH, dir), op(OpCreate, uint32(5), "target", "link", attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
	link := x.handle("one", "link")
	x.do(op(OpPutFH, link), set(either, "d", "v")).ok(OpPutFH).fails(OpSetXattr, nfs.ErrPerm)
	x.do(op(OpPutFH, link), op(OpGetXattr, "d")).ok(OpPutFH).fails(OpGetXattr, nfs.ErrNoXattr)
	x.do(op(OpPutRootFH), op(OpGetXattr, "d")).ok(OpPutRootFH).fails(OpGetXattr, nfs.ErrNotSupp)
	x.do(op(OpPutRootFH), set(either, "d", "v")).ok(OpPutRootFH).fails(OpSetXattr, nfs.ErrNotSupp)
	if x.attr(x.handle(), AttrXattrSupport).Bool() {
		t.Error("xattr_support of the pseudo file system is true")
	}
	x.do(op(OpGetXattr, "d")).fails(OpGetXattr, nfs.ErrNoFileHandle)
	// Who may do what.
	allowed := func() uint32 {
		p := x.do(put, op(OpAccess, uint32(accessXattr|1<<20))).ok(OpPutFH).ok(OpAccess)
		if supported := p.Uint32(); supported != accessXattr {
			t.Errorf("ACCESS knows %x", supported)
		}
		return p.Uint32()
	}
	if got := allowed(); got != accessXattr {
		t.Errorf("ACCESS grants %x", got)
	}
	r.uid = 1000 // reads what is root's, with 0644
	if got := allowed(); got != accessXattrRead|accessXattrList {
		t.Errorf("ACCESS grants %x to others", got)
	}
	x.do(put, op(OpGetXattr, "a/b")).ok(OpPutFH).ok(OpGetXattr)
	x.do(put, set(either, "d", "v")).ok(OpPutFH).fails(OpSetXattr, nfs.ErrAcces)
	x.do(put, op(OpRemoveXattr, "a/b")).ok(OpPutFH).fails(OpRemoveXattr, nfs.ErrAcces)
	r.uid, r.peer = 0, reader
	if got := allowed(); got != accessXattrRead|accessXattrList {
		t.Errorf("ACCESS grants %x where nothing can be written", got)
	}
	x.do(put, set(either, "d", "v")).ok(OpPutFH).fails(OpSetXattr, nfs.ErrROFS)
	x.do(put, op(OpRemoveXattr, "a/b")).ok(OpPutFH).fails(OpRemoveXattr, nfs.ErrROFS)
}
