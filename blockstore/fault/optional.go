package fault

import "github.com/rstored/rstored/blockstore"

var (
	_ blockstore.Extents = (*FS)(nil)
	_ blockstore.Xattrs  = (*FS)(nil)
)

// extents makes a call of blockstore.Extents with faults, if the store has that interface.
func extents[T any](f *FS, call func(blockstore.Extents) (T, error)) (v T, err error) {
	x, ok := f.FS.(blockstore.Extents)
	if !ok {
		return v, blockstore.ErrNotSupp
	}
	return one(f, Extents, func(*Rule) (T, error) { return call(x) })
}

// xattrs is the same for blockstore.Xattrs.
func xattrs[T any](f *FS, call func(blockstore.Xattrs) (T, error)) (v T, err error) {
	x, ok := f.FS.(blockstore.Xattrs)
	if !ok {
		return v, blockstore.ErrNotSupp
	}
	return one(f, Xattrs, func(*Rule) (T, error) { return call(x) })
}

// Seek is blockstore.Extents.Seek with faults.
func (f *FS) Seek(c *blockstore.Cred, h blockstore.Handle, off uint64, hole bool) (uint64, error) {
	return extents(f, func(x blockstore.Extents) (uint64, error) { return x.Seek(c, h, off, hole) })
}

// Allocate is blockstore.Extents.Allocate with faults.
func (f *FS) Allocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	_, err := extents(f, func(x blockstore.Extents) (struct{}, error) { return struct{}{}, x.Allocate(c, h, off, n) })
	return err
}

// Deallocate is blockstore.Extents.Deallocate with faults.
func (f *FS) Deallocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	_, err := extents(f, func(x blockstore.Extents) (struct{}, error) { return struct{}{}, x.Deallocate(c, h, off, n) })
	return err
}

// Clone is blockstore.Extents.Clone with faults.
func (f *FS) Clone(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	n uint64,
) error {
	_, err := extents(f, func(x blockstore.Extents) (struct{}, error) {
		return struct{}{}, x.Clone(c, from, fromOff, to, toOff, n)
	})
	return err
}

// Copy is blockstore.Extents.Copy with faults.
func (f *FS) Copy(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	n uint64,
) (uint64, error) {
	return extents(f, func(x blockstore.Extents) (uint64, error) { return x.Copy(c, from, fromOff, to, toOff, n) })
}

// GetXattr is blockstore.Xattrs.GetXattr with faults.
func (f *FS) GetXattr(c *blockstore.Cred, h blockstore.Handle, name string) ([]byte, error) {
	return xattrs(f, func(x blockstore.Xattrs) ([]byte, error) { return x.GetXattr(c, h, name) })
}

// SetXattr is blockstore.Xattrs.SetXattr with faults.
func (f *FS) SetXattr(c *blockstore.Cred, h blockstore.Handle, name string, value []byte,
	mode blockstore.SetXattrMode,
) (blockstore.Wcc, error) {
	return xattrs(f, func(x blockstore.Xattrs) (blockstore.Wcc, error) { return x.SetXattr(c, h, name, value, mode) })
}

// ListXattrs is blockstore.Xattrs.ListXattrs with faults.
func (f *FS) ListXattrs(c *blockstore.Cred, h blockstore.Handle) ([]string, error) {
	return xattrs(f, func(x blockstore.Xattrs) ([]string, error) { return x.ListXattrs(c, h) })
}

// RemoveXattr is blockstore.Xattrs.RemoveXattr with faults.
func (f *FS) RemoveXattr(c *blockstore.Cred, h blockstore.Handle, name string) (blockstore.Wcc, error) {
	return xattrs(f, func(x blockstore.Xattrs) (blockstore.Wcc, error) { return x.RemoveXattr(c, h, name) })
}
