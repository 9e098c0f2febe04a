package fusefs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
)

// aclKinds are the extended attributes in which Linux has POSIX ACLs (acl(5)).
var aclKinds = map[string]blockstore.ACLKind{
	"system.posix_acl_access":  blockstore.ACLAccess,
	"system.posix_acl_default": blockstore.ACLDefault,
}

// aclOf returns the ACL of a kind, or nil if there is none besides the mode.
func aclOf(all *client.ACLs, kind blockstore.ACLKind) blockstore.ACL {
	switch {
	case kind == blockstore.ACLDefault:
		return all.Default
	case all.Access.Minimal():
		return nil
	}
	return all.Access
}

// hasACLs reports whether the server has ACLs.
func (f *FS) hasACLs() bool {
	ctx := f.ctx
	if f.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.cfg.Timeout)
		defer cancel()
	}
	_, err := f.c.GetACL(ctx, f.nodes.root.handle)
	return err == nil
}

// getACL is GetXAttr of an ACL.
func (f *FS) getACL(cancel <-chan struct{}, h *fuse.InHeader, kind blockstore.ACLKind, dest []byte) (n uint32,
	st fuse.Status,
) {
	if !f.acls {
		return 0, fuse.Status(syscall.EOPNOTSUPP)
	}
	o := f.begin(f.identity(h), h, opXattr, cancel)
	all, err := f.c.GetACL(o.ctx, f.nodes.get(h.NodeId).handle)
	if err == nil {
		if l := aclOf(&all, kind); l == nil {
			err = syscall.ENODATA
		} else {
			n, err = sized(l.AppendXattr(nil), dest)
		}
	}
	return n, o.end(err)
}

// setACL replaces an ACL, or removes it if l is nil. The protocols set both ACLs of a directory at
// once. If two clients set one ACL each at the same time, one of them can lose its change.
func (f *FS) setACL(cancel <-chan struct{}, h *fuse.InHeader, kind blockstore.ACLKind, l blockstore.ACL) fuse.Status {
	n := f.nodes.get(h.NodeId)
	dir := n.typ == blockstore.TypeDir
	switch {
	case !f.acls:
		return fuse.Status(syscall.EOPNOTSUPP)
	case kind == blockstore.ACLDefault && !dir && l != nil:
		return fuse.EACCES // as ext4 has it
	case kind == blockstore.ACLDefault && !dir:
		return fuse.OK
	}
	o := f.begin(f.identity(h), h, opXattr, cancel)
	all, err := f.c.GetACL(o.ctx, n.handle)
	if err == nil {
		switch {
		case kind == blockstore.ACLDefault:
			all.Default = l
		case l == nil:
			all.Access = blockstore.ACLOfMode(all.Access.Mode())
		default:
			all.Access = l
		}
		err = f.c.SetACL(o.ctx, n.handle, dir, all)
		n.outdated()
	}
	if err == nil { // the mode has changed
		id := n.id
		f.work.Go(func() { f.server.InodeNotify(id, -1, 0) })
	}
	return o.end(err)
}
