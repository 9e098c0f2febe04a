//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
import "C"

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
)

// types are the file types by the bits of st_mode.
var types = map[uint32]blockstore.FileType{
	unix.S_IFREG: blockstore.TypeReg, unix.S_IFDIR: blockstore.TypeDir, unix.S_IFBLK: blockstore.TypeBlk,
	unix.S_IFCHR: blockstore.TypeChr, unix.S_IFLNK: blockstore.TypeLnk, unix.S_IFSOCK: blockstore.TypeSock,
	unix.S_IFIFO: blockstore.TypeFifo,
}

func timeOf(t C.struct_timespec) time.Time { return time.Unix(int64(t.tv_sec), int64(t.tv_nsec)) }

func timespec(t time.Time) C.struct_timespec {
	return C.struct_timespec{tv_sec: C.__time_t(t.Unix()), tv_nsec: C.__syscall_slong_t(t.Nanosecond())}
}

func attrOf(s *C.struct_ceph_statx) blockstore.Attr {
	a := blockstore.Attr{
		Type: types[uint32(s.stx_mode)&unix.S_IFMT], Mode: uint32(s.stx_mode) & 0o7777, NLink: uint32(s.stx_nlink),
		UID: uint32(s.stx_uid), GID: uint32(s.stx_gid), Size: uint64(s.stx_size), Used: uint64(s.stx_blocks) * 512,
		FileID: fileID(uint64(s.stx_ino), uint64(s.stx_dev)),
		Atime:  timeOf(s.stx_atime), Mtime: timeOf(s.stx_mtime), Ctime: timeOf(s.stx_ctime),
	}
	if a.Type == blockstore.TypeBlk || a.Type == blockstore.TypeChr {
		a.Major, a.Minor = unix.Major(uint64(s.stx_rdev)), unix.Minor(uint64(s.stx_rdev))
	}
	return a
}

// attrs returns the attributes of an object, also of one without names.
func (f *FS) attrs(o *object) (blockstore.Attr, error) {
	var s C.struct_ceph_statx
	r := C.rc_getattr(f.m, o.in, &s, f.root)
	f.check(r)
	if err := failed(r); err != nil {
		if err == blockstore.ErrNotExist {
			err = blockstore.ErrStale
		}
		return blockstore.Attr{}, err
	}
	return attrOf(&s), nil
}

// attr is attrs of an object that has a name, or is pinned; it is stale otherwise.
func (f *FS) attr(o *object) (blockstore.Attr, error) {
	a, err := f.attrs(o)
	if err == nil {
		err = f.acl(o, &a)
	}
	if err == nil && a.NLink == 0 {
		f.objs.mu.Lock()
		if o.pins == 0 {
			err = blockstore.ErrStale
		}
		f.objs.mu.Unlock()
	}
	return a, err
}

// use acquires the object of a handle with its attributes.
func (f *FS) use(h blockstore.Handle) (*object, blockstore.Attr, error) {
	o, err := f.objs.acquire(h)
	if err != nil {
		return nil, blockstore.Attr{}, err
	}
	a, err := f.attr(o)
	if err != nil {
		f.objs.release(o)
		return nil, a, err
	}
	return o, a, nil
}

// unchanged is the consistency data of an operation that has changed nothing yet.
func unchanged(a *blockstore.Attr) blockstore.Wcc {
	return blockstore.Wcc{Pre: blockstore.Known(a), Post: blockstore.Known(a)}
}

// after completes the consistency data of a change.
func (f *FS) after(w *blockstore.Wcc, o *object) {
	if a, err := f.attrs(o); err == nil {
		w.Post = blockstore.Known(&a)
	}
}

// GetAttr returns the attributes of an object; anybody may ask.
func (f *FS) GetAttr(_ *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	o, a, err := f.use(h)
	if err == nil {
		f.objs.release(o)
	}
	return a, err
}

// Access evaluates the mode bits for c.
func (f *FS) Access(c *blockstore.Cred, h blockstore.Handle, want uint32) (uint32, blockstore.Attr, error) {
	o, a, err := f.use(h)
	if err != nil {
		return 0, a, err
	}
	f.objs.release(o)
	if o.frozen() {
		want &^= blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessDelete
	}
	return c.AccessBits(&a, want), a, nil
}

// Birth returns when an object was made.
func (f *FS) Birth(_ *blockstore.Cred, h blockstore.Handle) (time.Time, error) {
	o, err := f.objs.acquire(h)
	if err != nil {
		return time.Time{}, err
	}
	defer f.objs.release(o)
	var s C.struct_ceph_statx
	if err := failed(C.rc_getattr(f.m, o.in, &s, f.root)); err != nil {
		return time.Time{}, err
	}
	return timeOf(s.stx_btime), nil
}

// SetAttr changes attributes in one request to the MDS, all of s or nothing; in two if size and
// times are set.
func (f *FS) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) (
	w blockstore.Wcc, err error,
) {
	o, a, err := f.use(h)
	if err != nil {
		return w, err
	}
	defer f.objs.release(o)
	w = unchanged(&a)
	if o.frozen() {
		return w, blockstore.ErrROFS
	}
	if guard != nil && !guard.Equal(a.Ctime) {
		return w, blockstore.ErrNotSync
	}
	do, err := c.PrepareSetAttr(&a, s, nil)
	if err != nil {
		return w, err
	}
	err = f.setAttr(c, o, &a, &do)
	if err == nil {
		err = f.sync(o)
	}
	f.after(&w, o)
	return w, err
}

// setAttr makes changes that were checked to an object with attributes a.
func (f *FS) setAttr(c *blockstore.Cred, o *object, a *blockstore.Attr, s *blockstore.SetAttr) error {
	var stx C.struct_ceph_statx
	mask, mode := 0, a.Mode
	if s.Size != nil {
		if *s.Size > uint64(f.Limits().MaxFileSize) {
			return blockstore.ErrFBig
		}
		mask |= C.CEPH_SETATTR_SIZE
		stx.stx_size = C.uint64_t(*s.Size)
		if !c.Privileged() {
			mode = blockstore.DropSetID(mode)
		}
	}
	if s.UID != nil {
		mask |= C.CEPH_SETATTR_UID
		stx.stx_uid = C.uint32_t(*s.UID)
	}
	if s.GID != nil {
		mask |= C.CEPH_SETATTR_GID
		stx.stx_gid = C.uint32_t(*s.GID)
	}
	if (s.UID != nil || s.GID != nil) && a.Type != blockstore.TypeDir {
		mode = blockstore.DropSetID(mode)
	}
	if s.Mode != nil {
		mode = *s.Mode
	}
	if s.Mode != nil || mode != a.Mode {
		mask |= C.CEPH_SETATTR_MODE
		stx.stx_mode = C.uint16_t(mode)
	}
	set := func(how blockstore.TimeSet, t time.Time, dst *C.struct_timespec, bit int) {
		switch how {
		case blockstore.TimeServer:
			t = time.Now()
		case blockstore.TimeKeep:
			return
		}
		*dst = timespec(t)
		mask |= bit
	}
	set(s.AtimeHow, s.Atime, &stx.stx_atime, C.CEPH_SETATTR_ATIME)
	set(s.MtimeHow, s.Mtime, &stx.stx_mtime, C.CEPH_SETATTR_MTIME)
	if mask == 0 {
		return nil
	}
	f.endLease(o)
	if times := mask & (C.CEPH_SETATTR_ATIME | C.CEPH_SETATTR_MTIME); mask&C.CEPH_SETATTR_SIZE != 0 && times != 0 {
		// In one request the MDS would set the time of the change of the size.
		first := stx // libcephfs fills it with what is there
		if err := failed(C.rc_setattr(f.m, o.in, &first, C.int(mask&^times), f.root)); err != nil {
			return err
		}
		mask = times
	}
	return failed(C.rc_setattr(f.m, o.in, &stx, C.int(mask), f.root))
}
