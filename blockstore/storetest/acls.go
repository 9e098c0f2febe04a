package storetest

import (
	"slices"

	"github.com/rstored/rstored/blockstore"
)

// Shorthands for entries.
func aclEntry(tag blockstore.ACLTag, perm uint16, id uint32) blockstore.ACLEntry {
	return blockstore.ACLEntry{Tag: tag, Perm: perm, ID: id}
}

func aclOf(owner uint16, users []blockstore.ACLEntry, group uint16, groups []blockstore.ACLEntry, mask,
	other uint16,
) blockstore.ACL {
	l := blockstore.ACL{aclEntry(blockstore.ACLUserObj, owner, 0)}
	l = append(append(l, users...), aclEntry(blockstore.ACLGroupObj, group, 0))
	return append(append(l, groups...), aclEntry(blockstore.ACLMask, mask, 0), aclEntry(blockstore.ACLOther, other, 0))
}

func testACLs(e *env) {
	x, ok := e.FS.(blockstore.ACLs)
	if !ok || !e.Limits().ACLs {
		e.Skip("the store keeps no POSIX ACLs")
	}
	get := func(h blockstore.Handle, kind blockstore.ACLKind) blockstore.ACL {
		e.Helper()
		l, err := x.GetACL(nil, h, kind)
		e.ok(err)
		return l
	}
	set := func(h blockstore.Handle, kind blockstore.ACLKind, l blockstore.ACL) {
		e.Helper()
		before := e.attr(h)
		w, err := x.SetACL(nil, h, kind, l)
		e.ok(err)
		e.wantNot(!w.Pre.Known || !w.Post.Known || w.Pre.Mode != before.Mode || w.Post.Ctime.Before(w.Pre.Ctime),
			"consistency data %+v", w)
	}
	is := func(h blockstore.Handle, kind blockstore.ACLKind, want blockstore.ACL) {
		e.Helper()
		got := get(h, kind)
		e.wantNot(!slices.Equal(got, want), "ACL %v, want %v", got, want)
	}
	mode := func(h blockstore.Handle, want uint32) {
		e.Helper()
		got := e.attr(h).Mode
		e.wantNot(got != want, "mode %o, want %o", got, want)
	}
	users := []blockstore.ACLEntry{aclEntry(blockstore.ACLUser, 7, 4242), aclEntry(blockstore.ACLUser, 0, 4300)}
	groups := []blockstore.ACLEntry{aclEntry(blockstore.ACLGroup, 6, 4301)}
	full := aclOf(7, users, 5, groups, 6, 4)

	f, d := e.mkfile(nil, e.root, "file", 0o640, "data"), e.mkdir(nil, e.root, "dir", 0o750)
	for _, h := range []blockstore.Handle{f, d} {
		e.wantNot(get(h, blockstore.ACLAccess) != nil || get(h, blockstore.ACLDefault) != nil, "an ACL from the start")
		set(h, blockstore.ACLAccess, full)
		is(h, blockstore.ACLAccess, full)
		mode(h, 0o764) // the bits of the group are those of the mask
		e.chmod(nil, h, 0o751)
		is(h, blockstore.ACLAccess, aclOf(7, users, 5, groups, 5, 1))
		set(h, blockstore.ACLAccess, blockstore.ACLOfMode(0o640)) // the mode can express this ACL
		e.wantNot(get(h, blockstore.ACLAccess) != nil, "an ACL that says what the mode does is kept")
		mode(h, 0o640)
		set(h, blockstore.ACLAccess, full)
		set(h, blockstore.ACLAccess, nil)
		e.wantNot(get(h, blockstore.ACLAccess) != nil, "an ACL was not removed")
		mode(h, 0o764)
		set(h, blockstore.ACLAccess, nil)
		for _, bad := range []blockstore.ACL{
			{},
			full[:3], full[1:], append(slices.Clone(full), full[0]),
			slices.Concat(full[:len(full)-2], full[len(full)-1:]),
		} {
			e.want(second(x.SetACL(nil, h, blockstore.ACLAccess, bad)), blockstore.ErrInval)
		}
	}

	e.want(second(x.SetACL(nil, f, blockstore.ACLDefault, full)), blockstore.ErrAccess)
	set(f, blockstore.ACLDefault, nil)
	set(d, blockstore.ACLDefault, full)
	is(d, blockstore.ACLDefault, full)
	mode(d, 0o764)
	in := e.mkfile(nil, d, "in", 0o666, "")
	is(in, blockstore.ACLAccess, aclOf(6, users, 5, groups, 6, 4))
	mode(in, 0o664)
	e.wantNot(get(in, blockstore.ACLDefault) != nil, "a file with a default ACL")
	below := e.mkdir(nil, d, "below", 0o700)
	is(below, blockstore.ACLAccess, aclOf(7, users, 5, groups, 0, 0))
	is(below, blockstore.ACLDefault, full)
	mode(below, 0o700)
	set(d, blockstore.ACLDefault, blockstore.ACLOfMode(0o750))
	is(d, blockstore.ACLDefault, blockstore.ACLOfMode(0o750))
	plain := e.mkfile(nil, d, "plain", 0o666, "")
	e.wantNot(get(plain, blockstore.ACLAccess) != nil, "an ACL that says what the mode does")
	mode(plain, 0o640)
	set(d, blockstore.ACLDefault, nil)
	e.wantNot(get(d, blockstore.ACLDefault) != nil, "a default ACL was not removed")

	l, _, _, err := e.Symlink(nil, e.root, "link", "target", nil)
	e.ok(err)
	e.wantNot(get(l, blockstore.ACLAccess) != nil, "a symlink with an ACL")
	e.want(second(x.SetACL(nil, l, blockstore.ACLAccess, full)), blockstore.ErrNotSupp)

	if !e.opts.Root {
		return
	}
	e.want(second(x.SetACL(Other, f, blockstore.ACLAccess, full)), blockstore.ErrPerm)
	// Users that the ACL names, with and without access; a member of a group that it names; a user
	// of the class other; a member of the group of the file.
	set(f, blockstore.ACLAccess, aclOf(6, users, 0, groups, 6, 4))
	named, shut := &blockstore.Cred{UID: 4242, GID: 9}, &blockstore.Cred{UID: 4300, GID: 4301}
	member, nobody := &blockstore.Cred{UID: 9, GID: 9, Groups: []uint32{4301}}, &blockstore.Cred{UID: 9, GID: 9}
	owning := &blockstore.Cred{UID: 9, GID: e.attr(f).GID}
	const all = blockstore.AccessRead | blockstore.AccessModify | blockstore.AccessExecute
	for _, c := range []struct {
		who  *blockstore.Cred
		want uint32
	}{
		{named, blockstore.AccessRead | blockstore.AccessModify},
		{shut, 0},
		{member, blockstore.AccessRead | blockstore.AccessModify},
		{nobody, blockstore.AccessRead},
		{owning, 0},
	} {
		got, _, err := e.Access(c.who, f, all)
		e.ok(err)
		e.wantNot(got != c.want, "%+v has access %x, want %x", c.who, got, c.want)
	}
}
