package nfs4

import (
	"strings"
	"unicode/utf8"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// checkName refuses what cannot be a component4. Names are bytes unless UTF-8 is configured
// (fs_charset_cap, RFC 8881 section 14.4). So names that clients have made in another character set
// stay reachable. A store relies on checkName: it gets no slash, no NUL, and neither "." nor "..".
//
//	length 0, or not UTF-8 if that is configured   INVAL
//	"." and ".."                                   BADNAME
//	contains "/" or NUL                            BADCHAR
//	256 to 4096 bytes                              NAMETOOLONG
//	more than 4096 bytes (nameMax)                 BADXDR, from the decoder
func (k *compound) checkName(name string) nfs.Status {
	switch {
	case name == "", k.s.cfg.UTF8 && !utf8.ValidString(name):
		return nfs.ErrInval
	case name == "." || name == "..":
		return nfs.ErrBadName
	case strings.ContainsAny(name, "/\x00"):
		return nfs.ErrBadChar
	case len(name) > blockstore.NameMax:
		return nfs.ErrNameTooLong
	}
	return nfs.OK
}

// decodeName reads and checks the argument of an operation that has a component4 alone. The name is
// a copy of the receive buffer: Decoder.String allocates.
func (k *compound) decodeName() (name string, st nfs.Status) {
	name = k.c.Args.String(nameMax)
	if k.bad() {
		return "", nfs.ErrBadXDR
	}
	return name, k.checkName(name)
}

// changeable returns ROFS if the client must not change the object, or the entries of a directory.
// An operation calls changeable before it recalls a delegation: a client that can change nothing
// must not cause recalls.
func (o *object) changeable() nfs.Status {
	if o.readOnly() {
		return nfs.ErrROFS
	}
	return nfs.OK
}

// changed returns the change_info4 of a directory. Its layout is
//
//	bool atomic | uint64 before | uint64 after
//
// The Linux client compares before with the change attribute in its cache. If atomic is true and
// both are equal, the client keeps its cache of the directory; else it drops the cache. So atomic
// may be true only if the store excludes every other change between both values (Limits.WccExact).
// Otherwise the client could keep entries that are wrong.
//
// If the store does not know the attributes after the change, changed asks for them. An attribute
// that stays unknown is 0. The operation succeeds all the same, because the change has been made.
func (k *compound) changed(dir *object, w *blockstore.Wcc) (c changeInfo) {
	after := w.Post
	if !after.Known {
		if a, err := dir.x.FS.GetAttr(k.who(dir), dir.h); err == nil {
			after = blockstore.Known(&a)
		}
	}
	if after.Known {
		c.after = changeOf(&after.Attr)
	}
	c.before = c.after
	if w.Pre.Known {
		c.before = changeOf(&w.Pre.Attr)
		c.atomic = w.Post.Known && dir.x.FS.Limits().WccExact
	}
	return c
}

// create is CREATE (RFC 8881 section 18.4, RFC 7530 section 16.4). It makes every type of object
// but regular files, which OPEN makes.
//
//	arguments  createtype4 | component4 objname | fattr4
//	           createtype4: uint32 type, then
//	             5 NF4LNK           linktext4
//	             3 NF4BLK, 4 NF4CHR specdata4: uint32 major, uint32 minor
//	             others             void
//	result     change_info4 of the directory | bitmap4 of the attributes that were set
//
// On success the new object becomes the current file handle. The store sets the attributes as it
// makes the object, except the ACL and the label, which are set afterwards. If that fails the
// operation still succeeds, and the bitmap lacks the attribute. An error would make the client
// believe that there is no object.
//
// An unknown type counts as one without data, because the default of the XDR union is void. It is
// BADTYPE, but only after the fattr4 and the name have passed their checks.
func create(k *compound) nfs.Status {
	d := &k.c.Args
	typ := blockstore.FileType(d.Uint32())
	var target string
	var major, minor uint32
	switch typ {
	case blockstore.TypeLnk:
		target = string(d.Bulk(pathMax))
	case blockstore.TypeBlk, blockstore.TypeChr:
		major, minor = d.Uint32(), d.Uint32()
	}
	name := d.String(nameMax)
	s, set, st := k.decodeSetAttr(settableNew)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	switch {
	case st != nfs.OK:
		return st
	case k.cur.x != nil && k.cur.readOnly(), k.cur.x == nil:
		return nfs.ErrROFS
	}
	if st := k.checkName(name); st != nfs.OK {
		return st
	}
	if st := k.prepareNew(&k.cur, &s, typ == blockstore.TypeDir, false); st != nfs.OK {
		return st
	}
	dir, fs, who := k.cur, k.cur.x.FS, k.who(&k.cur)
	switch typ {
	case blockstore.TypeLnk:
		if target == "" {
			return nfs.ErrInval
		}
	case blockstore.TypeDir, blockstore.TypeBlk, blockstore.TypeChr, blockstore.TypeSock, blockstore.TypeFifo:
	default:
		return nfs.ErrBadType
	}
	var w blockstore.Wcc
	event := nfs.DirEvent{Added: name}
	if st := k.beginDir(&dir, &event); st != nfs.OK {
		return st
	}
	// If the client repeats the call after a kill of the server, once finds the object of the first
	// execution. The store would return EXIST, and the client would report an error for a directory
	// that it made itself.
	h, _, isMade, err := k.once(k.args).Made(who, dir.h, name, typ, &s.SetAttr)
	switch {
	case isMade:
	case typ == blockstore.TypeDir:
		h, _, w, err = fs.Mkdir(who, dir.h, name, &s.SetAttr)
	case typ == blockstore.TypeLnk:
		h, _, w, err = fs.Symlink(who, dir.h, name, target, &s.SetAttr)
	default:
		h, _, w, err = fs.Mknod(who, dir.h, name, typ, major, minor, &s.SetAttr)
	}
	if err != nil {
		return k.within(&dir, err)
	}
	k.dirChanged(&dir, &event)
	made := object{x: dir.x, rule: dir.rule, h: h}
	k.setNew(&made, &s, typ == blockstore.TypeDir, &set)
	k.changed(&dir, &w).encode(&k.c.Res)
	set.Encode(&k.c.Res)
	k.setCurrent(made)
	return nfs.OK
}

// remove is REMOVE (RFC 8881 section 18.25, RFC 7530 section 16.26). It removes directories too:
// version 4 has no RMDIR. The type of the object decides between unlink and rmdir, and only the
// store knows it.
//
// During the grace period every REMOVE is GRACE. Otherwise a client that has not reclaimed its open
// yet could lose the file: an open pins its file only from the reclaim on.
//
// A delegation of the file or directory is recalled first (section 18.25.4).
//
// A name at which another export lies can neither be removed nor renamed: ACCESS.
func remove(k *compound) nfs.Status {
	name, st := k.decodeName()
	if st == nfs.OK {
		st = k.cur.changeable()
	}
	if st != nfs.OK {
		return st
	}
	if k.s.state.Grace(k.now) {
		return nfs.ErrGrace // a client may not have reclaimed its open of it yet
	}
	if k.s.below(&k.cur, name) != nil {
		return nfs.ErrAcces
	}
	if _, st := k.beginChangeName(&k.cur, name); st != nfs.OK {
		return st
	}
	event := nfs.DirEvent{Removed: name}
	if st := k.beginDir(&k.cur, &event); st != nfs.OK {
		return st
	}
	fs, who := k.cur.x.FS, k.who(&k.cur)
	var w blockstore.Wcc
	removed, err := k.once(k.args).Unlinked(k.cur.h, name)
	if !removed {
		// Another caller may replace the object between the two calls. The second one then fails
		// with NOTDIR, and nothing is removed.
		w, err = fs.Remove(who, k.cur.h, name)
		if nfs.StatusOf(err) == nfs.ErrIsDir {
			w, err = fs.Rmdir(who, k.cur.h, name)
		}
	}
	if err != nil {
		return k.within(&k.cur, err)
	}
	k.dirChanged(&k.cur, &event)
	k.changed(&k.cur, &w).encode(&k.c.Res)
	return nfs.OK
}

// rename is RENAME (RFC 8881 section 18.26, RFC 7530 section 16.27): from the saved directory to
// the current one, both in one export. The delegations of the file and of a file that is replaced
// are recalled first: a client with a delegation believes that nobody else changes the file's
// names.
//
//	arguments  component4 oldname, in SAVED_FH | component4 newname, in CURRENT_FH
//	result     change_info4 of the saved directory | change_info4 of the current directory
//
// Both reservations last until the handler returns, also if the second recall fails: endChanges
// frees them. Two RENAMEs with the names in opposite order do not deadlock, since neither waits for
// the other's reservation, only for delegations.
//
//	directories in different exports                 XDEV
//	both directories in the pseudo file system       ROFS
//	file replaces directory, or directory a file     EXIST
//	directory replaces a directory that has entries  the store's NOTEMPTY
//	another export lies at one of the names          ACCESS
//	a file handle is no directory                    NOTDIR, or SYMLINK
func rename(k *compound) nfs.Status {
	from, to := k.c.Args.String(nameMax), k.c.Args.String(nameMax)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if st := k.checkName(from); st != nfs.OK {
		return st
	}
	if st := k.checkName(to); st != nfs.OK {
		return st
	}
	if !k.saved.sameFS(&k.cur) {
		return k.twoFS()
	}
	if st := k.cur.changeable(); st != nfs.OK {
		return st
	}
	if k.s.state.Grace(k.now) {
		return nfs.ErrGrace
	}
	if k.s.below(&k.saved, from) != nil || k.s.below(&k.cur, to) != nil {
		return nfs.ErrAcces
	}
	moved, st := k.beginChangeName(&k.saved, from)
	if st != nfs.OK {
		return st
	}
	replaced, st := k.beginChangeName(&k.cur, to)
	if st != nfs.OK {
		return st
	}
	moves := nfs.Renamed(k.saved.h == k.cur.h, from, to, moved, replaced)
	dirs := [...]*object{&k.saved, &k.cur}
	for i := range moves {
		if st := k.beginDir(dirs[i], &moves[i]); st != nfs.OK {
			return st
		}
	}
	var fromW, toW blockstore.Wcc
	done, err := k.once(k.args).Renamed(k.saved.h, from, k.cur.h, to)
	if !done {
		fromW, toW, err = k.cur.x.FS.Rename(k.who(&k.cur), k.saved.h, from, k.cur.h, to)
	}
	switch st := nfs.StatusOf(err); st {
	case nfs.OK:
	case nfs.ErrIsDir:
		return nfs.ErrExist // the replaced object is a directory, the renamed one is none (section 18.26.3)
	case nfs.ErrNotDir:
		return k.notBothDirs()
	default:
		return st
	}
	for i := range moves {
		k.dirChanged(dirs[i], &moves[i])
	}
	k.changed(&k.saved, &fromW).encode(&k.c.Res)
	k.changed(&k.cur, &toW).encode(&k.c.Res)
	return nfs.OK
}

// notBothDirs returns the status of a RENAME that failed with NOTDIR. rename(2) has this one error
// for two cases. If one of the file handles is no directory, the status is NOTDIR or SYMLINK.
// Otherwise a directory would have replaced a file: EXIST (section 18.26.3).
func (k *compound) notBothDirs() nfs.Status {
	for _, o := range [...]*object{&k.saved, &k.cur} {
		if a, err := o.x.FS.GetAttr(k.who(o), o.h); err != nil || a.Type != blockstore.TypeDir {
			return k.within(o, blockstore.ErrNotDir)
		}
	}
	return nfs.ErrExist
}

// twoFS returns the status of a LINK or RENAME whose file handles are not of one export. It is
// XDEV, except if both are in the pseudo file system: they have the same fsid there, so it is ROFS.
func (k *compound) twoFS() nfs.Status {
	if k.saved.node != nil && k.cur.node != nil {
		return nfs.ErrROFS
	}
	return nfs.ErrXDev
}

// link is LINK (RFC 8881 section 18.9, RFC 7530 section 16.9): a new name in the current directory
// for the saved file. LINK changes the file's number of links, so a delegation of the file is
// recalled first. The result has the change_info4 of the directory, not of the file.
func link(k *compound) nfs.Status {
	name, st := k.decodeName()
	if st != nfs.OK {
		return st
	}
	if !k.saved.sameFS(&k.cur) {
		return k.twoFS()
	}
	if st := k.cur.changeable(); st != nfs.OK {
		return st
	}
	if st := k.beginChange(lock.File{Export: k.saved.x.ID, Handle: k.saved.h}); st != nfs.OK {
		return st
	}
	event := nfs.DirEvent{Added: name}
	if st := k.beginDir(&k.cur, &event); st != nfs.OK {
		return st
	}
	var w blockstore.Wcc
	linked, err := k.once(k.args).Linked(k.saved.h, k.cur.h, name)
	if !linked {
		_, w, err = k.cur.x.FS.Link(k.who(&k.cur), k.saved.h, k.cur.h, name)
	}
	if st := k.within(&k.cur, err); st == nfs.ErrPerm {
		// PERM is not among the errors of LINK (RFC 8881 section 15.2). A Linux host returns EPERM
		// for a directory, and for a file of another user if fs.protected_hardlinks is set.
		if a, err := k.saved.x.FS.GetAttr(k.who(&k.saved), k.saved.h); err == nil && a.Type == blockstore.TypeDir {
			return nfs.ErrIsDir
		}
		return nfs.ErrAcces
	} else if st != nfs.OK {
		return st
	}
	k.dirChanged(&k.cur, &event)
	k.changed(&k.cur, &w).encode(&k.c.Res)
	return nfs.OK
}

// readLink is READLINK (RFC 8881 section 18.24, RFC 7530 section 16.25). The target is a
// DDP-eligible item (RFC 8267 section 6.1). It lies in memory of the transport, like the data of a
// READ. The transport may send it by RDMA WRITE, and frees it after the reply.
//
// An object that is no symlink is WRONG_TYPE (section 18.24.4). minorStatus makes it INVAL in
// version 4.0. Without memory for the target the status is DELAY, so that the client repeats the
// call.
func readLink(k *compound) nfs.Status {
	if k.cur.x == nil {
		return nfs.ErrWrongType
	}
	target, err := k.cur.x.FS.ReadLink(k.who(&k.cur), k.cur.h)
	switch st := nfs.StatusOf(err); st {
	case nfs.OK:
	case nfs.ErrInval:
		return nfs.ErrWrongType
	default:
		return st
	}
	// A target cannot be cut; the transport refuses what does not fit.
	p := k.c.Payload(len(target))
	if len(p) != len(target) {
		k.s.cfg.Counters.NoMemory.Add(1)
		return nfs.ErrJukebox
	}
	copy(p, target)
	k.c.Res.Bulk(p)
	return nfs.OK
}
