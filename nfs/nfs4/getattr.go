package nfs4

import (
	"bytes"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// getAttr is GETATTR (RFC 8881 section 18.7, RFC 7530 section 16.7). The argument is a bitmap4, the
// result a fattr4. Attributes that are not supported are left out: the bitmap of the result says
// which ones there are. Only a write-only attribute is an error (INVAL, section 5.5). If another
// client has a write delegation, only that client knows the present size and change attribute, and
// current asks it.
//
// A bitmap4 with a huge count is BADXDR: DecodeBitmap compares the count with the rest of the
// message.
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

// Bits of ACCESS that can mean something for directories, and for everything else (RFC 8881 section
// 18.1). DELETE means nothing for a file: the directory decides about its names. EXECUTE means
// nothing for a directory, where searching is LOOKUP.
const (
	accessDir = blockstore.AccessRead | blockstore.AccessLookup | blockstore.AccessModify | blockstore.AccessExtend |
		blockstore.AccessDelete
	accessFile   = blockstore.AccessRead | blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessExecute
	accessChange = blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessDelete
)

// access is ACCESS (RFC 8881 section 18.1, RFC 7530 section 16.1). Argument and result are words of
// bits:
//
//	argument  uint32 access: the bits that are asked for
//	result    uint32 supported: those that mean anything for this type of object
//	          uint32 access: of supported, those that the caller has
//
// Unknown bits of the argument are in neither word of the result. The Linux client caches the
// result and decides by it without a call: a bit that is missing in access makes system calls fail
// there. For the server the result is advice and no check: the store checks each operation again.
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
	// The type is not known yet. The store returns it together with the bits, in one call.
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
	// Before xattrGranted, which derives the bits for extended attributes from MODIFY.
	if k.cur.readOnly() {
		granted &^= accessChange
	}
	// Linux has extended attributes of users for regular files and directories only (xattr(7)).
	if xattrs && (a.Type == blockstore.TypeReg || a.Type == blockstore.TypeDir) {
		sense |= accessXattr
		granted |= xattrGranted(granted)
	}
	e.Uint32(want & sense)
	e.Uint32(want & sense & granted)
	return nfs.OK
}

// verify is VERIFY (RFC 8881 section 18.31, RFC 7530 section 16.35): OK if the current file has the
// attributes in the argument, else NOT_SAME, which ends the compound. An empty fattr4 is the same
// as that of every file.
func verify(k *compound) nfs.Status {
	same, st := k.compare()
	if st == nfs.OK && !same {
		st = nfs.ErrNotSame
	}
	return st
}

// nverify is NVERIFY (RFC 8881 section 18.15, RFC 7530 section 16.15): OK if they differ, else
// SAME.
func nverify(k *compound) nfs.Status {
	same, st := k.compare()
	if st == nfs.OK && same {
		st = nfs.ErrSame
	}
	return st
}

// compare reads a fattr4 and compares it with the attributes of the current file. It compares the
// XDR: a client that writes the same value in another way, such as an owner by number instead of by
// name, gets "not same". That is safe for VERIFY, whose use is to stop a compound before a change.
//
//	longer than 64 KiB, or malformed     BADXDR
//	write-only attribute, rdattr_error   INVAL (section 18.31.4)
//	attribute that is not supported      ATTRNOTSUPP; GETATTR leaves it out
//	client with a delegation is silent   DELAY
//
// The comparison and a change behind it in the compound are not atomic. Another client can change
// the file in between (RFC 8881 sections 18.30.4 and 18.31.4).
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
