package storetest

import (
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
	e.want(second(e.lookup(d, "nope")), blockstore.ErrNotExist)
	e.want(second(e.lookup(f, "x")), blockstore.ErrNotDir)
	e.want(second(e.lookup(d, strings.Repeat("n", 256))), blockstore.ErrNameTooLong)
}

func testCreateModes(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o600, "hello")
	a := e.attr(f)
	e.wantNot(a.Mode != 0o600 || a.Type != blockstore.TypeReg || a.Size != 5 || a.NLink != 1, "attributes %+v", a)
	e.want(fourth(e.Create(nil, e.root, "f", blockstore.Guarded, nil, [8]byte{})), blockstore.ErrExist)
	h, a, _, err := e.Create(nil, e.root, "f", blockstore.Unchecked, &blockstore.SetAttr{Mode: new(uint32(0o777))},
		[8]byte{})
	e.ok(err)
	e.wantNot(h != f || a.Mode != 0o600 || a.Size != 5, "an unchecked create changed more than the size: %+v", a)
	_, a, _, err = e.Create(nil, e.root, "f", blockstore.Unchecked, &blockstore.SetAttr{Size: new(uint64(0))}, [8]byte{})
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
		e.want(fourth(e.Create(nil, e.root, "d", m, nil, [8]byte{})), blockstore.ErrExist)
	}
	_, a, _, err = e.Create(nil, e.root, "sized", blockstore.Unchecked, &blockstore.SetAttr{Size: new(uint64(1000))},
		[8]byte{})
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
		e.want(fourth(e.Create(nil, e.root, "x", blockstore.Exclusive, nil, v)), blockstore.ErrExist)
	}
	// The name of a directory or of a symbolic link is ErrExist, whatever the verifier.
	e.mkdir(nil, e.root, "xdir", 0o755)
	e.ok(fourth(e.Symlink(nil, e.root, "xlink", "nowhere", nil)))
	for _, name := range []string{"xdir", "xlink"} {
		e.want(fourth(e.Create(nil, e.root, name, blockstore.Exclusive, nil, v1)), blockstore.ErrExist)
	}
	if e.opts.Reopen != nil {
		e.FS = e.opts.Reopen(e.T, e.FS)
		again, _, _, err := e.Create(nil, e.root, "x", blockstore.Exclusive, nil, v1)
		e.ok(err)
		e.wantNot(again != h, "the retry after a restart made another file")
	}
	_, err = e.SetAttr(nil, h, &blockstore.SetAttr{
		Mode: new(uint32(0o644)), AtimeHow: blockstore.TimeServer,
		MtimeHow: blockstore.TimeServer,
	}, nil)
	e.ok(err)
	e.want(fourth(e.Create(nil, e.root, "x", blockstore.Exclusive, nil, v1)), blockstore.ErrExist)
}

func testDirs(e *env) {
	links := e.attr(e.root).NLink
	d := e.mkdir(nil, e.root, "d", 0o750)
	a := e.attr(d)
	e.wantNot(a.Type != blockstore.TypeDir || a.Mode != 0o750, "attributes %+v", a)
	if links > 1 { // not every filesystem counts subdirectories
		e.wantNot(e.attr(e.root).NLink != links+1, "nlink of the parent %d", e.attr(e.root).NLink)
	}
	e.want(fourth(e.Mkdir(nil, e.root, "d", nil)), blockstore.ErrExist)
	e.mkfile(nil, d, "f", 0o600, "")
	e.want(second(e.Rmdir(nil, e.root, "d")), blockstore.ErrNotEmpty)
	e.want(second(e.Remove(nil, e.root, "d")), blockstore.ErrIsDir)
	e.want(second(e.Rmdir(nil, d, "f")), blockstore.ErrNotDir)
	e.ok(second(e.Remove(nil, d, "f")))
	e.want(second(e.Remove(nil, d, "f")), blockstore.ErrNotExist)
	e.ok(second(e.Rmdir(nil, e.root, "d")))
	e.wantNot(e.attr(e.root).NLink != links, "nlink of the parent %d", e.attr(e.root).NLink)
	e.want(second(e.Rmdir(nil, e.root, "d")), blockstore.ErrNotExist)
	e.want(second(e.GetAttr(nil, d)), blockstore.ErrStale)
	e.want(fourth(e.Mkdir(nil, d, "below", nil)), blockstore.ErrStale)
}

func testSymlinks(e *env) {
	for name, target := range map[string]string{
		"rel": "../../etc/passwd", "abs": "/etc/passwd", "self": "self", "bytes": "\xff\xfe/\x01",
		"long": strings.Repeat("t/", 1000),
	} {
		h, a, _, err := e.Symlink(nil, e.root, name, target, nil)
		e.ok(err)
		e.wantNot(a.Type != blockstore.TypeLnk || a.Size != uint64(len(target)), "attributes %+v", a)
		got, err := e.ReadLink(nil, h)
		e.ok(err)
		e.wantNot(got != target, "target %q, want %q", got, target)
		e.wantNot(e.find(e.root, name) != h, "lookup followed the link")
		e.want(second(e.lookup(h, "x")), blockstore.ErrNotDir)
		e.want(third(e.ReadAt(nil, h, make([]byte, 10), 0, false)), blockstore.ErrInval)
		e.chmod(nil, h, 0o600)
		e.want(second(e.SetAttr(nil, h, &blockstore.SetAttr{Size: new(uint64(0))}, nil)), blockstore.ErrInval)
		when := unix(1e9, 5)
		e.ok(second(e.SetAttr(nil, h, &blockstore.SetAttr{MtimeHow: blockstore.TimeClient, Mtime: when}, nil)))
		e.wantNot(!e.attr(h).Mtime.Equal(when), "mtime %v", e.attr(h).Mtime)
		e.want(fourth(e.Create(nil, e.root, name, blockstore.Unchecked, nil, [8]byte{})), blockstore.ErrExist)
		e.ok(second(e.Remove(nil, e.root, name)))
	}
	e.want(second(e.ReadLink(nil, e.root)), blockstore.ErrInval)
	e.want(fourth(e.Symlink(nil, e.root, "empty", "", nil)), blockstore.ErrNotExist)
	e.want(fourth(e.Symlink(nil, e.root, "huge", strings.Repeat("x", 5000), nil)), blockstore.ErrNameTooLong)
}

func testSpecial(e *env) {
	kinds := map[string]blockstore.FileType{"fifo": blockstore.TypeFifo, "sock": blockstore.TypeSock}
	if e.opts.Root {
		kinds["chr"], kinds["blk"] = blockstore.TypeChr, blockstore.TypeBlk
	}
	for name, typ := range kinds {
		h, a, _, err := e.Mknod(nil, e.root, name, typ, 7, 300, &blockstore.SetAttr{Mode: new(uint32(0o620))})
		e.ok(err)
		e.wantNot(a.Type != typ || a.Mode != 0o620, "%s: attributes %+v", name, a)
		if typ == blockstore.TypeChr || typ == blockstore.TypeBlk {
			e.wantNot(a.Major != 7 || a.Minor != 300, "%s: device %d:%d", name, a.Major, a.Minor)
		}
		e.want(third(e.ReadAt(nil, h, make([]byte, 1), 0, false)), blockstore.ErrInval)
		e.want(fourth(e.WriteAt(nil, h, make([]byte, 1), 0, blockstore.Unstable)), blockstore.ErrInval)
		e.want(second(e.Commit(nil, h, 0, 0)), blockstore.ErrInval)
		e.want(fourth(e.Mknod(nil, e.root, name, typ, 0, 0, nil)), blockstore.ErrExist)
		e.ok(second(e.Remove(nil, e.root, name)))
	}
	for _, typ := range []blockstore.FileType{0, blockstore.TypeReg, blockstore.TypeDir, blockstore.TypeLnk, 8, 1 << 31} {
		e.want(fourth(e.Mknod(nil, e.root, "bad", typ, 0, 0, nil)), blockstore.ErrBadType)
	}
	if e.opts.User != nil {
		e.want(fourth(e.Mknod(e.opts.User, e.root, "dev", blockstore.TypeChr, 1, 3, nil)), blockstore.ErrPerm)
	}
}

func testLinks(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "data")
	d := e.mkdir(nil, e.root, "d", 0o755)
	a, w, err := e.Link(nil, f, d, "g")
	e.ok(err)
	e.wantNot(a.NLink != 2, "nlink %d", a.NLink)
	e.wantNot(!w.Post.Known, "no attributes of the directory")
	e.wantNot(e.find(d, "g") != f, "the second name has another handle")
	e.want(third(e.Link(nil, f, d, "g")), blockstore.ErrExist)
	e.want(third(e.Link(nil, d, e.root, "dd")), blockstore.ErrPerm)
	e.want(third(e.Link(nil, f, f, "x")), blockstore.ErrNotDir)
	e.ok(second(e.Remove(nil, e.root, "f")))
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
	e.want(second(e.lookup(a, "f")), blockstore.ErrNotExist)
	e.wantNot(e.find(b, "g") != f, "the handle changed")
	// A rename replaces a file.
	old := e.mkfile(nil, b, "old", 0o644, "old")
	e.ok(mv(b, "g", b, "old"))
	e.want(second(e.GetAttr(nil, old)), blockstore.ErrStale)
	e.wantNot(e.get(nil, f) != "f", "wrong file won")
	// A rename to the same name, or to another name of the same file, changes nothing.
	e.ok(mv(b, "old", b, "old"))
	e.ok(third(e.Link(nil, f, b, "second")))
	e.ok(mv(b, "old", b, "second"))
	e.wantNot(e.attr(f).NLink != 2, "nlink %d", e.attr(f).NLink)
	// A file does not replace a directory, nor a directory a file.
	sub := e.mkdir(nil, a, "sub", 0o755)
	e.want(mv(b, "old", a, "sub"), blockstore.ErrIsDir)
	e.want(mv(a, "sub", b, "old"), blockstore.ErrNotDir)
	e.want(mv(a, "nope", b, "x"), blockstore.ErrNotExist)
	// A directory does not move into itself, and replaces neither an ancestor nor a directory that
	// is not empty.
	e.want(mv(e.root, "a", sub, "x"), blockstore.ErrInval)
	e.want(mv(e.root, "a", a, "x"), blockstore.ErrInval)
	e.want(mv(a, "sub", e.root, "a"), blockstore.ErrNotEmpty)
	e.want(mv(e.root, "a", e.root, "b"), blockstore.ErrNotEmpty)
	// A directory replaces an empty directory, and gets a new parent.
	empty := e.mkdir(nil, b, "empty", 0o755)
	e.mkfile(nil, sub, "in", 0o600, "in")
	e.ok(mv(a, "sub", b, "empty"))
	e.want(second(e.GetAttr(nil, empty)), blockstore.ErrStale)
	e.wantNot(e.find(sub, "..") != b, ".. of a moved directory is not its new parent")
	e.wantNot(len(e.names(a, 0)) != 0, "the old parent is not empty")
	e.want(mv(f, "x", b, "y"), blockstore.ErrNotDir)
}

func testBadNames(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "")
	for _, name := range []string{"", ".", "..", "a/b", "/", "a\x00b", "../f"} {
		e.want(fourth(e.Create(nil, e.root, name, blockstore.Guarded, nil, [8]byte{})), blockstore.ErrInval)
		e.want(fourth(e.Mkdir(nil, e.root, name, nil)), blockstore.ErrInval)
		e.want(fourth(e.Symlink(nil, e.root, name, "t", nil)), blockstore.ErrInval)
		e.want(second(e.Remove(nil, e.root, name)), blockstore.ErrInval)
		e.want(second(e.Rmdir(nil, e.root, name)), blockstore.ErrInval)
		e.want(third(e.Rename(nil, e.root, "f", e.root, name)), blockstore.ErrInval)
		e.want(third(e.Rename(nil, e.root, name, e.root, "g")), blockstore.ErrInval)
		e.want(third(e.Link(nil, f, e.root, name)), blockstore.ErrInval)
		if name != "." && name != ".." {
			if _, err := e.lookup(e.root, name); err == nil {
				e.Fatalf("lookup of %q succeeded", name)
			}
		}
	}
	long := strings.Repeat("x", 256)
	e.want(fourth(e.Create(nil, e.root, long, blockstore.Guarded, nil, [8]byte{})), blockstore.ErrNameTooLong)
	e.want(third(e.Rename(nil, e.root, "f", e.root, long)), blockstore.ErrNameTooLong)
}

func testNames(e *env) {
	names := []string{
		"\xff\xfe\x80", "\x01\n\t", " ", "...", "-rf", "*", "naïve", "\xed\xa0\x80", strings.Repeat("ü", 127) + "x",
		strings.Repeat("z", 255),
	}
	for _, n := range names {
		h := e.mkfile(nil, e.root, n, 0o644, n)
		e.wantNot(e.find(e.root, n) != h, "%q: another file", n)
	}
	set := e.names(e.root, 3)
	for _, n := range names {
		e.wantNot(!set[n], "%q is not listed", n)
	}
	for _, n := range names {
		e.ok(second(e.Remove(nil, e.root, n)))
	}
	e.wantNot(len(e.names(e.root, 0)) != 0, "names are left")
}

func testWrongTypes(e *env) {
	d := e.mkdir(nil, e.root, "d", 0o755)
	f := e.mkfile(nil, e.root, "f", 0o644, "")
	e.want(third(e.ReadAt(nil, d, make([]byte, 1), 0, false)), blockstore.ErrIsDir)
	e.want(fourth(e.WriteAt(nil, d, make([]byte, 1), 0, blockstore.Unstable)), blockstore.ErrIsDir)
	e.want(second(e.Commit(nil, d, 0, 0)), blockstore.ErrIsDir)
	e.want(second(e.SetAttr(nil, d, &blockstore.SetAttr{Size: new(uint64(0))}, nil)), blockstore.ErrIsDir)
	l, _, _, err := e.Symlink(nil, e.root, "l", "d", nil)
	e.ok(err)
	for _, h := range []blockstore.Handle{f, l} {
		e.want(third(e.Lookup(nil, h, "x")), blockstore.ErrNotDir)
		e.want(third(e.Lookup(nil, h, "..")), blockstore.ErrNotDir)
		_, _, err = e.ReadDir(nil, h, 0, [8]byte{}, false, func(*blockstore.DirEntry) bool { return true })
		e.want(err, blockstore.ErrNotDir)
		e.want(fourth(e.Create(nil, h, "x", blockstore.Guarded, nil, [8]byte{})), blockstore.ErrNotDir)
		e.want(fourth(e.Mkdir(nil, h, "x", nil)), blockstore.ErrNotDir)
		e.want(fourth(e.Symlink(nil, h, "x", "to", nil)), blockstore.ErrNotDir)
		e.want(fourth(e.Mknod(nil, h, "x", blockstore.TypeFifo, 0, 0, nil)), blockstore.ErrNotDir)
		e.want(second(e.Remove(nil, h, "x")), blockstore.ErrNotDir)
		e.want(second(e.Rmdir(nil, h, "x")), blockstore.ErrNotDir)
		e.want(third(e.Link(nil, f, h, "x")), blockstore.ErrNotDir)
		e.want(third(e.Rename(nil, h, "x", d, "y")), blockstore.ErrNotDir)
		e.want(third(e.Rename(nil, e.root, "f", h, "y")), blockstore.ErrNotDir)
	}
	e.want(second(e.ReadLink(nil, f)), blockstore.ErrInval)
}
