package nfs3

import (
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// dirOp decodes a diropargs3. The name is a copy.
func dirOp(d *xdr.Decoder) (fh []byte, name string) {
	return DecodeHandle(d), d.String(NameLimit)
}

// lookup is LOOKUP (RFC 1813 section 3.3.3). A loop of RDMA serves the call if the store need not
// wait and nothing fails. Otherwise a worker begins the call again.
func lookup(o *op) rpc.Status {
	if !o.mayBlock && o.c.Peer.Transport != rpc.TransportRDMA {
		return rpc.Again // nobody reads the TCP connection in the meantime
	}
	fh := DecodeHandle(&o.c.Args)
	b := o.c.Args.Opaque(NameLimit)
	dir, st := o.resolve(fh)
	if !o.mayBlock && o.x != nil {
		// The name is not copied: nobody retains it, and a worker that begins again makes a copy.
		return o.lookupNow(&dir, unsafe.String(unsafe.SliceData(b), len(b)), st)
	}
	name := string(b)
	if st == nfs.OK {
		st = checkName(name)
	}
	if st != nfs.OK {
		return o.failPost(st, &dir)
	}
	if c := o.child(&dir, name); c != nil {
		return o.cross(c, &dir)
	}
	h, a, err := o.x.FS.Lookup(&o.cred, dir, name)
	if err != nil {
		return o.failPost(nfs.StatusOf(err), &dir)
	}
	o.attr = a
	o.status(nfs.OK)
	o.putHandle(&h)
	o.putPostOp(&o.attr)
	o.postOp(&dir)
	return rpc.Done
}

// lookupNow is lookup on a loop.
func (o *op) lookupNow(dir *blockstore.Handle, name string, st nfs.Status) rpc.Status {
	x, ok := o.x.FS.(blockstore.NowaitLookup)
	if !ok || st != nfs.OK || checkName(name) != nfs.OK || o.s.Exports.Below(o.x, dir, name) != nil {
		return rpc.Again
	}
	h, a, dirAttr, err := x.LookupNowait(&o.cred, *dir, name)
	if err != nil {
		return rpc.Again
	}
	o.status(nfs.OK)
	o.putHandle(&h)
	o.attr = a
	o.putPostOp(&o.attr)
	o.attr = dirAttr
	o.putPostOp(&o.attr)
	return rpc.Done
}

// child returns the export that lies under a name of a directory, or nil. Version 3 sees an export
// below another one only if the outer export has crossmnt, or the rule in the inner one has nohide,
// as with the Linux server. Version 4 always sees it.
func (o *op) child(dir *blockstore.Handle, name string) *nfs.Export {
	c := o.s.Exports.Below(o.x, dir, name)
	if c == nil {
		return nil
	}
	if !o.x.CrossMnt {
		if r, st := c.Admits(&o.c.Peer); st != nfs.OK || !r.NoHide {
			return nil
		}
	}
	return c
}

// cross answers a LOOKUP that leads to another export. It checks the search permission of the
// directory first, which the store does not do here. The inner export has its own rule and identity
// for the caller. The reply also has attributes of the directory: for these the call takes the rule
// and identity of the outer export again.
func (o *op) cross(c *nfs.Export, dir *blockstore.Handle) rpc.Status {
	from, rule := o.x, o.rule
	// A caller without search permission must not find out what is mounted there.
	granted, _, err := from.FS.Access(&o.cred, *dir, blockstore.AccessLookup)
	st := nfs.StatusOf(err)
	if st == nfs.OK && granted&blockstore.AccessLookup == 0 {
		st = nfs.ErrAcces
	}
	if st != nfs.OK {
		return o.failPost(st, dir)
	}
	at := len(o.c.Res.B)
	var h blockstore.Handle
	if st = o.enter(c); st == nfs.OK {
		if h, err = c.FS.Root(); err == nil {
			o.attr, err = c.FS.GetAttr(&o.cred, h)
		}
		st = nfs.StatusOf(err)
	}
	if st == nfs.OK {
		o.status(st)
		o.putHandle(&h)
		o.putPostOp(&o.attr)
	}
	if back := o.assume(from, rule); st == nfs.OK {
		st = back
	}
	if st != nfs.OK {
		o.c.Res.Truncate(at)
		return o.failPost(st, dir)
	}
	o.postOp(dir)
	return rpc.Done
}

// resolveNew resolves the directory of a new name for a change, and checks the name.
func (o *op) resolveNew(fh []byte, name string) (blockstore.Handle, nfs.Status) {
	dir, st := o.resolveForChange(fh)
	if st == nfs.OK {
		st = checkNewName(name)
	}
	return dir, st
}

// newObject is the result of a store that has made an object. op.attr has the attributes of the
// object.
type newObject struct {
	h blockstore.Handle
	w blockstore.Wcc
}

// makeObject ends a procedure that makes an object. st is the result of the procedure's checks. If
// they passed, do makes the object, unless an earlier execution of the call made it before the
// server was killed. exists says that the name has an object already.
func (o *op) makeObject(
	st nfs.Status, dir *blockstore.Handle, name string, exists bool, typ blockstore.FileType, s *blockstore.SetAttr,
	do func(n *newObject) error,
) rpc.Status {
	var n newObject
	event := nfs.DirEvent{Added: name}
	if exists {
		event = nfs.DirEvent{}
	}
	if st == nfs.OK {
		st = o.beginDir(*dir, event)
	}
	if st == nfs.OK {
		var yes bool
		var err error
		if n.h, o.attr, yes, err = o.once().Made(&o.cred, *dir, name, typ, s); !yes {
			err = do(&n)
		}
		if st = nfs.StatusOf(err); st == nfs.OK {
			o.dirChanged(*dir, event)
		}
	}
	o.status(st)
	if st == nfs.OK {
		o.c.Res.Bool(true)
		o.putHandle(&n.h)
		o.putPostOp(&o.attr)
	}
	o.wcc(&n.w, dir)
	return rpc.Done
}

// create is CREATE (section 3.3.8).
func create(o *op) rpc.Status {
	d := &o.c.Args
	fh, name := dirOp(d)
	var s blockstore.SetAttr
	var verf [VerifierLen]byte
	var mode blockstore.CreateMode
	switch d.Uint32() {
	case CreateUnchecked:
		mode, s = blockstore.Unchecked, DecodeSetAttr(d)
	case CreateGuarded:
		mode, s = blockstore.Guarded, DecodeSetAttr(d)
	case CreateExclusive:
		mode, verf = blockstore.Exclusive, DecodeVerifier(d)
	default:
		d.Fail(xdr.ErrValue)
	}
	var found blockstore.Handle
	dir, st := o.resolveNew(fh, name)
	if st == nfs.OK && mode == blockstore.Unchecked {
		if st = o.deniedName(dir, name, s.Size != nil); st == nfs.OK {
			found, st = o.beginChangeName(dir, name)
		}
	}
	exists := found != blockstore.Handle{}
	return o.makeObject(st, &dir, name, exists, blockstore.TypeReg, &s, func(n *newObject) (err error) {
		n.h, o.attr, n.w, err = o.x.FS.Create(&o.cred, dir, name, mode, &s, verf)
		return err
	})
}

// mkdir is MKDIR (section 3.3.9).
func mkdir(o *op) rpc.Status {
	fh, name := dirOp(&o.c.Args)
	s := DecodeSetAttr(&o.c.Args)
	dir, st := o.resolveNew(fh, name)
	return o.makeObject(st, &dir, name, false, blockstore.TypeDir, &s, func(n *newObject) (err error) {
		n.h, o.attr, n.w, err = o.x.FS.Mkdir(&o.cred, dir, name, &s)
		return err
	})
}

// symlink is SYMLINK (section 3.3.10). Over RDMA the target may arrive in a Read chunk.
func symlink(o *op) rpc.Status {
	d := &o.c.Args
	fh, name := dirOp(d)
	s := DecodeSetAttr(d)
	target := string(d.Bulk(PathLimit))
	dir, st := o.resolveNew(fh, name)
	return o.makeObject(st, &dir, name, false, blockstore.TypeLnk, &s, func(n *newObject) (err error) {
		n.h, o.attr, n.w, err = o.x.FS.Symlink(&o.cred, dir, name, target, &s)
		return err
	})
}

// mknod is MKNOD (section 3.3.11). Any other type than that of a special file is BADTYPE.
func mknod(o *op) rpc.Status {
	d := &o.c.Args
	fh, name := dirOp(d)
	typ := blockstore.FileType(d.Uint32())
	device := typ == blockstore.TypeChr || typ == blockstore.TypeBlk
	special := device || typ == blockstore.TypeSock || typ == blockstore.TypeFifo
	var s blockstore.SetAttr
	var major, minor uint32
	if special {
		s = DecodeSetAttr(d)
	}
	if device {
		major, minor = d.Uint32(), d.Uint32()
	}
	dir, st := o.resolveNew(fh, name)
	if st == nfs.OK && !special {
		st = nfs.ErrBadType
	}
	return o.makeObject(st, &dir, name, false, typ, &s, func(n *newObject) (err error) {
		n.h, o.attr, n.w, err = o.x.FS.Mknod(&o.cred, dir, name, typ, major, minor, &s)
		return err
	})
}

// remove is REMOVE (section 3.3.12).
func remove(o *op) rpc.Status { return o.unlink(false) }

// rmdir is RMDIR (section 3.3.13).
func rmdir(o *op) rpc.Status { return o.unlink(true) }

// unlink is REMOVE and RMDIR. If the call comes again after a kill of the server, the earlier
// execution may have removed the name; see nfs.Once.
func (o *op) unlink(directory bool) rpc.Status {
	fh, name := dirOp(&o.c.Args)
	var w blockstore.Wcc
	dir, st := o.resolveForChange(fh)
	if st == nfs.OK {
		st = o.uncovered(&dir, name)
	}
	if st == nfs.OK {
		_, st = o.beginChangeName(dir, name)
	}
	event := nfs.DirEvent{Removed: name}
	if st == nfs.OK {
		st = o.beginDir(dir, event)
	}
	if st == nfs.OK {
		yes, err := o.once().Unlinked(dir, name)
		switch {
		case yes:
		case directory:
			w, err = o.x.FS.Rmdir(&o.cred, dir, name)
		default:
			w, err = o.x.FS.Remove(&o.cred, dir, name)
		}
		if st = nfs.StatusOf(err); st == nfs.OK {
			o.dirChanged(dir, event)
		}
	}
	return o.failWcc(st, &w, &dir) // also after success, whose result has the same form
}

// uncovered checks a name that is about to be removed or renamed. The name of another export is
// ACCES, as that of a mount point on the host is.
func (o *op) uncovered(dir *blockstore.Handle, name string) nfs.Status {
	st := checkOldName(name)
	if st == nfs.OK && o.s.Exports.Below(o.x, dir, name) != nil {
		st = nfs.ErrAcces
	}
	return st
}

// rename is RENAME (section 3.3.14).
func rename(o *op) rpc.Status {
	fromFH, fromName := dirOp(&o.c.Args)
	toFH, toName := dirOp(&o.c.Args)
	var fromW, toW blockstore.Wcc
	from, to, x, st := o.resolveTwo(fromFH, toFH)
	if st == nfs.OK {
		st = o.uncovered(&from, fromName)
	}
	if st == nfs.OK {
		st = o.uncovered(&to, toName)
	}
	var moved, replaced blockstore.Handle
	if st == nfs.OK {
		moved, st = o.beginChangeName(from, fromName)
	}
	if st == nfs.OK {
		replaced, st = o.beginChangeName(to, toName)
	}
	moves := nfs.Renamed(from == to, fromName, toName, moved, replaced)
	dirs := [...]blockstore.Handle{from, to}
	for i := 0; i < len(moves) && st == nfs.OK; i++ {
		st = o.beginDir(dirs[i], moves[i])
	}
	if st == nfs.OK {
		yes, err := o.once().Renamed(from, fromName, to, toName)
		if !yes {
			fromW, toW, err = o.x.FS.Rename(&o.cred, from, fromName, to, toName)
		}
		st = nfs.StatusOf(err)
		for i := 0; i < len(moves) && st == nfs.OK; i++ {
			o.dirChanged(dirs[i], moves[i])
		}
	}
	o.status(st)
	o.wcc(&fromW, &from)
	if x != nil {
		o.reenter(x) // the other directory is of another export
	}
	o.wcc(&toW, &to)
	return rpc.Done
}

// link is LINK (section 3.3.15).
func link(o *op) rpc.Status {
	fh := DecodeHandle(&o.c.Args)
	dirFH, name := dirOp(&o.c.Args)
	var w blockstore.Wcc
	h, dir, x, st := o.resolveTwo(fh, dirFH)
	if st == nfs.OK {
		st = checkNewName(name)
	}
	known := false
	if st == nfs.OK {
		st = o.beginChange(h)
	}
	event := nfs.DirEvent{Added: name}
	if st == nfs.OK {
		st = o.beginDir(dir, event)
	}
	if st == nfs.OK {
		yes, err := o.once().Linked(h, dir, name)
		if !yes {
			o.attr, w, err = o.x.FS.Link(&o.cred, h, dir, name)
			known = err == nil
		}
		if st = nfs.StatusOf(err); st == nfs.OK {
			o.dirChanged(dir, event)
		}
	}
	o.status(st)
	if known {
		o.putPostOp(&o.attr)
	} else {
		o.postOp(&h)
	}
	if x != nil {
		o.reenter(x)
	}
	o.wcc(&w, &dir)
	return rpc.Done
}

// reenter is enter for an export that the call has entered before. It does not count the call
// again.
func (o *op) reenter(x *nfs.Export) {
	if rule, st := x.Admits(&o.c.Peer); st == nfs.OK {
		_ = o.assume(x, rule) // does not wait: the groups are cached
	}
}

// resolveTwo resolves two handles that have to be of one export. The export of the first one stays
// entered. If the second handle is valid and of another export, the status is XDEV, and other is
// that export.
func (o *op) resolveTwo(a, b []byte) (ha, hb blockstore.Handle, other *nfs.Export, st nfs.Status) {
	if ha, st = o.resolve(a); st != nfs.OK {
		// The reply has no attributes of the second object either: they are of no use to a client whose
		// first handle is invalid.
		return ha, hb, nil, st
	}
	first := o.x
	hb, st = o.resolve(b)
	if o.x != first {
		other = o.x
		o.reenter(first)
		st = nfs.ErrXDev
	}
	if st == nfs.OK && o.readOnly() {
		st = nfs.ErrROFS
	}
	return ha, hb, other, st
}
