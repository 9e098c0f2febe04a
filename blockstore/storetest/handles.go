package storetest

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
)

func testHandlesOverRename(e *env) {
	top := e.root
	var dirs []blockstore.Handle
	for range 6 {
		top = e.mkdir(nil, top, "deep", 0o755)
		dirs = append(dirs, top)
	}
	f := e.mkfile(nil, top, "f", 0o644, "content")
	for i := range 5 {
		from, to := e.root, e.root
		if i%2 == 1 {
			from = e.mkdir(nil, e.root, numbered(i), 0o755)
			e.ok(third(e.Rename(nil, e.root, "deep", from, "deep")))
		}
		e.ok(third(e.Rename(nil, from, "deep", to, "deep")))
		e.wantNot(e.get(nil, f) != "content", "lost the file")
		for _, d := range dirs {
			e.attr(d)
		}
	}
	for i, d := range dirs[1:] {
		e.wantNot(e.find(d, "..") != dirs[i], "the handle of a parent changed")
	}
}

func testHandlesOverReopen(e *env) {
	if e.opts.Reopen == nil {
		e.Skip("the store ends with the process")
	}
	d := e.mkdir(nil, e.root, "d", 0o755)
	f := e.mkfile(nil, d, "f", 0o644, "content")
	gone := e.mkfile(nil, d, "gone", 0o644, "x")
	l, _, _, err := e.Symlink(nil, d, "l", "target", nil)
	e.ok(err)
	e.ok(third(e.Rename(nil, e.root, "d", e.root, "moved")))
	e.ok(second(e.Remove(nil, d, "gone")))
	verf := e.Verifier()
	fsid := e.FSID()
	e.FS = e.opts.Reopen(e.T, e.FS)
	e.wantNot(e.Verifier() == verf, "the write verifier is the same after a restart")
	e.wantNot(e.FSID() != fsid, "the fsid changed")
	r, err := e.Root()
	e.ok(err)
	e.wantNot(r != e.root, "the root's handle changed")
	e.wantNot(e.get(nil, f) != "content", "wrong content")
	target, err := e.ReadLink(nil, l)
	e.ok(err)
	e.wantNot(target != "target", "wrong target")
	e.want(second(e.GetAttr(nil, gone)), blockstore.ErrStale)
	e.wantNot(e.find(d, "f") != f, "another handle after the restart")
}

func testStale(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "data")
	e.get(nil, f)
	e.ok(second(e.Remove(nil, e.root, "f")))
	e.want(second(e.GetAttr(nil, f)), blockstore.ErrStale)
	e.want(third(e.ReadAt(nil, f, make([]byte, 4), 0, false)), blockstore.ErrStale)
	e.want(fourth(e.WriteAt(nil, f, []byte("x"), 0, blockstore.Unstable)), blockstore.ErrStale)
	e.want(second(e.SetAttr(nil, f, &blockstore.SetAttr{Mode: new(uint32(0))}, nil)), blockstore.ErrStale)
	e.want(third(e.Access(nil, f, 0x3f)), blockstore.ErrStale)
	e.want(second(e.Commit(nil, f, 0, 0)), blockstore.ErrStale)
	e.want(third(e.Link(nil, f, e.root, "back")), blockstore.ErrStale)
	// A new file of the name is another object.
	g := e.mkfile(nil, e.root, "f", 0o644, "new")
	e.wantNot(g == f, "a handle was used again")
}

// testPinned: a file that is pinned outlives its last name until nobody has it pinned.
func testPinned(e *env) {
	p, ok := e.FS.(blockstore.Pinner)
	if !ok {
		e.Skip("the store pins no files")
	}
	for name, remove := range map[string]func(){
		"removed": func() {
			e.ok(second(e.Remove(nil, e.root, "f")))
		},
		"replaced": func() {
			e.mkfile(nil, e.root, "other", 0o644, "other")
			e.ok(third(e.Rename(nil, e.root, "other", e.root, "f")))
			e.ok(second(e.Remove(nil, e.root, "f")))
		},
	} {
		f := e.mkfile(nil, e.root, "f", 0o644, "data")
		e.ok(p.Pin(f))
		e.ok(p.Pin(f))
		remove()
		e.wantNot(e.get(nil, f) != "data", "%s: other data", name)
		e.put(nil, f, "more", 4)
		e.ok(second(e.Commit(nil, f, 0, 0)))
		e.ok(second(e.SetAttr(nil, f, &blockstore.SetAttr{Size: new(uint64(6))}, nil)))
		a := e.attr(f)
		e.wantNot(a.NLink != 0 || a.Size != 6, "%s: %d names, size %d", name, a.NLink, a.Size)
		e.ok(third(e.Access(nil, f, blockstore.AccessRead)))
		e.want(second(e.lookup(e.root, "f")), blockstore.ErrNotExist)
		p.Unpin(f)
		e.wantNot(e.get(nil, f) != "datamo", "%s: %q after one of two", name, e.get(nil, f))
		p.Unpin(f)
		e.want(second(e.GetAttr(nil, f)), blockstore.ErrStale)
		e.want(p.Pin(f), blockstore.ErrStale)
		p.Unpin(f) // one too many does nothing
	}
	f := e.mkfile(nil, e.root, "stays", 0o644, "data")
	e.ok(p.Pin(f))
	p.Unpin(f)
	e.wantNot(e.get(nil, f) != "data", "a file that has a name ended with its pin")
	e.ok(second(e.Remove(nil, e.root, "stays")))
	e.want(second(e.GetAttr(nil, f)), blockstore.ErrStale)
}

func testBadHandles(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "data")
	check := func(h blockstore.Handle) {
		e.Helper()
		_, err := e.GetAttr(nil, h)
		if !errors.Is(err, blockstore.ErrStale) && !errors.Is(err, blockstore.ErrBadHandle) {
			e.Fatalf("handle %x: %v", h.B[:h.Len], err)
		}
	}
	check(blockstore.Handle{})
	for n := range uint8(blockstore.HandleMax + 1) {
		if n != f.Len {
			h := f
			h.Len = n
			check(h)
		}
		check(blockstore.Handle{Len: n})
	}
	for i := range int(f.Len) {
		for bit := range 8 {
			h := f
			h.B[i] ^= 1 << bit
			_, err := e.GetAttr(nil, h)
			// A changed handle may name another object of the store, or cause a search.
			if err != nil && !errors.Is(err, blockstore.ErrJukebox) {
				check(h)
			}
		}
	}
}
