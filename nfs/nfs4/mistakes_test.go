package nfs4

import (
	"bytes"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// Tests of mistakes that servers have made; see ARCHITECTURE.md.

// syncing is a store that says how writes were asked to be, and how they became.
type syncing struct {
	blockstore.FS
	asked     blockstore.Stability
	committed blockstore.Stability
	commits   int
	verf      [8]byte
	loses     bool // what others wrote, during every call
}

func (s *syncing) Verifier() [8]byte { return s.verf }

// lose is a sync of somebody else's that fails.
func (s *syncing) lose() {
	if s.loses {
		s.verf[0]++
	}
}

func (s *syncing) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int,
	blockstore.Stability, blockstore.Wcc, error,
) {
	n, _, w, err := s.FS.WriteAt(c, h, p, off, how)
	s.asked = how
	s.lose()
	return n, s.committed, w, err
}

func (s *syncing) Commit(c *blockstore.Cred, h blockstore.Handle, off uint64, n uint32) (blockstore.Wcc, error) {
	s.commits++
	s.lose()
	return s.FS.Commit(c, h, off, n)
}

// TestCommittedIsWhatTheStoreSays: a write is said to be as stable as the store has made
// it, which was asked for what the client asked for, and COMMIT reaches it.
func TestCommittedIsWhatTheStoreSays(t *testing.T) {
	var s *syncing
	r := newRigOver(t, func(fs blockstore.FS) blockstore.FS {
		s = &syncing{FS: fs}
		return s
	})
	x := r.session(2, "one")
	fh, id := x.make(x.handle("one"), "file")
	for _, asked := range []blockstore.Stability{blockstore.Unstable, blockstore.DataSync, blockstore.FileSync} {
		for _, committed := range []blockstore.Stability{blockstore.Unstable, blockstore.DataSync, blockstore.FileSync} {
			s.committed = committed
			p := x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), uint32(asked), "data")).ok(OpPutFH).ok(OpWrite)
			if n, got := p.Uint32(), blockstore.Stability(p.Uint32()); n != 4 || got != committed || s.asked != asked {
				t.Errorf("asked for %d, the store for %d, which did %d, and the client hears %d", asked, s.asked, committed, got)
			}
		}
	}
	was := s.commits
	x.do(op(OpPutFH, fh), op(OpCommit, uint64(0), uint32(0))).ok(OpPutFH).ok(OpCommit)
	if s.commits != was+1 {
		t.Error("COMMIT did not reach the store")
	}
}

// TestVerifierOfLostWrites: what is lost while a WRITE or a COMMIT is under way, the client sees by
// the verifiers: that of a WRITE is of before, that of a COMMIT of after.
func TestVerifierOfLostWrites(t *testing.T) {
	var s *syncing
	r := newRigOver(t, func(fs blockstore.FS) blockstore.FS {
		s = &syncing{FS: fs, loses: true}
		return s
	})
	x := r.session(2, "one")
	fh, id := x.make(x.handle("one"), "file")
	was := s.verf
	p := x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), uint32(blockstore.Unstable), "data")).ok(OpPutFH).ok(OpWrite)
	p.Uint32()
	p.Uint32()
	if got := p.Fixed(8); !bytes.Equal(got, was[:]) {
		t.Errorf("WRITE has verifier %x, before it that was %x", got, was)
	}
	p = x.do(op(OpPutFH, fh), op(OpCommit, uint64(0), uint32(0))).ok(OpPutFH).ok(OpCommit)
	if got := p.Fixed(8); !bytes.Equal(got, s.verf[:]) {
		t.Errorf("COMMIT has verifier %x, after it that is %x", got, s.verf)
	}
}

// change is the change attribute of an object.
func (x *sess) change(fh []byte) uint64 {
	x.r.t.Helper()
	p := x.do(op(OpPutFH, fh), op(OpGetAttr, BitmapOf(AttrChange))).ok(OpPutFH).ok(OpGetAttr)
	DecodeBitmap(p.Decoder)
	p.Uint32()
	return p.Uint64()
}

// TestChangeIsSeen: whatever changes an object changes its change attribute, and what is
// told of directories is what GETATTR says before and after.
func TestChangeIsSeen(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	top := x.handle("one")
	for _, name := range []string{"a", "b"} {
		x.do(op(OpPutFH, top), op(OpCreate, uint32(2), name, attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
	}
	a, b := x.handle("one", "a"), x.handle("one", "b")
	fh, id := x.make(a, "file")
	for what, o := range map[string]args{
		"WRITE":          op(OpWrite, id, uint64(0), uint32(0), "data"),
		"SETATTR mode":   op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrMode), uint32(0o600))),
		"SETATTR size":   op(OpSetAttr, id, attrs(BitmapOf(AttrSize), uint64(2))),
		"SETATTR times":  op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrTimeModSet), uint32(1), uint64(5), uint32(0))),
		"SETXATTR":       op(OpSetXattr, uint32(0), "name", "value"),
		"ALLOCATE":       op(OpAllocate, id, uint64(0), uint64(1<<16)),
		"DEALLOCATE":     op(OpDeallocate, id, uint64(0), uint64(1)),
		"SETATTR owners": op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrOwner), "5")),
	} {
		before := x.change(fh)
		if p := x.do(op(OpPutFH, fh), o); p.status != nfs.OK {
			t.Fatalf("%s: %v", what, p.status)
		}
		if after := x.change(fh); after == before {
			t.Errorf("%s does not change the change attribute", what)
		}
	}
	check := func(what string, dir []byte, before uint64, c changeInfo) {
		t.Helper()
		if after := x.change(dir); c.before != before || c.after != after || before == after {
			t.Errorf("%s: %+v, where it was %d and is %d", what, c, before, after)
		}
	}
	beforeA, beforeB, file := x.change(a), x.change(b), x.change(fh)
	p := x.do(op(OpPutFH, a), op(OpSaveFH), op(OpPutFH, b),
		op(OpRename, "file", "moved")).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpRename)
	check("RENAME, the source", a, beforeA, p.change())
	check("RENAME, the target", b, beforeB, p.change())
	if x.change(fh) == file {
		t.Error("RENAME does not change the file's change attribute")
	}
	beforeB, file = x.change(b), x.change(fh)
	p = x.do(op(OpPutFH, fh), op(OpSaveFH), op(OpPutFH, b),
		op(OpLink, "second")).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpLink)
	check("LINK", b, beforeB, p.change())
	if x.change(fh) == file {
		t.Error("LINK does not change the file's change attribute")
	}
	beforeB = x.change(b)
	check("REMOVE", b, beforeB, x.do(op(OpPutFH, b), op(OpRemove, "second")).ok(OpPutFH).ok(OpRemove).change())
	beforeB = x.change(b)
	_, c, _ := x.do(op(OpPutFH, b), openCreateOp(3, "o", "new", CreateGuarded,
		attrs(Bitmap{}))).ok(OpPutFH).ok(OpOpen).opened()
	check("OPEN", b, beforeB, c)
}

// TestHandlesOutliveRenames: a handle is the object's, whatever it is called and whatever
// its directory is called, and an open of it stays good.
func TestHandlesOutliveRenames(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	top := x.handle("one")
	x.do(op(OpPutFH, top), op(OpCreate, uint32(2), "a", attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
	dir := x.handle("one", "a")
	fh, id := x.make(dir, "file")
	for _, names := range [][2]string{{"a", "b"}, {"b", "c"}} {
		x.do(op(OpPutFH, top), op(OpSaveFH), op(OpRename, names[0], names[1])).ok(OpPutFH).ok(OpSaveFH).ok(OpRename)
	}
	x.do(op(OpPutFH, dir), op(OpSaveFH), op(OpPutFH, top),
		op(OpRename, "file", "elsewhere")).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpRename)
	for range 2 {
		x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), uint32(0), "data"),
			op(OpGetAttr, BitmapOf(AttrSize))).ok(OpPutFH).ok(OpWrite)
		x.do(op(OpPutFH, dir), op(OpLookupP), op(OpGetFH)).ok(OpPutFH).ok(OpLookupP).ok(OpGetFH)
		if got := x.handle("one", "elsewhere"); !bytes.Equal(got, fh) {
			t.Errorf("%x is now %x", fh, got)
		}
		if got := x.handle("one", "c"); !bytes.Equal(got, dir) {
			t.Errorf("%x is now %x", dir, got)
		}
		// The server starts again: handles stay, opens do not.
		r.known = nil
		r.start(8)
		x = r.session(2, "one")
		id = state.Anonymous
	}
}

// TestExclusiveOverRestarts: an exclusive create that is sent again finds its file, also
// after a restart of the server, and that of another one does not.
func TestExclusiveOverRestarts(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	create := func(verf byte, mode uint32) *reply {
		how := []any{[8]byte{verf}}
		if mode == CreateExclusive41 {
			how = append(how, attrs(BitmapOf(AttrMode), uint32(0o640)))
		}
		return x.do(op(OpPutFH, dir), openCreateOp(3, "o", []string{2: "4.0", 3: "4.1"}[mode], mode, how...)).ok(OpPutFH)
	}
	for boot := uint32(8); boot < 11; boot++ {
		for _, mode := range []uint32{createExclusive, CreateExclusive41} {
			create(7, mode).ok(OpOpen)
			create(8, mode).fails(OpOpen, nfs.ErrExist)
			create(7, mode).ok(OpOpen)
		}
		r.known = nil
		r.start(boot)
		x = r.session(2, "one")
	}
}
