package memfs

import (
	"cmp"

	"github.com/rstored/rstored/blockstore"
)

// Rename renames an object. It replaces an object of the new name if the types allow that. If
// both names are of one file, nothing changes (rename(2)).
func (f *FS) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle,
	toName string,
) (fromW, toW blockstore.Wcc, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fd, err := f.lookupDir(from)
	if err != nil {
		return fromW, toW, err
	}
	td, err := f.lookupDir(to)
	if err != nil {
		return fromW, toW, err
	}
	fpre, tpre := fd.attr, td.attr
	victim, moved, err := f.checkRename(c, fd, fromName, td, toName)
	if err != nil || moved == nil {
		return same(fpre), same(tpre), err
	}
	if victim != nil {
		td.dir.remove(toName)
		if victim.dir != nil {
			td.attr.NLink--
		}
		f.drop(victim, f.now())
	}
	fd.dir.remove(fromName)
	td.dir.add(toName, moved.attr.FileID)
	if moved.dir != nil && fd != td {
		moved.parent = td.attr.FileID
		fd.attr.NLink--
		td.attr.NLink++
	}
	f.touchDir(fd)
	if td != fd {
		f.touchDir(td)
	}
	moved.attr.Ctime = fd.attr.Ctime
	return wcc(fpre, fd), wcc(tpre, td), nil
}

// checkRename returns the object to move and the one that it replaces. moved is nil if both
// names are of one object.
func (f *FS) checkRename(c *blockstore.Cred, fd *inode, fromName string, td *inode, toName string) (
	victim, moved *inode, err error,
) {
	if err := cmp.Or(blockstore.CheckName(fromName), blockstore.CheckName(toName)); err != nil {
		return nil, nil, err
	}
	if f.opts.ReadOnly {
		return nil, nil, blockstore.ErrROFS
	}
	if !c.May(&fd.attr, blockstore.MayExec) || !c.May(&td.attr, blockstore.MayExec) {
		return nil, nil, blockstore.ErrAccess
	}
	moved = f.child(fd, fromName)
	if moved == nil {
		return nil, nil, blockstore.ErrNotExist
	}
	victim = f.child(td, toName)
	switch {
	case f.above(moved, td): // a directory cannot move into itself
		return nil, nil, blockstore.ErrInval
	case victim != nil && f.above(victim, fd): // it contains the source
		return nil, nil, blockstore.ErrNotEmpty
	case victim == moved:
		return nil, nil, nil
	}
	if err := c.MayDelete(&fd.attr, &moved.attr); err != nil {
		return nil, nil, err
	}
	if victim == nil {
		if !c.May(&td.attr, blockstore.MayWrite|blockstore.MayExec) {
			return nil, nil, blockstore.ErrAccess
		}
	} else {
		if err := c.MayDelete(&td.attr, &victim.attr); err != nil {
			return nil, nil, err
		}
		switch {
		case moved.dir != nil && victim.dir == nil:
			return nil, nil, blockstore.ErrNotDir
		case moved.dir == nil && victim.dir != nil:
			return nil, nil, blockstore.ErrIsDir
		}
	}
	if moved.dir != nil && fd != td {
		// Its ".." changes, which is a write to the moved directory.
		if !c.May(&moved.attr, blockstore.MayWrite) {
			return nil, nil, blockstore.ErrAccess
		}
		if victim == nil && td.attr.NLink >= linkMax {
			return nil, nil, blockstore.ErrMLink
		}
	}
	if victim != nil && victim.dir != nil && len(victim.dir.byName) > 0 {
		return nil, nil, blockstore.ErrNotEmpty
	}
	return victim, moved, nil
}

// above reports whether n is the directory d or one of its ancestors.
func (f *FS) above(n, d *inode) bool {
	for d != n && d.attr.FileID != rootID {
		d = f.inodes[d.parent]
	}
	return d == n
}

// Link gives a file another name.
func (f *FS) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (blockstore.Attr, blockstore.Wcc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookup(h)
	if err != nil {
		return blockstore.Attr{}, blockstore.Wcc{}, err
	}
	d, err := f.lookupDir(dir)
	if err != nil {
		return n.attr, blockstore.Wcc{}, err
	}
	pre := d.attr
	err = blockstore.CheckName(name)
	switch {
	case err != nil:
	case f.opts.ReadOnly:
		err = blockstore.ErrROFS
	case !c.May(&d.attr, blockstore.MayExec):
		err = blockstore.ErrAccess
	case f.child(d, name) != nil:
		err = blockstore.ErrExist
	case !c.May(&d.attr, blockstore.MayWrite|blockstore.MayExec):
		err = blockstore.ErrAccess
	case n.dir != nil:
		err = blockstore.ErrPerm
	case n.attr.NLink >= linkMax:
		err = blockstore.ErrMLink
	}
	if err != nil {
		return n.attr, same(pre), err
	}
	d.dir.add(name, n.attr.FileID)
	f.touchDir(d)
	n.attr.NLink++
	n.attr.Ctime = d.attr.Ctime
	return n.attr, wcc(pre, d), nil
}
