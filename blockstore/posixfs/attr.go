package posixfs

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// GetAttr returns the attributes of an object; anybody may ask.
func (f *FS) GetAttr(c *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	o, err := f.acquire(h)
	if err != nil {
		return blockstore.Attr{}, err
	}
	defer f.release(o)
	a, err := o.attr()
	if err == blockstore.ErrStale {
		f.forget(o)
	}
	return a, err
}

// SetAttr makes the changes in the order of the Linux NFS server: size, owner,
// mode, times. All is checked first, so that a refusal changes nothing.
func (f *FS) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) (blockstore.Wcc, error) {
	var w blockstore.Wcc
	o, err := f.acquire(h)
	if err != nil {
		return w, err
	}
	defer f.release(o)
	since := f.failures(o)
	err = func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		var st unix.Stat_t
		if err := o.stat(&st); err != nil {
			return err
		}
		f.before(&w, &st)
		if f.readOnly {
			return blockstore.ErrROFS
		}
		if guard != nil && !guard.Equal(w.Pre.Ctime) {
			return blockstore.ErrNotSync
		}
		do, err := c.PrepareSetAttr(&w.Pre.Attr, s, func() bool { return f.mayWrite(c, o, &st) })
		if err != nil {
			return err
		}
		err = f.change(c, o, &w.Pre.Attr, &do)
		if err != nil || do == (blockstore.SetAttr{}) {
			o.after(&w)
			return err
		}
		o.changed(&w)
		return nil
	}()
	if err != nil {
		return w, err
	}
	return w, f.syncObject(o, since)
}

// change makes checked changes to o.
func (f *FS) change(c *blockstore.Cred, o *object, a *blockstore.Attr, s *blockstore.SetAttr) error {
	if s.Size != nil {
		if *s.Size > 1<<63-1 {
			return blockstore.ErrFBig
		}
		fd, err := o.writer()
		if err != nil {
			return mapErr(err)
		}
		err = f.who.as(c, func() error {
			_, err := again(func() (int, error) { return 0, unix.Ftruncate(fd, int64(*s.Size)) })
			return err
		})
		if err != nil {
			return mapErr(err)
		}
		if !f.who.on {
			st := unix.Stat_t{Mode: a.Mode}
			if err := f.dropSetID(c, o, &st); err != nil {
				return mapErr(err)
			}
		}
	}
	err := f.who.as(c, func() error { return changeOwnerMode(o, s) })
	if err != nil {
		return mapErr(err)
	}
	if s.AtimeHow == blockstore.TimeKeep && s.MtimeHow == blockstore.TimeKeep {
		return nil
	}
	// As the daemon: the kernel has no "now" for one of the two times without
	// ownership, where NFS asks for write permission only.
	ts := []unix.Timespec{timespec(s.AtimeHow, s.Atime), timespec(s.MtimeHow, s.Mtime)}
	return mapErr(utimes(o.path, ts))
}

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

func utimes(fd int, ts []unix.Timespec) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), ts, 0)
}

// syncObject makes the attributes of o stable, and fails if a sync of it has failed since. Only files and
// directories can be synced by themselves.
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
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(o.path, "", buf)
	if err != nil {
		return "", mapErr(err)
	}
	return string(buf[:n]), nil
}
