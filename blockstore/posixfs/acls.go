package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.ACLs = (*FS)(nil)

// aclXattr are the names under which Linux has the ACLs of an object.
var aclXattr = [...]string{
	blockstore.ACLAccess:  "system.posix_acl_access",
	blockstore.ACLDefault: "system.posix_acl_default",
}

// hasACLs asks the filesystem of a path descriptor whether it has ACLs.
func hasACLs(fd int) bool {
	_, err := unix.Getxattr(procPath(fd), aclXattr[blockstore.ACLAccess], nil)
	return err == nil || err == unix.ENODATA
}

// canHave refuses what has no such ACL: symlinks have none, and only directories have
// one to be inherited.
func (o *object) canHave(kind blockstore.ACLKind) error {
	switch {
	case o.typ == blockstore.TypeLnk:
		return blockstore.ErrNotSupp
	case kind == blockstore.ACLDefault && o.typ != blockstore.TypeDir:
		return blockstore.ErrAccess // as setxattr(2)
	}
	return nil
}

// GetACL reads one as it is stored.
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
	if err := o.stat(&st); err != nil {
		return nil, err
	}
	if o.canHave(kind) != nil {
		return nil, nil
	}
	b, err := grown(func(b []byte) (int, error) { return unix.Getxattr(procPath(o.path), aclXattr[kind], b) })
	switch {
	case err == unix.ENODATA || err == nil && len(b) == 0:
		return nil, nil
	case err != nil:
		return nil, mapErr(err)
	}
	return blockstore.ParseACL(b)
}

// SetACL sets one as the client, and makes it stable. The kernel changes the mode with
// it.
func (f *FS) SetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind, l blockstore.ACL) (w blockstore.Wcc, err error) {
	if !f.limits.ACLs {
		return w, blockstore.ErrNotSupp
	}
	if l != nil {
		if err := l.Check(); err != nil {
			return w, err
		}
	}
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
		switch {
		case f.readOnly:
			return blockstore.ErrROFS
		case !c.Owns(&w.Pre.Attr):
			return blockstore.ErrPerm
		}
		if err := o.canHave(kind); err != nil {
			if l == nil {
				err = nil
			}
			o.after(&w)
			return err
		}
		path := procPath(o.path)
		err := f.who.as(c, func() error {
			if l == nil {
				err := unix.Removexattr(path, aclXattr[kind])
				if err == unix.ENODATA {
					err = nil
				}
				return err
			}
			return unix.Setxattr(path, aclXattr[kind], l.AppendXattr(nil), 0)
		})
		if err != nil {
			o.after(&w)
			return mapErr(err)
		}
		o.changed(&w)
		return nil
	}()
	if err != nil {
		return w, err
	}
	return w, f.syncObject(o, since)
}

// judgedBy is the ACL that decides about c on o where the server and not the kernel
// does. One that cannot be read grants what the mode does.
func (f *FS) judgedBy(c *blockstore.Cred, o *object) *blockstore.ACL {
	if f.who.on || c.Privileged() {
		return nil
	}
	return f.accessACL(o)
}

// accessACL is the ACL of an object; nil if it has none, or none that can be read.
func (f *FS) accessACL(o *object) *blockstore.ACL {
	if !f.limits.ACLs || o.canHave(blockstore.ACLAccess) != nil {
		return nil
	}
	b, err := grown(func(b []byte) (int, error) { return unix.Getxattr(procPath(o.path), aclXattr[blockstore.ACLAccess], b) })
	if err != nil || len(b) == 0 {
		return nil
	}
	l, err := blockstore.ParseACL(b)
	if err != nil || l == nil {
		return nil
	}
	return &l
}
