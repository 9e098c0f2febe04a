package nfs4

import (
	"bytes"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// getAttr is GETATTR (RFC 8881 section 18.7). What is not supported is left out.
func getAttr(k *compound) nfs.Status {
	want, _ := decodeBitmap(&k.c.Args)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if !want.and(writeOnly).empty() {
		return nfs.ErrInval
	}
	known, st := k.current(want)
	if st != nfs.OK {
		return st
	}
	s, st := k.subject(&k.cur, want)
	if st == nfs.OK {
		known.apply(k.s.wall(), &s)
		k.encodeAttrs(&k.c.Res, want, &s, nfs.OK)
	}
	return st
}

// setAttr is SETATTR (section 18.30). Its result has the attributes that were set,
// also when it fails: none then.
func setAttr(k *compound) nfs.Status {
	id := k.stateid(decodeStateid(&k.c.Args))
	from := k.c.Args
	s, set, st := k.decodeSetAttr(settable)
	if k.bad() {
		return k.attrsSet(bitmap{}, nfs.ErrBadXDR)
	}
	if st == nfs.OK {
		st = k.cur.changeable()
	}
	if st == nfs.OK && s.Size != nil {
		switch st = k.regular(); {
		case st == nfs.ErrIsDir && k.minor == 0: // a status of SETATTR no more in version 4.1 (RFC 7530 section 13.2, RFC 8881 section 15.2)
		case st == nfs.ErrIsDir, st == nfs.ErrSymlink, st == nfs.ErrWrongType:
			st = nfs.ErrInval
		}
		if st == nfs.OK {
			st = k.ioState(id, true)
		}
	}
	if st == nfs.OK && k.cur.x != nil && len(k.holds) == 0 {
		st = k.hold(k.file())
	}
	var dir bool
	if st == nfs.OK && s.acl != nil {
		a, err := k.cur.x.FS.GetAttr(k.who(&k.cur), k.cur.h)
		dir = a.Type == blockstore.TypeDir
		if st = nfs.StatusOf(err); st == nfs.OK {
			st = s.prepare(dir)
		}
	}
	var once nfs.Once
	if st == nfs.OK {
		once = k.onceSet(from)
		if _, made := once.Past(); made {
			return k.attrsSet(set, st)
		}
	}
	if st == nfs.OK && (s.acl == nil || s.SetAttr != (blockstore.SetAttr{})) {
		_, err := k.cur.x.FS.SetAttr(k.who(&k.cur), k.cur.h, &s.SetAttr, nil)
		st = nfs.StatusOf(err)
	}
	if st != nfs.OK {
		set = bitmap{}
	}
	if st == nfs.OK && s.acl != nil { // after the mode (section 6.4.1.3)
		if st = k.setACL(&k.cur, s.acl, dir); st != nfs.OK {
			set.clear(attrACL)
		}
	}
	if st == nfs.OK {
		once.Finished(&k.cur.h, false)
	}
	return k.attrsSet(set, st)
}

func (k *compound) attrsSet(set bitmap, st nfs.Status) nfs.Status {
	set.encode(&k.c.Res)
	k.keep = true
	return st
}

// Bits of ACCESS that can mean something for directories, and for everything else.
const (
	accessDir    = blockstore.AccessRead | blockstore.AccessLookup | blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessDelete
	accessFile   = blockstore.AccessRead | blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessExecute
	accessChange = blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessDelete
)

// access is ACCESS (section 18.1).
func access(k *compound) nfs.Status {
	want := k.c.Args.Uint32()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	e := &k.c.Res
	if k.cur.node != nil {
		e.Uint32(want & accessDir)
		e.Uint32(want & (blockstore.AccessRead | blockstore.AccessLookup))
		return nfs.OK
	}
	ask := want & (accessDir | accessFile)
	xattrs := k.minor >= 2 && k.cur.x.FS.Limits().Xattrs
	if xattrs {
		ask |= xattrAsk(want)
	}
	granted, a, err := k.cur.x.FS.Access(k.who(&k.cur), k.cur.h, ask)
	if err != nil {
		return nfs.StatusOf(err)
	}
	sense := uint32(accessFile)
	if a.Type == blockstore.TypeDir {
		sense = accessDir
	}
	if k.cur.readOnly() {
		granted &^= accessChange
	}
	if xattrs && (a.Type == blockstore.TypeReg || a.Type == blockstore.TypeDir) {
		sense |= accessXattr
		granted |= xattrGranted(granted)
	}
	e.Uint32(want & sense)
	e.Uint32(want & sense & granted)
	return nfs.OK
}

// verify is VERIFY (section 18.31): go on if the attributes are these.
func verify(k *compound) nfs.Status {
	same, st := k.compare()
	if st == nfs.OK && !same {
		st = nfs.ErrNotSame
	}
	return st
}

// nverify is NVERIFY (section 18.15): go on if they are not.
func nverify(k *compound) nfs.Status {
	same, st := k.compare()
	if st == nfs.OK && same {
		st = nfs.ErrSame
	}
	return st
}

// compare reads a fattr4 and holds it against the attributes of the current file.
func (k *compound) compare() (same bool, st nfs.Status) {
	d := &k.c.Args
	want, more := decodeBitmap(d)
	vals := d.Opaque(fattrMax)
	switch {
	case k.bad():
		return false, nfs.ErrBadXDR
	case !want.and(writeOnly).empty() || want.has(attrRdattrError):
		return false, nfs.ErrInval
	case more || !want.without(k.supported(k.cur.x)).empty():
		return false, nfs.ErrAttrNotSupp
	}
	known, st := k.current(want)
	if st != nfs.OK {
		return false, st
	}
	s, st := k.subject(&k.cur, want)
	if st != nfs.OK {
		return false, st
	}
	known.apply(k.s.wall(), &s)
	var e xdr.Encoder
	k.encodeAttrs(&e, want, &s, nfs.OK)
	mine := xdr.NewDecoder(e.B)
	decodeBitmap(&mine)
	return bytes.Equal(mine.Opaque(len(e.B)), vals), nfs.OK
}
