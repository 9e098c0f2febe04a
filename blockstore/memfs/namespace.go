package memfs

import (
	"cmp"

	"github.com/rstored/rstored/blockstore"
)

// Lookup finds a name. ".." of the root is the root.
func (f *FS) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (
	h blockstore.Handle, a blockstore.Attr, err error,
) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	d, err := f.lookupDir(dir)
	switch {
	case err != nil:
		return h, a, err
	case len(name) > blockstore.NameMax:
		return h, a, blockstore.ErrNameTooLong
	case !c.May(&d.attr, blockstore.MayExec):
		return h, a, blockstore.ErrAccess
	}
	n := f.child(d, name)
	if n == nil {
		return h, a, blockstore.ErrNotExist
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

// create is the common part of all creates. It checks the directory and the name, and calls do with
// the lock held. do returns the object of name in d. refused, if not nil, is the error of an
// argument that the caller has found.
func (f *FS) create(c *blockstore.Cred, dir blockstore.Handle, name string, refused error,
	do func(d *inode) (*inode, error),
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.lookupDir(dir)
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, err
	}
	pre := d.attr
	var n *inode
	if err = cmp.Or(refused, blockstore.CheckName(name)); err == nil {
		if !c.May(&d.attr, blockstore.MayExec) {
			err = blockstore.ErrAccess
		} else {
			n, err = do(d)
		}
	}
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, same(pre), err
	}
	return f.handle(n.attr.FileID), n.attr, wcc(pre, d), nil
}

// Create creates a regular file, or returns the one that exists, as mode says.
func (f *FS) Create(c *blockstore.Cred, dir blockstore.Handle, name string, mode blockstore.CreateMode,
	s *blockstore.SetAttr, verf [8]byte,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if s == nil {
		s = &blockstore.SetAttr{}
	}
	return f.create(c, dir, name, nil, func(d *inode) (*inode, error) {
		if n := f.child(d, name); n != nil {
			return n, f.checkExisting(c, n, mode, s, verf)
		}
		if mode != blockstore.Exclusive {
			return f.make(c, d, name, blockstore.TypeReg, s)
		}
		n, err := f.make(c, d, name, blockstore.TypeReg, &blockstore.SetAttr{})
		if err == nil {
			n.verf, n.hasVerf = verf, true
		}
		return n, err
	})
}

// checkExisting checks a create of a name that exists, and truncates the file if s says so.
func (f *FS) checkExisting(c *blockstore.Cred, n *inode, mode blockstore.CreateMode, s *blockstore.SetAttr,
	verf [8]byte,
) error {
	switch {
	case n.attr.Type != blockstore.TypeReg || mode == blockstore.Guarded,
		mode == blockstore.Exclusive && (!n.hasVerf || n.verf != verf):
		return blockstore.ErrExist
	case mode == blockstore.Exclusive || s.Size == nil:
		return nil
	case f.opts.ReadOnly:
		return blockstore.ErrROFS
	}
	do, err := c.PrepareSetAttr(&n.attr, &blockstore.SetAttr{Size: s.Size}, nil)
	if err != nil {
		return err
	}
	if *do.Size > maxFileSize {
		return blockstore.ErrFBig
	}
	f.apply(c, n, &do)
	return nil
}

// make adds a new object to d, after the checks that all creates have in common. mu is held.
func (f *FS) make(c *blockstore.Cred, d *inode, name string, typ blockstore.FileType, s *blockstore.SetAttr) (*inode,
	error,
) {
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
	// newInode has set the mode. Only root may choose the owner and the group. If another user
	// sends them, they are ignored, and the create succeeds.
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

// makeNew is Mkdir, Symlink and Mknod: the name must not exist yet. finish completes the new
// object.
func (f *FS) makeNew(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType,
	s *blockstore.SetAttr, refused error, finish func(*inode),
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	return f.create(c, dir, name, refused, func(d *inode) (*inode, error) {
		if f.child(d, name) != nil {
			return nil, blockstore.ErrExist
		}
		if s == nil {
			s = &blockstore.SetAttr{}
		}
		n, err := f.make(c, d, name, typ, s)
		if err == nil {
			finish(n)
		}
		return n, err
	})
}

// Mkdir makes a directory.
func (f *FS) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, s *blockstore.SetAttr) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	return f.makeNew(c, dir, name, blockstore.TypeDir, s, nil, func(*inode) {})
}

// Symlink makes a symbolic link. Its mode is 0777 whatever s says.
func (f *FS) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string, s *blockstore.SetAttr) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	var refused error
	switch {
	case target == "":
		refused = blockstore.ErrNotExist
	case len(target) > targetMax:
		refused = blockstore.ErrNameTooLong
	}
	return f.makeNew(c, dir, name, blockstore.TypeLnk, s, refused, func(n *inode) {
		n.target = target
		n.attr.Size = uint64(len(target))
	})
}

// Mknod makes a fifo, a socket or, for the privileged, a device.
func (f *FS) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType,
	major, minor uint32, s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	var refused error
	switch typ {
	case blockstore.TypeBlk, blockstore.TypeChr:
		if !c.Privileged() {
			refused = blockstore.ErrPerm
		}
	case blockstore.TypeSock, blockstore.TypeFifo:
		major, minor = 0, 0
	default:
		refused = blockstore.ErrBadType
	}
	return f.makeNew(c, dir, name, typ, s, refused, func(n *inode) {
		n.attr.Major, n.attr.Minor = major, minor
	})
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
