package nfs4

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Bits of ACCESS for extended attributes (RFC 8276 section 8.5). Stores do not have them. They
// follow from the permissions of the object, as for user.* attributes on Linux (xattr(7)):
//
//	0x040 XAREAD, 0x100 XALIST   READ
//	0x080 XAWRITE                MODIFY
//
// Without them in the result, the Linux client would itself refuse every use of extended
// attributes, without a call.
const (
	accessXattrRead  = 0x40
	accessXattrWrite = 0x80
	accessXattrList  = 0x100
	accessXattr      = accessXattrRead | accessXattrWrite | accessXattrList
)

// xattrAsk returns the bits that access requests from a store in place of those for extended
// attributes.
func xattrAsk(want uint32) (ask uint32) {
	if want&(accessXattrRead|accessXattrList) != 0 {
		ask |= blockstore.AccessRead
	}
	if want&accessXattrWrite != 0 {
		ask |= blockstore.AccessModify
	}
	return ask
}

// xattrGranted returns the bits for extended attributes that follow from those that a store
// granted. It can return more than the client wanted; access masks them.
func xattrGranted(granted uint32) (bits uint32) {
	if granted&blockstore.AccessRead != 0 {
		bits |= accessXattrRead | accessXattrList
	}
	if granted&blockstore.AccessModify != 0 {
		bits |= accessXattrWrite
	}
	return bits
}

// xattrs returns the store of the current object if it has extended attributes, else NOTSUPP. In
// this case, and in the pseudo file system, the attribute xattr_support is false, so that the Linux
// client does not ask.
func (k *compound) xattrs() (blockstore.Xattrs, nfs.Status) {
	if k.cur.x == nil {
		return nil, nfs.ErrNotSupp
	}
	x, ok := k.cur.x.FS.(blockstore.Xattrs)
	if !ok || !k.cur.x.FS.Limits().Xattrs {
		return nil, nfs.ErrNotSupp
	}
	return x, nfs.OK
}

// checkXattr refuses what cannot be the name of an extended attribute. On the wire a name has no
// prefix. Slashes, dots and bytes that are not UTF-8 are allowed.
//
//	length 0             INVAL
//	contains NUL         BADCHAR; GETXATTR makes it INVAL
//	251 to 4096 bytes    NAMETOOLONG; the host's limit is 255 with "user."
//	more                 BADXDR, from the decoder
func checkXattr(name string) nfs.Status {
	switch {
	case name == "":
		return nfs.ErrInval
	case strings.IndexByte(name, 0) >= 0:
		return nfs.ErrBadChar
	case len(name) > blockstore.XattrNameMax:
		return nfs.ErrNameTooLong
	}
	return nfs.OK
}

// Extended attributes are those of the user namespace. The protocol names them without a prefix
// (RFC 8276), and the store adds the host's "user.". So no client can reach security.*, system.* or
// trusted.* of the host, whatever name it sends.

// getXattr is GETXATTR (RFC 8276 section 8.4.1): component4 name, and as result opaque value<>. The
// value is part of the reply itself: no transport moves it by chunks of its own. Its length is
// bounded by the store (64 KiB), and the reply by the session: a value that does not fit is
// REP_TOO_BIG.
func getXattr(k *compound) nfs.Status {
	name := k.c.Args.String(nameMax)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	x, st := k.xattrs()
	if st == nfs.OK {
		if st = checkXattr(name); st == nfs.ErrBadChar {
			st = nfs.ErrInval // it has no BADCHAR (RFC 8276 section 8.4.5)
		}
	}
	if st != nfs.OK {
		return st
	}
	value, err := x.GetXattr(k.who(&k.cur), k.cur.h, name)
	if err != nil {
		return nfs.StatusOf(err)
	}
	k.c.Res.Opaque(value)
	return nfs.OK
}

// setXattr is SETXATTR (RFC 8276 section 8.4.2).
//
//	arguments  uint32 option | component4 name | opaque value<>
//	option     0 EITHER: create or replace
//	           1 CREATE: EXIST if the attribute exists
//	           2 REPLACE: NOXATTR if it does not
//	result     change_info4 of the object
//
// An option above 2 is not in the enumeration, so it is BADXDR. A value longer than the store's
// limit (64 KiB) is XATTR2BIG. For this, values of up to MaxIO are decoded: BADXDR would hide the
// reason. The value aliases the receive buffer and is not copied.
func setXattr(k *compound) nfs.Status {
	d := &k.c.Args
	mode := d.Uint32()
	name := d.String(nameMax)
	value := d.Opaque(nfs.MaxIO) // the call is bounded; the store refuses a value that is too big
	if k.bad() || mode > uint32(blockstore.XattrReplace) {
		return nfs.ErrBadXDR
	}
	if len(value) > blockstore.XattrValueMax {
		return nfs.ErrXattr2Big
	}
	return k.changeXattr(name, func(x blockstore.Xattrs) (blockstore.Wcc, error) {
		return x.SetXattr(k.who(&k.cur), k.cur.h, name, value, blockstore.SetXattrMode(mode))
	})
}

// removeXattr is REMOVEXATTR (RFC 8276 section 8.4.4). An attribute that does not exist is NOXATTR.
// So is a REMOVEXATTR that the client repeats after a kill of the server, because the journal does
// not record it.
func removeXattr(k *compound) nfs.Status {
	name := k.c.Args.String(nameMax)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	return k.changeXattr(name, func(x blockstore.Xattrs) (blockstore.Wcc, error) {
		return x.RemoveXattr(k.who(&k.cur), k.cur.h, name)
	})
}

// changeXattr runs do, which changes an extended attribute of the current object, and appends the
// object's change_info4. The object's change attribute changes with it, so a delegation that
// another client has is recalled first. A change is stable when do returns, before the reply
// (blockstore.Xattrs).
func (k *compound) changeXattr(name string, do func(blockstore.Xattrs) (blockstore.Wcc, error)) nfs.Status {
	x, st := k.xattrs()
	if st == nfs.OK {
		st = checkXattr(name)
	}
	if st == nfs.OK {
		st = k.cur.changeable()
	}
	if st == nfs.OK {
		st = k.beginChange(k.file())
	}
	if st != nfs.OK {
		return st
	}
	w, err := do(x)
	if err != nil {
		return nfs.StatusOf(err)
	}
	k.changed(&k.cur, &w).encode(&k.c.Res)
	return nfs.OK
}

// listedXattr is a name in the order of a listing. Its cookie is made of the name alone. A listing
// in several calls continues at the right place even if names were added or removed between them.
type listedXattr struct {
	cookie uint64
	name   string
}

// cookieOfXattr returns the cookie of a name. It is never 0, which is the start of a listing.
func cookieOfXattr(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return max(h.Sum64(), 1)
}

// listXattrs is LISTXATTRS (RFC 8276 section 8.4.3).
//
//	arguments  uint64 cookie | uint32 maxcount
//	result     uint64 cookie | uint32 number | component4 name ... | bool eof
//
// maxcount bounds LISTXATTRS4resok in bytes. The store returns all names at once, and the server
// sorts them by a hash of the name. The hash is the cookie. So a listing in several calls finds
// every name that exists all the time, and none twice, while other names are added and removed. If
// two names have the same hash (64 bits), the second is left out unless both are in one reply. A
// client could make such names, but would only spoil the listing of an object that it may write.
//
// If not even one name fits, or maxcount is below 16, the status is TOOSMALL. A cookie that no
// listing has returned is only a position. The cookie of an empty reply is that of the argument.
func listXattrs(k *compound) nfs.Status {
	d, e := &k.c.Args, &k.c.Res
	cookie, maxCount := d.Uint64(), d.Uint32()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	x, st := k.xattrs()
	if st != nfs.OK {
		return st
	}
	names, err := x.ListXattrs(k.who(&k.cur), k.cur.h)
	if err != nil {
		return nfs.StatusOf(err)
	}
	list := make([]listedXattr, 0, len(names))
	for _, name := range names {
		if c := cookieOfXattr(name); c > cookie {
			list = append(list, listedXattr{c, name})
		}
	}
	slices.SortFunc(list, func(a, b listedXattr) int {
		return cmp.Or(cmp.Compare(a.cookie, b.cookie), strings.Compare(a.name, b.name))
	})
	const head = 8 + 4 // the cookie and the number of names; the 4 below is eof
	left := min(int(min(maxCount, nfs.MaxIO)), k.room()) - head - 4
	if left < 0 {
		return nfs.ErrTooSmall
	}
	n := 0
	for _, l := range list {
		size := 4 + len(l.name) + xdr.Pad(len(l.name))
		if size > left {
			break
		}
		left -= size
		n++
	}
	if n == 0 && len(list) > 0 {
		return nfs.ErrTooSmall
	}
	if n > 0 {
		cookie = list[n-1].cookie
	}
	e.Uint64(cookie)
	e.Uint32(uint32(n))
	for _, l := range list[:n] {
		e.String(l.name)
	}
	e.Bool(n == len(list))
	return nfs.OK
}
