package nfs4

import (
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// labelled is a fattr4 of a label.
func labelled(label string) args {
	return attrs(BitmapOf(AttrSecLabel), part(uint32(7), uint32(8), label))
}

func TestLabels(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "o")
	fh := x.file("f")
	get := func(fh []byte) (label string, there bool) {
		t.Helper()
		p := x.do(op(OpPutFH, fh), op(OpGetAttr, BitmapOf(AttrSecLabel))).ok(OpPutFH).ok(OpGetAttr)
		b, _ := DecodeBitmap(p.Decoder)
		if p.Uint32(); !b.Has(AttrSecLabel) {
			return "", false
		}
		if lfs, pi := p.Uint32(), p.Uint32(); lfs != 0 || pi != 0 {
			t.Errorf("format %d, policy %d", lfs, pi)
		}
		label = p.String(blockstore.LabelMax)
		p.end()
		return label, true
	}
	x.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous, labelled("a"))).ok(OpPutFH).fails2(OpSetAttr,
		nfs.ErrAttrNotSupp, 4)

	r.fs.labels = make(map[blockstore.Handle][]byte)
	if all, _ := DecodeBitmap(x.attr(fh, AttrSupported)); !all.Has(AttrSecLabel) {
		t.Error("sec_label is not supported")
	}
	if _, there := get(fh); there {
		t.Error("a file has a label that nobody has set")
	}
	x.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous, labelled("system_u:object_r:nfs_t:s0\x00"))).ok(OpPutFH).
		ok(OpSetAttr)
	if got, _ := get(fh); got != "system_u:object_r:nfs_t:s0\x00" {
		t.Errorf("the label is %q", got)
	}
	// What a label cannot be, and who may not set it.
	for _, bad := range []string{"", strings.Repeat("x", blockstore.LabelMax+1)} {
		x.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous, labelled(bad))).ok(OpPutFH).fails2(OpSetAttr, nfs.ErrInval, 4)
	}
	r.uid = 1000
	x.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous, labelled("b"))).ok(OpPutFH).fails2(OpSetAttr, nfs.ErrPerm, 4)
	r.uid = 0
	if got, _ := get(fh); got != "system_u:object_r:nfs_t:s0\x00" {
		t.Errorf("the label is %q after refused changes", got)
	}
	// A new object gets its label with the operation that makes it.
	dir := x.handle("one")
	x.do(op(OpPutFH, dir), op(OpCreate, uint32(blockstore.TypeDir), "labelled", labelled("c"))).ok(OpPutFH).ok(OpCreate)
	if got, _ := get(x.handle("one", "labelled")); got != "c" {
		t.Errorf("the label of a new directory is %q", got)
	}
}
