package nfs4

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Bits of ACCESS about extended attributes (RFC 8276 section 8.6).
const (
	accessXRead  = 0x40
	accessXWrite = 0x80
	accessXList  = 0x100
	accessX      = accessXRead | accessXWrite | accessXList
)

// xattrs is the store of the current object, if it has extended attributes.
func (k *compound) xattrs() (blockstore.Xattrs, nfs.Status) {
	if k.cur.x == nil || !k.cur.x.FS.Limits().Xattrs {
		return nil, nfs.ErrNotSupp
	}
	x, ok := k.cur.x.FS.(blockstore.Xattrs)
	if !ok {
		return nil, nfs.ErrNotSupp
	}
	return x, nfs.OK
}

// xattrAccess adds the bits about extended attributes to those that were granted:
// they are read and written like data.
func (k *compound) xattrAccess(granted uint32) (supported, got uint32) {
	if k.minor < 2 || k.cur.x == nil || !k.cur.x.FS.Limits().Xattrs {
		return 0, 0
	}
	if granted&blockstore.AccessRead != 0 {
		got |= accessXRead | accessXList
	}
	if granted&blockstore.AccessModify != 0 {
		got |= accessXWrite
	}
	return accessX, got
}

func checkXattrName(name string) nfs.Status {
	switch {
	case name == "":
		return nfs.ErrInval
	case len(name) > blockstore.XattrNameMax:
		return nfs.ErrNameTooLong
	}
	for i := range len(name) {
		if name[i] == 0 {
			return nfs.ErrBadChar
		}
	}
	return nfs.OK
}

// getXattr is GETXATTR (RFC 8276 section 8.4.1).
func getXattr(k *compound) nfs.Status {
	name := k.c.Args.String(nameMax)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	x, st := k.xattrs()
	if st == nfs.OK {
		st = checkXattrName(name)
	}
	if st != nfs.OK {
		return st
	}
	v, err := x.GetXattr(k.who(&k.cur), k.cur.h, name)
	if err != nil {
		return nfs.StatusOf(err)
	}
	k.c.Res.Opaque(v)
	return nfs.OK
}

// setXattr is SETXATTR (section 8.4.2).
func setXattr(k *compound) nfs.Status {
	d := &k.c.Args
	how := blockstore.XattrMode(d.Uint32())
	name := d.String(nameMax)
	value := d.Opaque(nfs.MaxIO)
	if k.bad() || how > blockstore.XattrReplace {
		return nfs.ErrBadXDR
	}
	return k.changeXattr(name, func(x blockstore.Xattrs) (blockstore.Wcc, error) {
		return x.SetXattr(k.who(&k.cur), k.cur.h, name, value, how)
	})
}

// removeXattr is REMOVEXATTR (section 8.4.4).
func removeXattr(k *compound) nfs.Status {
	name := k.c.Args.String(nameMax)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	return k.changeXattr(name, func(x blockstore.Xattrs) (blockstore.Wcc, error) {
		return x.RemoveXattr(k.who(&k.cur), k.cur.h, name)
	})
}

func (k *compound) changeXattr(name string, do func(blockstore.Xattrs) (blockstore.Wcc, error)) nfs.Status {
	x, st := k.xattrs()
	if st == nfs.OK {
		st = checkXattrName(name)
	}
	if st == nfs.OK {
		st = k.cur.changeable()
	}
	if st != nfs.OK {
		return st
	}
	w, err := do(x)
	if err != nil {
		return nfs.StatusOf(err)
	}
	c := k.changed(&k.cur, &w)
	c.encode(&k.c.Res)
	return nfs.OK
}

// listXattrs is LISTXATTRS (section 8.4.3). A cookie counts the names before it.
func listXattrs(k *compound) nfs.Status {
	d := &k.c.Args
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
	if cookie > uint64(len(names)) {
		return nfs.ErrBadCookie
	}
	rest := names[cookie:]
	e := &k.c.Res
	limit := min(int(min(maxCount, nfs.MaxIO)), k.room()) - (8 + 4 + 4)
	n, size := 0, 0
	for _, name := range rest {
		if size += 4 + len(name) + xdr.Pad(len(name)); size > limit {
			break
		}
		n++
	}
	if n == 0 && len(rest) > 0 || limit < 0 {
		return nfs.ErrTooSmall
	}
	e.Uint64(cookie + uint64(n))
	e.Uint32(uint32(n))
	for _, name := range rest[:n] {
		e.String(name)
	}
	e.Bool(n == len(rest))
	return nfs.OK
}
