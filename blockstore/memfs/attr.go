package memfs

import (
	"time"

	"github.com/rstored/rstored/blockstore"
)

// GetAttr returns the attributes of an object; anybody may ask.
func (f *FS) GetAttr(c *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.lookup(h)
	if err != nil {
		return blockstore.Attr{}, err
	}
	return n.attr, nil
}

// GetAttrNowait implements blockstore.NowaitAttr: there is nothing to wait for.
func (f *FS) GetAttrNowait(c *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	a, err := f.GetAttr(c, h)
	if err != nil {
		return a, blockstore.ErrWouldBlock
	}
	return a, nil
}

// LookupNowait implements blockstore.NowaitLookup: there is nothing to wait for.
func (f *FS) LookupNowait(c *blockstore.Cred, dir blockstore.Handle, name string) (
	h blockstore.Handle, a, dirAttr blockstore.Attr, err error,
) {
	if h, a, err = f.Lookup(c, dir, name); err == nil {
		dirAttr, err = f.GetAttr(c, dir)
	}
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Attr{}, blockstore.ErrWouldBlock
	}
	return h, a, dirAttr, nil
}

// SetAttr changes attributes, all of s or nothing.
func (f *FS) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) (blockstore.Wcc,
	error,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookup(h)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	pre := n.attr
	if f.opts.ReadOnly {
		return same(pre), blockstore.ErrROFS
	}
	if guard != nil && !guard.Equal(n.attr.Ctime) {
		return same(pre), blockstore.ErrNotSync
	}
	do, err := c.PrepareSetAttr(&n.attr, s, nil)
	if err != nil {
		return same(pre), err
	}
	if do.Size != nil && *do.Size > maxFileSize {
		return same(pre), blockstore.ErrFBig
	}
	f.apply(c, n, &do)
	return wcc(pre, n), nil
}

// apply makes changes that were checked, in the order of the Linux NFS server:
// size, owner, mode, times.
func (f *FS) apply(c *blockstore.Cred, n *inode, s *blockstore.SetAttr) {
	now := f.now()
	a := &n.attr
	if s.Size != nil {
		f.used -= n.truncate(*s.Size)
		a.Mtime = now
		if !c.Privileged() {
			a.Mode = blockstore.DropSetID(a.Mode)
		}
	}
	if s.UID != nil || s.GID != nil {
		if s.UID != nil {
			a.UID = *s.UID
		}
		if s.GID != nil {
			a.GID = *s.GID
		}
		if a.Type != blockstore.TypeDir {
			a.Mode = blockstore.DropSetID(a.Mode)
		}
	}
	if s.Mode != nil {
		n.setMode(*s.Mode)
	}
	set := func(dst *time.Time, how blockstore.TimeSet, t time.Time) {
		switch how {
		case blockstore.TimeServer:
			*dst = now
		case blockstore.TimeClient:
			*dst = t.Round(0)
		}
	}
	set(&a.Atime, s.AtimeHow, s.Atime)
	set(&a.Mtime, s.MtimeHow, s.Mtime)
	a.Ctime = now
	if s.AtimeHow != blockstore.TimeKeep || s.MtimeHow != blockstore.TimeKeep || s.Size != nil {
		n.hasVerf = false // as in posixfs, which keeps the verifier in the times
	}
}

// Access evaluates the mode bits for c.
func (f *FS) Access(c *blockstore.Cred, h blockstore.Handle, want uint32) (uint32, blockstore.Attr, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.lookup(h)
	if err != nil {
		return 0, blockstore.Attr{}, err
	}
	got := c.AccessBits(&n.attr, want)
	if f.opts.ReadOnly {
		got &^= blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessDelete
	}
	return got, n.attr, nil
}

// same is the consistency data of an operation that changed nothing.
func same(a blockstore.Attr) blockstore.Wcc {
	return blockstore.Wcc{Pre: blockstore.Known(&a), Post: blockstore.Known(&a)}
}

// wcc is the consistency data of an operation that found pre and left n.
func wcc(pre blockstore.Attr, n *inode) blockstore.Wcc {
	return blockstore.Wcc{Pre: blockstore.Known(&pre), Post: blockstore.Known(&n.attr)}
}
