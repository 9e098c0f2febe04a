package posixfs

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// creation is the creation of one object.
type creation struct {
	c    *blockstore.Cred
	d    *object
	dst  unix.Stat_t // of d, before
	name string
	typ  blockstore.FileType
	s    *blockstore.SetAttr
	mode uint32 // with which the object is created
	// chgrp is the group that the server gives the object; -1 if the kernel has given it the right
	// one.
	chgrp int
	w     blockstore.Wcc
	since failures // of d
}

// create runs do with the directory locked, and makes the new object and its name stable. do
// reports whether it has made a name; without one it returns the object that exists, or an
// error.
//
// The object is synced before the directory, so that no name on the disk leads to an object that
// is not on the disk.
func (f *FS) create(k *creation, dir blockstore.Handle, do func() (o *object, made bool, err error)) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	fail := func(err error) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
		return blockstore.Handle{}, blockstore.Attr{}, k.w, mapErr(err)
	}
	d, err := f.acquireDir(dir)
	if err != nil {
		return fail(err)
	}
	defer f.release(d)
	if k.s == nil {
		k.s = &blockstore.SetAttr{}
	}
	k.d, k.since = d, f.failures(d)
	d.mu.Lock()
	o, made, err := do()
	if made {
		d.changed(&k.w)
	}
	d.mu.Unlock()
	if err != nil {
		return fail(err)
	}
	defer f.release(o)
	if made {
		// Nobody has synced the object before it was made: every failure of it counts.
		if err := f.syncObject(o, failures{whole: k.since.whole}); err != nil {
			return fail(err)
		}
		if err := f.syncObject(d, k.since); err != nil {
			return fail(err)
		}
	}
	a, err := o.attr()
	return o.h, a, k.w, err
}

// begin makes the checks that come before the creation. If err is nil and canMake is not, no object
// can be created, but the caller may return an object that exists.
func (f *FS) begin(k *creation) (canMake error, err error) {
	if err := k.d.stat(&k.dst); err != nil {
		return nil, err
	}
	f.before(&k.w, &k.dst)
	if err := blockstore.CheckName(k.name); err != nil {
		return nil, err
	}
	if err := f.checkDir(k.c, k.d, blockstore.MayExec); err != nil {
		return nil, err
	}
	var gid uint32
	if k.c != nil {
		gid = k.c.GID
	}
	if k.s.Mode != nil {
		k.mode = *k.s.Mode
	}
	k.mode, gid = k.c.InheritMode(&k.w.Pre.Attr, k.typ, k.mode, gid)
	k.chgrp = -1
	if f.readOnly {
		return blockstore.ErrROFS, nil
	}
	if f.who.on || k.c == nil {
		return nil, nil
	}
	if err := f.checkDir(k.c, k.d, blockstore.MayWrite|blockstore.MayExec); err != nil {
		return err, nil
	}
	if k.c.UID == 0 {
		return nil, nil
	}
	self := blockstore.Cred{UID: f.who.uid, GID: f.who.gid, Groups: f.who.groups}
	if k.c.UID != self.UID || !self.InGroup(gid) {
		return blockstore.ErrPerm, nil // the daemon cannot give the object to that user
	}
	if k.dst.Mode&unix.S_ISGID == 0 && gid != self.GID {
		k.chgrp = int(gid)
	}
	return nil, nil
}

// finish sets the attributes of a new object that the system call which created it could not set:
// the bits of the mode that a umask removed, the owner (for root only), and the times.
func (f *FS) finish(k *creation, o *object) error {
	a, err := o.attr()
	if err != nil {
		return err
	}
	if u := f.makers.umask; u&k.mode != 0 && a.Mode&0o777 == k.mode&0o777&^u && k.typ != blockstore.TypeLnk {
		if err := unix.Chmod(procPath(o.path), k.mode); err != nil {
			return err
		}
	}
	if k.chgrp >= 0 {
		if err := unix.Fchownat(o.path, "", -1, k.chgrp, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	rest := *k.s
	rest.Mode = nil
	if !k.c.Privileged() {
		rest.UID, rest.GID = nil, nil
	}
	if k.typ != blockstore.TypeReg || (rest.Size != nil && *rest.Size == 0) {
		rest.Size = nil
	}
	if rest == (blockstore.SetAttr{}) {
		return nil
	}
	return f.applyAttrs(k.c, o, &a, &rest)
}

// finished runs finish, and releases the object if that fails.
func (f *FS) finished(k *creation, o *object) (_ *object, made bool, err error) {
	if o.typ != k.typ {
		err = blockstore.ErrNotExist // a program of the host has replaced it already
	} else {
		err = f.finish(k, o)
	}
	if err != nil {
		f.release(o)
		return nil, true, err
	}
	return o, true, nil
}

// Create creates a regular file. It stores the verifier of an exclusive create in the times of the
// file, where a retry finds it, also after a crash (RFC 1813 section 3.3.8).
func (f *FS) Create(c *blockstore.Cred, dir blockstore.Handle, name string, mode blockstore.CreateMode,
	s *blockstore.SetAttr, verf [8]byte,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if mode == blockstore.Exclusive {
		s = blockstore.ExclusiveAttr(verf)
	}
	k := &creation{c: c, name: name, typ: blockstore.TypeReg, s: s}
	return f.create(k, dir, func() (*object, bool, error) { return f.createFile(k, mode) })
}

func (f *FS) createFile(k *creation, mode blockstore.CreateMode) (o *object, made bool, err error) {
	canMake, err := f.begin(k)
	if err != nil {
		return nil, false, err
	}
	fd := -1
	if canMake == nil {
		// A name that exists is left to createExisting, which checks the permission of the file. With
		// O_EXCL the flags O_NOFOLLOW, O_NONBLOCK and O_NOCTTY have no effect; they protect against a
		// filesystem that ignores O_EXCL.
		const flags = unix.O_CREAT | unix.O_EXCL | unix.O_RDWR | unix.O_NOFOLLOW | unix.O_CLOEXEC |
			unix.O_NONBLOCK | unix.O_NOCTTY
		err = f.makers.as(&f.who, k.c, func() (err error) {
			fd, err = again(func() (int, error) { return unix.Openat(k.d.path, k.name, flags, k.mode) })
			return err
		})
	}
	switch {
	case canMake != nil || err == unix.EEXIST:
		// RFC 1813 section 3.3.8: UNCHECKED returns the file that exists, also on a read-only export.
		o, err = f.createExisting(k, mode)
		if err == blockstore.ErrNotExist && canMake != nil {
			err = canMake
		}
		return o, false, err
	case err != nil:
		return nil, false, err
	}
	if o, err = f.adoptChild(k.d, k.name, fd); err != nil {
		return nil, true, err
	}
	if o.path == fd {
		o.rw.Store(int32(fd)) // this descriptor can write, even if the mode of the file forbids that
	}
	return f.finished(k, o)
}

// createExisting returns the object of a name that exists, if the mode of the create allows that.
func (f *FS) createExisting(k *creation, mode blockstore.CreateMode) (*object, error) {
	o, err := f.openChild(k.c, k.d, k.name)
	if err != nil {
		return nil, err
	}
	if err = f.checkExisting(k, o, mode); err != nil {
		f.release(o)
		return nil, err
	}
	return o, nil
}

func (f *FS) checkExisting(k *creation, o *object, mode blockstore.CreateMode) error {
	if o.typ != blockstore.TypeReg || mode == blockstore.Guarded {
		return blockstore.ErrExist
	}
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return err
	}
	a := f.changes.attrOf(&st)
	if mode == blockstore.Exclusive {
		if a.Size != 0 || !sameHalf(a.Atime, k.s.Atime) || !sameHalf(a.Mtime, k.s.Mtime) {
			return blockstore.ErrExist
		}
		// This is a retry. The server may have crashed before the first reply was stable.
		if err := f.syncObject(o, f.failures(o)); err != nil {
			return err
		}
		return f.syncObject(k.d, k.since)
	}
	if k.s.Size == nil {
		return nil
	}
	if f.readOnly {
		return blockstore.ErrROFS
	}
	do, err := k.c.PrepareSetAttr(&a, &blockstore.SetAttr{Size: k.s.Size}, func() bool { return f.mayWrite(k.c, o, &st) })
	if err != nil {
		return err
	}
	since := f.failures(o)
	if err := f.applyAttrs(k.c, o, &a, &do); err != nil {
		return err
	}
	f.changes.changedFD(o.path, a.Ctime)
	return f.syncObject(o, since)
}

// sameHalf reports whether the time of a file stores the same half of a verifier as want. A
// filesystem that stores whole seconds has lost the upper bit, and so has a file that an earlier
// version of rstored created.
func sameHalf(got, want time.Time) bool {
	return got.Equal(want) || got.Equal(want.Truncate(time.Second))
}

// makeNew is Mkdir, Symlink and Mknod: the name must not exist yet.
func (f *FS) makeNew(k *creation, dir blockstore.Handle, call func(dir int, mode uint32) error) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	return f.create(k, dir, func() (o *object, made bool, err error) {
		canMake, err := f.begin(k)
		if err != nil {
			return nil, false, err
		}
		if canMake != nil {
			if k.d.hasName(k.name) {
				return nil, false, blockstore.ErrExist
			}
			return nil, false, canMake
		}
		if err := f.makers.as(&f.who, k.c, func() error { return call(k.d.path, k.mode) }); err != nil {
			return nil, false, err
		}
		// mkdirat and the like return no descriptor. A program of the host can replace the name in
		// between; finished checks the type.
		fd, err := f.openName(k.d.path, k.name)
		if err != nil {
			return nil, true, err
		}
		if o, err = f.adoptChild(k.d, k.name, fd); err != nil {
			return nil, true, err
		}
		return f.finished(k, o)
	})
}

// hasName reports whether a name of a directory exists, whatever it is.
func (o *object) hasName(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(o.path, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// Mkdir makes a directory.
func (f *FS) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, s *blockstore.SetAttr) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	k := &creation{c: c, name: name, typ: blockstore.TypeDir, s: s}
	return f.makeNew(k, dir, func(dir int, mode uint32) error { return unix.Mkdirat(dir, name, mode) })
}

// Symlink makes a symbolic link with any target; the server never follows it.
func (f *FS) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string, s *blockstore.SetAttr) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	k := &creation{c: c, name: name, typ: blockstore.TypeLnk, s: s}
	return f.makeNew(k, dir, func(dir int, _ uint32) error { return unix.Symlinkat(target, dir, name) })
}

// Mknod makes a fifo, a socket or, for the privileged, a device.
func (f *FS) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType,
	major, minor uint32, s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	var kind uint32
	var dev uint64
	switch typ {
	case blockstore.TypeBlk:
		kind, dev = unix.S_IFBLK, unix.Mkdev(major, minor)
	case blockstore.TypeChr:
		kind, dev = unix.S_IFCHR, unix.Mkdev(major, minor)
	case blockstore.TypeSock:
		kind = unix.S_IFSOCK
	case blockstore.TypeFifo:
		kind = unix.S_IFIFO
	default:
		return blockstore.Handle{}, blockstore.Attr{}, f.wccNow(dir), blockstore.ErrBadType
	}
	if dev != 0 && !c.Privileged() {
		return blockstore.Handle{}, blockstore.Attr{}, f.wccNow(dir), blockstore.ErrPerm
	}
	k := &creation{c: c, name: name, typ: typ, s: s}
	return f.makeNew(k, dir, func(dir int, mode uint32) error { return unix.Mknodat(dir, name, kind|mode, int(dev)) })
}

// wccNow returns the consistency data of a directory that is not changed.
func (f *FS) wccNow(dir blockstore.Handle) (w blockstore.Wcc) {
	o, err := f.acquire(dir)
	if err != nil {
		return w
	}
	defer f.release(o)
	var st unix.Stat_t
	if o.stat(&st) == nil {
		f.before(&w, &st)
	}
	return w
}
