package posixfs

import (
	"strings"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.Xattrs = (*FS)(nil)

const userPrefix = "user."

// hasXattrs asks the filesystem of an open object (O_PATH) whether it keeps extended
// attributes of users.
func hasXattrs(fd int) bool {
	_, err := again(func() (int, error) { return unix.Getxattr(procPath(fd), userPrefix+"rstored.probe", nil) })
	return err == nil || err == unix.ENODATA || err == unix.EACCES
}

// xattr checks that c has permission want on an object and that it can have
// attributes, and runs fn as the client's user with its path.
func (f *FS) xattr(c *blockstore.Cred, h blockstore.Handle, want uint32, w *blockstore.Wcc, fn func(path string) error) error {
	o, err := f.acquire(h)
	if err != nil {
		return err
	}
	defer f.release(o)
	change := want == blockstore.MayWrite
	since := f.failures(o)
	err = func() error {
		if change {
			o.mu.Lock()
			defer o.mu.Unlock()
		}
		var st unix.Stat_t
		if err := o.stat(&st); err != nil {
			return err
		}
		f.before(w, &st)
		switch {
		case o.typ != blockstore.TypeReg && o.typ != blockstore.TypeDir:
			if change {
				return blockstore.ErrPerm // as Linux has it
			}
			return blockstore.ErrNoXattr
		case change && f.readOnly:
			return blockstore.ErrROFS
		case !f.may(c, o, &st, want):
			return blockstore.ErrAccess
		case change && !f.who.on && o.typ == blockstore.TypeDir && st.Mode&unix.S_ISVTX != 0 && !c.Privileged() && c.UID != st.Uid:
			return blockstore.ErrPerm
		}
		err := f.who.as(c, func() error { return fn(procPath(o.path)) })
		switch {
		case change && err == nil:
			o.changed(w)
		case change:
			o.after(w)
		}
		switch err {
		case unix.ENODATA:
			return blockstore.ErrNoXattr
		case unix.E2BIG, unix.ERANGE:
			return blockstore.ErrXattrTooBig
		}
		return mapErr(err)
	}()
	if err != nil || !change {
		return err
	}
	return f.syncObject(o, since)
}

// GetXattr reads an attribute.
func (f *FS) GetXattr(c *blockstore.Cred, h blockstore.Handle, name string) (value []byte, err error) {
	var w blockstore.Wcc
	err = f.xattr(c, h, blockstore.MayRead, &w, func(path string) error {
		value, err = grown(func(p []byte) (int, error) { return unix.Getxattr(path, userPrefix+name, p) })
		return err
	})
	return value, err
}

// SetXattr makes or changes an attribute.
func (f *FS) SetXattr(c *blockstore.Cred, h blockstore.Handle, name string, value []byte, mode blockstore.SetXattrMode) (w blockstore.Wcc, err error) {
	flags := 0
	switch mode {
	case blockstore.XattrCreate:
		flags = unix.XATTR_CREATE
	case blockstore.XattrReplace:
		flags = unix.XATTR_REPLACE
	}
	if len(value) > blockstore.XattrValueMax {
		return w, blockstore.ErrXattrTooBig
	}
	if len(name) > blockstore.XattrNameMax {
		return w, blockstore.ErrNameTooLong
	}
	err = f.xattr(c, h, blockstore.MayWrite, &w, func(path string) error {
		_, err := again(func() (int, error) { return 0, unix.Setxattr(path, userPrefix+name, value, flags) })
		return err
	})
	return w, err
}

// ListXattrs lists the attributes of users.
func (f *FS) ListXattrs(c *blockstore.Cred, h blockstore.Handle) (names []string, err error) {
	var w blockstore.Wcc
	err = f.xattr(c, h, blockstore.MayRead, &w, func(path string) error {
		list, err := grown(func(p []byte) (int, error) { return unix.Listxattr(path, p) })
		for name := range strings.SplitSeq(string(list), "\x00") {
			if name, ok := strings.CutPrefix(name, userPrefix); ok && name != "" {
				names = append(names, name)
			}
		}
		return err
	})
	if err == blockstore.ErrNoXattr {
		err = nil
	}
	return names, err
}

// RemoveXattr removes an attribute.
func (f *FS) RemoveXattr(c *blockstore.Cred, h blockstore.Handle, name string) (w blockstore.Wcc, err error) {
	err = f.xattr(c, h, blockstore.MayWrite, &w, func(path string) error {
		_, err := again(func() (int, error) { return 0, unix.Removexattr(path, userPrefix+name) })
		return err
	})
	return w, err
}

// grown calls get with as much memory as it wants, which may change meanwhile.
func grown(get func(p []byte) (int, error)) ([]byte, error) {
	for {
		n, err := again(func() (int, error) { return get(nil) })
		if err != nil || n == 0 {
			return nil, err
		}
		p := make([]byte, n)
		n, err = again(func() (int, error) { return get(p) })
		if err == unix.ERANGE {
			continue
		}
		return p[:max(n, 0)], err
	}
}
