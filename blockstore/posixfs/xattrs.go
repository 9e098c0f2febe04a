package posixfs

import (
	"slices"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.Xattrs = (*FS)(nil)

// xattrPrefix is the namespace of users.
const xattrPrefix = "user."

// hasXattrs asks the filesystem of a path descriptor whether it has attributes of users.
func hasXattrs(fd int) bool {
	_, err := unix.Getxattr(procPath(fd), xattrPrefix+"rstored.probe", nil)
	return err == nil || err == unix.ENODATA
}

// withXattrs has do work on the attributes of an object by its path, as the client.
func (f *FS) withXattrs(c *blockstore.Cred, h blockstore.Handle, want uint32, do func(o *object, path string) error) error {
	o, err := f.acquire(h)
	if err != nil {
		return err
	}
	defer f.release(o)
	if o.typ != blockstore.TypeReg && o.typ != blockstore.TypeDir {
		return blockstore.ErrPerm
	}
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return err
	}
	if want == blockstore.MayWrite && f.readOnly {
		return blockstore.ErrROFS
	}
	if !f.may(c, o, &st, want) {
		return blockstore.ErrAccess
	}
	return do(o, procPath(o.path))
}

// GetXattr reads the whole value.
func (f *FS) GetXattr(c *blockstore.Cred, h blockstore.Handle, name string) (value []byte, err error) {
	err = f.withXattrs(c, h, blockstore.MayRead, func(_ *object, path string) error {
		value, err = grown(func(b []byte) (int, error) { return unix.Getxattr(path, xattrPrefix+name, b) })
		return mapErr(err)
	})
	return value, err
}

// grown calls for bytes whose number is not known beforehand.
func grown(call func([]byte) (int, error)) ([]byte, error) {
	for {
		n, err := call(nil)
		if err != nil || n == 0 {
			return nil, err
		}
		b := make([]byte, n)
		if n, err = call(b); err == unix.ERANGE {
			continue // it has become longer meanwhile
		}
		if err != nil {
			return nil, err
		}
		return b[:n], nil
	}
}

// ListXattrs lists what users see.
func (f *FS) ListXattrs(c *blockstore.Cred, h blockstore.Handle) (names []string, err error) {
	err = f.withXattrs(c, h, blockstore.MayRead, func(_ *object, path string) error {
		b, err := grown(func(b []byte) (int, error) { return unix.Listxattr(path, b) })
		for name := range strings.SplitSeq(string(b), "\x00") {
			if name, ok := strings.CutPrefix(name, xattrPrefix); ok && name != "" {
				names = append(names, name)
			}
		}
		return mapErr(err)
	})
	slices.Sort(names)
	return names, err
}

// SetXattr sets one, and makes it stable.
func (f *FS) SetXattr(c *blockstore.Cred, h blockstore.Handle, name string, value []byte, how blockstore.XattrMode) (blockstore.Wcc, error) {
	switch {
	case len(value) > blockstore.XattrMax:
		return blockstore.Wcc{}, blockstore.ErrXattrSize
	case name == "" || len(name) > blockstore.XattrNameMax:
		return blockstore.Wcc{}, blockstore.ErrInval
	}
	flags := 0
	switch how {
	case blockstore.XattrCreate:
		flags = unix.XATTR_CREATE
	case blockstore.XattrReplace:
		flags = unix.XATTR_REPLACE
	}
	return f.changeXattr(c, h, func(path string) error { return unix.Setxattr(path, xattrPrefix+name, value, flags) })
}

// RemoveXattr removes one.
func (f *FS) RemoveXattr(c *blockstore.Cred, h blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.changeXattr(c, h, func(path string) error { return unix.Removexattr(path, xattrPrefix+name) })
}

func (f *FS) changeXattr(c *blockstore.Cred, h blockstore.Handle, do func(path string) error) (w blockstore.Wcc, err error) {
	err = f.withXattrs(c, h, blockstore.MayWrite, func(o *object, path string) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		var st unix.Stat_t
		if err := o.stat(&st); err != nil {
			return err
		}
		before(&w, &st)
		if err := f.who.as(c, func() error { return do(path) }); err != nil {
			return mapErr(err)
		}
		o.after(&w)
		return f.syncObject(o)
	})
	return w, err
}
