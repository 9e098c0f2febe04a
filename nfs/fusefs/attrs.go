package fusefs

import (
	"context"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// getAttr sends what was written to an object, and then reads its attributes.
func (f *FS) getAttr(ctx context.Context, n *node) (a nfs3.Attr, ttl time.Duration, err error) {
	if a, ttl, ok := f.local(n); ok {
		f.stats.local.Add(1)
		return a, ttl, nil
	}
	if err := n.flush(ctx); err != nil {
		return a, 0, err
	}
	b := f.reading(n)
	a, err = f.c.GetAttr(ctx, n.handle)
	if err != nil {
		return a, 0, err
	}
	a, ttl = f.refreshed(n, &a, b)
	return a, ttl, nil
}

// revalidate compares a file with the server's at open(2). It looks the name up. That costs no more
// than reading the attributes, and also shows whether the name has become another file. node.kept
// then reports whether the data in the kernel's cache is valid.
func (f *FS) revalidate(ctx context.Context, n *node) error {
	if n.unchanged() {
		f.stats.local.Add(1)
		return nil
	}
	if err := n.flush(ctx); err != nil {
		return err
	}
	var a nfs3.Attr
	var err error
	b := f.reading(n)
	at := f.nodes.whereIs(n)
	dir := f.nodes.get(at.dir)
	if dir == nil {
		a, err = f.c.GetAttr(ctx, n.handle)
	} else {
		var got *client.Node
		got, err = f.c.Lookup(ctx, dir.handle, at.name)
		switch {
		case client.IsStatus(err, nfs.ErrNoEnt), client.IsStatus(err, nfs.ErrStale), client.IsStatus(err, nfs.ErrAcces):
			// A program can open a removed file by /proc. It can also open a file below a directory
			// that it may not search.
			a, err = f.c.GetAttr(ctx, n.handle)
		case err == nil && string(got.Handle) != string(n.handle):
			f.nodes.removed(at)
			return nfs.ErrStale // the kernel looks the name up again
		case err == nil:
			a = got.Attr
		}
	}
	if err != nil {
		return err
	}
	_, _, changed := f.update(n, &a, b)
	if changed {
		f.stats.invalidated.Add(1)
		n.data.Add(1)
		f.server.InodeNotify(n.id, -1, 0) // invalidates the size; the kernel drops the data itself
	}
	return nil
}

// GetAttr implements fuse.RawFileSystem.
func (f *FS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	o := f.begin(f.identity(&in.InHeader), &in.InHeader, opGetAttr, cancel)
	a, ttl, err := f.getAttr(o.ctx, f.nodes.get(in.NodeId))
	f.show(&a, &out.Attr)
	out.SetTimeout(ttl)
	return o.end(err)
}

// SetAttr implements fuse.RawFileSystem.
func (f *FS) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	identity := f.identity(&in.InHeader)
	if fh, ok := in.GetFh(); ok {
		if h := f.file(fh); h != nil {
			identity = h.ctx // an open file can be truncated even if its mode has changed
		}
	}
	o := f.begin(identity, &in.InHeader, opSetAttr, cancel)
	n := f.nodes.get(in.NodeId)
	before := n.flush
	if _, ok := in.GetSize(); ok {
		before = n.commit // data that is sent again would make the file longer again
	}
	err := before(o.ctx)
	var s blockstore.SetAttr
	if v, ok := in.GetMode(); ok {
		s.Mode = &v
	}
	if v, ok := in.GetUID(); ok {
		s.UID = &v
	}
	if v, ok := in.GetGID(); ok {
		s.GID = &v
	}
	if v, ok := in.GetSize(); ok {
		s.Size = &v
		n.data.Add(1)
	}
	s.AtimeHow, s.Atime = timeSet(in.Valid, fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec)
	s.MtimeHow, s.Mtime = timeSet(in.Valid, fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec)
	if err == nil && s != (blockstore.SetAttr{}) {
		err = f.setAttr(o.ctx, n, &s)
	}
	if err == nil {
		var a nfs3.Attr
		var ttl time.Duration
		if a, ttl, err = f.getAttr(o.ctx, n); err == nil {
			f.show(&a, &out.Attr)
			out.SetTimeout(ttl)
		}
	}
	n.data.Add(1)
	return o.end(err)
}

// setAttr changes attributes of an object.
func (f *FS) setAttr(ctx context.Context, n *node, s *blockstore.SetAttr) error {
	defer n.change()()
	err := f.c.SetAttr(ctx, n.handle, s, nil)
	if err == nil && s.Size != nil {
		f.resized(n, *s.Size)
	}
	return err
}

func timeSet(valid, set, now uint32, sec uint64, nsec uint32) (blockstore.TimeSet, time.Time) {
	switch {
	case valid&now != 0:
		return blockstore.TimeServer, time.Time{}
	case valid&set != 0:
		return blockstore.TimeClient, time.Unix(int64(sec), int64(nsec))
	}
	return blockstore.TimeKeep, time.Time{}
}

// Access implements fuse.RawFileSystem. The kernel calls it at access(2) and chdir(2), and only if
// it does not check permissions itself.
func (f *FS) Access(cancel <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	n := f.nodes.get(in.NodeId)
	var want uint32
	if in.Mask&fuse.R_OK != 0 {
		want |= blockstore.AccessRead
	}
	if in.Mask&fuse.W_OK != 0 {
		want |= blockstore.AccessModify
	}
	if in.Mask&fuse.X_OK != 0 && n.typ == blockstore.TypeDir {
		want |= blockstore.AccessLookup
	} else if in.Mask&fuse.X_OK != 0 {
		want |= blockstore.AccessExecute
	}
	if want == 0 {
		return fuse.OK
	}
	o := f.begin(f.identity(&in.InHeader), &in.InHeader, opAccess, cancel)
	granted, err := f.c.Access(o.ctx, n.handle, want)
	if st := o.end(err); st != fuse.OK {
		return st
	}
	if granted&want != want {
		return fuse.EACCES
	}
	return fuse.OK
}

// frame is the block size of statfs(2), in bytes.
const frame = 4096

// StatFs implements fuse.RawFileSystem.
func (f *FS) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	o := f.begin(f.identity(h), h, opStatFS, cancel)
	n := f.nodes.root
	if h.NodeId != 0 {
		n = f.nodes.get(h.NodeId)
	}
	s, err := f.c.Stat(o.ctx, n.handle)
	if err == nil {
		out.Bsize, out.Frsize, out.NameLen = maxTransfer, frame, blockstore.NameMax
		out.Blocks, out.Bfree, out.Bavail = s.TotalBytes/frame, s.FreeBytes/frame, s.AvailBytes/frame
		out.Files, out.Ffree = s.TotalFiles, s.FreeFiles
	}
	return o.end(err)
}
