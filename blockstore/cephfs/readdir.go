//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
import "C"

import "github.com/rstored/rstored/blockstore"

// batch is how many entries are read in one call of C.
const batch = 64

// ReadDir lists by hash of the names. A cookie is the offset of libcephfs plus one, which stays
// good over changes of the directory, so that the verifier is always zero.
func (f *FS) ReadDir(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, _ [8]byte, plus bool,
	emit func(*blockstore.DirEntry) bool,
) (verf [8]byte, eof bool, err error) {
	d, a, err := f.useDir(c, dir)
	if err != nil {
		return verf, false, err
	}
	defer f.objs.release(d)
	if !c.May(&a, blockstore.MayRead) {
		return verf, false, blockstore.ErrAccess
	}
	if cookie > 1<<63 {
		return verf, false, blockstore.ErrBadCookie
	}
	snap := d.snap()
	plus = plus && c.May(&a, blockstore.MayExec)
	var r *C.struct_ceph_dir_result
	if err := failed(C.rc_opendir(f.m, d.in, &r, f.root)); err != nil {
		return verf, false, err
	}
	defer C.rc_releasedir(f.m, r)
	if cookie > 0 {
		C.rc_seekdir(f.m, r, C.int64_t(cookie-1))
	}
	list := make([]C.struct_rc_entry, batch)
	want := C.int(0)
	if plus || snap == snapDir { // each entry is of a snapshot of its own
		want = 1
	}
	for {
		n := C.rc_readdir(f.m, r, &list[0], batch, want)
		if err := failed(n); err != nil || n == 0 {
			return verf, err == nil, err
		}
		for i := range list[:n] {
			raw := &list[i]
			e := blockstore.DirEntry{
				Name: C.GoString(&raw.name[0]), FileID: fileID(uint64(raw.ino), snap), Cookie: uint64(raw.next) + 1,
			}
			switch {
			case e.Name == "." || e.Name == "..":
				if err := f.dotEntry(&e, d, &a, plus); err != nil {
					return verf, false, err
				}
			case raw.has != 0:
				a, h := attrOf(&raw.stx), f.handle(uint64(raw.stx.stx_ino), uint64(raw.stx.stx_dev))
				if e.FileID = a.FileID; plus {
					e.Attr, e.Handle = &a, &h
				}
			}
			if !emit(&e) {
				return verf, false, nil
			}
		}
	}
}

// dotEntry completes the entry of d itself, which has the attributes a, or of its parent. The
// parent of the root is the root.
func (f *FS) dotEntry(e *blockstore.DirEntry, d *object, a *blockstore.Attr, plus bool) error {
	attr, h := *a, d.h
	if e.Name == ".." && d.h != f.top {
		up, ua, err := f.up(d)
		if err != nil {
			return err
		}
		f.objs.release(up)
		attr, h = ua, up.h
	}
	e.FileID = attr.FileID
	if plus {
		e.Attr, e.Handle = &attr, &h
	}
	return nil
}
