package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.ACLs = (*FS)(nil)

// aclXattr are the extended attributes in which Linux stores the ACLs of an object.
var aclXattr = [...]string{
	blockstore.ACLAccess:  "system.posix_acl_access",
	blockstore.ACLDefault: "system.posix_acl_default",
}

// hasACLs asks the filesystem of a path descriptor whether it has ACLs.
func hasACLs(fd int) bool {
	_, err := unix.Getxattr(procPath(fd), aclXattr[blockstore.ACLAccess], nil)
	return err == nil || err == unix.ENODATA
}

// canHave refuses objects that have no such ACL. Symbolic links have none, and only directories
// have a default ACL.
func (o *object) canHave(kind blockstore.ACLKind) error {
	switch {
	case o.typ == blockstore.TypeLnk:
		return blockstore.ErrNotSupp
	case kind == blockstore.ACLDefault && o.typ != blockstore.TypeDir:
		return blockstore.ErrAccess // as setxattr(2)
	}
	return nil
}

// readACL reads an ACL of an object; nil if it has none.
func (o *object) readACL(kind blockstore.ACLKind) (blockstore.ACL, error) {
	b, err := grown(func(b []byte) (int, error) { return unix.Getxattr(procPath(o.path), aclXattr[kind], b) })
	switch {
	case err == unix.ENODATA || err == nil && len(b) == 0:
		return nil, nil
	case err != nil:
		return nil, mapErr(err)
	}
	return blockstore.ParseACL(b)
}

// GetACL returns an ACL as it is stored.
func (f *FS) GetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind) (blockstore.ACL, error) {
	if !f.limits.ACLs {
		return nil, blockstore.ErrNotSupp
	}
	o, err := f.acquire(h)
	if err != nil {
		return nil, err
	}
	defer f.release(o)
	var st unix.Stat_t
	if err := o.stat(&st); err != nil || o.canHave(kind) != nil {
		return nil, err
	}
	return o.readACL(kind)
}

// SetACL sets or removes an ACL as the client, and makes it stable. The kernel changes the mode
// with the access ACL.
func (f *FS) SetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind, l blockstore.ACL) (
	w blockstore.Wcc, err error,
) {
	if !f.limits.ACLs {
		return w, blockstore.ErrNotSupp
	}
	if l != nil {
		if err := l.Check(); err != nil {
			return w, err
		}
	}
	err = f.updateOwned(c, h, &w, func(o *object) (bool, error) {
		if err := o.canHave(kind); err != nil {
			if l == nil {
				err = nil // there is nothing to remove
			}
			return false, err
		}
		path := procPath(o.path)
		err := f.who.as(c, func() error {
			if l != nil {
				return unix.Setxattr(path, aclXattr[kind], l.AppendXattr(nil), 0)
			}
			if err := unix.Removexattr(path, aclXattr[kind]); err != unix.ENODATA {
				return err
			}
			return nil
		})
		return err == nil, err
	})
	return w, err
}

// updateOwned is update of the object of h. It fails with ErrPerm unless c is the owner or root.
func (f *FS) updateOwned(c *blockstore.Cred, h blockstore.Handle, w *blockstore.Wcc,
	change func(o *object) (changed bool, err error),
) error {
	o, err := f.acquire(h)
	if err != nil {
		return err
	}
	defer f.release(o)
	return f.update(o, w, func(*unix.Stat_t) (bool, error) {
		switch {
		case f.readOnly:
			return false, blockstore.ErrROFS
		case !c.Owns(&w.Pre.Attr):
			return false, blockstore.ErrPerm
		}
		return change(o)
	})
}

// decidingACL returns the ACL by which the server checks the permission of c on o. It returns nil
// if the kernel checks permission, or if the mode decides: the object has no ACL, or none that can
// be read.
func (f *FS) decidingACL(c *blockstore.Cred, o *object) *blockstore.ACL {
	if f.who.on || c.Privileged() {
		return nil
	}
	return f.accessACL(o)
}

// accessACL returns the access ACL of an object; nil if it has none, or none that can be read.
func (f *FS) accessACL(o *object) *blockstore.ACL {
	if !f.limits.ACLs || o.canHave(blockstore.ACLAccess) != nil {
		return nil
	}
	if l, err := o.readACL(blockstore.ACLAccess); err == nil && l != nil {
		return &l
	}
	return nil
}
