package posixfs

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// GetAttr returns the attributes of an object. Every user may call it.
func (f *FS) GetAttr(c *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	o, err := f.acquire(h)
	if err != nil {
		return blockstore.Attr{}, err
	}
	defer f.release(o)
	a, err := o.attr()
	if err == blockstore.ErrStale {
		f.forget(o) // a program of the host has removed the last name
	}
	return a, err
}

// GetAttrNowait implements blockstore.NowaitAttr: the object is open, and its filesystem has the
// inodes of open files in memory.
func (f *FS) GetAttrNowait(_ *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	o := f.opened(&h)
	if o == nil {
		return blockstore.Attr{}, blockstore.ErrWouldBlock
	}
	defer f.release(o)
	if !o.near {
		return blockstore.Attr{}, blockstore.ErrWouldBlock
	}
	a, err := o.attr()
	if err != nil {
		return blockstore.Attr{}, blockstore.ErrWouldBlock
	}
	return a, nil
}

// update is changeLocked, and makes the object stable afterwards.
func (f *FS) update(o *object, w *blockstore.Wcc, do func(st *unix.Stat_t) (changed bool, err error)) error {
	since := f.failures(o)
	if err := f.changeLocked(o, w, do); err != nil {
		return err
	}
	return f.syncObject(o, since)
}

// changeLocked runs do with o.mu held, and sets the attributes of o before and after do in w. do
// gets the attributes before, and reports whether it has changed the object.
//
// o.mu keeps other operations of this server away, so that none of them is between the
// attributes before and after. A program of the host can still change the object in between.
func (f *FS) changeLocked(o *object, w *blockstore.Wcc, do func(st *unix.Stat_t) (changed bool, err error)) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return err
	}
	f.before(w, &st)
	changed, err := do(&st)
	if changed {
		o.changed(w)
	} else {
		o.after(w)
	}
	return mapErr(err)
}

// SetAttr changes attributes in the order of the Linux NFS server: size, owner, mode, times. It
// checks everything first, so that a refusal changes nothing.
func (f *FS) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) (
	w blockstore.Wcc, err error,
) {
	o, err := f.acquire(h)
	if err != nil {
		return w, err
	}
	defer f.release(o)
	err = f.update(o, &w, func(st *unix.Stat_t) (changed bool, err error) {
		if f.readOnly {
			return false, blockstore.ErrROFS
		}
		if guard != nil && !guard.Equal(w.Pre.Ctime) {
			return false, blockstore.ErrNotSync
		}
		do, err := c.PrepareSetAttr(&w.Pre.Attr, s, func() bool { return f.mayWrite(c, o, st) })
		if err != nil {
			return false, err
		}
		err = f.applyAttrs(c, o, &w.Pre.Attr, &do)
		return err == nil && do != (blockstore.SetAttr{}), err
	})
	return w, err
}

// applyAttrs makes changes that were checked.
func (f *FS) applyAttrs(c *blockstore.Cred, o *object, a *blockstore.Attr, s *blockstore.SetAttr) error {
	if s.Size != nil {
		if *s.Size > 1<<63-1 {
			return blockstore.ErrFBig
		}
		fd, err := o.writer()
		if err != nil {
			return err
		}
		// As the client's user, so that the kernel removes the set-ID bits.
		err = f.who.as(c, func() error {
			return retry(func() error { return unix.Ftruncate(fd, int64(*s.Size)) })
		})
		if err == nil && !f.who.on {
			err = f.dropSetID(c, o, a.Mode)
		}
		if err != nil {
			return err
		}
	}
	if err := f.who.as(c, func() error { return changeOwnerMode(o, s) }); err != nil {
		return err
	}
	if s.AtimeHow == blockstore.TimeKeep && s.MtimeHow == blockstore.TimeKeep {
		return nil
	}
	// As the daemon: utimensat sets one of the two times to the current time for the owner only, and
	// NFS allows it with write permission.
	ts := []unix.Timespec{timespec(s.AtimeHow, s.Atime), timespec(s.MtimeHow, s.Mtime)}
	return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(o.path), ts, 0)
}

// changeOwnerMode changes the owner, then the mode: chown removes set-ID bits that chmod sets
// again.
func changeOwnerMode(o *object, s *blockstore.SetAttr) error {
	if s.UID != nil || s.GID != nil {
		uid, gid := -1, -1
		if s.UID != nil {
			uid = int(*s.UID)
		}
		if s.GID != nil {
			gid = int(*s.GID)
		}
		if uid == int(noID) || gid == int(noID) {
			return unix.EINVAL
		}
		if err := unix.Fchownat(o.path, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if s.Mode != nil {
		return unix.Chmod(procPath(o.path), *s.Mode)
	}
	return nil
}

func timespec(how blockstore.TimeSet, t time.Time) unix.Timespec {
	switch how {
	case blockstore.TimeServer:
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	case blockstore.TimeClient:
		ts, err := unix.TimeToTimespec(t)
		if err != nil {
			return unix.Timespec{Nsec: unix.UTIME_OMIT}
		}
		return ts
	}
	return unix.Timespec{Nsec: unix.UTIME_OMIT}
}

// syncObject makes an object and its attributes stable. It fails if a sync of the object has failed
// since. Only files and directories have an fsync; other objects follow with the journal of the
// filesystem.
func (f *FS) syncObject(o *object, since failures) error {
	if o.typ != blockstore.TypeReg && o.typ != blockstore.TypeDir {
		return nil
	}
	return f.syncAll(o, since)
}

// ReadLink returns the target of a symlink.
func (f *FS) ReadLink(c *blockstore.Cred, h blockstore.Handle) (string, error) {
	o, err := f.acquire(h)
	if err != nil {
		return "", err
	}
	defer f.release(o)
	if o.typ != blockstore.TypeLnk {
		return "", blockstore.ErrInval
	}
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return "", err
	}
	buf := make([]byte, unix.PathMax) // the kernel makes no longer targets
	n, err := unix.Readlinkat(o.path, "", buf)
	if err != nil {
		return "", mapErr(err)
	}
	return string(buf[:n]), nil
}
