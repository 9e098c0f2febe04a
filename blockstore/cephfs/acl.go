//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"time"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
)

// libcephfs has the POSIX ACLs of Linux if its client_acl_type says so: it changes the mode with the
// access ACL and the other way round, and new objects inherit the default ACL of their directory.

// aclXattr are the extended attributes of the ACLs.
var aclXattr = [...]string{
	blockstore.ACLAccess:  "system.posix_acl_access",
	blockstore.ACLDefault: "system.posix_acl_default",
}

// aclMost is the largest ACL that is read, in bytes: what Linux can store.
const aclMost = 64 << 10

// accessACL is the access ACL of an object, as it was when its ctime was at.
type accessACL struct {
	at  time.Time
	acl *blockstore.ACL
}

// acl sets the access ACL of attributes that were just read, by which permission is checked.
func (f *FS) acl(o *object, a *blockstore.Attr) error {
	if a.Type == blockstore.TypeLnk {
		return nil
	}
	if k := o.access.Load(); k != nil && k.at.Equal(a.Ctime) {
		a.ACL = k.acl
		return nil
	}
	l, err := f.readACL(o, blockstore.ACLAccess)
	if err != nil {
		return err
	}
	k := &accessACL{at: a.Ctime}
	if l != nil {
		k.acl = &l
	}
	o.access.Store(k)
	a.ACL = k.acl
	return nil
}

// readACL returns an ACL, or nil if there is none.
func (f *FS) readACL(o *object, kind blockstore.ACLKind) (blockstore.ACL, error) {
	n := C.CString(aclXattr[kind])
	defer C.free(unsafe.Pointer(n))
	buf := make([]byte, 512)
	r := C.rc_getxattr(f.m, o.in, n, unsafe.Pointer(&buf[0]), C.size_t(len(buf)), f.root)
	if failed(r) == blockstore.ErrXattrTooBig {
		buf = make([]byte, aclMost)
		r = C.rc_getxattr(f.m, o.in, n, unsafe.Pointer(&buf[0]), C.size_t(len(buf)), f.root)
	}
	switch err := failed(r); {
	case err == blockstore.ErrNoXattr || err == nil && r == 0:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return blockstore.ParseACL(buf[:r])
}

// GetACL implements blockstore.ACLs.
func (f *FS) GetACL(_ *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind) (blockstore.ACL, error) {
	o, a, err := f.use(h)
	if err != nil {
		return nil, err
	}
	defer f.objs.release(o)
	if a.Type == blockstore.TypeLnk || kind == blockstore.ACLDefault && a.Type != blockstore.TypeDir {
		return nil, nil
	}
	return f.readACL(o, kind)
}

// SetACL implements blockstore.ACLs.
func (f *FS) SetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind, l blockstore.ACL) (
	w blockstore.Wcc, err error,
) {
	if l != nil {
		if err := l.Check(); err != nil {
			return w, err
		}
	}
	o, a, err := f.use(h)
	if err != nil {
		return w, err
	}
	defer f.objs.release(o)
	w = unchanged(&a)
	none := a.Type == blockstore.TypeLnk || kind == blockstore.ACLDefault && a.Type != blockstore.TypeDir
	switch {
	case o.frozen():
		return w, blockstore.ErrROFS
	case !c.Owns(&a):
		return w, blockstore.ErrPerm
	case none && l == nil:
		return w, nil
	case none && a.Type == blockstore.TypeLnk:
		return w, blockstore.ErrNotSupp
	case none:
		return w, blockstore.ErrAccess // as setxattr(2)
	}
	f.endLease(o)
	n := C.CString(aclXattr[kind])
	defer C.free(unsafe.Pointer(n))
	if l == nil {
		if err = failed(C.rc_removexattr(f.m, o.in, n, f.root)); err == blockstore.ErrNoXattr {
			err = nil
		}
	} else {
		err = f.writeACL(c, o, &a, kind, l, n)
	}
	if err == nil {
		err = f.sync(o)
	}
	o.access.Store(nil)
	f.after(&w, o)
	return w, err
}

// writeACL stores an ACL. libcephfs removes an access ACL that the mode can express.
func (f *FS) writeACL(c *blockstore.Cred, o *object, a *blockstore.Attr, kind blockstore.ACLKind, l blockstore.ACL,
	name *C.char,
) error {
	if kind == blockstore.ACLAccess && a.Mode&blockstore.ModeSetGID != 0 && !c.Privileged() && !c.InGroup(a.GID) {
		mode := a.Mode &^ blockstore.ModeSetGID
		if err := f.setAttr(nil, o, a, &blockstore.SetAttr{Mode: &mode}); err != nil {
			return err
		}
	}
	b := l.AppendXattr(nil)
	err := failed(C.rc_setxattr(f.m, o.in, name, unsafe.Pointer(&b[0]), C.size_t(len(b)), 0, f.root))
	if err == blockstore.ErrNoXattr { // it had none to remove
		err = nil
	}
	return err
}
