//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"cmp"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
)

// creation is what all creates share.
type creation struct {
	d    *object
	name *C.char
	mode uint32
	perm *C.UserPerm
}

// create makes an object in dir by do, completes its attributes by s, and waits until all of it is
// in the journal of the MDS. existing returns the object of a name that exists already, or an
// error. refused, if not nil, is an error of the arguments.
func (f *FS) create(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType,
	s *blockstore.SetAttr, refused error, existing func(d *object) (*object, blockstore.Attr, error),
	do func(k *creation, in **C.struct_Inode, stx *C.struct_ceph_statx) C.int,
) (h blockstore.Handle, a blockstore.Attr, w blockstore.Wcc, err error) {
	d, da, err := f.changeable(c, dir)
	if err != nil {
		return h, a, w, err
	}
	defer f.objs.release(d)
	w = unchanged(&da)
	if err = cmp.Or(refused, blockstore.CheckName(name)); err == nil && !c.May(&da, blockstore.MayExec) {
		err = blockstore.ErrAccess
	}
	if err != nil {
		return h, a, w, err
	}
	defer f.names.change(nameOf(d, name))()
	o, a, err := f.find(d, name)
	switch {
	case err == nil:
		f.objs.release(o)
		err = blockstore.ErrExist
	case err != blockstore.ErrNotExist:
		return h, a, w, err
	case !c.May(&da, blockstore.MayWrite|blockstore.MayExec):
		return h, a, w, blockstore.ErrAccess
	default:
		o, a, err = f.make(c, d, &da, name, typ, s, do)
		f.after(&w, d)
	}
	if err == blockstore.ErrExist {
		o, a, err = existing(d)
	}
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, w, err
	}
	f.objs.release(o)
	return o.h, a, w, nil
}

func (f *FS) make(c *blockstore.Cred, d *object, da *blockstore.Attr, name string, typ blockstore.FileType,
	s *blockstore.SetAttr, do func(k *creation, in **C.struct_Inode, stx *C.struct_ceph_statx) C.int,
) (*object, blockstore.Attr, error) {
	if s == nil {
		s = &blockstore.SetAttr{}
	}
	k := creation{d: d, name: C.CString(name)}
	defer C.free(unsafe.Pointer(k.name))
	var done func()
	k.perm, done = f.perm(c)
	defer done()
	if s.Mode != nil {
		k.mode = *s.Mode
	}
	var gid uint32
	if c != nil {
		gid = c.GID
	}
	k.mode, gid = c.InheritMode(da, typ, k.mode, gid)
	var in *C.struct_Inode
	var stx C.struct_ceph_statx
	if err := failed(do(&k, &in, &stx)); err != nil {
		return nil, blockstore.Attr{}, err
	}
	o := f.found(in, &stx)
	a := attrOf(&stx)
	// The mode is set; owners are for root alone to give away.
	rest := *s
	rest.Mode = nil
	if !c.Privileged() {
		rest.UID, rest.GID = nil, nil
	}
	if a.GID != gid && rest.GID == nil {
		rest.GID = &gid
	}
	inherits := false
	if typ != blockstore.TypeLnk {
		l, err := f.readACL(d, blockstore.ACLDefault)
		if err != nil {
			f.objs.release(o)
			return nil, a, err
		}
		inherits = l != nil // libcephfs has set the mode by it
	}
	if a.Mode != k.mode && !inherits && typ != blockstore.TypeLnk {
		rest.Mode = &k.mode
	}
	if typ != blockstore.TypeReg || (rest.Size != nil && *rest.Size == 0) {
		rest.Size = nil
	}
	err := f.setAttr(nil, o, &a, &rest)
	if err == nil {
		err = cmp.Or(f.sync(o), f.sync(d))
	}
	if err == nil {
		a, err = f.attr(o)
	}
	if err != nil {
		f.objs.release(o)
		return nil, a, err
	}
	return o, a, nil
}

// Create creates a regular file. The verifier of an exclusive create is stored in the times of the
// file, where a retry finds it, also at another gateway (RFC 1813 section 3.3.8).
func (f *FS) Create(c *blockstore.Cred, dir blockstore.Handle, name string, mode blockstore.CreateMode,
	s *blockstore.SetAttr, verf [8]byte,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if mode == blockstore.Exclusive {
		s = blockstore.ExclusiveAttr(verf)
	}
	existing := func(d *object) (*object, blockstore.Attr, error) {
		o, a, err := f.find(d, name)
		if err == nil {
			if a, err = f.checkExisting(c, d, o, a, mode, s); err != nil {
				f.objs.release(o)
			}
		}
		return o, a, err
	}
	return f.create(c, dir, name, blockstore.TypeReg, s, nil, existing,
		func(k *creation, in **C.struct_Inode, stx *C.struct_ceph_statx) C.int {
			var fh *C.Fh
			r := C.rc_mkfile(f.m, k.d.in, k.name, C.mode_t(k.mode), in, &fh, stx, k.perm)
			if r >= 0 {
				C.rc_close(f.m, fh)
			}
			return r
		})
}

func (f *FS) checkExisting(c *blockstore.Cred, d, o *object, a blockstore.Attr, mode blockstore.CreateMode,
	s *blockstore.SetAttr,
) (blockstore.Attr, error) {
	if a.Type != blockstore.TypeReg || mode == blockstore.Guarded {
		return a, blockstore.ErrExist
	}
	if mode == blockstore.Exclusive {
		if a.Size != 0 || !a.Atime.Equal(s.Atime) || !a.Mtime.Equal(s.Mtime) {
			return a, blockstore.ErrExist
		}
		return a, cmp.Or(f.sync(o), f.sync(d))
	}
	if s == nil || s.Size == nil {
		return a, nil
	}
	do, err := c.PrepareSetAttr(&a, &blockstore.SetAttr{Size: s.Size}, nil)
	if err == nil {
		err = f.setAttr(c, o, &a, &do)
	}
	if err == nil {
		err = f.sync(o)
	}
	if err != nil {
		return a, err
	}
	return f.attr(o)
}

func exists(*object) (*object, blockstore.Attr, error) {
	return nil, blockstore.Attr{}, blockstore.ErrExist
}

// Mkdir makes a directory.
func (f *FS) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, s *blockstore.SetAttr) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	return f.create(c, dir, name, blockstore.TypeDir, s, nil, exists,
		func(k *creation, in **C.struct_Inode, stx *C.struct_ceph_statx) C.int {
			return C.rc_mkdir(f.m, k.d.in, k.name, C.mode_t(k.mode), in, stx, k.perm)
		})
}

// Symlink makes a symbolic link with any target; nobody follows it here.
func (f *FS) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string, s *blockstore.SetAttr) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	var refused error
	switch {
	case target == "":
		refused = blockstore.ErrNotExist
	case len(target) > targetMax:
		refused = blockstore.ErrNameTooLong
	}
	t := C.CString(target)
	defer C.free(unsafe.Pointer(t))
	return f.create(c, dir, name, blockstore.TypeLnk, s, refused, exists,
		func(k *creation, in **C.struct_Inode, stx *C.struct_ceph_statx) C.int {
			return C.rc_symlink(f.m, k.d.in, k.name, t, in, stx, k.perm)
		})
}

// Mknod makes a fifo, a socket or, for the privileged, a device.
func (f *FS) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType,
	major, minor uint32, s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	var bits uint32
	var refused error
	switch typ {
	case blockstore.TypeBlk, blockstore.TypeChr:
		if bits = unix.S_IFCHR; typ == blockstore.TypeBlk {
			bits = unix.S_IFBLK
		}
		if !c.Privileged() {
			refused = blockstore.ErrPerm
		}
	case blockstore.TypeSock:
		bits, major, minor = unix.S_IFSOCK, 0, 0
	case blockstore.TypeFifo:
		bits, major, minor = unix.S_IFIFO, 0, 0
	default:
		refused = blockstore.ErrBadType
	}
	return f.create(c, dir, name, typ, s, refused, exists,
		func(k *creation, in **C.struct_Inode, stx *C.struct_ceph_statx) C.int {
			return C.rc_mknod(f.m, k.d.in, k.name, C.mode_t(bits|k.mode), C.dev_t(unix.Mkdev(major, minor)), in, stx, k.perm)
		})
}
