package storetest

import (
	"github.com/rstored/rstored/blockstore"
)

func (e *env) needUser() *blockstore.Cred {
	if e.opts.User == nil {
		e.Skip("no user to act as")
	}
	return e.opts.User
}

func testPermissions(e *env) {
	u := e.needUser()
	f := e.mkfile(u, e.root, "f", 0o640, "data")
	a := e.attr(f)
	e.wantNot(a.UID != u.UID || a.GID != u.GID, "made by %d:%d, owned by %d:%d", u.UID, u.GID, a.UID, a.GID)
	buf := make([]byte, 4)
	e.want(third(e.ReadAt(Other, f, buf, 0, false)), blockstore.ErrAccess)
	e.want(fourth(e.WriteAt(Other, f, buf, 0, blockstore.Unstable)), blockstore.ErrAccess)
	e.want(second(e.Commit(Other, f, 0, 0)), blockstore.ErrAccess)
	// The caller is in the group of the file: by its first group, or by a supplementary one.
	for _, c := range []*blockstore.Cred{{UID: 4242, GID: u.GID}, {UID: 4242, GID: 4243, Groups: []uint32{1, u.GID, 5}}} {
		e.ok(third(e.ReadAt(c, f, buf, 0, false)))
		e.want(fourth(e.WriteAt(c, f, buf, 0, blockstore.Unstable)), blockstore.ErrAccess)
	}
	// The caller has more groups than a cached decision has room for.
	many := &blockstore.Cred{UID: 4242, GID: 4243}
	for g := range uint32(40) {
		many.Groups = append(many.Groups, 9000+g)
	}
	e.want(third(e.ReadAt(many, f, buf, 0, false)), blockstore.ErrAccess)
	many.Groups = append(many.Groups, u.GID)
	e.ok(third(e.ReadAt(many, f, buf, 0, false)))
	// A change of mode counts at once.
	e.chmod(u, f, 0o666)
	e.ok(fourth(e.WriteAt(Other, f, buf, 0, blockstore.Unstable)))
	e.chmod(u, f, 0o600)
	e.want(fourth(e.WriteAt(Other, f, buf, 0, blockstore.Unstable)), blockstore.ErrAccess)
	// Execute permission lets a user READ: a client must read a program to run it.
	e.chmod(u, f, 0o711)
	e.ok(third(e.ReadAt(Other, f, buf, 0, false)))
	// Only one class decides: a member of the group does not get the bits of others.
	e.chmod(u, f, 0o606)
	e.want(third(e.ReadAt(&blockstore.Cred{UID: 4242, GID: u.GID}, f, buf, 0, false)), blockstore.ErrAccess)

	// Directories: search, list and change are three rights.
	d := e.mkdir(u, e.root, "d", 0o711)
	e.mkfile(u, d, "in", 0o644, "x")
	e.ok(third(e.Lookup(Other, d, "in")))
	list := func(c *blockstore.Cred, plus bool) (n int, err error) {
		_, _, err = e.ReadDir(c, d, 0, [8]byte{}, plus, func(x *blockstore.DirEntry) bool {
			if x.Attr != nil {
				n++
			}
			return true
		})
		return n, err
	}
	e.want(second(list(Other, false)), blockstore.ErrAccess)
	for _, err := range []error{
		second(e.Remove(Other, d, "in")), second(e.Rmdir(Other, d, "in")),
		fourth(e.Create(Other, d, "new", blockstore.Guarded, nil, [8]byte{})),
		fourth(e.Create(Other, d, "new", blockstore.Unchecked, nil, [8]byte{})),
		fourth(e.Mkdir(Other, d, "new", nil)), fourth(e.Symlink(Other, d, "new", "t", nil)),
		fourth(e.Mknod(Other, d, "new", blockstore.TypeFifo, 0, 0, nil)),
		third(e.Rename(Other, d, "in", e.root, "out")), third(e.Rename(Other, d, "in", d, "out")),
	} {
		e.want(err, blockstore.ErrAccess)
	}
	e.want(fourth(e.Create(Other, d, "in", blockstore.Guarded, nil, [8]byte{})), blockstore.ErrExist)
	e.chmod(u, d, 0o744)
	e.want(third(e.Lookup(Other, d, "in")), blockstore.ErrAccess)
	e.want(third(e.Lookup(Other, d, "absent")), blockstore.ErrAccess)
	n, err := list(Other, true)
	e.ok(err)
	e.wantNot(n > 2, "attributes of entries without search permission")
	// Root may do all of the above.
	root := &blockstore.Cred{}
	e.ok(third(e.Lookup(root, d, "in")))
	e.ok(third(e.ReadAt(root, f, buf, 0, false)))
}

func testOwnerOverride(e *env) {
	u := e.needUser()
	f := e.mkfile(u, e.root, "f", 0o000, "")
	e.put(u, f, "written", 0)
	e.wantNot(e.get(u, f) != "written", "the owner cannot read")
	e.ok(second(e.SetAttr(u, f, &blockstore.SetAttr{Size: new(uint64(4))}, nil)))
	e.ok(second(e.Commit(u, f, 0, 0)))
	got, _, err := e.Access(u, f, 0x3f)
	e.ok(err)
	e.wantNot(got != 0, "access %#x for mode 0", got)
}

func testSetAttrPermissions(e *env) {
	u := e.needUser()
	f := e.mkfile(u, e.root, "f", 0o666, "0123")
	set := func(c *blockstore.Cred, s blockstore.SetAttr) error {
		_, err := e.SetAttr(c, f, &s, nil)
		return err
	}
	when := unix(1000000000, 0)
	e.want(set(Other, blockstore.SetAttr{Mode: new(uint32(0o777))}), blockstore.ErrPerm)
	e.want(set(Other, blockstore.SetAttr{MtimeHow: blockstore.TimeClient, Mtime: when}), blockstore.ErrPerm)
	e.ok(set(Other, blockstore.SetAttr{MtimeHow: blockstore.TimeServer}))
	e.ok(set(Other, blockstore.SetAttr{AtimeHow: blockstore.TimeServer, MtimeHow: blockstore.TimeServer}))
	e.ok(set(Other, blockstore.SetAttr{Size: new(uint64(2))}))
	e.want(set(Other, blockstore.SetAttr{UID: new(Other.UID)}), blockstore.ErrPerm)
	e.want(set(Other, blockstore.SetAttr{GID: new(Other.GID)}), blockstore.ErrPerm)
	e.want(set(u, blockstore.SetAttr{UID: new(Other.UID)}), blockstore.ErrPerm)
	e.want(set(u, blockstore.SetAttr{GID: new(Other.GID)}), blockstore.ErrPerm)
	e.ok(set(u, blockstore.SetAttr{UID: new(u.UID), GID: new(u.GID)}))
	e.ok(set(u, blockstore.SetAttr{Mode: new(uint32(0o600)), MtimeHow: blockstore.TimeClient, Mtime: when}))
	e.want(set(Other, blockstore.SetAttr{Size: new(uint64(0))}), blockstore.ErrAccess)
	e.want(set(Other, blockstore.SetAttr{MtimeHow: blockstore.TimeServer}), blockstore.ErrAccess)
	// A SETATTR that is refused changes nothing.
	e.want(set(Other, blockstore.SetAttr{Size: new(uint64(0)), Mode: new(uint32(0))}), blockstore.ErrAccess)
	e.wantNot(e.attr(f).Size != 2, "size changed by a refused request")
	if e.opts.AnyUser {
		member := &blockstore.Cred{UID: u.UID, GID: u.GID, Groups: []uint32{5151}}
		e.ok(set(member, blockstore.SetAttr{GID: new(uint32(5151))}))
		e.wantNot(e.attr(f).GID != 5151, "gid %d", e.attr(f).GID)
	}
}

func testSticky(e *env) {
	u := e.needUser()
	if !e.opts.AnyUser {
		e.Skip("one user only")
	}
	d := e.mkdir(nil, e.root, "tmp", 0o1777)
	e.mkfile(u, d, "mine", 0o666, "")
	e.mkfile(Other, d, "theirs", 0o666, "")
	e.want(second(e.Remove(Other, d, "mine")), blockstore.ErrPerm)
	e.want(third(e.Rename(Other, d, "mine", d, "x")), blockstore.ErrPerm)
	e.want(third(e.Rename(Other, d, "theirs", d, "mine")), blockstore.ErrPerm)
	e.ok(third(e.Rename(Other, d, "theirs", d, "renamed")))
	e.ok(second(e.Remove(u, d, "mine")))
	e.ok(second(e.Remove(Other, d, "renamed")))
}

func testSetGIDDirectory(e *env) {
	u := e.needUser()
	if !e.opts.AnyUser || !e.opts.Root {
		e.Skip("groups cannot be given away")
	}
	d := e.mkdir(nil, e.root, "d", 0o777)
	e.ok(second(e.SetAttr(nil, d, &blockstore.SetAttr{GID: new(uint32(600))}, nil)))
	e.chmod(nil, d, 0o2777)
	f := e.mkfile(u, d, "f", 0o644, "")
	e.wantNot(e.attr(f).GID != 600, "gid %d of a file in a set-group-ID directory", e.attr(f).GID)
	sub := e.attr(e.mkdir(u, d, "sub", 0o755))
	e.wantNot(sub.GID != 600 || sub.Mode != 0o2755, "subdirectory %d mode %o", sub.GID, sub.Mode)
	x := e.mkfile(u, d, "x", 0o2755, "")
	e.wantNot(e.attr(x).Mode != 0o755, "mode %o: set-group-ID of another's group", e.attr(x).Mode)
	plain := e.attr(e.mkdir(u, e.root, "plain", 0o6755))
	e.wantNot(plain.Mode != 0o755, "mkdir with set-ID bits made %o", plain.Mode)
}

func testSetIDBits(e *env) {
	u := e.needUser()
	fresh := func(name string) blockstore.Handle {
		h := e.mkfile(u, e.root, name, 0o777, "data")
		e.chmod(u, h, 0o6777)
		e.wantNot(e.attr(h).Mode != 0o6777, "mode %o", e.attr(h).Mode)
		return h
	}
	f := fresh("written")
	e.put(Other, f, "x", 0)
	e.wantNot(e.attr(f).Mode != 0o777, "mode %o after a write", e.attr(f).Mode)
	f = fresh("truncated")
	e.ok(second(e.SetAttr(Other, f, &blockstore.SetAttr{Size: new(uint64(1))}, nil)))
	e.wantNot(e.attr(f).Mode != 0o777, "mode %o after a truncation", e.attr(f).Mode)
	f = fresh("given")
	e.ok(second(e.SetAttr(u, f, &blockstore.SetAttr{GID: new(u.GID)}, nil)))
	e.wantNot(e.attr(f).Mode != 0o777, "mode %o after a chown", e.attr(f).Mode)
	f = fresh("both")
	e.ok(second(e.SetAttr(u, f, &blockstore.SetAttr{GID: new(u.GID), Mode: new(uint32(0o6755))}, nil)))
	e.wantNot(e.attr(f).Mode != 0o755, "mode %o after chown and chmod in one", e.attr(f).Mode)
}

func testAccess(e *env) {
	u := e.needUser()
	const all = 0x3f
	for _, tc := range []struct {
		mode        uint32
		owner, rest uint32
	}{
		{0o000, 0, 0},
		{0o400, 1, 0},
		{0o604, 1 | 4 | 8, 1},
		{0o751, 1 | 4 | 8 | 32, 32},
		{0o077, 0, 1 | 4 | 8 | 32},
	} {
		h := e.mkfile(u, e.root, numbered(int(tc.mode)), tc.mode, "")
		for _, who := range []struct {
			c    *blockstore.Cred
			want uint32
		}{{u, tc.owner}, {Other, tc.rest}, {nil, 0}} {
			got, a, err := e.Access(who.c, h, all)
			e.ok(err)
			e.wantNot(a.Mode != tc.mode, "attributes %+v", a)
			if who.c == nil {
				who.want = 1 | 4 | 8
				if tc.mode&0o111 != 0 {
					who.want |= 32
				}
			}
			e.wantNot(got != who.want, "mode %o: access %#x, want %#x", tc.mode, got, who.want)
			one, _, err := e.Access(who.c, h, 1)
			e.ok(err)
			e.wantNot(one != who.want&1, "bits that were not asked: %#x", one)
		}
	}
	for _, tc := range []struct{ mode, want uint32 }{
		{0o700, 0},
		{0o704, 1},
		{0o701, 2},
		{0o703, 2 | 4 | 8 | 16},
		{0o702, 0},
		{0o707, 0x1f},
	} {
		h := e.mkdir(u, e.root, "dir"+numbered(int(tc.mode)), tc.mode)
		got, _, err := e.Access(Other, h, all)
		e.ok(err)
		e.wantNot(got != tc.want, "directory %o: access %#x, want %#x", tc.mode, got, tc.want)
	}
}
