package memfs

import (
	"slices"

	"github.com/rstored/rstored/blockstore"
)

var _ blockstore.ACLs = (*FS)(nil)

// aclCost and aclEntryCost are the bytes that an ACL and each of its entries count against
// Options.MaxBytes. aclMax bounds the bytes of an ACL. The file systems of the host have the same
// bound for an ACL, because it is an extended attribute there.
const (
	aclCost      = 64
	aclEntryCost = 8
	aclMax       = 64 << 10
)

// aclBytes returns the bytes that an ACL counts against Options.MaxBytes.
func aclBytes(l *blockstore.ACL) uint64 {
	if l == nil {
		return 0
	}
	return aclCost + aclEntryCost*uint64(len(*l))
}

// setMode sets the mode, and the ACL with it.
func (n *inode) setMode(mode uint32) {
	n.attr.Mode = mode
	if n.attr.ACL != nil {
		l := n.attr.ACL.WithMode(mode)
		n.attr.ACL = &l
	}
}

// inheritACL gives a new object the default ACL of its directory, without the permissions that the
// mode of the object does not have (acl(5)).
func (f *FS) inheritACL(d, n *inode) error {
	if d.inherit == nil || n.attr.Type == blockstore.TypeLnk {
		return nil
	}
	mode := n.attr.Mode &^ (0o777 &^ d.inherit.Mode())
	l := d.inherit.WithMode(mode)
	var access, inherit *blockstore.ACL
	if !l.Minimal() {
		access = &l
	}
	if n.attr.Type == blockstore.TypeDir {
		inherit = d.inherit
	}
	if err := f.charge(aclBytes(access) + aclBytes(inherit)); err != nil {
		return err
	}
	n.attr.Mode, n.attr.ACL, n.inherit = mode, access, inherit
	return nil
}

// GetACL returns a copy.
func (f *FS) GetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind) (blockstore.ACL, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.lookup(h)
	if err != nil {
		return nil, err
	}
	l := n.attr.ACL
	if kind == blockstore.ACLDefault {
		l = n.inherit
	}
	if l == nil {
		return nil, nil
	}
	return slices.Clone(*l), nil
}

// SetACL keeps a copy.
func (f *FS) SetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind, l blockstore.ACL) (blockstore.Wcc,
	error,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookup(h)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	pre := n.attr
	if l != nil {
		if err := l.Check(); err != nil {
			return same(pre), err
		}
	}
	switch {
	case f.opts.ReadOnly:
		return same(pre), blockstore.ErrROFS
	case !c.Owns(&n.attr):
		return same(pre), blockstore.ErrPerm
	case l == nil && (n.attr.Type == blockstore.TypeLnk || kind == blockstore.ACLDefault && n.dir == nil):
		return same(pre), nil
	case n.attr.Type == blockstore.TypeLnk:
		return same(pre), blockstore.ErrNotSupp
	case kind == blockstore.ACLDefault && n.dir == nil:
		return same(pre), blockstore.ErrAccess
	case aclEntryCost*len(l) > aclMax:
		return same(pre), blockstore.ErrNoSpace
	}
	slot := &n.attr.ACL
	if kind == blockstore.ACLDefault {
		slot = &n.inherit
	}
	var kept *blockstore.ACL
	if l != nil && (kind == blockstore.ACLDefault || !l.Minimal()) {
		own := slices.Clone(l)
		kept = &own
	}
	if err := f.charge(aclBytes(kept)); err != nil {
		return same(pre), err
	}
	f.used -= aclBytes(*slot)
	*slot = kept
	if kind == blockstore.ACLAccess && l != nil {
		mode := n.attr.Mode&^0o777 | l.Mode()
		if !c.Privileged() && !c.InGroup(n.attr.GID) {
			mode &^= blockstore.ModeSetGID
		}
		n.attr.Mode = mode
	}
	n.attr.Ctime = f.now()
	return wcc(pre, n), nil
}
