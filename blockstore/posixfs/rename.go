package posixfs

import (
	"cmp"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// Rename renames an object. It replaces an object of the new name if the types allow that. Both
// directories are synced, the new name first, so that a crash in between does not lose the object.
func (f *FS) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle,
	toName string,
) (fromW, toW blockstore.Wcc, err error) {
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

// renameLocked renames with both directories locked. The rename is atomic in the kernel; a
// victim whose last name it replaces is closed afterwards.
func (f *FS) renameLocked(c *blockstore.Cred, fd *object, fromName string, td *object, toName string,
	fromW, toW *blockstore.Wcc,
) error {
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
	if err := cmp.Or(blockstore.CheckName(fromName), blockstore.CheckName(toName)); err != nil {
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
	// Both are opened before the rename. Afterwards nothing leads to the victim any more, and its
	// link count tells whether it has lost its last name.
	moved, victim := f.peek(fd, fromName), f.peek(td, toName)
	defer moved.close()
	defer victim.close()
	if err := f.checkRename(c, fd, td, &fromW.Pre.Attr, &toW.Pre.Attr, &moved, &victim); err != nil {
		return err
	}
	// Flags 0: RENAME of NFS replaces the target, as rename(2) does.
	err := f.who.as(c, func() error {
		return retry(func() error { return unix.Renameat2(fd.path, fromName, td.path, toName, 0) })
	})
	if err != nil {
		return err
	}
	f.reap(&victim)
	if moved.err == nil && moved.id != victim.id { // two names of one file stay as they are (rename(2))
		f.find.seen(&moved.id, &td.id, toName)
	}
	fd.changed(fromW)
	if fd != td {
		td.changed(toW)
	} else {
		toW.Post = fromW.Post // changed counts a change of the directory once
	}
	f.viewChanged(&moved)
	f.viewChanged(&victim)
	return nil
}

// checkRename checks a rename as rename(2) does, where the kernel does not check it for the client.
func (f *FS) checkRename(c *blockstore.Cred, fd, td *object, fa, ta *blockstore.Attr, moved, victim *entryView) error {
	if f.who.on {
		return nil
	}
	if moved.err != nil {
		return moved.err
	}
	if victim.err == nil && victim.id == moved.id {
		return nil // the kernel does nothing
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
	// A directory that gets another parent is written to: its ".." changes.
	if moved.a.Type == blockstore.TypeDir && fd != td && !c.May(&moved.a, blockstore.MayWrite) {
		return blockstore.ErrAccess
	}
	return nil
}

// lockBoth locks two directories, the one at the lower address first, so that two renames in
// opposite directions do not deadlock. The Go heap does not move objects.
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

// Link gives a file another name. Where the kernel checks permissions, its protected_hardlinks
// applies.
func (f *FS) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (
	a blockstore.Attr, w blockstore.Wcc, err error,
) {
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
	err = f.changeLocked(d, &w, func(*unix.Stat_t) (changed bool, err error) {
		if err := f.link(c, o, d, name); err != nil {
			return false, err
		}
		f.find.seen(&o.id, &d.id, name)
		f.changes.changedFD(o.path, a.Ctime)
		return true, nil
	})
	if err == nil {
		if err = f.syncObject(o, since); err == nil { // its link count, and then the name
			err = f.syncObject(d, dirSince)
		}
	}
	if now, aerr := o.attr(); aerr == nil {
		a = now
	}
	return a, w, err
}

// link makes the name, if c may do so. linkat of an O_PATH descriptor with AT_EMPTY_PATH would
// need CAP_DAC_READ_SEARCH, which a thread with the identity of c does not have; following the
// link in /proc does not.
func (f *FS) link(c *blockstore.Cred, o, d *object, name string) error {
	if err := blockstore.CheckName(name); err != nil {
		return err
	}
	if err := f.checkDir(c, d, blockstore.MayExec); err != nil {
		return err
	}
	if (f.readOnly || !f.who.on) && d.hasName(name) {
		return blockstore.ErrExist
	}
	if f.readOnly {
		return blockstore.ErrROFS
	}
	if err := f.checkDir(c, d, blockstore.MayWrite|blockstore.MayExec); err != nil {
		return err
	}
	return f.who.as(c, func() error {
		return unix.Linkat(unix.AT_FDCWD, procPath(o.path), d.path, name, unix.AT_SYMLINK_FOLLOW)
	})
}
