//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
)

const (
	// namespace is where the extended attributes of NFS are (RFC 8276 section 8.2).
	namespace = "user."
	// virtual begins the names that CephFS itself answers: layouts, quotas, what is below a directory.
	// Clients see them as user.ceph.*; lists have none of them. Only root changes them.
	virtual = "ceph."
)

// xattrName is the name of an attribute in CephFS; the caller frees it.
func xattrName(name string) *C.char {
	if strings.HasPrefix(name, virtual) {
		return C.CString(name)
	}
	return C.CString(namespace + name)
}

// xattrs acquires an object whose extended attributes c may use.
func (f *FS) xattrs(c *blockstore.Cred, h blockstore.Handle, want uint32) (*object, blockstore.Attr, error) {
	o, a, err := f.use(h)
	switch {
	case err != nil:
		return nil, a, err
	case a.Type != blockstore.TypeReg && a.Type != blockstore.TypeDir:
		// The kernel has them for files and directories only (xattr(7)).
		err = blockstore.ErrPerm
		if want == blockstore.MayRead {
			err = blockstore.ErrNoXattr
		}
	case !c.May(&a, want):
		err = blockstore.ErrAccess
	}
	if err != nil {
		f.objs.release(o)
		return nil, a, err
	}
	return o, a, nil
}

// GetXattr implements blockstore.Xattrs.
func (f *FS) GetXattr(c *blockstore.Cred, h blockstore.Handle, name string) ([]byte, error) {
	o, _, err := f.xattrs(c, h, blockstore.MayRead)
	if err != nil {
		return nil, err
	}
	defer f.objs.release(o)
	n := xattrName(name)
	defer C.free(unsafe.Pointer(n))
	buf := make([]byte, blockstore.XattrValueMax)
	r := C.rc_getxattr(f.m, o.in, n, unsafe.Pointer(&buf[0]), C.size_t(len(buf)), f.root)
	if err := failed(r); err != nil {
		return nil, err
	}
	return buf[:r:r], nil
}

// SetXattr implements blockstore.Xattrs.
func (f *FS) SetXattr(c *blockstore.Cred, h blockstore.Handle, name string, value []byte,
	mode blockstore.SetXattrMode,
) (blockstore.Wcc, error) {
	if len(value) > blockstore.XattrValueMax {
		return blockstore.Wcc{}, blockstore.ErrXattrTooBig
	}
	flags := 0
	switch mode {
	case blockstore.XattrCreate:
		flags = unix.XATTR_CREATE
	case blockstore.XattrReplace:
		flags = unix.XATTR_REPLACE
	}
	return f.changeXattr(c, h, name, func(o *object, n *C.char) C.int {
		return C.rc_setxattr(f.m, o.in, n, unsafe.Pointer(unsafe.SliceData(value)), C.size_t(len(value)), C.int(flags),
			f.root)
	})
}

// RemoveXattr implements blockstore.Xattrs.
func (f *FS) RemoveXattr(c *blockstore.Cred, h blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.changeXattr(c, h, name, func(o *object, n *C.char) C.int { return C.rc_removexattr(f.m, o.in, n, f.root) })
}

func (f *FS) changeXattr(c *blockstore.Cred, h blockstore.Handle, name string, do func(o *object, n *C.char) C.int) (
	w blockstore.Wcc, err error,
) {
	if len(name) > blockstore.XattrNameMax {
		return w, blockstore.ErrNameTooLong
	}
	o, a, err := f.xattrs(c, h, blockstore.MayWrite)
	if err != nil {
		return w, err
	}
	defer f.objs.release(o)
	w = unchanged(&a)
	if o.frozen() {
		return w, blockstore.ErrROFS
	}
	if strings.HasPrefix(name, virtual) && !c.Privileged() {
		return w, blockstore.ErrPerm
	}
	if a.Type == blockstore.TypeDir && a.Mode&blockstore.ModeSticky != 0 && !c.Owns(&a) {
		return w, blockstore.ErrPerm
	}
	n := xattrName(name)
	defer C.free(unsafe.Pointer(n))
	f.endLease(o)
	if err = failed(do(o, n)); err == nil {
		err = f.sync(o)
	}
	f.after(&w, o)
	return w, err
}

// ListXattrs implements blockstore.Xattrs.
func (f *FS) ListXattrs(c *blockstore.Cred, h blockstore.Handle) ([]string, error) {
	o, _, err := f.xattrs(c, h, blockstore.MayRead)
	if err == blockstore.ErrNoXattr {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.objs.release(o)
	buf := make([]byte, blockstore.XattrValueMax)
	var got C.size_t
	r := C.rc_listxattr(f.m, o.in, (*C.char)(unsafe.Pointer(&buf[0])), C.size_t(len(buf)), &got, f.root)
	if err := failed(r); err != nil {
		return nil, err
	}
	var names []string
	for _, name := range strings.Split(string(buf[:got]), "\x00") {
		if name, ok := strings.CutPrefix(name, namespace); ok {
			names = append(names, name)
		}
	}
	return names, nil
}
