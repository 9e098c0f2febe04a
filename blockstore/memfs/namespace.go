package memfs

import "github.com/rstored/rstored/blockstore"

// Lookup finds a name; ".." of the root is the root.
func (f *FS) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Handle, blockstore.Attr, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	d, err := f.lookupDir(dir)
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, err
	}
	if len(name) > blockstore.NameMax {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.ErrNameTooLong
	}
	if !c.May(&d.attr, blockstore.MayExec) {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.ErrAccess
	}
	n := f.child(d, name)
	if n == nil {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.ErrNotExist
	}
	return f.handle(n.attr.FileID), n.attr, nil
}

func (f *FS) child(d *inode, name string) *inode {
	switch name {
	case ".":
		return d
	case "..":
		return f.inodes[d.parent]
	}
	if e := d.dir.byName[name]; e != nil {
		return f.inodes[e.id]
	}
	return nil
}

// ReadLink returns the target of a symlink.
func (f *FS) ReadLink(c *blockstore.Cred, h blockstore.Handle) (string, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.lookup(h)
	if err != nil {
		return "", err
	}
	if n.attr.Type != blockstore.TypeLnk {
		return "", blockstore.ErrInval
	}
	return n.target, nil
}

// Create makes a regular file, or finds the one there as mode says.
func (f *FS) Create(c *blockstore.Cred, dir blockstore.Handle, name string, mode blockstore.CreateMode, s *blockstore.SetAttr, verf [8]byte) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.lookupDir(dir)
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, err
	}
	pre := d.attr
	fail := func(err error) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
		return blockstore.Handle{}, blockstore.Attr{}, same(pre), err
	}
	if err := blockstore.CheckName(name); err != nil {
		return fail(err)
	}
	if !c.May(&d.attr, blockstore.MayExec) {
		return fail(blockstore.ErrAccess)
	}
	if s == nil {
		s = &blockstore.SetAttr{}
	}
	if n := f.child(d, name); n != nil {
		switch {
		case n.attr.Type != blockstore.TypeReg || mode == blockstore.Guarded:
			return fail(blockstore.ErrExist)
		case mode == blockstore.Exclusive:
			if !n.hasVerf || n.verf != verf {
				return fail(blockstore.ErrExist)
			}
		case s.Size != nil:
			if f.opts.ReadOnly {
				return fail(blockstore.ErrROFS)
			}
			do, err := c.PrepareSetAttr(&n.attr, &blockstore.SetAttr{Size: s.Size}, nil)
			if err != nil {
				return fail(err)
			}
			if *do.Size > maxFileSize {
				return fail(blockstore.ErrFBig)
			}
			f.apply(c, n, &do)
		}
		return f.handle(n.attr.FileID), n.attr, same(pre), nil
	}
	if mode == blockstore.Exclusive {
		s = &blockstore.SetAttr{}
	}
	n, err := f.make(c, d, name, blockstore.TypeReg, s)
	if err != nil {
		return fail(err)
	}
	if mode == blockstore.Exclusive {
		n.verf, n.hasVerf = verf, true
	}
	return f.handle(n.attr.FileID), n.attr, wcc(pre, d), nil
}

// make adds a new object to d, checking what every kind of create checks.
func (f *FS) make(c *blockstore.Cred, d *inode, name string, typ blockstore.FileType, s *blockstore.SetAttr) (*inode, error) {
	if f.opts.ReadOnly {
		return nil, blockstore.ErrROFS
	}
	if !c.May(&d.attr, blockstore.MayWrite|blockstore.MayExec) {
		return nil, blockstore.ErrAccess
	}
	if typ == blockstore.TypeDir && d.attr.NLink >= linkMax {
		return nil, blockstore.ErrMLink
	}
	if s.Size != nil && *s.Size > maxFileSize {
		return nil, blockstore.ErrFBig
	}
	if uint64(len(f.inodes)) >= f.opts.MaxFiles || f.used+inodeCost > f.opts.MaxBytes {
		return nil, blockstore.ErrNoSpace
	}
	var uid, gid, mode uint32
	if c != nil {
		uid, gid = c.UID, c.GID
	}
	if s.Mode != nil {
		mode = *s.Mode
	}
	if typ == blockstore.TypeLnk {
		mode = 0o777
	}
	mode, gid = c.InheritMode(&d.attr, typ, mode, gid)
	n := f.newInode(typ, mode, uid, gid)
	if err := f.inheritACL(d, n); err != nil {
		f.drop(n, n.attr.Ctime)
		return nil, err
	}
	if typ == blockstore.TypeDir {
		n.attr.NLink = 2
		n.dir = newDirectory()
		n.parent = d.attr.FileID
		d.attr.NLink++
	}
	// The mode is set; owners are for root alone to give away, and a client
	// that sends its own idea of them is not refused for it.
	rest := *s
	rest.Mode = nil
	if !c.Privileged() {
		rest.UID, rest.GID = nil, nil
	}
	if typ != blockstore.TypeReg || (rest.Size != nil && *rest.Size == 0) {
		rest.Size = nil
	}
	if rest != (blockstore.SetAttr{}) {
		f.apply(c, n, &rest)
	}
	d.dir.add(name, n.attr.FileID)
	f.touchDir(d)
	return n, nil
}

// touchDir stamps a directory whose entries changed.
func (f *FS) touchDir(d *inode) {
	now := f.now()
	d.attr.Mtime, d.attr.Ctime = now, now
	d.attr.Size = uint64(len(d.dir.byName)) * 32
}

// makeNew is Mkdir, Symlink and Mknod: a name that must not be there yet.
func (f *FS) makeNew(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, s *blockstore.SetAttr, finish func(*inode)) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.lookupDir(dir)
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, err
	}
	pre := d.attr
	fail := func(err error) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
		return blockstore.Handle{}, blockstore.Attr{}, same(pre), err
	}
	if err := blockstore.CheckName(name); err != nil {
		return fail(err)
	}
	if !c.May(&d.attr, blockstore.MayExec) {
		return fail(blockstore.ErrAccess)
	}
	if f.child(d, name) != nil {
		return fail(blockstore.ErrExist)
	}
	if s == nil {
		s = &blockstore.SetAttr{}
	}
	n, err := f.make(c, d, name, typ, s)
	if err != nil {
		return fail(err)
	}
	finish(n)
	return f.handle(n.attr.FileID), n.attr, wcc(pre, d), nil
}

// Mkdir makes a directory.
func (f *FS) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	return f.makeNew(c, dir, name, blockstore.TypeDir, s, func(*inode) {})
}

// Symlink makes a symbolic link; its mode is 0777 whatever s says.
func (f *FS) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if target == "" {
		return f.refuse(dir, blockstore.ErrNotExist)
	}
	if len(target) > targetMax {
		return f.refuse(dir, blockstore.ErrNameTooLong)
	}
	return f.makeNew(c, dir, name, blockstore.TypeLnk, s, func(n *inode) {
		n.target = target
		n.attr.Size = uint64(len(target))
	})
}

// Mknod makes a fifo, a socket or, for the privileged, a device.
func (f *FS) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, major, minor uint32, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	switch typ {
	case blockstore.TypeBlk, blockstore.TypeChr:
		if !c.Privileged() {
			return f.refuse(dir, blockstore.ErrPerm)
		}
	case blockstore.TypeSock, blockstore.TypeFifo:
		major, minor = 0, 0
	default:
		return f.refuse(dir, blockstore.ErrBadType)
	}
	return f.makeNew(c, dir, name, typ, s, func(n *inode) {
		n.attr.Major, n.attr.Minor = major, minor
	})
}

// refuse answers a create that fails before the directory is looked at.
func (f *FS) refuse(dir blockstore.Handle, err error) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	d, derr := f.lookupDir(dir)
	if derr != nil {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, derr
	}
	return blockstore.Handle{}, blockstore.Attr{}, same(d.attr), err
}

// Remove takes the name of anything but a directory.
func (f *FS) Remove(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.unlink(c, dir, name, false)
}

// Rmdir takes the name of an empty directory.
func (f *FS) Rmdir(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return f.unlink(c, dir, name, true)
}

func (f *FS) unlink(c *blockstore.Cred, dir blockstore.Handle, name string, isDir bool) (blockstore.Wcc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.lookupDir(dir)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	pre := d.attr
	if err := f.checkUnlink(c, d, name, isDir); err != nil {
		return same(pre), err
	}
	n := f.child(d, name)
	d.dir.remove(name)
	f.touchDir(d)
	if isDir {
		d.attr.NLink--
	}
	f.drop(n, d.attr.Ctime)
	return wcc(pre, d), nil
}

func (f *FS) checkUnlink(c *blockstore.Cred, d *inode, name string, isDir bool) error {
	if err := blockstore.CheckName(name); err != nil {
		return err
	}
	if f.opts.ReadOnly {
		return blockstore.ErrROFS
	}
	if !c.May(&d.attr, blockstore.MayExec) {
		return blockstore.ErrAccess
	}
	n := f.child(d, name)
	if n == nil {
		return blockstore.ErrNotExist
	}
	if err := c.MayDelete(&d.attr, &n.attr); err != nil {
		return err
	}
	switch {
	case isDir && n.dir == nil:
		return blockstore.ErrNotDir
	case !isDir && n.dir != nil:
		return blockstore.ErrIsDir
	case isDir && len(n.dir.byName) > 0:
		return blockstore.ErrNotEmpty
	}
	return nil
}

// Rename moves a name, over another where the kinds allow it. Two names of one
// file stay as they are.
func (f *FS) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle, toName string) (fromW, toW blockstore.Wcc, err error) {
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

// checkRename returns what is moved and what it replaces; nothing is moved
// where both names are one object.
func (f *FS) checkRename(c *blockstore.Cred, fd *inode, fromName string, td *inode, toName string) (victim, moved *inode, err error) {
	if err := blockstore.CheckName(fromName); err != nil {
		return nil, nil, err
	}
	if err := blockstore.CheckName(toName); err != nil {
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
	if moved.dir != nil {
		// Not into itself or below.
		for d := td; ; d = f.inodes[d.parent] {
			if d == moved {
				return nil, nil, blockstore.ErrInval
			}
			if d.attr.FileID == rootID {
				break
			}
		}
	}
	victim = f.child(td, toName)
	if victim != nil && victim.dir != nil {
		// Not over one of the source's own ancestors, which is not empty.
		for d := fd; ; d = f.inodes[d.parent] {
			if d == victim {
				return nil, nil, blockstore.ErrNotEmpty
			}
			if d.attr.FileID == rootID {
				break
			}
		}
	}
	if victim == moved {
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
		// Its ".." changes, which is a write to the directory itself.
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
