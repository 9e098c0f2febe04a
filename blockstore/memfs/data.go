package memfs

import "github.com/rstored/rstored/blockstore"

// notReg is the error of reading or writing what is not a regular file.
func notReg(n *inode) error {
	switch n.attr.Type {
	case blockstore.TypeReg:
		return nil
	case blockstore.TypeDir:
		return blockstore.ErrIsDir
	}
	return blockstore.ErrInval
}

// ReadAt copies out of the file; holes read as zeros. It never blocks on a
// device, so nowait has no meaning here.
func (f *FS) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.readable(c, h)
	if err != nil {
		return 0, false, err
	}
	if off >= n.attr.Size {
		return 0, true, nil
	}
	k := min(uint64(len(p)), n.attr.Size-off)
	n.read(p[:k], off)
	return int(k), off+k >= n.attr.Size, nil
}

// WriteAt copies into the file. Every write is FileSync: the store loses nothing while the
// process lives.
func (f *FS) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (
	int, blockstore.Stability, blockstore.Wcc, error,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookup(h)
	if err != nil {
		return 0, how, blockstore.Wcc{}, err
	}
	pre, k := n.attr, 0
	switch err = f.checkWrite(c, n); {
	case err != nil:
	case len(p) == 0:
		return 0, blockstore.FileSync, same(pre), nil
	case off >= maxFileSize:
		err = blockstore.ErrFBig
	default:
		k, err = n.write(p[:min(uint64(len(p)), maxFileSize-off)], off, f.charge)
	}
	if k == 0 {
		return 0, how, wcc(pre, n), err
	}
	n.attr.Size = max(n.attr.Size, off+uint64(k))
	f.changed(c, n)
	return k, blockstore.FileSync, wcc(pre, n), nil
}

// WriteNowait implements blockstore.NowaitWriter: there is nothing to wait for.
func (f *FS) WriteNowait(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (
	int, blockstore.Stability, blockstore.Wcc, error,
) {
	n, how, w, err := f.WriteAt(c, h, p, off, how)
	if err != nil {
		return 0, how, blockstore.Wcc{}, blockstore.ErrWouldBlock
	}
	return n, how, w, nil
}

// Commit only checks the permission: every write is stable already.
func (f *FS) Commit(c *blockstore.Cred, h blockstore.Handle, off uint64, count uint32) (blockstore.Wcc, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.lookup(h)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	if err := notReg(n); err != nil {
		return same(n.attr), err
	}
	if !c.MayWriteData(&n.attr) {
		return same(n.attr), blockstore.ErrAccess
	}
	return same(n.attr), nil
}
