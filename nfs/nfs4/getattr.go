package nfs4

import (
	"bytes"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// getAttr is GETATTR (RFC 8881 section 18.7, RFC 7530 section 16.7). Attributes that are not
// supported are left out of the result: the bitmap of the reply says which there are. If another
// client has a write delegation, that client knows size and change attribute better, and current
// asks it.
func getAttr(k *compound) nfs.Status {
	want, _ := DecodeBitmap(&k.c.Args)
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
		known.apply(k.s.cfg.Wall(), s)
		encodeAttrs(&k.c.Res, want, s)
	}
	return st
}

// Bits of ACCESS that can mean something for directories, and for everything else.
const (
	accessDir = blockstore.AccessRead | blockstore.AccessLookup | blockstore.AccessModify | blockstore.AccessExtend |
		blockstore.AccessDelete
	accessFile   = blockstore.AccessRead | blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessExecute
	accessChange = blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessDelete
)

// access is ACCESS (section 18.1). Two bitmaps go back: those of the requested bits that mean
// anything for this type of object, and of these the ones that the caller has. It is advice, and no
// check: the store checks each operation again.
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
	want, more := DecodeBitmap(d)
	vals := d.Opaque(fattrMax)
	switch {
	case k.bad():
		return false, nfs.ErrBadXDR
	case !want.and(writeOnly).empty() || want.Has(AttrRdattrError):
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
	known.apply(k.s.cfg.Wall(), s)
	var e xdr.Encoder
	encodeAttrs(&e, want, s)
	mine := xdr.NewDecoder(e.B)
	DecodeBitmap(&mine)
	return bytes.Equal(mine.Opaque(len(e.B)), vals), nfs.OK
}
