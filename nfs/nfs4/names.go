package nfs4

import (
	"strings"
	"unicode/utf8"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// checkName refuses what cannot be a component4. Names are bytes unless UTF-8 is configured: names
// that other clients made in another character set stay reachable, as fs_charset_cap says (RFC 8881
// section 14.4).
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

// decodeName reads the argument of an operation that has a component4 alone.
func (k *compound) decodeName() (name string, st nfs.Status) {
	name = k.c.Args.String(nameMax)
	if k.bad() {
		return "", nfs.ErrBadXDR
	}
	return name, k.checkName(name)
}

// changeable makes sure that the client may change a directory's entries.
func (o *object) changeable() nfs.Status {
	if o.readOnly() {
		return nfs.ErrROFS
	}
	return nfs.OK
}

// changed is the change_info4 of a directory. It is atomic where the store says that
// nothing can have changed it between the two.
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

// create is CREATE (RFC 8881 section 18.4, RFC 7530 section 16.4), for everything but regular
// files, which OPEN makes. The store gives the object its attributes as it makes it, except the
// ACL. Which attributes were set is in the result: the client sets the others itself.
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
	var err error
	h, _, isMade := k.once(k.args).Made(who, dir.h, name, typ, &s.SetAttr)
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
	made := object{x: dir.x, rule: dir.rule, h: h}
	k.setNewACL(&made, &s, typ == blockstore.TypeDir, &set)
	k.changed(&dir, &w).encode(&k.c.Res)
	set.Encode(&k.c.Res)
	k.setCurrent(made)
	return nfs.OK
}

// remove is REMOVE (section 18.25), of directories too: version 4 has no RMDIR. During the grace
// period a client may not have reclaimed its open yet, whose file would be gone.
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
	if st := k.beginChangeName(&k.cur, name); st != nfs.OK {
		return st
	}
	fs, who := k.cur.x.FS, k.who(&k.cur)
	var w blockstore.Wcc
	var err error
	if !k.once(k.args).Unlinked(k.cur.h, name) {
		w, err = fs.Remove(who, k.cur.h, name)
		if nfs.StatusOf(err) == nfs.ErrIsDir {
			w, err = fs.Rmdir(who, k.cur.h, name)
		}
	}
	if err != nil {
		return k.within(&k.cur, err)
	}
	k.changed(&k.cur, &w).encode(&k.c.Res)
	return nfs.OK
}

// rename is RENAME (section 18.26): from the saved directory to the current one, both in one
// export. The delegations of the file and of a file that is replaced are recalled first: a client
// with a delegation believes that nobody else changes the file's names.
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
	if st := k.beginChangeName(&k.saved, from); st != nfs.OK {
		return st
	}
	if st := k.beginChangeName(&k.cur, to); st != nfs.OK {
		return st
	}
	var fromW, toW blockstore.Wcc
	var err error
	if !k.once(k.args).Renamed(k.saved.h, from, k.cur.h, to) {
		fromW, toW, err = k.cur.x.FS.Rename(k.who(&k.cur), k.saved.h, from, k.cur.h, to)
	}
	switch st := nfs.StatusOf(err); st {
	case nfs.OK:
	case nfs.ErrIsDir:
		return nfs.ErrExist // what is there is a directory, what comes is none (section 18.26.3)
	case nfs.ErrNotDir:
		return k.notBothDirs()
	default:
		return st
	}
	k.changed(&k.saved, &fromW).encode(&k.c.Res)
	k.changed(&k.cur, &toW).encode(&k.c.Res)
	return nfs.OK
}

// notBothDirs is the status of a RENAME of which something is no directory that has to be
// one: what the file handles stand for, or else what a directory was to replace.
func (k *compound) notBothDirs() nfs.Status {
	for _, o := range [...]*object{&k.saved, &k.cur} {
		if a, err := o.x.FS.GetAttr(k.who(o), o.h); err != nil || a.Type != blockstore.TypeDir {
			return k.within(o, blockstore.ErrNotDir)
		}
	}
	return nfs.ErrExist
}

// twoFS is the status of an operation whose file handles are not of one export.
func (k *compound) twoFS() nfs.Status {
	if k.saved.node != nil && k.cur.node != nil {
		return nfs.ErrROFS
	}
	return nfs.ErrXDev
}

// link is LINK (section 18.9): of the saved file, in the current directory. It changes the file's
// number of links, so a delegation of the file is recalled first.
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
	var w blockstore.Wcc
	var err error
	if !k.once(k.args).Linked(k.saved.h, k.cur.h, name) {
		_, w, err = k.cur.x.FS.Link(k.who(&k.cur), k.saved.h, k.cur.h, name)
	}
	if st := k.within(&k.cur, err); st == nfs.ErrPerm {
		// LINK has no PERM: the host says so of directories, and of files that are not the caller's.
		if a, err := k.saved.x.FS.GetAttr(k.who(&k.saved), k.saved.h); err == nil && a.Type == blockstore.TypeDir {
			return nfs.ErrIsDir
		}
		return nfs.ErrAcces
	} else if st != nfs.OK {
		return st
	}
	k.changed(&k.cur, &w).encode(&k.c.Res)
	return nfs.OK
}

// readLink is READLINK (section 18.24). The target is an item of its own for RDMA (RFC 8267 section
// 6.1), and lies in memory of the transport like the data of a READ.
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
