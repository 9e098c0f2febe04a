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

// xattr checks that c has permission want on an object, and that the object can have attributes.
// Then it runs fn as the client's user with the path of the object. With MayWrite it makes the
// change stable.
func (f *FS) xattr(c *blockstore.Cred, h blockstore.Handle, want uint32, w *blockstore.Wcc,
	fn func(path string) error,
) error {
	o, err := f.acquire(h)
	if err != nil {
		return err
	}
	defer f.release(o)
	change := want == blockstore.MayWrite
	do := func(st *unix.Stat_t) (changed bool, err error) {
		switch {
		case o.typ != blockstore.TypeReg && o.typ != blockstore.TypeDir:
			if change {
				return false, blockstore.ErrPerm // as Linux has it
			}
			return false, blockstore.ErrNoXattr
		case change && f.readOnly:
			return false, blockstore.ErrROFS
		case !f.may(c, o, st, want):
			return false, blockstore.ErrAccess
		case change && !f.who.on && o.typ == blockstore.TypeDir && st.Mode&unix.S_ISVTX != 0 &&
			!c.Privileged() && c.UID != st.Uid:
			return false, blockstore.ErrPerm // a sticky directory: only for the owner (xattr(7))
		}
		// By the path in /proc, because f*xattr(2) do not take O_PATH descriptors.
		switch err := f.who.as(c, func() error { return fn(procPath(o.path)) }); err {
		case unix.ENODATA:
			return false, blockstore.ErrNoXattr
		case unix.E2BIG, unix.ERANGE: // value or name; filesystems differ
			return false, blockstore.ErrXattrTooBig
		default:
			return err == nil, mapErr(err)
		}
	}
	if change {
		return f.update(o, w, do)
	}
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return err
	}
	_, err = do(&st)
	return err
}

// GetXattr reads an attribute.
func (f *FS) GetXattr(c *blockstore.Cred, h blockstore.Handle, name string) (value []byte, err error) {
	err = f.xattr(c, h, blockstore.MayRead, nil, func(path string) error {
		value, err = grown(func(p []byte) (int, error) { return unix.Getxattr(path, userPrefix+name, p) })
		return err
	})
	return value, err
}

// SetXattr makes or changes an attribute.
func (f *FS) SetXattr(c *blockstore.Cred, h blockstore.Handle, name string, value []byte,
	mode blockstore.SetXattrMode,
) (w blockstore.Wcc, err error) {
	flags := map[blockstore.SetXattrMode]int{
		blockstore.XattrCreate: unix.XATTR_CREATE, blockstore.XattrReplace: unix.XATTR_REPLACE,
	}[mode]
	if len(value) > blockstore.XattrValueMax {
		return w, blockstore.ErrXattrTooBig
	}
	if len(name) > blockstore.XattrNameMax {
		return w, blockstore.ErrNameTooLong
	}
	err = f.xattr(c, h, blockstore.MayWrite, &w, func(path string) error {
		return retry(func() error { return unix.Setxattr(path, userPrefix+name, value, flags) })
	})
	return w, err
}

// ListXattrs lists the attributes of users.
func (f *FS) ListXattrs(c *blockstore.Cred, h blockstore.Handle) (names []string, err error) {
	err = f.xattr(c, h, blockstore.MayRead, nil, func(path string) error {
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
		return retry(func() error { return unix.Removexattr(path, userPrefix+name) })
	})
	return w, err
}

// grown calls get with nil for the size of a value, and then with that much memory. It repeats
// both if the value has become larger in between.
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
