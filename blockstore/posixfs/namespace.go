package posixfs

import (
	"encoding/binary"
	"time"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// Lookup finds a name in a directory. ".." of the root is the root; a mount
// point of the host is ErrAccess, because what is behind it is not exported.
func (f *FS) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Handle, blockstore.Attr, error) {
	fail := func(err error) (blockstore.Handle, blockstore.Attr, error) {
		return blockstore.Handle{}, blockstore.Attr{}, mapErr(err)
	}
	d, err := f.acquireDir(dir)
	if err != nil {
		return fail(err)
	}
	defer f.release(d)
	if name != "." && name != ".." {
		if err := blockstore.CheckName(name); err != nil {
			return fail(err)
		}
	}
	o, err := f.openChild(c, d, name)
	if err != nil {
		return fail(err)
	}
	defer f.release(o)
	a, err := o.attr()
	if err == blockstore.ErrStale {
		err = blockstore.ErrNotExist // it went away meanwhile
	}
	if err != nil {
		return fail(err)
	}
	return o.h, a, nil
}

// openChild returns the object of a name as c finds it.
func (f *FS) openChild(c *blockstore.Cred, d *object, name string) (*object, error) {
	var st unix.Stat_t
	if err := d.stat(&st); err != nil {
		return nil, err
	}
	// Search permission on d is all that a single name needs, and is mostly
	// remembered; opening as c each time would cost twice the rest.
	if !f.may(c, d, &st, blockstore.MayExec) {
		return nil, blockstore.ErrAccess
	}
	if o := f.knownChild(d, name); o != nil {
		return o, nil
	}
	var fd int
	var err error
	switch {
	case name == "." || (name == ".." && d == f.root):
		fd, err = f.openName(d.path, ".")
	case name == "..":
		fd, err = unix.Openat(d.path, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	default:
		fd, err = f.openName(d.path, name)
	}
	switch {
	case err == unix.EXDEV:
		return nil, blockstore.ErrAccess
	case err != nil:
		return nil, mapErr(err)
	}
	if name == ".." && d != f.root {
		ok, err := f.below(fd)
		if err == nil && !ok {
			f.count.outside.Add(1)
			err = blockstore.ErrStale
		}
		if err != nil {
			unix.Close(fd)
			return nil, mapErr(err)
		}
	}
	return f.adoptChild(d, name, fd)
}

// knownChild returns the object of a name if it is open: its identity, by which that is
// seen, costs a third of a descriptor of it.
func (f *FS) knownChild(d *object, name string) *object {
	if f.kind != kindKernel || f.mountID == 0 || name == "." || name == ".." {
		return nil
	}
	id, mount, err := kernelIdent(d.path, name)
	if err != nil || mount != f.mountID {
		return nil
	}
	h := f.tag.handle(&id)
	o := f.objects.get(&h)
	if o != nil {
		f.find.seen(&o.id, &d.id, name)
	}
	return o
}

// adoptChild makes an object of a descriptor found as name in d.
func (f *FS) adoptChild(d *object, name string, fd int) (*object, error) {
	id, err := identify(f.kind, fd, "")
	if err != nil {
		unix.Close(fd)
		return nil, mapErr(err)
	}
	f.find.seen(&id, &d.id, name)
	return f.adopt(id, fd)
}

// creation is one making of a new object.
type creation struct {
	c    *blockstore.Cred
	d    *object
	dst  unix.Stat_t // of d, before
	name string
	typ  blockstore.FileType
	mode uint32
	// chgrp is the group to give where the server and not the kernel does.
	chgrp int
	w     blockstore.Wcc
	since failures // of d
}

// begin checks what can be checked about a create. canMake is false where an
// existing object may still be found but none made.
func (f *FS) begin(k *creation, s *blockstore.SetAttr) (canMake error, err error) {
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
	if s.Mode != nil {
		k.mode = *s.Mode
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
		return blockstore.ErrPerm, nil // it could not be made theirs
	}
	if k.dst.Mode&unix.S_ISGID == 0 && gid != self.GID {
		k.chgrp = int(gid)
	}
	return nil, nil
}

// finish gives a new object what its making could not: the mode where a umask
// intervened, and from s the owner (by root only) and the times.
func (f *FS) finish(k *creation, o *object, s *blockstore.SetAttr) error {
	a, err := o.attr()
	if err != nil {
		return err
	}
	if u := f.makers.umask; u&k.mode != 0 && a.Mode&0o777 == k.mode&0o777&^u && k.typ != blockstore.TypeLnk {
		if err := unix.Chmod(procPath(o.path), k.mode); err != nil {
			return mapErr(err)
		}
	}
	if k.chgrp >= 0 {
		if err := unix.Fchownat(o.path, "", -1, k.chgrp, unix.AT_EMPTY_PATH); err != nil {
			return mapErr(err)
		}
	}
	rest := *s
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
	return f.change(k.c, o, &a, &rest)
}

// Create makes a regular file. The verifier of an exclusive create is kept in
// the new file's times, where a retry finds it also after a crash.
func (f *FS) Create(c *blockstore.Cred, dir blockstore.Handle, name string, mode blockstore.CreateMode, s *blockstore.SetAttr, verf [8]byte) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	d, err := f.acquireDir(dir)
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, err
	}
	defer f.release(d)
	if s == nil {
		s = &blockstore.SetAttr{}
	}
	if mode == blockstore.Exclusive {
		s = exclusiveAttr(verf)
	}
	k := creation{c: c, d: d, name: name, typ: blockstore.TypeReg, since: f.failures(d)}
	d.mu.Lock()
	o, made, err := f.createLocked(&k, mode, s)
	if made {
		d.changed(&k.w)
	}
	d.mu.Unlock()
	return f.created(&k, o, made, err)
}

// created ends every create: stable, then reported.
func (f *FS) created(k *creation, o *object, made bool, err error) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, k.w, mapErr(err)
	}
	defer f.release(o)
	if made {
		if err := f.syncObject(o, failures{whole: k.since.whole}); err != nil { // any failure is since it was made
			return blockstore.Handle{}, blockstore.Attr{}, k.w, err
		}
		if err := f.syncObject(k.d, k.since); err != nil {
			return blockstore.Handle{}, blockstore.Attr{}, k.w, err
		}
	}
	a, err := o.attr()
	return o.h, a, k.w, err
}

func (f *FS) createLocked(k *creation, mode blockstore.CreateMode, s *blockstore.SetAttr) (o *object, made bool, err error) {
	canMake, err := f.begin(k, s)
	if err != nil {
		return nil, false, err
	}
	fd := -1
	if canMake == nil {
		err = f.makers.as(&f.who, k.c, func() (err error) {
			fd, err = again(func() (int, error) {
				return unix.Openat(k.d.path, k.name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, k.mode)
			})
			return err
		})
	}
	switch {
	case canMake != nil || err == unix.EEXIST:
		o, err = f.createExisting(k, mode, s)
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
		// It can be written by this descriptor even where its mode forbids.
		o.rw.Store(int32(fd))
	}
	if err := f.finish(k, o, s); err != nil {
		f.release(o)
		return nil, true, err
	}
	return o, true, nil
}

// createExisting answers a create of a name that is there.
func (f *FS) createExisting(k *creation, mode blockstore.CreateMode, s *blockstore.SetAttr) (*object, error) {
	o, err := f.openChild(k.c, k.d, k.name)
	if err != nil {
		return nil, err
	}
	err = f.checkExisting(k, o, mode, s)
	if err != nil {
		f.release(o)
		return nil, err
	}
	return o, nil
}

func (f *FS) checkExisting(k *creation, o *object, mode blockstore.CreateMode, s *blockstore.SetAttr) error {
	if o.typ != blockstore.TypeReg || mode == blockstore.Guarded {
		return blockstore.ErrExist
	}
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return err
	}
	a := f.changes.attrOf(&st)
	if mode == blockstore.Exclusive {
		if a.Size != 0 || !sameHalf(a.Atime, s.Atime) || !sameHalf(a.Mtime, s.Mtime) {
			return blockstore.ErrExist
		}
		// A retry after a crash: the first answer may never have been stable.
		if err := f.syncObject(o, f.failures(o)); err != nil {
			return err
		}
		return f.syncObject(k.d, k.since)
	}
	if s.Size == nil {
		return nil
	}
	if f.readOnly {
		return blockstore.ErrROFS
	}
	do, err := k.c.PrepareSetAttr(&a, &blockstore.SetAttr{Size: s.Size}, func() bool { return f.mayWrite(k.c, o, &st) })
	if err != nil {
		return err
	}
	since := f.failures(o)
	if err := f.change(k.c, o, &a, &do); err != nil {
		return err
	}
	f.changes.changedFD(o.path, a.Ctime)
	return f.syncObject(o, since)
}

// exclusiveAttr turns a verifier into the times that hold it, half of it each (RFC 1813 section 3.3.8).
func exclusiveAttr(verf [8]byte) *blockstore.SetAttr {
	return &blockstore.SetAttr{
		AtimeHow: blockstore.TimeClient, Atime: timeOfHalf(binary.BigEndian.Uint32(verf[4:])),
		MtimeHow: blockstore.TimeClient, Mtime: timeOfHalf(binary.BigEndian.Uint32(verf[:4])),
	}
}

// timeOfHalf returns the time that holds half of a verifier. The seconds hold the lower 31 bits, which every
// filesystem stores. The fraction of the second holds the upper bit: a quarter or a half, so that a
// filesystem that rounds times to hundredths keeps it as well.
func timeOfHalf(half uint32) time.Time {
	const lower = 1<<31 - 1
	return time.Unix(int64(half&lower), int64(half>>31+1)*int64(250*time.Millisecond))
}

// sameHalf reports whether the time of a file holds the half of the verifier that want holds. A filesystem that
// stores whole seconds has lost the upper bit, and so has a file that an earlier version of rstored made.
func sameHalf(got, want time.Time) bool {
	return got.Equal(want) || got.Equal(want.Truncate(time.Second))
}

// makeNew is Mkdir, Symlink and Mknod: a name that must not be there yet.
func (f *FS) makeNew(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, s *blockstore.SetAttr, call func(dir int, mode uint32) error) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	d, err := f.acquireDir(dir)
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, err
	}
	defer f.release(d)
	if s == nil {
		s = &blockstore.SetAttr{}
	}
	k := creation{c: c, d: d, name: name, typ: typ, since: f.failures(d)}
	d.mu.Lock()
	o, made, err := f.makeLocked(&k, s, call)
	if made {
		d.changed(&k.w)
	}
	d.mu.Unlock()
	return f.created(&k, o, made, err)
}

func (f *FS) makeLocked(k *creation, s *blockstore.SetAttr, call func(dir int, mode uint32) error) (o *object, made bool, err error) {
	canMake, err := f.begin(k, s)
	if err != nil {
		return nil, false, err
	}
	if canMake != nil {
		var st unix.Stat_t
		if unix.Fstatat(k.d.path, k.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return nil, false, blockstore.ErrExist
		}
		return nil, false, canMake
	}
	err = f.makers.as(&f.who, k.c, func() error { return call(k.d.path, k.mode) })
	if err != nil {
		return nil, false, err
	}
	fd, err := f.openName(k.d.path, k.name)
	if err != nil {
		return nil, true, err
	}
	if o, err = f.adoptChild(k.d, k.name, fd); err != nil {
		return nil, true, err
	}
	if o.typ == k.typ {
		err = f.finish(k, o, s)
	} else {
		err = blockstore.ErrNotExist // the host replaced it already
	}
	if err != nil {
		f.release(o)
		return nil, true, err
	}
	return o, true, nil
}

// Mkdir makes a directory.
func (f *FS) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	return f.makeNew(c, dir, name, blockstore.TypeDir, s, func(dir int, mode uint32) error {
		return unix.Mkdirat(dir, name, mode)
	})
}

// Symlink makes a symbolic link, whatever its target; the server never
// follows it.
func (f *FS) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	return f.makeNew(c, dir, name, blockstore.TypeLnk, s, func(dir int, mode uint32) error {
		return unix.Symlinkat(target, dir, name)
	})
}

// Mknod makes a fifo, a socket or, where the caller may, a device.
func (f *FS) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, major, minor uint32, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
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
	return f.makeNew(c, dir, name, typ, s, func(dir int, mode uint32) error {
		return unix.Mknodat(dir, name, kind|mode, int(dev))
	})
}

// wccNow is the consistency data of a directory that is not touched.
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

// Remove takes the name of anything but a directory.
func (f *FS) Remove(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.unlink(c, dir, name, 0)
}

// Rmdir takes the name of an empty directory.
func (f *FS) Rmdir(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.unlink(c, dir, name, unix.AT_REMOVEDIR)
}

func (f *FS) unlink(c *blockstore.Cred, dir blockstore.Handle, name string, flags int) (w blockstore.Wcc, err error) {
	d, err := f.acquireDir(dir)
	if err != nil {
		return w, err
	}
	defer f.release(d)
	since := f.failures(d)
	err = func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		var st unix.Stat_t
		if err := d.stat(&st); err != nil {
			return err
		}
		f.before(&w, &st)
		if err := blockstore.CheckName(name); err != nil {
			return err
		}
		if f.readOnly {
			return blockstore.ErrROFS
		}
		if err := f.checkDir(c, d, blockstore.MayExec); err != nil {
			return err
		}
		v := f.peek(d, name)
		defer v.close()
		if err := f.mayDelete(c, &w.Pre.Attr, &v); err != nil {
			return err
		}
		err := f.who.as(c, func() error {
			_, err := again(func() (int, error) { return 0, unix.Unlinkat(d.path, name, flags) })
			return err
		})
		if err != nil {
			return err
		}
		f.viewChanged(&v) // it may have other names
		f.reap(&v)
		d.changed(&w)
		return nil
	}()
	if err != nil {
		return w, mapErr(err)
	}
	return w, f.syncObject(d, since)
}

// entryView is what was found under a name before an operation on it.
type entryView struct {
	fd  int // -1: nothing could be opened
	err error
	id  ident
	a   blockstore.Attr
}

func (f *FS) peek(d *object, name string) entryView {
	v := entryView{fd: -1}
	v.fd, v.err = f.openName(d.path, name)
	if v.err != nil {
		v.fd = -1
		return v
	}
	var st unix.Stat_t
	if v.err = unix.Fstat(v.fd, &st); v.err == nil {
		v.a = f.changes.attrOf(&st)
		v.id, v.err = identify(f.kind, v.fd, "")
	}
	return v
}

// viewChanged notes that an object whose name was changed has changed.
func (f *FS) viewChanged(v *entryView) {
	if v.fd >= 0 && v.err == nil {
		f.changes.changedFD(v.fd, v.a.Ctime)
	}
}

func (v *entryView) close() {
	if v.fd >= 0 {
		unix.Close(v.fd)
	}
}

// mayDelete checks an entry's removal where the kernel does not do it.
func (f *FS) mayDelete(c *blockstore.Cred, dir *blockstore.Attr, v *entryView) error {
	if f.who.on {
		return nil
	}
	if v.err != nil {
		return v.err
	}
	return c.MayDelete(dir, &v.a)
}

// reap forgets an object whose last name just went, so that its descriptors do
// not keep its space.
func (f *FS) reap(v *entryView) {
	if v.fd < 0 || v.err != nil {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(v.fd, &st) != nil || st.Nlink > 0 {
		return
	}
	h := f.tag.handle(&v.id)
	if o := f.objects.get(&h); o != nil {
		f.forget(o)
		if f.objects.leave(o) {
			f.discard(o) // not later, as release would have it: the space is free when the client has its reply
		}
		return
	}
	if !f.pins.has(&h) {
		f.find.gone(&v.id)
	}
}

// Rename moves a name, over another where the kinds allow it.
func (f *FS) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle, toName string) (fromW, toW blockstore.Wcc, err error) {
	fd, err := f.acquireDir(from)
	if err != nil {
		return fromW, toW, err
	}
	defer f.release(fd)
	td, err := f.acquireDir(to)
	if err != nil {
		return fromW, toW, err
	}
	defer f.release(td)
	fromSince, toSince := f.failures(fd), f.failures(td)
	err = f.renameLocked(c, fd, fromName, td, toName, &fromW, &toW)
	if err != nil {
		return fromW, toW, mapErr(err)
	}
	if err := f.syncObject(td, toSince); err != nil {
		return fromW, toW, err
	}
	if fd != td {
		err = f.syncObject(fd, fromSince)
	}
	return fromW, toW, err
}

func (f *FS) renameLocked(c *blockstore.Cred, fd *object, fromName string, td *object, toName string, fromW, toW *blockstore.Wcc) error {
	lockBoth(fd, td)
	defer unlockBoth(fd, td)
	var fst, tst unix.Stat_t
	if err := fd.stat(&fst); err != nil {
		return err
	}
	if err := td.stat(&tst); err != nil {
		return err
	}
	f.before(fromW, &fst)
	f.before(toW, &tst)
	if err := blockstore.CheckName(fromName); err != nil {
		return err
	}
	if err := blockstore.CheckName(toName); err != nil {
		return err
	}
	if f.readOnly {
		return blockstore.ErrROFS
	}
	for _, d := range []*object{fd, td} {
		if err := f.checkDir(c, d, blockstore.MayExec); err != nil {
			return err
		}
	}
	moved, victim := f.peek(fd, fromName), f.peek(td, toName)
	defer moved.close()
	defer victim.close()
	if err := f.checkRename(c, fd, td, &fromW.Pre.Attr, &toW.Pre.Attr, &moved, &victim); err != nil {
		return err
	}
	err := f.who.as(c, func() error {
		_, err := again(func() (int, error) {
			return 0, unix.Renameat2(fd.path, fromName, td.path, toName, 0)
		})
		return err
	})
	if err != nil {
		return err
	}
	f.reap(&victim)
	if moved.err == nil && moved.id != victim.id {
		f.find.seen(&moved.id, &td.id, toName)
	}
	fd.changed(fromW)
	if fd != td {
		td.changed(toW)
	} else {
		toW.Post = fromW.Post
	}
	f.viewChanged(&moved)
	f.viewChanged(&victim)
	return nil
}

// checkRename checks permissions where the kernel does not.
func (f *FS) checkRename(c *blockstore.Cred, fd, td *object, fa, ta *blockstore.Attr, moved, victim *entryView) error {
	if f.who.on {
		return nil
	}
	if moved.err != nil {
		return moved.err
	}
	if victim.err == nil && victim.id == moved.id {
		return nil
	}
	// In the kernel's order: loops, permissions, kinds, the directory's own "..".
	if moved.a.Type == blockstore.TypeDir {
		if f.above(&moved.id, td.path) {
			return blockstore.ErrInval
		}
	}
	if victim.err == nil && victim.a.Type == blockstore.TypeDir {
		if f.above(&victim.id, fd.path) {
			return blockstore.ErrNotEmpty
		}
	}
	if err := c.MayDelete(fa, &moved.a); err != nil {
		return err
	}
	switch victim.err {
	case nil:
		if err := c.MayDelete(ta, &victim.a); err != nil {
			return err
		}
		switch isDir := moved.a.Type == blockstore.TypeDir; {
		case isDir && victim.a.Type != blockstore.TypeDir:
			return blockstore.ErrNotDir
		case !isDir && victim.a.Type == blockstore.TypeDir:
			return blockstore.ErrIsDir
		}
	case unix.ENOENT:
		if !c.May(ta, blockstore.MayWrite|blockstore.MayExec) {
			return blockstore.ErrAccess
		}
	default:
		return victim.err
	}
	if moved.a.Type == blockstore.TypeDir && fd != td && !c.May(&moved.a, blockstore.MayWrite) {
		return blockstore.ErrAccess
	}
	return nil
}

// lockBoth locks two directories in an order that all agree on.
func lockBoth(a, b *object) {
	if a == b {
		a.mu.Lock()
		return
	}
	if uintptr(unsafe.Pointer(a)) > uintptr(unsafe.Pointer(b)) {
		a, b = b, a
	}
	a.mu.Lock()
	b.mu.Lock()
}

func unlockBoth(a, b *object) {
	a.mu.Unlock()
	if a != b {
		b.mu.Unlock()
	}
}

// Link gives a file another name. The kernel's protected_hardlinks applies
// where it checks permissions.
func (f *FS) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (a blockstore.Attr, w blockstore.Wcc, err error) {
	o, err := f.acquire(h)
	if err != nil {
		return a, w, err
	}
	defer f.release(o)
	if a, err = o.attr(); err != nil {
		return a, w, err
	}
	d, err := f.acquireDir(dir)
	if err != nil {
		return a, w, err
	}
	defer f.release(d)
	since, dirSince := f.failures(o), f.failures(d)
	err = func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		k := creation{c: c, d: d, name: name, typ: o.typ}
		if err := d.stat(&k.dst); err != nil {
			return err
		}
		f.before(&w, &k.dst)
		if err := blockstore.CheckName(name); err != nil {
			return err
		}
		if err := f.checkDir(c, d, blockstore.MayExec); err != nil {
			return err
		}
		var there unix.Stat_t
		if (f.readOnly || !f.who.on) && unix.Fstatat(d.path, name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return blockstore.ErrExist
		}
		if f.readOnly {
			return blockstore.ErrROFS
		}
		if err := f.checkDir(c, d, blockstore.MayWrite|blockstore.MayExec); err != nil {
			return err
		}
		err := f.who.as(c, func() error {
			return unix.Linkat(unix.AT_FDCWD, procPath(o.path), d.path, name, unix.AT_SYMLINK_FOLLOW)
		})
		if err != nil {
			return err
		}
		f.find.seen(&o.id, &d.id, name)
		f.changes.changedFD(o.path, a.Ctime)
		d.changed(&w)
		return nil
	}()
	if err == nil {
		if err = f.syncObject(o, since); err == nil {
			err = f.syncObject(d, dirSince)
		}
	}
	if now, aerr := o.attr(); aerr == nil {
		a = now
	}
	return a, w, mapErr(err)
}
