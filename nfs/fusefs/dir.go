package fusefs

import (
	"context"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/nfs/client"
)

// dir is an open directory. Offsets of entries are the server's cookies, which are 3 or more in
// version 4 (RFC 8881 section 18.23.3), and behind "." and ".." in version 3.
type dir struct {
	n   *node
	ctx context.Context

	mu     sync.Mutex
	reader *client.DirReader
	page   []client.Entry // from at on
	at     uint64         // cookie before page
	seq    uint64         // when the call for page began
}

// Offsets of the first entries. The server does not return them in version 4.
const (
	offDot    = 1
	offDotDot = 2
)

// OpenDir implements fuse.RawFileSystem.
func (f *FS) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	out.Fh = f.add(&dir{n: n, ctx: f.identity(&in.InHeader), reader: f.c.DirReader(n.handle)})
	return fuse.OK
}

// ReleaseDir implements fuse.RawFileSystem.
func (f *FS) ReleaseDir(in *fuse.ReleaseIn) { f.drop(in.Fh) }

// FsyncDir implements fuse.RawFileSystem. Changes of directories are stable when they are
// acknowledged (RFC 1813 section 4.8, RFC 8881 section 2.10.6.1).
func (f *FS) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status { return fuse.OK }

// ReadDir implements fuse.RawFileSystem.
func (f *FS) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(cancel, in, func(d *dir, e *client.Entry, de fuse.DirEntry) bool { return out.AddDirEntry(de) })
}

// ReadDirPlus implements fuse.RawFileSystem.
func (f *FS) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(cancel, in, func(d *dir, e *client.Entry, de fuse.DirEntry) bool {
		entry := out.AddDirLookupEntry(de)
		if entry == nil {
			return false
		}
		if e != nil && e.Attr != nil && e.Handle != nil {
			f.entry(&client.Node{Handle: e.Handle, Attr: *e.Attr}, place{d.n.id, e.Name}, d.seq, false, entry)
		}
		return true
	})
}

// list adds the entries of a directory from an offset on, until add refuses one.
func (f *FS) list(cancel <-chan struct{}, in *fuse.ReadIn,
	add func(*dir, *client.Entry, fuse.DirEntry) bool,
) fuse.Status {
	f.mu.Lock()
	d, _ := f.handles[in.Fh].(*dir)
	f.mu.Unlock()
	if d == nil {
		return fuse.EBADF
	}
	o := f.begin(d.ctx, &in.InHeader, opReadDir, cancel)
	d.mu.Lock()
	defer d.mu.Unlock()
	off := in.Offset
	for ; off < offDotDot; off++ {
		name := ".."
		if off+1 == offDot {
			name = "."
		}
		if !add(d, nil, fuse.DirEntry{Name: name, Mode: fuse.S_IFDIR, Ino: f.inode(d.n), Off: off + 1}) {
			return o.end(nil)
		}
	}
	for first := true; ; first = false {
		if err := f.fill(o.ctx, d, off); err != nil {
			if !first {
				err = nil // the next call reports it
			}
			return o.end(err)
		}
		if len(d.page) == 0 {
			return o.end(nil)
		}
		for len(d.page) > 0 {
			e := &d.page[0]
			de := fuse.DirEntry{Name: e.Name, Ino: e.FileID, Off: e.Cookie}
			if e.Attr != nil {
				var a fuse.Attr
				f.show(e.Attr, &a)
				de.Mode, de.Ino = a.Mode, a.Ino
			}
			if !add(d, e, de) {
				return o.end(nil)
			}
			off, d.at, d.page = e.Cookie, e.Cookie, d.page[1:]
		}
	}
}

// inode is the inode number of a directory.
func (f *FS) inode(n *node) uint64 {
	var a fuse.Attr
	n.mu.Lock()
	f.show(&n.attr, &a)
	n.mu.Unlock()
	return a.Ino
}

// fill makes sure that the page begins behind the entry with the cookie off, or is empty at the end
// of the directory. mu is held.
func (f *FS) fill(ctx context.Context, d *dir, off uint64) error {
	if off <= offDotDot {
		off = 0
	}
	switch {
	case off == 0:
		d.reader.Seek(0)
	case d.at != off:
		d.reader.Seek(off)
	case len(d.page) > 0:
		return nil
	}
	d.seq = f.seq.Add(1)
	page, err := d.reader.Next(ctx)
	d.page, d.at = page, off
	return err
}
