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

// changeable is useDir of a directory that is not in a snapshot.
func (f *FS) changeable(c *blockstore.Cred, h blockstore.Handle) (*object, blockstore.Attr, error) {
	d, a, err := f.useDir(c, h)
	if err == nil && d.frozen() {
		f.objs.release(d)
		return nil, a, blockstore.ErrROFS
	}
	return d, a, err
}

// useDir acquires a directory that c may search.
func (f *FS) useDir(c *blockstore.Cred, h blockstore.Handle) (*object, blockstore.Attr, error) {
	d, a, err := f.use(h)
	if err != nil {
		return nil, a, err
	}
	if a.Type != blockstore.TypeDir {
		f.objs.release(d)
		return nil, a, blockstore.ErrNotDir
	}
	return d, a, nil
}

// find looks a name up, as the server itself.
func (f *FS) find(d *object, name string) (*object, blockstore.Attr, error) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var in *C.struct_Inode
	var s C.struct_ceph_statx
	if err := failed(C.rc_lookup(f.m, d.in, n, &in, &s, f.root)); err != nil {
		return nil, blockstore.Attr{}, err
	}
	if snap := d.snap(); snap != noSnap && snap != snapDir && uint64(s.stx_dev) != snap {
		C.rc_put(f.m, in)
		return nil, blockstore.Attr{}, blockstore.ErrStale // never a live object as one of a snapshot
	}
	o, a := f.found(in, &s), attrOf(&s)
	if err := f.acl(o, &a); err != nil {
		f.objs.release(o)
		return nil, a, err
	}
	return o, a, nil
}

// found is the object of an inode. It takes over the reference. stx_dev is the snapshot.
func (f *FS) found(in *C.struct_Inode, s *C.struct_ceph_statx) *object {
	return f.objs.adopt(f.handle(uint64(s.stx_ino), uint64(s.stx_dev)), in)
}

// Lookup finds a name. ".." of the root is the root.
func (f *FS) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Handle, blockstore.Attr,
	error,
) {
	d, a, err := f.useDir(c, dir)
	if err != nil {
		return blockstore.Handle{}, a, err
	}
	defer f.objs.release(d)
	if name == ".." && dir == f.top {
		name = "."
	}
	if name != "." && name != ".." {
		err = blockstore.CheckName(name) // libcephfs would wait for ever with an empty one
	}
	if err == nil && !c.May(&a, blockstore.MayExec) {
		err = blockstore.ErrAccess
	}
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, err
	}
	var o *object
	if name == ".." {
		o, a, err = f.up(d)
	} else {
		defer f.names.look(nameOf(d, name))()
		o, a, err = f.find(d, name)
	}
	if err != nil {
		return blockstore.Handle{}, a, err
	}
	f.objs.release(o)
	return o.h, a, nil
}

// targetMax is the longest target of a symlink in bytes.
const targetMax = unix.PathMax - 1

// ReadLink returns the target of a symlink.
func (f *FS) ReadLink(_ *blockstore.Cred, h blockstore.Handle) (string, error) {
	o, a, err := f.use(h)
	if err != nil {
		return "", err
	}
	defer f.objs.release(o)
	if a.Type != blockstore.TypeLnk {
		return "", blockstore.ErrInval
	}
	var buf [targetMax]C.char
	n := C.rc_readlink(f.m, o.in, &buf[0], targetMax, f.root)
	if err := failed(n); err != nil {
		return "", err
	}
	return C.GoStringN(&buf[0], n), nil
}

// Remove takes the name of anything but a directory.
func (f *FS) Remove(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.unlink(c, dir, name, false)
}

// Rmdir takes the name of an empty directory.
func (f *FS) Rmdir(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.unlink(c, dir, name, true)
}

func (f *FS) unlink(c *blockstore.Cred, dir blockstore.Handle, name string, isDir bool) (w blockstore.Wcc, err error) {
	d, da, err := f.changeable(c, dir)
	if err != nil {
		return w, err
	}
	defer f.objs.release(d)
	w = unchanged(&da)
	if err := blockstore.CheckName(name); err != nil {
		return w, err
	}
	if !c.May(&da, blockstore.MayExec) {
		return w, blockstore.ErrAccess
	}
	defer f.names.change(nameOf(d, name))()
	o, a, err := f.find(d, name)
	if err != nil {
		return w, err
	}
	err = c.MayDelete(&da, &a)
	switch {
	case err != nil:
	case o.frozen():
		err = blockstore.ErrROFS
	case isDir && a.Type != blockstore.TypeDir:
		err = blockstore.ErrNotDir
	case !isDir && a.Type == blockstore.TypeDir:
		err = blockstore.ErrIsDir
	}
	if err == nil {
		n := C.CString(name)
		defer C.free(unsafe.Pointer(n))
		p, done := f.perm(c)
		defer done()
		f.endLease(o)
		if isDir {
			err = failed(C.rc_rmdir(f.m, d.in, n, p))
		} else {
			err = failed(C.rc_unlink(f.m, d.in, n, p))
		}
		if err == nil {
			err = f.sync(d)
		}
		f.after(&w, d)
	}
	f.objs.release(o)
	if err == nil && (isDir || a.NLink <= 1) {
		f.objs.forget(o.h)
	}
	return w, err
}

// Rename renames an object. It replaces an object of the new name if the types allow that.
func (f *FS) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle,
	toName string,
) (fromW, toW blockstore.Wcc, err error) {
	fd, fa, err := f.changeable(c, from)
	if err != nil {
		return fromW, toW, err
	}
	defer f.objs.release(fd)
	td, ta, err := f.changeable(c, to)
	if err != nil {
		return fromW, toW, err
	}
	defer f.objs.release(td)
	fromW = unchanged(&fa)
	toW = unchanged(&ta)
	defer f.names.change(nameOf(fd, fromName), nameOf(td, toName))()
	victim, same, err := f.checkRename(c, fd, &fa, fromName, td, &ta, toName)
	if err != nil || same {
		return fromW, toW, err
	}
	a, b := C.CString(fromName), C.CString(toName)
	defer C.free(unsafe.Pointer(a))
	defer C.free(unsafe.Pointer(b))
	p, done := f.perm(c)
	defer done()
	err = failed(C.rc_rename(f.m, fd.in, a, td.in, b, p))
	if err == nil {
		err = cmp.Or(f.sync(fd), f.sync(td))
	}
	f.after(&fromW, fd)
	f.after(&toW, td)
	if err == nil && victim != (blockstore.Handle{}) {
		f.objs.forget(victim)
	}
	return fromW, toW, err
}

// checkRename checks what libcephfs does not, or answers otherwise. It returns the object that
// loses its last name, and ends the leases of both. same: both names are of one object, and nothing
// is to be done.
func (f *FS) checkRename(c *blockstore.Cred, fd *object, fa *blockstore.Attr, fromName string, td *object,
	ta *blockstore.Attr, toName string,
) (victim blockstore.Handle, same bool, err error) {
	if err := cmp.Or(blockstore.CheckName(fromName), blockstore.CheckName(toName)); err != nil {
		return victim, false, err
	}
	if !c.May(fa, blockstore.MayExec) || !c.May(ta, blockstore.MayExec) {
		return victim, false, blockstore.ErrAccess
	}
	o, a, err := f.find(fd, fromName)
	if err != nil {
		return victim, false, err
	}
	defer f.objs.release(o)
	if o.frozen() {
		return victim, false, blockstore.ErrROFS
	}
	if a.Type == blockstore.TypeDir {
		if err := f.notBelow(td, o); err != nil {
			return victim, false, err
		}
	}
	v, va, err := f.find(td, toName)
	if err == blockstore.ErrNotExist {
		if err := c.MayDelete(fa, &a); err != nil {
			return victim, false, err
		}
		if !c.May(ta, blockstore.MayWrite|blockstore.MayExec) {
			return victim, false, blockstore.ErrAccess
		}
		f.endLease(o)
		return victim, false, f.mayMove(c, &a, fd, td)
	}
	if err != nil {
		return victim, false, err
	}
	defer f.objs.release(v)
	if v.frozen() {
		return victim, false, blockstore.ErrROFS
	}
	if v == o {
		return victim, true, nil
	}
	if va.Type == blockstore.TypeDir && f.notBelow(fd, v) == blockstore.ErrInval {
		return victim, false, blockstore.ErrNotEmpty // it contains the source
	}
	if err := cmp.Or(c.MayDelete(fa, &a), c.MayDelete(ta, &va)); err != nil {
		return victim, false, err
	}
	switch {
	case a.Type == blockstore.TypeDir && va.Type != blockstore.TypeDir:
		return victim, false, blockstore.ErrNotDir
	case a.Type != blockstore.TypeDir && va.Type == blockstore.TypeDir:
		return victim, false, blockstore.ErrIsDir
	case va.NLink <= 1 || va.Type == blockstore.TypeDir:
		victim = v.h
	}
	f.endLease(o)
	f.endLease(v)
	return victim, false, f.mayMove(c, &a, fd, td)
}

// notBelow returns an error if d is the directory o, or below it. libcephfs waits for ever then.
func (f *FS) notBelow(d, o *object) error {
	at, _, err := f.use(d.h)
	for err == nil && at.h != o.h && at.h != f.top {
		var up *object
		up, _, err = f.find(at, "..")
		f.objs.release(at)
		at = up
	}
	if err != nil {
		return err
	}
	f.objs.release(at)
	if at.h == o.h {
		return blockstore.ErrInval
	}
	return nil
}

// mayMove checks the change of "..", which is a write to the directory that is moved.
func (f *FS) mayMove(c *blockstore.Cred, a *blockstore.Attr, fd, td *object) error {
	if a.Type == blockstore.TypeDir && fd != td && !c.May(a, blockstore.MayWrite) {
		return blockstore.ErrAccess
	}
	return nil
}

// Link gives a file another name.
func (f *FS) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (a blockstore.Attr, w blockstore.Wcc,
	err error,
) {
	o, a, err := f.use(h)
	if err != nil {
		return a, w, err
	}
	defer f.objs.release(o)
	if o.frozen() {
		return a, w, blockstore.ErrXDev
	}
	d, da, err := f.changeable(c, dir)
	if err != nil {
		return a, w, err
	}
	defer f.objs.release(d)
	w = unchanged(&da)
	if err := blockstore.CheckName(name); err != nil {
		return a, w, err
	}
	if !c.May(&da, blockstore.MayExec) {
		return a, w, blockstore.ErrAccess
	}
	defer f.names.change(nameOf(d, name))()
	switch e, _, err := f.find(d, name); {
	case err == nil:
		f.objs.release(e)
		return a, w, blockstore.ErrExist
	case err != blockstore.ErrNotExist:
		return a, w, err
	case !c.May(&da, blockstore.MayWrite|blockstore.MayExec):
		return a, w, blockstore.ErrAccess
	case a.Type == blockstore.TypeDir:
		return a, w, blockstore.ErrPerm
	}
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	// As the server: a link of a file that the caller could not read is permitted here as on Linux
	// without protected_hardlinks.
	f.endLease(o)
	err = failed(C.rc_link(f.m, o.in, d.in, n, f.root))
	if err == nil {
		err = cmp.Or(f.sync(o), f.sync(d))
	}
	f.after(&w, d)
	if err == nil {
		a, err = f.attr(o)
	}
	return a, w, err
}
