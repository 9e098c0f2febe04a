package nfs4

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

func TestXattrs(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, _ := x.make(dir, "file")
	put := op(OpPutFH, fh)
	if !x.attr(fh, attrXattrSupport).Bool() || x.attr(x.handle(), attrXattrSupport).Bool() {
		t.Error("xattr_support")
	}
	set := func(how int, name, value string) args { return op(OpSetXattr, how, name, value) }
	was := x.attr(fh, attrChange).Uint64()
	c := x.do(put, set(1, "a", "value")).ok(OpPutFH).ok(OpSetXattr).change()
	if !c.atomic || c.before != was || c.after != x.attr(fh, attrChange).Uint64() || c.after == was {
		t.Errorf("%+v, was %d", c, was)
	}
	if v := x.do(put, op(OpGetXattr, "a")).ok(OpPutFH).ok(OpGetXattr).String(100); v != "value" {
		t.Errorf("%q", v)
	}
	for _, c := range []struct {
		fh   []byte
		o    args
		n    uint32
		want nfs.Status
	}{
		{fh, set(1, "a", ""), OpSetXattr, nfs.ErrExist},
		{fh, set(2, "b", ""), OpSetXattr, nfs.ErrNoXattr},
		{fh, set(3, "b", ""), OpSetXattr, nfs.ErrBadXDR},
		{fh, set(0, "", ""), OpSetXattr, nfs.ErrInval},
		{fh, set(0, "a\x00b", ""), OpSetXattr, nfs.ErrBadChar},
		{fh, set(0, strings.Repeat("x", blockstore.XattrNameMax+1), ""), OpSetXattr, nfs.ErrNameTooLong},
		{fh, set(0, "big", strings.Repeat("x", blockstore.XattrMax+1)), OpSetXattr, nfs.ErrXattr2Big},
		{fh, op(OpGetXattr, "none"), OpGetXattr, nfs.ErrNoXattr},
		{fh, op(OpRemoveXattr, "none"), OpRemoveXattr, nfs.ErrNoXattr},
		{fh, op(OpListXattrs, uint64(9), uint32(1000)), OpListXattrs, nfs.ErrBadCookie},
		{fh, op(OpListXattrs, uint64(0), uint32(20)), OpListXattrs, nfs.ErrTooSmall},
		{x.handle(), op(OpGetXattr, "a"), OpGetXattr, nfs.ErrNotSupp},
	} {
		x.do(op(OpPutFH, c.fh), c.o).ok(OpPutFH).fails(c.n, c.want)
	}
	for i := range 20 {
		x.do(put, set(0, fmt.Sprintf("name-%02d", i), "")).ok(OpPutFH).ok(OpSetXattr)
	}
	var names []string
	rounds := 0
	for cookie, eof := uint64(0), false; !eof; rounds++ {
		p := x.do(put, op(OpListXattrs, cookie, uint32(100))).ok(OpPutFH).ok(OpListXattrs)
		if n := p.Remaining(); n > 100 {
			t.Errorf("%d bytes", n)
		}
		cookie = p.Uint64()
		for range p.Uint32() {
			names = append(names, p.String(nameMax))
		}
		eof = p.Bool()
		p.end()
	}
	if len(names) != 21 || names[0] != "a" || names[20] != "name-19" || rounds < 3 {
		t.Errorf("%d rounds: %q", rounds, names)
	}
	x.do(put, op(OpRemoveXattr, "a")).ok(OpPutFH).ok(OpRemoveXattr)
	r.peer = reader
	x.do(put, op(OpRemoveXattr, "name-00")).ok(OpPutFH).fails(OpRemoveXattr, nfs.ErrROFS)
}
