package fusefs

import (
	"context"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// xattrPrefix is the namespace that NFS has (RFC 8276 section 2); names have no prefix on the wire.
const xattrPrefix = "user."

// Flags of setxattr(2).
const (
	xattrCreate  = 1
	xattrReplace = 2
)

// xattr executes an operation on an extended attribute. The error for an attribute of another
// namespace is ENODATA if get is set, else EOPNOTSUPP.
func (f *FS) xattr(cancel <-chan struct{}, h *fuse.InHeader, name string, get bool,
	do func(context.Context, *node, string) error,
) fuse.Status {
	short, ok := strings.CutPrefix(name, xattrPrefix)
	switch {
	case !ok && get:
		return fuse.Status(syscall.ENODATA)
	case !ok:
		return fuse.Status(syscall.EOPNOTSUPP)
	case short == "":
		return fuse.EINVAL
	}
	o := f.begin(f.identity(h), h, opXattr, cancel)
	return o.end(do(o.ctx, f.nodes.get(h.NodeId), short))
}

// sized returns a value in the way of getxattr(2) and listxattr(2).
func sized(value, dest []byte) (uint32, error) {
	if len(value) > len(dest) {
		return uint32(len(value)), syscall.ERANGE
	}
	return uint32(copy(dest, value)), nil
}

// GetXAttr implements fuse.RawFileSystem.
func (f *FS) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (n uint32, st fuse.Status) {
	if kind, ok := aclKinds[name]; ok {
		return f.getACL(cancel, h, kind, dest)
	}
	st = f.xattr(cancel, h, name, true, func(ctx context.Context, x *node, name string) error {
		value, err := f.c.GetXattr(ctx, x.handle, name)
		if err != nil {
			return err
		}
		n, err = sized(value, dest)
		return err
	})
	return n, st
}

// ListXAttr implements fuse.RawFileSystem.
func (f *FS) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (n uint32, st fuse.Status) {
	o := f.begin(f.identity(h), h, opXattr, cancel)
	x := f.nodes.get(h.NodeId)
	names, err := f.c.ListXattrs(o.ctx, x.handle)
	if status(err) == fuse.Status(syscall.EOPNOTSUPP) {
		err = nil // an empty list
	}
	var list []byte
	for _, name := range names {
		list = append(append(append(list, xattrPrefix...), name...), 0)
	}
	if err == nil && f.acls {
		var all client.ACLs
		if all, err = f.c.GetACL(o.ctx, x.handle); err == nil {
			for name, kind := range aclKinds {
				if aclOf(&all, kind) != nil {
					list = append(append(list, name...), 0)
				}
			}
		}
	}
	if err == nil {
		n, err = sized(list, dest)
	}
	return n, o.end(err)
}

// SetXAttr implements fuse.RawFileSystem.
func (f *FS) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	if kind, ok := aclKinds[name]; ok {
		l, err := blockstore.ParseACL(value)
		if err != nil {
			return fuse.EINVAL
		}
		return f.setACL(cancel, &in.InHeader, kind, l)
	}
	return f.xattr(cancel, &in.InHeader, name, false, func(ctx context.Context, x *node, name string) error {
		how := blockstore.XattrEither
		switch in.Flags {
		case 0:
		case xattrCreate:
			how = blockstore.XattrCreate
		case xattrReplace:
			how = blockstore.XattrReplace
		default:
			return nfs.ErrInval
		}
		defer x.outdated()
		return f.c.SetXattr(ctx, x.handle, name, value, how)
	})
}

// RemoveXAttr implements fuse.RawFileSystem.
func (f *FS) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if kind, ok := aclKinds[name]; ok {
		return f.setACL(cancel, h, kind, nil)
	}
	return f.xattr(cancel, h, name, false, func(ctx context.Context, x *node, name string) error {
		defer x.outdated()
		return f.c.RemoveXattr(ctx, x.handle, name)
	})
}
