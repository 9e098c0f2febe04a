package fusefs

import (
	"context"
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// entry fills in the reply for an object that was found at a place, by a call that began at seq.
func (f *FS) entry(got *client.Node, at place, seq uint64, own bool, out *fuse.EntryOut) *node {
	n := f.nodes.lookup(got, at)
	a, ttl := f.refreshed(n, &got.Attr, reading{seq: seq, wrote: n.wrote.Load(), own: own})
	out.NodeId, out.Generation = n.id, 1
	f.show(&a, &out.Attr)
	out.SetAttrTimeout(ttl)
	out.SetEntryTimeout(ttl)
	return n
}

// Lookup implements fuse.RawFileSystem.
func (f *FS) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	o := f.begin(f.identity(h), h, opLookup, cancel)
	dir := f.nodes.get(h.NodeId)
	seq := f.seq.Add(1)
	got, err := f.c.Lookup(o.ctx, dir.handle, name)
	switch {
	case err == nil:
		f.entry(got, place{dir.id, name}, seq, false, out)
	case client.IsStatus(err, nfs.ErrNoEnt):
		f.nodes.removed(place{dir.id, name})
		if f.cfg.NoNegative {
			break
		}
		// A node ID of 0 lets the kernel remember that the name does not exist.
		dir.mu.Lock()
		out.SetEntryTimeout(min(dir.ttl, f.cfg.Times.RegMin))
		dir.mu.Unlock()
		err = nil
	}
	return o.end(err)
}

// makes executes the creation of an object in a directory.
func (f *FS) makes(what opcode, cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut,
	do func(context.Context, client.Handle) (*client.Node, error),
) fuse.Status {
	o := f.begin(f.identity(h), h, what, cancel)
	dir := f.nodes.get(h.NodeId)
	seq := f.seq.Add(1)
	got, err := do(o.ctx, dir.handle)
	if err == nil {
		f.entry(got, place{dir.id, name}, seq, true, out)
	}
	return o.end(err)
}

func modeOf(mode uint32) *blockstore.SetAttr {
	mode &= 0o7777
	return &blockstore.SetAttr{Mode: &mode}
}

// Mknod implements fuse.RawFileSystem.
func (f *FS) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.makes(opMknod, cancel, &in.InHeader, name, out,
		func(ctx context.Context, dir client.Handle) (*client.Node, error) {
			if in.Mode&syscall.S_IFMT == syscall.S_IFREG || in.Mode&syscall.S_IFMT == 0 {
				return f.c.Create(ctx, dir, name, blockstore.Guarded, modeOf(in.Mode), [nfs3.VerifierLen]byte{})
			}
			for typ, bits := range typesOfMode {
				if bits == in.Mode&syscall.S_IFMT {
					major, minor := in.Rdev>>8&0xfff, in.Rdev&0xff|in.Rdev>>12&^0xff
					return f.c.Mknod(ctx, dir, name, typ, major, minor, modeOf(in.Mode))
				}
			}
			return nil, syscall.EINVAL
		})
}

// Mkdir implements fuse.RawFileSystem.
func (f *FS) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.makes(opMkdir, cancel, &in.InHeader, name, out,
		func(ctx context.Context, dir client.Handle) (*client.Node, error) {
			return f.c.Mkdir(ctx, dir, name, modeOf(in.Mode))
		})
}

// Symlink implements fuse.RawFileSystem.
func (f *FS) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return f.makes(opSymlink, cancel, h, name, out,
		func(ctx context.Context, dir client.Handle) (*client.Node, error) {
			return f.c.Symlink(ctx, dir, name, target, modeOf(0o777))
		})
}

// Link implements fuse.RawFileSystem.
func (f *FS) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	n := f.nodes.get(in.Oldnodeid)
	return f.makes(opLink, cancel, &in.InHeader, name, out,
		func(ctx context.Context, dir client.Handle) (*client.Node, error) {
			if err := n.flush(ctx); err != nil {
				return nil, err
			}
			if err := f.c.Link(ctx, n.handle, dir, name); err != nil {
				return nil, err
			}
			n.outdated()
			a, err := f.c.GetAttr(ctx, n.handle)
			return &client.Node{Handle: n.handle, Attr: a}, err
		})
}

// Readlink implements fuse.RawFileSystem.
func (f *FS) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	o := f.begin(f.identity(h), h, opReadLink, cancel)
	target, err := f.c.ReadLink(o.ctx, f.nodes.get(h.NodeId).handle)
	return []byte(target), o.end(err)
}

// Rmdir implements fuse.RawFileSystem.
func (f *FS) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	o := f.begin(f.identity(h), h, opRmdir, cancel)
	dir := f.nodes.get(h.NodeId)
	err := f.c.Rmdir(o.ctx, dir.handle, name)
	if err == nil {
		f.nodes.removed(place{dir.id, name})
	}
	return o.end(err)
}

// Unlink implements fuse.RawFileSystem. A file that this mount has open gets another name until it
// is closed: NFS has no files without a name.
func (f *FS) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	o := f.begin(f.identity(h), h, opUnlink, cancel)
	at := place{h.NodeId, name}
	dir := f.nodes.get(h.NodeId)
	var err error
	if n := f.nodes.find(at); n != nil && n.isOpen() {
		err = f.sillyRename(o.ctx, n, at)
	} else {
		f.giveUp(o.ctx, n)
		err = f.c.Remove(o.ctx, dir.handle, name)
		if err == nil {
			f.nodes.removed(at)
		}
	}
	return o.end(err)
}

// isOpen reports whether a file is open and has a name that can be removed.
func (n *node) isOpen() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.opens > 0 && n.silly == nil && n.typ == blockstore.TypeReg
}

// sillyTries bounds how many names silly tries. Another mount can use the same names.
const sillyTries = 16

// sillyName returns a name for a removed file, in the form of the kernel's client.
func (f *FS) sillyName(n *node) string {
	return fmt.Sprintf(".nfs%016x%08x", n.fileID(), f.sillies.Add(1))
}

// silly gives the open file n a name for removed files in the same directory. at is the place of
// the file. try makes the name; it returns ErrExist if the name is in use.
func (f *FS) silly(n *node, at place, try func(dir *node, to place) error) error {
	dir := f.nodes.get(at.dir)
	if dir == nil {
		return nfs.ErrStale
	}
	for range sillyTries {
		to := place{at.dir, f.sillyName(n)}
		err := try(dir, to)
		if client.IsStatus(err, nfs.ErrExist) {
			continue
		}
		if err == nil {
			f.stats.silly.Add(1)
			n.mu.Lock()
			n.silly = &to
			n.mu.Unlock()
		}
		return err
	}
	return syscall.EBUSY
}

// sillyRename renames an open file instead of removing it. The last close removes the file.
func (f *FS) sillyRename(ctx context.Context, n *node, at place) error {
	return f.silly(n, at, func(dir *node, to place) error {
		if _, err := f.c.Lookup(ctx, dir.handle, to.name); err == nil {
			return nfs.ErrExist
		} else if !client.IsStatus(err, nfs.ErrNoEnt) {
			return err
		}
		err := f.c.Rename(ctx, dir.handle, at.name, dir.handle, to.name)
		if err == nil {
			f.nodes.move(at, to)
		}
		return err
	})
}

// sillyLink gives an open file a second name before a rename replaces its first one. So the first
// name always leads to a file. If the file cannot have a second name, sillyLink renames it.
func (f *FS) sillyLink(ctx context.Context, n *node, at place) error {
	err := f.silly(n, at, func(dir *node, to place) error { return f.c.Link(ctx, n.handle, dir.handle, to.name) })
	if client.IsStatus(err, nfs.ErrNotSupp) || client.IsStatus(err, nfs.ErrMLink) || client.IsStatus(err, nfs.ErrPerm) {
		return f.sillyRename(ctx, n, at)
	}
	return err
}

// renameNoReplace is RENAME_NOREPLACE of renameat2(2).
const renameNoReplace = 1

// Rename implements fuse.RawFileSystem. NFS has no flags. RENAME_NOREPLACE is an atomic LINK, and
// then a REMOVE. A directory cannot have a second name: for it RENAME_NOREPLACE is a LOOKUP and a
// RENAME, and another client can create the new name in between.
func (f *FS) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	if in.Flags&^renameNoReplace != 0 {
		return fuse.EINVAL
	}
	o := f.begin(f.identity(&in.InHeader), &in.InHeader, opRename, cancel)
	from, to := f.nodes.get(in.NodeId), f.nodes.get(in.Newdir)
	old, target := place{from.id, oldName}, place{to.id, newName}
	err := f.rename(o.ctx, from, to, old, target, in.Flags&renameNoReplace != 0)
	if err == nil {
		if n := f.nodes.find(old); n != nil {
			n.outdated() // its ctime
		}
		f.nodes.move(old, target)
	}
	return o.end(err)
}

func (f *FS) rename(ctx context.Context, from, to *node, old, target place, noReplace bool) error {
	if noReplace {
		n := f.nodes.find(old)
		if n != nil && n.typ != blockstore.TypeDir {
			if err := f.c.Link(ctx, n.handle, to.handle, target.name); !client.IsStatus(err, nfs.ErrNotSupp) {
				if err != nil {
					return err
				}
				return f.c.Remove(ctx, from.handle, old.name)
			}
		}
		if _, err := f.c.Lookup(ctx, to.handle, target.name); err == nil {
			return nfs.ErrExist
		} else if !client.IsStatus(err, nfs.ErrNoEnt) {
			return err
		}
	}
	if n := f.nodes.find(target); n != nil && n != f.nodes.find(old) && n.isOpen() {
		if err := f.sillyLink(ctx, n, target); err != nil {
			return err
		}
	} else if n != f.nodes.find(old) {
		f.giveUp(ctx, n)
	}
	return f.c.Rename(ctx, from.handle, old.name, to.handle, target.name)
}
