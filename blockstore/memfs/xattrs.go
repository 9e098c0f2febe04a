package memfs

import (
	"bytes"
	"maps"
	"slices"

	"github.com/rstored/rstored/blockstore"
)

var _ blockstore.Xattrs = (*FS)(nil)

// xattrCost is what an extended attribute counts beside its name and value, in bytes.
const xattrCost = 64

// withXattrs finds an inode that c may read, or write, the attributes of: those of
// files and directories are like their data.
func (f *FS) withXattrs(c *blockstore.Cred, h blockstore.Handle, want uint32) (*inode, error) {
	n, err := f.lookup(h)
	switch {
	case err != nil:
		return nil, err
	case n.attr.Type != blockstore.TypeReg && n.attr.Type != blockstore.TypeDir:
		return nil, blockstore.ErrPerm
	case want == blockstore.MayWrite && f.opts.ReadOnly:
		return nil, blockstore.ErrROFS
	case !c.May(&n.attr, want):
		return nil, blockstore.ErrAccess
	}
	return n, nil
}

// GetXattr returns a copy.
func (f *FS) GetXattr(c *blockstore.Cred, h blockstore.Handle, name string) ([]byte, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.withXattrs(c, h, blockstore.MayRead)
	if err != nil {
		return nil, err
	}
	v, ok := n.xattrs[name]
	if !ok {
		return nil, blockstore.ErrNoXattr
	}
	return bytes.Clone(v), nil
}

// SetXattr keeps a copy of the value.
func (f *FS) SetXattr(c *blockstore.Cred, h blockstore.Handle, name string, value []byte, how blockstore.XattrMode) (blockstore.Wcc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.withXattrs(c, h, blockstore.MayWrite)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	pre := n.attr
	old, there := n.xattrs[name]
	switch {
	case len(value) > blockstore.XattrMax:
		return same(pre), blockstore.ErrXattrSize
	case name == "" || len(name) > blockstore.XattrNameMax:
		return same(pre), blockstore.ErrInval
	case there && how == blockstore.XattrCreate:
		return same(pre), blockstore.ErrExist
	case !there && how == blockstore.XattrReplace:
		return same(pre), blockstore.ErrNoXattr
	}
	if err := f.charge(uint64(xattrCost + len(name) + len(value))); err != nil {
		return same(pre), err
	}
	if there {
		f.used -= uint64(xattrCost + len(name) + len(old))
	}
	if n.xattrs == nil {
		n.xattrs = make(map[string][]byte)
	}
	n.xattrs[name] = append([]byte{}, value...)
	n.attr.Ctime = f.now()
	return wcc(pre, n), nil
}

// ListXattrs lists them.
func (f *FS) ListXattrs(c *blockstore.Cred, h blockstore.Handle) ([]string, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.withXattrs(c, h, blockstore.MayRead)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(n.xattrs)), nil
}

// RemoveXattr removes one.
func (f *FS) RemoveXattr(c *blockstore.Cred, h blockstore.Handle, name string) (blockstore.Wcc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.withXattrs(c, h, blockstore.MayWrite)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	pre := n.attr
	old, there := n.xattrs[name]
	if !there {
		return same(pre), blockstore.ErrNoXattr
	}
	delete(n.xattrs, name)
	f.used -= uint64(xattrCost + len(name) + len(old))
	n.attr.Ctime = f.now()
	return wcc(pre, n), nil
}

// xattrBytes is what the attributes of an inode count.
func (n *inode) xattrBytes() (sum uint64) {
	for name, v := range n.xattrs {
		sum += uint64(xattrCost + len(name) + len(v))
	}
	return sum
}
