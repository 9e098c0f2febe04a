package nfs4

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// dirNotified is a CB_NOTIFY. Each change is written as "-old +new", "+new!" if it replaced one.
type dirNotified struct {
	id      state.Stateid
	fh      []byte
	changes []string
}

func parseDirNotified(t testing.TB, d *xdr.Decoder) *dirNotified {
	n := &dirNotified{id: DecodeStateid(d), fh: bytes.Clone(d.Opaque(FHMax))}
	for range d.Uint32() {
		kind, _ := DecodeBitmap(d)
		v := xdr.NewDecoder(d.Opaque(4096))
		entry := func() string {
			name := v.String(nameMax)
			if b, _ := DecodeBitmap(&v); !b.empty() || len(v.Opaque(4096)) != 0 {
				t.Errorf("attributes %x of %q", b, name)
			}
			return name
		}
		removed := func() string { defer v.Uint64(); return entry() }
		added := func() (s string) {
			mark := ""
			var old string
			if v.Bool() {
				old, mark = removed(), "!"
			}
			if s = entry(); mark != "" && old != s {
				t.Errorf("%q replaced %q", s, old)
			}
			if cookies, before, last := v.Uint32(), v.Uint32(), v.Bool(); cookies+before != 0 || last {
				t.Errorf("%d cookies, %d entries before it, last %v", cookies, before, last)
			}
			return "+" + s + mark
		}
		switch kind {
		case BitmapOf(2):
			n.changes = append(n.changes, "-"+removed())
		case BitmapOf(3):
			n.changes = append(n.changes, added())
		case BitmapOf(4):
			n.changes = append(n.changes, "-"+removed()+" "+added())
		default:
			t.Errorf("notified of %x", kind)
		}
		if v.Err() != nil || v.Remaining() > 0 {
			t.Errorf("%v, %d bytes left", v.Err(), v.Remaining())
		}
	}
	return n
}

var allNotices = BitmapOf(2, 3, 4)

// delegDir asks for a directory. ok is false if it is not to be had.
func (x *sess) delegDir(dir []byte, notices Bitmap) (id state.Stateid, ok bool) {
	x.r.t.Helper()
	notices[0] |= noticeExtend
	p := x.do(op(OpPutFH, dir), op(OpGetDirDelegation, true, notices, uint64(1), 0, uint64(1), 0, BitmapOf(1),
		BitmapOf(3))).ok(OpPutFH).ok(OpGetDirDelegation)
	if p.Uint32() == dirUnavailable {
		if p.Bool() {
			x.r.t.Error("a signal is to follow")
		}
		p.end()
		return id, false
	}
	p.Uint64()
	id = DecodeStateid(p.Decoder)
	granted, _ := DecodeBitmap(p.Decoder)
	children, _ := DecodeBitmap(p.Decoder)
	of, _ := DecodeBitmap(p.Decoder)
	if granted != notices.and(BitmapOf(2, 3, 4, 6)) || !children.empty() || !of.empty() {
		x.r.t.Errorf("notifications %x, attributes %x %x", granted, children, of)
	}
	p.end()
	return id, true
}

// namespace are operations that change names in the directory one, and what is told of them.
var namespace = []struct {
	name    string
	do      func(x *sess, dir []byte) *reply
	changes []string // in the directory
}{
	{"OPEN", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), openCreateOp(state.Both|WantNoDeleg, "o", "new", CreateUnchecked, attrs(Bitmap{})))
	}, []string{"+new"}},
	{"exclusive OPEN", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), op(OpOpen, uint32(0), uint32(state.Both|WantNoDeleg), uint32(0), uint64(0), "o",
			uint32(1), uint32(CreateExclusive41), [8]byte{1}, attrs(Bitmap{}), uint32(ClaimNull), "new"))
	}, []string{"+new"}},
	{"OPEN of what is there", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), openCreateOp(state.Both|WantNoDeleg, "o", "f", CreateUnchecked, attrs(Bitmap{})))
	}, nil},
	{"CREATE", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), op(OpCreate, 2, "new", attrs(Bitmap{})))
	}, []string{"+new"}},
	{"LINK", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, x.handle("one", "f")), op(OpSaveFH), op(OpPutFH, dir), op(OpLink, "new"))
	}, []string{"+new"}},
	{"REMOVE", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), op(OpRemove, "f"))
	}, []string{"-f"}},
	{"RENAME", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "f", "new"))
	}, []string{"-f +new"}},
	{"RENAME over another", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "f", "g"))
	}, []string{"-f +g!"}},
	{"RENAME over another name of it", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "f", "f2"))
	}, nil},
	{"RENAME out of it", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), op(OpSaveFH), op(OpPutFH, x.handle("one", "sub")), op(OpRename, "f", "new"))
	}, []string{"-f"}},
	{"RENAME into it", func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, x.handle("one", "sub")), op(OpSaveFH), op(OpPutFH, dir), op(OpRename, "there", "g"))
	}, []string{"+g!"}},
}

// dirRig is a client that can be called, and another one, and a directory with some files.
func dirRig(t *testing.T) (r *rig, a, other *sess, cl *callee, dir []byte) {
	r = newRig(t)
	other = r.session(2, "other")
	dir = other.handle("one")
	for _, name := range []string{"f", "g"} {
		_, id := other.make(dir, name)
		other.do(op(OpPutFH, other.handle("one", name)), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
	}
	other.do(op(OpPutFH, dir), op(OpCreate, 2, "sub", attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
	other.make(other.handle("one", "sub"), "there")
	other.do(op(OpPutFH, other.handle("one", "f")), op(OpSaveFH), op(OpPutFH, dir), op(OpLink, "f2")).
		ends(nfs.OK)
	cl = newCallee(t)
	return r, r.called("a", cl), other, cl, dir
}

// ends checks the status of a whole compound.
func (p *reply) ends(want nfs.Status) {
	p.t.Helper()
	if p.status != want {
		p.t.Errorf("%v instead of %v", p.status, want)
	}
}

// TestDirDelegation: a directory that is delegated is recalled by each operation of another client
// that changes its entries, and by none that does not.
func TestDirDelegation(t *testing.T) {
	for _, c := range namespace {
		r, a, other, cl, dir := dirRig(t)
		id, ok := a.delegDir(dir, Bitmap{})
		if !ok {
			t.Fatal("not delegated")
		}
		if _, again := a.delegDir(dir, Bitmap{}); again {
			t.Errorf("%s: delegated twice", c.name)
		}
		if p := c.do(other, dir); c.changes != nil {
			p.ends(nfs.ErrJukebox)
			if cl.recalls() != 1 || cl.recall[0].id != id || !bytes.Equal(cl.recall[0].fh, dir) {
				t.Errorf("%s: recalled %+v", c.name, cl.recall)
			}
			if _, again := other.delegDir(dir, Bitmap{}); again {
				t.Errorf("%s: delegated during a recall", c.name)
			}
			a.do(op(OpPutFH, dir), op(OpDelegReturn, id)).ok(OpPutFH).ok(OpDelegReturn)
			p = c.do(other, dir)
			p.ends(nfs.OK)
		} else {
			p.ends(nfs.OK)
			if cl.recalls() != 0 {
				t.Errorf("%s: recalled", c.name)
			}
		}
		if n := r.s.State().Delegations(); c.changes != nil && n.Now != 0 {
			t.Errorf("%s: %d delegations", c.name, n.Now)
		}
	}
}

// TestDirNotified: a client that asks for notifications keeps the directory, and learns of the
// changes, its own ones too.
func TestDirNotified(t *testing.T) {
	for _, c := range namespace {
		for _, own := range []bool{false, true} {
			r, a, other, cl, dir := dirRig(t)
			var told []string
			id, ok := a.delegDir(dir, BitmapOf(1, 2, 3, 4, 5))
			if !ok {
				t.Fatal("not delegated")
			}
			cl.answer = func(k *callback) verdict {
				if k.dir == nil || k.dir.id != id || !bytes.Equal(k.dir.fh, dir) || len(k.refers) != 2 {
					t.Errorf("%+v", k)
				}
				told = append(told, k.dir.changes...)
				return verdict{}
			}
			by := other
			if own {
				by = a
			}
			c.do(by, dir).ends(nfs.OK)
			if !slices.Equal(told, c.changes) {
				t.Errorf("%s: told %q instead of %q", c.name, told, c.changes)
			}
			if n := r.s.State().Delegations(); n.Now != 1 || n.Recalls != 0 {
				t.Errorf("%s: %+v", c.name, n)
			}
		}
	}
}

// TestDirRecalled: what notifications do not cover recalls the directory.
func TestDirRecalled(t *testing.T) {
	create := func(x *sess, dir []byte) *reply {
		return x.do(op(OpPutFH, dir), op(OpCreate, 2, "new", attrs(Bitmap{})))
	}
	for _, c := range []struct {
		name    string
		notices Bitmap
		do      func(x *sess, dir []byte) *reply
		answer  verdict
		delayed bool // else the change is made
	}{
		{"another kind", BitmapOf(2, 4), create, verdict{}, true},
		{"the mode", allNotices, func(x *sess, dir []byte) *reply {
			return x.do(op(OpPutFH, dir), op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrMode), uint32(0o700))))
		}, verdict{}, true},
		{"not understood", allNotices, create, verdict{recall: nfs.ErrNotSupp}, false},
		{"no such delegation", allNotices, create, verdict{recall: nfs.ErrBadStateID}, false},
		{"later", allNotices, create, verdict{sequence: nfs.ErrJukebox}, false},
	} {
		r, a, other, cl, dir := dirRig(t)
		id, ok := a.delegDir(dir, c.notices)
		if !ok {
			t.Fatal("not delegated")
		}
		recalls := 0
		cl.answer = func(k *callback) verdict {
			if k.dir != nil {
				return c.answer
			}
			if k.recall != nil && k.recall.id == id {
				recalls++
			}
			return verdict{}
		}
		want := nfs.OK
		if c.delayed {
			want = nfs.ErrJukebox
		}
		c.do(other, dir).ends(want)
		if recalls != 1 {
			t.Errorf("%s: %d recalls", c.name, recalls)
		}
		if n := len(r.s.dirs.queues); n != 0 {
			t.Errorf("%s: %d queues", c.name, n)
		}
	}
	// The directory itself goes, or gets another name.
	for _, name := range []string{"REMOVE", "RENAME"} {
		_, a, other, cl, dir := dirRig(t)
		other.do(op(OpPutFH, dir), op(OpCreate, 2, "empty", attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
		if _, ok := a.delegDir(a.handle("one", "empty"), allNotices); !ok {
			t.Fatal("not delegated")
		}
		if name == "REMOVE" {
			other.do(op(OpPutFH, dir), op(OpRemove, "empty")).ends(nfs.ErrJukebox)
		} else {
			other.do(op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "empty", "e")).ends(nfs.ErrJukebox)
		}
		if cl.recalls() != 1 {
			t.Errorf("%s: %d recalls", name, cl.recalls())
		}
	}
}

// TestDirNotices: notifications go one callback after another, many in one, and in order. More than
// may wait recall the directory.
func TestDirNotices(t *testing.T) {
	r, a, other, cl, dir := dirRig(t)
	id, _ := a.delegDir(dir, allNotices)
	cl.answer = func(k *callback) verdict { return verdict{silent: k.dir != nil} }
	var want []string
	change := func(i int) {
		name := fmt.Sprintf("%0100d", i)
		other.do(op(OpPutFH, dir), op(OpCreate, 2, name, attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
		want = append(want, "+"+name)
	}
	for i := range 1 + noticesOne {
		change(i)
	}
	var told []string
	rounds := 0
	for len(cl.calls) > 0 {
		if rounds++; len(cl.calls) > 1 {
			t.Fatalf("%d callbacks at a time", len(cl.calls))
		}
		b := cl.calls[0]
		cl.calls = nil
		k := cl.parse(b.Args)
		cl.seqs[k.slot] = k.seq
		told = append(told, k.dir.changes...)
		d := xdr.NewDecoder(k.reply(verdict{}))
		b.Done(&d, nil)
	}
	if !slices.Equal(told, want) || rounds < 3 || rounds > 8 {
		t.Errorf("%d callbacks told of %d changes instead of %d", rounds, len(told), len(want))
	}
	if len(r.s.dirs.queues) != 0 || r.s.dirs.waiting != 0 || cl.recalls() != 0 {
		t.Errorf("%d queues, %d wait, %d recalls", len(r.s.dirs.queues), r.s.dirs.waiting, cl.recalls())
	}
	if n := r.s.Faults()[CountDirNotified]; n != uint64(rounds) {
		t.Errorf("%d counted", n)
	}
	for i := range 2 + noticesOne {
		change(1000 + i)
	}
	if cl.recalls() != 1 || cl.recall[0].id != id || r.s.dirs.waiting != 0 {
		t.Errorf("%d recalls, %d wait", cl.recalls(), r.s.dirs.waiting)
	}
	// Without a connection nothing can be told.
	r, a, other, cl, dir = dirRig(t)
	if _, ok := a.delegDir(dir, allNotices); !ok {
		t.Fatal("not delegated")
	}
	cl.end()
	change(0)
	if n := r.s.State().DelegationList(1); len(n) != 1 || !n[0].Recalled || !n[0].Dir {
		t.Errorf("%+v", n)
	}
}

// TestDirFlags: a client that needs cookies or the order of entries gets no notifications; each
// change recalls its delegation.
func TestDirFlags(t *testing.T) {
	for _, c := range []struct{ asked, granted Bitmap }{
		{BitmapOf(2, 3, 4), Bitmap{}},
		{BitmapOf(2, 3, 4, 6, 12), Bitmap{}},
		{BitmapOf(3, 6), BitmapOf(3, 6)},
	} {
		_, a, _, _, dir := dirRig(t)
		p := a.do(op(OpPutFH, dir), op(OpGetDirDelegation, false, c.asked, uint64(0), 0, uint64(0), 0, Bitmap{}, Bitmap{})).
			ok(OpPutFH).ok(OpGetDirDelegation)
		if st := p.Uint32(); st != dirDelegated {
			t.Fatal(st)
		}
		p.Skip(8)
		id := DecodeStateid(p.Decoder)
		if got, _ := DecodeBitmap(p.Decoder); got != c.granted {
			t.Errorf("asked for %x: %x", c.asked, got)
		}
		a.do(op(OpPutFH, dir), op(OpDelegReturn, id)).ends(nfs.OK)
		a.do(op(OpPutFH, dir), op(OpGetDirDelegation, false, c.asked, uint64(0), 0, uint64(0), 0, Bitmap{}, Bitmap{}),
			op(OpDelegReturn, state.Current)).ends(nfs.OK)
	}
}

// TestDirNotToList: who may not list a directory does not learn of its names, and a file is none.
func TestDirNotToList(t *testing.T) {
	r, a, other, _, dir := dirRig(t)
	ask := op(OpGetDirDelegation, true, allNotices, uint64(1), 0, uint64(1), 0, Bitmap{}, Bitmap{})
	a.do(op(OpPutFH, a.handle("one", "f")), ask).ok(OpPutFH).fails(OpGetDirDelegation, nfs.ErrNotDir)
	a.do(op(OpPutFH, dir), op(OpGetDirDelegation, true)).ok(OpPutFH).fails(OpGetDirDelegation, nfs.ErrBadXDR)
	other.do(op(OpPutFH, dir), op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrMode), uint32(0o711)))).ok(OpPutFH).
		ok(OpSetAttr)
	r.uid = 4711
	a.do(op(OpPutFH, dir), ask).ok(OpPutFH).fails(OpGetDirDelegation, nfs.ErrAcces)
}
