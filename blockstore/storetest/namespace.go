package storetest

import (
	"errors"
	"strings"

	"github.com/rstored/rstored/blockstore"
)

func testRoot(e *env) {
	a := e.attr(e.root)
	if a.Type != blockstore.TypeDir || a.NLink < 1 || a.FileID == 0 {
		e.Fatalf("root attributes %+v", a)
	}
	h, err := e.lookup(e.root, "..")
	e.ok(err)
	e.wantNot(h != e.root, ".. of the root is another object")
	h, err = e.lookup(e.root, ".")
	e.ok(err)
	e.wantNot(h != e.root, ". of the root is another object")
	e.wantNot(e.FSID() == 0, "fsid 0")
	e.wantNot(e.Limits().NameMax == 0 || e.Limits().MaxFileSize == 0 || e.Limits().LinkMax == 0, "limits %+v", e.Limits())
	e.wantNot(e.Verifier() == [8]byte{}, "zero verifier")
}

func testLookup(e *env) {
	d := e.mkdir(nil, e.root, "d", 0o755)
	f := e.mkfile(nil, d, "f", 0o644, "x")
	h, a, err := e.Lookup(nil, d, "f")
	e.ok(err)
	e.wantNot(h != f, "another handle for the same file")
	e.wantNot(a != e.attr(f), "attributes of lookup differ from those of getattr")
	h, err = e.lookup(d, "..")
	e.ok(err)
	e.wantNot(h != e.root, "wrong parent")
	_, err = e.lookup(d, "nope")
	e.want(err, blockstore.ErrNotExist)
	_, err = e.lookup(f, "x")
	e.want(err, blockstore.ErrNotDir)
	_, err = e.lookup(d, strings.Repeat("n", 256))
	e.want(err, blockstore.ErrNameTooLong)
}

func testCreateModes(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o600, "hello")
	a := e.attr(f)
	e.wantNot(a.Mode != 0o600 || a.Type != blockstore.TypeReg || a.Size != 5 || a.NLink != 1, "attributes %+v", a)
	_, _, _, err := e.Create(nil, e.root, "f", blockstore.Guarded, nil, [8]byte{})
	e.want(err, blockstore.ErrExist)
	h, a, _, err := e.Create(nil, e.root, "f", blockstore.Unchecked, &blockstore.SetAttr{Mode: ptr(uint32(0o777))}, [8]byte{})
	e.ok(err)
	e.wantNot(h != f || a.Mode != 0o600 || a.Size != 5, "an unchecked create changed more than the size: %+v", a)
	_, a, _, err = e.Create(nil, e.root, "f", blockstore.Unchecked, &blockstore.SetAttr{Size: ptr(uint64(0))}, [8]byte{})
	e.ok(err)
	e.wantNot(a.Size != 0, "not truncated")
	for _, mode := range []uint32{0, 0o111, 0o222, 0o444, 0o666, 0o777} {
		name := "mode" + string(rune('a'+mode%26))
		_, a, _, err := e.Create(nil, e.root, name, blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
		e.ok(err)
		e.wantNot(a.Mode != mode, "mode %o, want %o: a umask was applied", a.Mode, mode)
	}
	e.mkdir(nil, e.root, "d", 0o777)
	for _, m := range []blockstore.CreateMode{blockstore.Guarded, blockstore.Unchecked, blockstore.Exclusive} {
		_, _, _, err = e.Create(nil, e.root, "d", m, nil, [8]byte{})
		e.want(err, blockstore.ErrExist)
	}
	_, a, _, err = e.Create(nil, e.root, "sized", blockstore.Unchecked, &blockstore.SetAttr{Size: ptr(uint64(1000))}, [8]byte{})
	e.ok(err)
	e.wantNot(a.Size != 1000, "size %d", a.Size)
}

func testExclusive(e *env) {
	v1, v2 := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}, [8]byte{8, 7, 6, 5, 4, 3, 2, 1}
	h, _, _, err := e.Create(nil, e.root, "x", blockstore.Exclusive, nil, v1)
	e.ok(err)
	again, _, _, err := e.Create(nil, e.root, "x", blockstore.Exclusive, nil, v1)
	e.ok(err)
	e.wantNot(again != h, "the retry made another file")
	// Every bit of the verifier counts.
	for _, v := range [][8]byte{v2, {0x81, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 0x85, 6, 7, 8}, {1, 2, 3, 4, 5, 6, 7, 9}} {
		_, _, _, err = e.Create(nil, e.root, "x", blockstore.Exclusive, nil, v)
		e.want(err, blockstore.ErrExist)
	}
	// A name that is something else than a new file is there, whatever the verifier.
	e.mkdir(nil, e.root, "xdir", 0o755)
	_, _, _, err = e.Symlink(nil, e.root, "xlink", "nowhere", nil)
	e.ok(err)
	for _, name := range []string{"xdir", "xlink"} {
		_, _, _, err = e.Create(nil, e.root, name, blockstore.Exclusive, nil, v1)
		e.want(err, blockstore.ErrExist)
	}
	if e.opts.Reopen != nil {
		e.FS = e.opts.Reopen(e.T, e.FS)
		again, _, _, err := e.Create(nil, e.root, "x", blockstore.Exclusive, nil, v1)
		e.ok(err)
		e.wantNot(again != h, "the retry after a restart made another file")
	}
	_, err = e.SetAttr(nil, h, &blockstore.SetAttr{Mode: ptr(uint32(0o644)), AtimeHow: blockstore.TimeServer, MtimeHow: blockstore.TimeServer}, nil)
	e.ok(err)
	_, _, _, err = e.Create(nil, e.root, "x", blockstore.Exclusive, nil, v1)
	e.want(err, blockstore.ErrExist)
}

func testDirs(e *env) {
	links := e.attr(e.root).NLink
	d := e.mkdir(nil, e.root, "d", 0o750)
	a := e.attr(d)
	e.wantNot(a.Type != blockstore.TypeDir || a.Mode != 0o750, "attributes %+v", a)
	if links > 1 { // not every filesystem counts subdirectories
		e.wantNot(e.attr(e.root).NLink != links+1, "nlink of the parent %d", e.attr(e.root).NLink)
	}
	_, _, _, err := e.Mkdir(nil, e.root, "d", nil)
	e.want(err, blockstore.ErrExist)
	e.mkfile(nil, d, "f", 0o600, "")
	_, err = e.Rmdir(nil, e.root, "d")
	e.want(err, blockstore.ErrNotEmpty)
	_, err = e.Remove(nil, e.root, "d")
	e.want(err, blockstore.ErrIsDir)
	_, err = e.Rmdir(nil, d, "f")
	e.want(err, blockstore.ErrNotDir)
	_, err = e.Remove(nil, d, "f")
	e.ok(err)
	_, err = e.Remove(nil, d, "f")
	e.want(err, blockstore.ErrNotExist)
	_, err = e.Rmdir(nil, e.root, "d")
	e.ok(err)
	e.wantNot(e.attr(e.root).NLink != links, "nlink of the parent %d", e.attr(e.root).NLink)
	_, err = e.Rmdir(nil, e.root, "d")
	e.want(err, blockstore.ErrNotExist)
	_, err = e.GetAttr(nil, d)
	e.want(err, blockstore.ErrStale)
	_, _, _, err = e.Mkdir(nil, d, "below", nil)
	e.want(err, blockstore.ErrStale)
}

func testSymlinks(e *env) {
	for name, target := range map[string]string{
		"rel": "../../etc/passwd", "abs": "/etc/passwd", "self": "self", "bytes": "\xff\xfe/\x01", "long": strings.Repeat("t/", 1000),
	} {
		h, a, _, err := e.Symlink(nil, e.root, name, target, nil)
		e.ok(err)
		e.wantNot(a.Type != blockstore.TypeLnk || a.Size != uint64(len(target)), "attributes %+v", a)
		got, err := e.ReadLink(nil, h)
		e.ok(err)
		e.wantNot(got != target, "target %q, want %q", got, target)
		l, err := e.lookup(e.root, name)
		e.ok(err)
		e.wantNot(l != h, "lookup followed the link")
		_, err = e.lookup(h, "x")
		e.want(err, blockstore.ErrNotDir)
		_, _, err = e.ReadAt(nil, h, make([]byte, 10), 0, false)
		e.want(err, blockstore.ErrInval)
		_, err = e.SetAttr(nil, h, &blockstore.SetAttr{Mode: ptr(uint32(0o600))}, nil)
		e.ok(err)
		_, err = e.SetAttr(nil, h, &blockstore.SetAttr{Size: ptr(uint64(0))}, nil)
		e.want(err, blockstore.ErrInval)
		when := unix(1e9, 5)
		_, err = e.SetAttr(nil, h, &blockstore.SetAttr{MtimeHow: blockstore.TimeClient, Mtime: when}, nil)
		e.ok(err)
		e.wantNot(!e.attr(h).Mtime.Equal(when), "mtime %v", e.attr(h).Mtime)
		_, _, _, err = e.Create(nil, e.root, name, blockstore.Unchecked, nil, [8]byte{})
		e.want(err, blockstore.ErrExist)
		_, err = e.Remove(nil, e.root, name)
		e.ok(err)
	}
	_, err := e.ReadLink(nil, e.root)
	e.want(err, blockstore.ErrInval)
	_, _, _, err = e.Symlink(nil, e.root, "empty", "", nil)
	e.want(err, blockstore.ErrNotExist)
	_, _, _, err = e.Symlink(nil, e.root, "huge", strings.Repeat("x", 5000), nil)
	e.want(err, blockstore.ErrNameTooLong)
}

func testSpecial(e *env) {
	kinds := map[string]blockstore.FileType{"fifo": blockstore.TypeFifo, "sock": blockstore.TypeSock}
	if e.opts.Root {
		kinds["chr"], kinds["blk"] = blockstore.TypeChr, blockstore.TypeBlk
	}
	for name, typ := range kinds {
		h, a, _, err := e.Mknod(nil, e.root, name, typ, 7, 300, &blockstore.SetAttr{Mode: ptr(uint32(0o620))})
		e.ok(err)
		e.wantNot(a.Type != typ || a.Mode != 0o620, "%s: attributes %+v", name, a)
		if typ == blockstore.TypeChr || typ == blockstore.TypeBlk {
			e.wantNot(a.Major != 7 || a.Minor != 300, "%s: device %d:%d", name, a.Major, a.Minor)
		}
		_, _, err = e.ReadAt(nil, h, make([]byte, 1), 0, false)
		e.want(err, blockstore.ErrInval)
		_, _, _, err = e.WriteAt(nil, h, make([]byte, 1), 0, blockstore.Unstable)
		e.want(err, blockstore.ErrInval)
		_, err = e.Commit(nil, h, 0, 0)
		e.want(err, blockstore.ErrInval)
		_, _, _, err = e.Mknod(nil, e.root, name, typ, 0, 0, nil)
		e.want(err, blockstore.ErrExist)
		_, err = e.Remove(nil, e.root, name)
		e.ok(err)
	}
	for _, typ := range []blockstore.FileType{0, blockstore.TypeReg, blockstore.TypeDir, blockstore.TypeLnk, 8, 1 << 31} {
		_, _, _, err := e.Mknod(nil, e.root, "bad", typ, 0, 0, nil)
		e.want(err, blockstore.ErrBadType)
	}
	if e.opts.User != nil {
		_, _, _, err := e.Mknod(e.opts.User, e.root, "dev", blockstore.TypeChr, 1, 3, nil)
		e.want(err, blockstore.ErrPerm)
	}
}

func testLinks(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "data")
	d := e.mkdir(nil, e.root, "d", 0o755)
	a, w, err := e.Link(nil, f, d, "g")
	e.ok(err)
	e.wantNot(a.NLink != 2, "nlink %d", a.NLink)
	e.wantNot(!w.Post.Known, "no attributes of the directory")
	h, err := e.lookup(d, "g")
	e.ok(err)
	e.wantNot(h != f, "the second name has another handle")
	_, _, err = e.Link(nil, f, d, "g")
	e.want(err, blockstore.ErrExist)
	_, _, err = e.Link(nil, d, e.root, "dd")
	e.want(err, blockstore.ErrPerm)
	_, _, err = e.Link(nil, f, f, "x")
	e.want(err, blockstore.ErrNotDir)
	_, err = e.Remove(nil, e.root, "f")
	e.ok(err)
	e.wantNot(e.get(nil, f) != "data", "the data went with the first name")
	e.wantNot(e.attr(f).NLink != 1, "nlink %d", e.attr(f).NLink)
	l, _, _, err := e.Symlink(nil, e.root, "s", "target", nil)
	e.ok(err)
	a, _, err = e.Link(nil, l, e.root, "s2")
	e.ok(err)
	e.wantNot(a.Type != blockstore.TypeLnk || a.NLink != 2, "a hard link to a symlink: %+v", a)
}

func testRename(e *env) {
	a, b := e.mkdir(nil, e.root, "a", 0o755), e.mkdir(nil, e.root, "b", 0o755)
	f := e.mkfile(nil, a, "f", 0o644, "f")
	mv := func(from blockstore.Handle, fn string, to blockstore.Handle, tn string) error {
		_, _, err := e.Rename(nil, from, fn, to, tn)
		return err
	}
	e.ok(mv(a, "f", b, "g"))
	_, err := e.lookup(a, "f")
	e.want(err, blockstore.ErrNotExist)
	h, err := e.lookup(b, "g")
	e.ok(err)
	e.wantNot(h != f, "the handle changed")
	// Over another file, which goes.
	old := e.mkfile(nil, b, "old", 0o644, "old")
	e.ok(mv(b, "g", b, "old"))
	_, err = e.GetAttr(nil, old)
	e.want(err, blockstore.ErrStale)
	e.wantNot(e.get(nil, f) != "f", "wrong file won")
	// Onto itself and onto another name of itself: nothing happens.
	e.ok(mv(b, "old", b, "old"))
	_, _, err = e.Link(nil, f, b, "second")
	e.ok(err)
	e.ok(mv(b, "old", b, "second"))
	e.wantNot(e.attr(f).NLink != 2, "nlink %d", e.attr(f).NLink)
	// Kinds.
	sub := e.mkdir(nil, a, "sub", 0o755)
	e.want(mv(b, "old", a, "sub"), blockstore.ErrIsDir)
	e.want(mv(a, "sub", b, "old"), blockstore.ErrNotDir)
	e.want(mv(a, "nope", b, "x"), blockstore.ErrNotExist)
	// Into itself, over an ancestor, over one that is not empty.
	e.want(mv(e.root, "a", sub, "x"), blockstore.ErrInval)
	e.want(mv(e.root, "a", a, "x"), blockstore.ErrInval)
	e.want(mv(a, "sub", e.root, "a"), blockstore.ErrNotEmpty)
	e.want(mv(e.root, "a", e.root, "b"), blockstore.ErrNotEmpty)
	// Over an empty directory, with the parent following.
	empty := e.mkdir(nil, b, "empty", 0o755)
	e.mkfile(nil, sub, "in", 0o600, "in")
	e.ok(mv(a, "sub", b, "empty"))
	_, err = e.GetAttr(nil, empty)
	e.want(err, blockstore.ErrStale)
	up, err := e.lookup(sub, "..")
	e.ok(err)
	e.wantNot(up != b, ".. of a moved directory is not its new parent")
	e.wantNot(len(e.names(a, 0)) != 0, "the old parent is not empty")
	e.want(mv(f, "x", b, "y"), blockstore.ErrNotDir)
}

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
			_, _, err := e.Rename(nil, e.root, "deep", from, "deep")
			e.ok(err)
		}
		_, _, err := e.Rename(nil, from, "deep", to, "deep")
		e.ok(err)
		e.wantNot(e.get(nil, f) != "content", "lost the file")
		for _, d := range dirs {
			e.attr(d)
		}
	}
	for i, d := range dirs[1:] {
		up, err := e.lookup(d, "..")
		e.ok(err)
		e.wantNot(up != dirs[i], "the handle of a parent changed")
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
	_, _, err = e.Rename(nil, e.root, "d", e.root, "moved")
	e.ok(err)
	_, err = e.Remove(nil, d, "gone")
	e.ok(err)
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
	_, err = e.GetAttr(nil, gone)
	e.want(err, blockstore.ErrStale)
	h, err := e.lookup(d, "f")
	e.ok(err)
	e.wantNot(h != f, "another handle after the restart")
}

func testStale(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "data")
	e.get(nil, f)
	_, err := e.Remove(nil, e.root, "f")
	e.ok(err)
	_, err = e.GetAttr(nil, f)
	e.want(err, blockstore.ErrStale)
	_, _, err = e.ReadAt(nil, f, make([]byte, 4), 0, false)
	e.want(err, blockstore.ErrStale)
	_, _, _, err = e.WriteAt(nil, f, []byte("x"), 0, blockstore.Unstable)
	e.want(err, blockstore.ErrStale)
	_, err = e.SetAttr(nil, f, &blockstore.SetAttr{Mode: ptr(uint32(0))}, nil)
	e.want(err, blockstore.ErrStale)
	_, _, err = e.Access(nil, f, 0x3f)
	e.want(err, blockstore.ErrStale)
	_, err = e.Commit(nil, f, 0, 0)
	e.want(err, blockstore.ErrStale)
	_, _, err = e.Link(nil, f, e.root, "back")
	e.want(err, blockstore.ErrStale)
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
			_, err := e.Remove(nil, e.root, "f")
			e.ok(err)
		},
		"replaced": func() {
			e.mkfile(nil, e.root, "other", 0o644, "other")
			_, _, err := e.Rename(nil, e.root, "other", e.root, "f")
			e.ok(err)
			_, err = e.Remove(nil, e.root, "f")
			e.ok(err)
		},
	} {
		f := e.mkfile(nil, e.root, "f", 0o644, "data")
		e.ok(p.Pin(f))
		e.ok(p.Pin(f))
		remove()
		e.wantNot(e.get(nil, f) != "data", "%s: other data", name)
		e.put(nil, f, "more", 4)
		_, err := e.Commit(nil, f, 0, 0)
		e.ok(err)
		_, err = e.SetAttr(nil, f, &blockstore.SetAttr{Size: ptr(uint64(6))}, nil)
		e.ok(err)
		a := e.attr(f)
		e.wantNot(a.NLink != 0 || a.Size != 6, "%s: %d names, size %d", name, a.NLink, a.Size)
		_, _, err = e.Access(nil, f, blockstore.AccessRead)
		e.ok(err)
		_, err = e.lookup(e.root, "f")
		e.want(err, blockstore.ErrNotExist)
		p.Unpin(f)
		e.wantNot(e.get(nil, f) != "datamo", "%s: %q after one of two", name, e.get(nil, f))
		p.Unpin(f)
		_, err = e.GetAttr(nil, f)
		e.want(err, blockstore.ErrStale)
		e.want(p.Pin(f), blockstore.ErrStale)
		p.Unpin(f) // one too many does nothing
	}
	f := e.mkfile(nil, e.root, "stays", 0o644, "data")
	e.ok(p.Pin(f))
	p.Unpin(f)
	e.wantNot(e.get(nil, f) != "data", "a file that has a name ended with its pin")
	_, err := e.Remove(nil, e.root, "stays")
	e.ok(err)
	_, err = e.GetAttr(nil, f)
	e.want(err, blockstore.ErrStale)
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
			// A changed handle may be another object of the store, or be looked for.
			if err != nil && !errors.Is(err, blockstore.ErrJukebox) {
				check(h)
			}
		}
	}
}

func testBadNames(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "")
	for _, name := range []string{"", ".", "..", "a/b", "/", "a\x00b", "../f"} {
		_, _, _, err := e.Create(nil, e.root, name, blockstore.Guarded, nil, [8]byte{})
		e.want(err, blockstore.ErrInval)
		_, _, _, err = e.Mkdir(nil, e.root, name, nil)
		e.want(err, blockstore.ErrInval)
		_, _, _, err = e.Symlink(nil, e.root, name, "t", nil)
		e.want(err, blockstore.ErrInval)
		_, err = e.Remove(nil, e.root, name)
		e.want(err, blockstore.ErrInval)
		_, err = e.Rmdir(nil, e.root, name)
		e.want(err, blockstore.ErrInval)
		_, _, err = e.Rename(nil, e.root, "f", e.root, name)
		e.want(err, blockstore.ErrInval)
		_, _, err = e.Rename(nil, e.root, name, e.root, "g")
		e.want(err, blockstore.ErrInval)
		_, _, err = e.Link(nil, f, e.root, name)
		e.want(err, blockstore.ErrInval)
		if name != "." && name != ".." {
			if _, err := e.lookup(e.root, name); err == nil {
				e.Fatalf("lookup of %q succeeded", name)
			}
		}
	}
	long := strings.Repeat("x", 256)
	_, _, _, err := e.Create(nil, e.root, long, blockstore.Guarded, nil, [8]byte{})
	e.want(err, blockstore.ErrNameTooLong)
	_, _, err = e.Rename(nil, e.root, "f", e.root, long)
	e.want(err, blockstore.ErrNameTooLong)
}

func testNames(e *env) {
	names := []string{
		"\xff\xfe\x80", "\x01\n\t", " ", "...", "-rf", "*", "naïve", "\xed\xa0\x80", strings.Repeat("ü", 127) + "x", strings.Repeat("z", 255),
	}
	for _, n := range names {
		h := e.mkfile(nil, e.root, n, 0o644, n)
		got, err := e.lookup(e.root, n)
		e.ok(err)
		e.wantNot(got != h, "%q: another file", n)
	}
	set := e.names(e.root, 3)
	for _, n := range names {
		e.wantNot(!set[n], "%q is not listed", n)
	}
	for _, n := range names {
		_, err := e.Remove(nil, e.root, n)
		e.ok(err)
	}
	e.wantNot(len(e.names(e.root, 0)) != 0, "names are left")
}

func testWrongTypes(e *env) {
	d := e.mkdir(nil, e.root, "d", 0o755)
	f := e.mkfile(nil, e.root, "f", 0o644, "")
	_, _, err := e.ReadAt(nil, d, make([]byte, 1), 0, false)
	e.want(err, blockstore.ErrIsDir)
	_, _, _, err = e.WriteAt(nil, d, make([]byte, 1), 0, blockstore.Unstable)
	e.want(err, blockstore.ErrIsDir)
	_, err = e.Commit(nil, d, 0, 0)
	e.want(err, blockstore.ErrIsDir)
	_, err = e.SetAttr(nil, d, &blockstore.SetAttr{Size: ptr(uint64(0))}, nil)
	e.want(err, blockstore.ErrIsDir)
	l, _, _, err := e.Symlink(nil, e.root, "l", "d", nil)
	e.ok(err)
	for _, h := range []blockstore.Handle{f, l} {
		_, _, err = e.Lookup(nil, h, "x")
		e.want(err, blockstore.ErrNotDir)
		_, _, err = e.Lookup(nil, h, "..")
		e.want(err, blockstore.ErrNotDir)
		_, _, err = e.ReadDir(nil, h, 0, [8]byte{}, false, func(*blockstore.DirEntry) bool { return true })
		e.want(err, blockstore.ErrNotDir)
		_, _, _, err = e.Create(nil, h, "x", blockstore.Guarded, nil, [8]byte{})
		e.want(err, blockstore.ErrNotDir)
		_, _, _, err = e.Mkdir(nil, h, "x", nil)
		e.want(err, blockstore.ErrNotDir)
		_, _, _, err = e.Symlink(nil, h, "x", "to", nil)
		e.want(err, blockstore.ErrNotDir)
		_, _, _, err = e.Mknod(nil, h, "x", blockstore.TypeFifo, 0, 0, nil)
		e.want(err, blockstore.ErrNotDir)
		_, err = e.Remove(nil, h, "x")
		e.want(err, blockstore.ErrNotDir)
		_, err = e.Rmdir(nil, h, "x")
		e.want(err, blockstore.ErrNotDir)
		_, _, err = e.Link(nil, f, h, "x")
		e.want(err, blockstore.ErrNotDir)
		_, _, err = e.Rename(nil, h, "x", d, "y")
		e.want(err, blockstore.ErrNotDir)
		_, _, err = e.Rename(nil, e.root, "f", h, "y")
		e.want(err, blockstore.ErrNotDir)
	}
	_, err = e.ReadLink(nil, f)
	e.want(err, blockstore.ErrInval)
}
