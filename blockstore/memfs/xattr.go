package memfs

import (
	"maps"
	"slices"

	"github.com/rstored/rstored/blockstore"
)

var _ blockstore.Xattrs = (*FS)(nil)

// xattrsOf finds an object whose attributes c may read, or change.
func (f *FS) xattrsOf(c *blockstore.Cred, h blockstore.Handle, change bool) (*inode, error) {
	n, err := f.lookup(h)
	if err != nil {
		return nil, err
	}
	want := blockstore.MayRead
	if change {
		want = blockstore.MayWrite
	}
	dir := n.attr.Type == blockstore.TypeDir
	switch {
	case n.attr.Type != blockstore.TypeReg && !dir:
		if change {
			return nil, blockstore.ErrPerm
		}
		return nil, blockstore.ErrNoXattr
	case change && f.opts.ReadOnly:
		return nil, blockstore.ErrROFS
	case !c.May(&n.attr, want):
		return nil, blockstore.ErrAccess
	case change && dir && n.attr.Mode&blockstore.ModeSticky != 0 && !c.Owns(&n.attr):
		return nil, blockstore.ErrPerm
	}
	return n, nil
}

// GetXattr reads an attribute.
func (f *FS) GetXattr(c *blockstore.Cred, h blockstore.Handle, name string) ([]byte, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.xattrsOf(c, h, false)
	if err != nil {
		return nil, err
	}
	v, ok := n.xattrs[name]
	if !ok {
		return nil, blockstore.ErrNoXattr
	}
	return slices.Clone(v), nil
}

// xattrsMax bounds the attributes of an object, in bytes of names and values.
const xattrsMax = 1 << 20

// SetXattr makes or changes an attribute.
func (f *FS) SetXattr(c *blockstore.Cred, h blockstore.Handle, name string, value []byte,
	mode blockstore.SetXattrMode,
) (blockstore.Wcc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.xattrsOf(c, h, true)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	pre := n.attr
	old, there := n.xattrs[name]
	switch {
	case len(name) > blockstore.XattrNameMax:
		return same(pre), blockstore.ErrNameTooLong
	case len(value) > blockstore.XattrValueMax:
		return same(pre), blockstore.ErrXattrTooBig
	case mode == blockstore.XattrCreate && there:
		return same(pre), blockstore.ErrExist
	case mode == blockstore.XattrReplace && !there:
		return same(pre), blockstore.ErrNoXattr
	}
	freed := uint64(0)
	if there {
		freed = uint64(len(name) + len(old))
	}
	size := uint64(len(name) + len(value))
	if n.xattrBytes-freed+size > xattrsMax {
		return same(pre), blockstore.ErrNoSpace
	}
	if err := f.charge(size); err != nil {
		return same(pre), err
	}
	f.used -= freed
	n.xattrBytes += size - freed
	if n.xattrs == nil {
		n.xattrs = make(map[string][]byte)
	}
	n.xattrs[name] = slices.Clone(value)
	n.attr.Ctime = f.now()
	return wcc(pre, n), nil
}

// ListXattrs lists the attributes.
func (f *FS) ListXattrs(c *blockstore.Cred, h blockstore.Handle) ([]string, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.xattrsOf(c, h, false)
	if err == blockstore.ErrNoXattr {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return slices.Collect(maps.Keys(n.xattrs)), nil
}

// RemoveXattr removes an attribute.
func (f *FS) RemoveXattr(c *blockstore.Cred, h blockstore.Handle, name string) (blockstore.Wcc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.xattrsOf(c, h, true)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	pre := n.attr
	old, there := n.xattrs[name]
	if !there {
		return same(pre), blockstore.ErrNoXattr
	}
	size := uint64(len(name) + len(old))
	f.used -= size
	n.xattrBytes -= size
	delete(n.xattrs, name)
	n.attr.Ctime = f.now()
	return wcc(pre, n), nil
}
