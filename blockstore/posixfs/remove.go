package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// Remove removes the name of anything but a directory.
func (f *FS) Remove(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.unlink(c, dir, name, 0)
}

// Rmdir removes an empty directory.
func (f *FS) Rmdir(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.unlink(c, dir, name, unix.AT_REMOVEDIR)
}

func (f *FS) unlink(c *blockstore.Cred, dir blockstore.Handle, name string, flags int) (w blockstore.Wcc, err error) {
	d, err := f.acquireDir(dir)
	if err != nil {
		return w, err
	}
	defer f.release(d)
	err = f.update(d, &w, func(*unix.Stat_t) (changed bool, err error) {
		if err := blockstore.CheckName(name); err != nil {
			return false, err
		}
		if f.readOnly {
			return false, blockstore.ErrROFS
		}
		if err := f.checkDir(c, d, blockstore.MayExec); err != nil {
			return false, err
		}
		v := f.peek(d, name)
		defer v.close()
		if err := f.mayDelete(c, &w.Pre.Attr, &v); err != nil {
			return false, err
		}
		err = f.who.as(c, func() error {
			return retry(func() error { return unix.Unlinkat(d.path, name, flags) })
		})
		if err != nil {
			return false, err
		}
		f.viewChanged(&v) // its link count has changed, and with it its ctime
		f.reap(&v)
		return true, nil
	})
	return w, err
}

// entryView is the object of a name before an operation on that name.
type entryView struct {
	fd  int // O_PATH; -1 if the name could not be opened
	err error
	id  ident
	a   blockstore.Attr
}

// peek opens the object of a name and reads its attributes. The caller closes the view.
func (f *FS) peek(d *object, name string) entryView {
	v := entryView{fd: -1}
	v.fd, v.err = f.openName(d.path, name)
	if v.err != nil {
		v.fd = -1
		return v
	}
	var st unix.Stat_t
	// If the name is replaced between this open and the operation on it, viewChanged and reap
	// concern the object that was there before, and do no harm: both ask the kernel again.
	if v.err = unix.Fstat(v.fd, &st); v.err == nil {
		v.a = f.changes.attrOf(&st)
		v.id, v.err = identify(f.kind, v.fd, "")
	}
	return v
}

// viewChanged records a change of the object: the kernel sets the ctime of an object that is
// renamed or loses a name.
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

// mayDelete checks the removal of a name, where the kernel does not check it.
func (f *FS) mayDelete(c *blockstore.Cred, dir *blockstore.Attr, v *entryView) error {
	if f.who.on {
		return nil
	}
	if v.err != nil {
		return v.err
	}
	return c.MayDelete(dir, &v.a)
}

// reap closes an object whose last name was removed, so that its descriptors do not retain its
// space.
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
			f.discard(o) // not by the goroutine of release: the space is free before the client gets its reply
		}
		return
	}
	if !f.pins.has(&h) {
		f.find.gone(&v.id)
	}
}
