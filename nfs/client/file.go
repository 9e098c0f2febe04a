package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
)

// File is an open file: io.ReaderAt, io.WriterAt, io.ReadWriteSeeker. NFS
// version 3 has no open; a File is a handle and a position there. In version 4 the
// server has it open until Close, for reading and, from the first WriteAt on, for
// writing. ReadAt and WriteAt may be used from any goroutine, the calls that move the
// position from one at a time.
type File struct {
	c    *Client
	ctx  context.Context
	node *Node
	name string

	mu    sync.Mutex
	pos   int64
	dirty []*unstable

	opening sync.Mutex
	access  uint32 // that the server has granted
	undo    []func() error
	locks   *locks4 // once there was one
}

// unstable is a write that the server has not committed to disk.
type unstable struct {
	off      uint64
	data     []byte
	verifier [nfs3.VerifierLen]byte
}

// unstableMax bounds what a File holds for Sync; more is synced at once.
const unstableMax = 32 << 20

// Open opens the file or directory of an absolute path on the server. ctx
// bounds all calls of the File.
func (c *Client) Open(ctx context.Context, name string) (*File, error) {
	n, err := c.Resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	f := &File{c: c, ctx: ctx, node: n, name: name}
	if n.Attr.Type == blockstore.TypeReg {
		// It may be to be written alone.
		if err := f.hold(ShareRead, 0); err != nil && !IsStatus(err, nfs.ErrAcces) {
			return nil, pathError("open", name, err)
		}
	}
	return f, nil
}

// OpenShare opens a file for reading, for writing, or for both, and denies others the
// one, the other, or both, for as long as it is open (ShareRead, ShareWrite). Denials
// need version 4; without them they are refused with nfs.ErrNotSupp.
func (c *Client) OpenShare(ctx context.Context, name string, access, deny uint32) (*File, error) {
	n, err := c.Resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	f := &File{c: c, ctx: ctx, node: n, name: name}
	if err := f.hold(access, deny); err != nil {
		return nil, pathError("open", name, err)
	}
	return f, nil
}

// hold has the server open the file.
func (f *File) hold(access, deny uint32) error {
	f.opening.Lock()
	defer f.opening.Unlock()
	if access&^f.access == 0 && deny == 0 {
		return nil
	}
	release, err := f.c.hold(f.ctx, f.node.Handle, access, deny)
	if err != nil {
		return err
	}
	f.access |= access
	f.undo = append(f.undo, release)
	return nil
}

// CreateFile makes a file, or truncates one that exists, and opens it.
func (c *Client) CreateFile(ctx context.Context, name string, mode fs.FileMode) (*File, error) {
	dir, base, err := c.ResolveParent(ctx, name)
	if err != nil {
		return nil, err
	}
	perm, zero := uint32(mode.Perm()), uint64(0)
	n, err := c.Create(ctx, dir.Handle, base, blockstore.Unchecked, &blockstore.SetAttr{Mode: &perm, Size: &zero}, [8]byte{})
	if err != nil {
		return nil, pathError("create", name, err)
	}
	return &File{c: c, ctx: ctx, node: n, name: name}, nil
}

// Node is the file's handle and its attributes when it was opened.
func (f *File) Node() *Node { return f.node }

// ReadAt implements io.ReaderAt. Over RDMA the server places the bytes in p.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, pathError("read", f.name, nfs.ErrInval)
	}
	if err := errors.Join(f.lockLost(), f.hold(ShareRead, 0)); err != nil {
		return 0, pathError("read", f.name, err)
	}
	for n < len(p) {
		k, eof, err := f.c.Read(f.ctx, f.node.Handle, p[n:], uint64(off)+uint64(n))
		if err != nil {
			return n, pathError("read", f.name, err)
		}
		n += k
		if n < len(p) && (eof || k == 0) {
			return n, io.EOF
		}
	}
	return n, nil
}

// WriteAt implements io.WriterAt. The bytes are stable after Sync or Close; a
// copy is kept until then. Of memory of another device that is not mapped there can be
// no copy, and they are stable when WriteAt returns.
func (f *File) WriteAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, pathError("write", f.name, nfs.ErrInval)
	}
	if err := errors.Join(f.lockLost(), f.hold(ShareWrite, 0)); err != nil {
		return 0, pathError("write", f.name, err)
	}
	how := blockstore.Unstable
	if f.c.nfs.untouchable(p) {
		how = blockstore.FileSync
	}
	for n < len(p) {
		w, err := f.c.Write(f.ctx, f.node.Handle, p[n:], uint64(off)+uint64(n), how)
		if err != nil {
			return n, pathError("write", f.name, err)
		}
		if w.Committed != blockstore.FileSync {
			held := 0
			f.mu.Lock()
			f.dirty = append(f.dirty, &unstable{uint64(off) + uint64(n), append([]byte(nil), p[n:n+w.N]...), w.Verifier})
			for _, u := range f.dirty {
				held += len(u.data)
			}
			f.mu.Unlock()
			if held > unstableMax {
				if err := f.Sync(); err != nil {
					return n, err
				}
			}
		}
		n += w.N
	}
	return n, nil
}

// Sync makes what was written stable. Writes that the server lost by a restart
// are sent again.
func (f *File) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.dirty) > 0 {
		v, err := f.c.Commit(f.ctx, f.node.Handle, 0, 0)
		if err != nil {
			return pathError("sync", f.name, err)
		}
		lost := f.dirty[:0]
		for _, u := range f.dirty {
			if u.verifier != v {
				lost = append(lost, u)
			}
		}
		for _, u := range lost {
			for at := 0; at < len(u.data); {
				w, err := f.c.Write(f.ctx, f.node.Handle, u.data[at:], u.off+uint64(at), blockstore.FileSync)
				if err != nil {
					return pathError("sync", f.name, err)
				}
				at += w.N
			}
		}
		f.dirty = nil
	}
	return nil
}

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) {
	if f.node.Attr.Type == blockstore.TypeDir {
		return 0, pathError("read", f.name, nfs.ErrIsDir)
	}
	n, err := f.ReadAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// Write implements io.Writer.
func (f *File) Write(p []byte) (int, error) {
	n, err := f.WriteAt(p, f.pos)
	f.pos += int64(n)
	return n, err
}

// Seek implements io.Seeker.
func (f *File) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += f.pos
	case io.SeekEnd:
		a, err := f.c.GetAttr(f.ctx, f.node.Handle)
		if err != nil {
			return 0, pathError("seek", f.name, err)
		}
		off += int64(a.Size)
	}
	if off < 0 {
		return 0, pathError("seek", f.name, nfs.ErrInval)
	}
	f.pos = off
	return off, nil
}

// Close syncs, and has the server close the file.
func (f *File) Close() error {
	err := f.Sync()
	f.opening.Lock()
	defer f.opening.Unlock()
	if e := f.unlockAll(); e != nil && !errors.Is(e, ErrLockLost) {
		err = errors.Join(err, pathError("close", f.name, e))
	}
	for _, undo := range f.undo {
		err = errors.Join(err, pathError("close", f.name, undo()))
	}
	f.undo, f.access = nil, 0
	return err
}

// Stat implements fs.File: the attributes as they are now.
func (f *File) Stat() (fs.FileInfo, error) {
	a, err := f.c.GetAttr(f.ctx, f.node.Handle)
	if err != nil {
		return nil, pathError("stat", f.name, err)
	}
	return FileInfo(path.Base(f.name), &a), nil
}

// info is an fs.FileInfo and fs.DirEntry over NFS attributes.
type info struct {
	name string
	attr nfs3.Attr
}

// FileInfo makes an fs.FileInfo. Its Sys is a *nfs3.Attr.
func FileInfo(name string, a *nfs3.Attr) fs.FileInfo { return &info{name, *a} }

func (i *info) Name() string               { return i.name }
func (i *info) Size() int64                { return int64(i.attr.Size) }
func (i *info) Mode() fs.FileMode          { return FileMode(&i.attr) }
func (i *info) ModTime() time.Time         { return i.attr.Mtime }
func (i *info) IsDir() bool                { return i.attr.Type == blockstore.TypeDir }
func (i *info) Sys() any                   { return &i.attr }
func (i *info) Type() fs.FileMode          { return i.Mode().Type() }
func (i *info) Info() (fs.FileInfo, error) { return i, nil }
func (i *info) String() string             { return fs.FormatDirEntry(i) }

// FileMode is the mode and type of an object in Go's terms.
func FileMode(a *nfs3.Attr) fs.FileMode {
	m := fs.FileMode(a.Mode & 0o777)
	for _, b := range []struct {
		bit  uint32
		mode fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if a.Mode&b.bit != 0 {
			m |= b.mode
		}
	}
	switch a.Type {
	case blockstore.TypeDir:
		m |= fs.ModeDir
	case blockstore.TypeLnk:
		m |= fs.ModeSymlink
	case blockstore.TypeFifo:
		m |= fs.ModeNamedPipe
	case blockstore.TypeSock:
		m |= fs.ModeSocket
	case blockstore.TypeBlk:
		m |= fs.ModeDevice
	case blockstore.TypeChr:
		m |= fs.ModeDevice | fs.ModeCharDevice
	}
	return m
}

// FS is a read-only fs.FS, fs.ReadDirFS and fs.StatFS over a directory of the
// server. Its Open gives *File, or a fs.ReadDirFile for directories.
type FS struct {
	c    *Client
	ctx  context.Context
	root *Node
}

// FS views the directory of an absolute path as a file system. ctx bounds all
// of its calls.
func (c *Client) FS(ctx context.Context, root string) (*FS, error) {
	n, err := c.Resolve(ctx, root)
	if err != nil {
		return nil, err
	}
	return &FS{c, ctx, n}, nil
}

// linksMax bounds the symbolic links followed in one name.
const linksMax = 40

// find looks a name up below the root, following links that stay inside.
func (f *FS) find(op, name string, follow bool) (*Node, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	todo := strings.Split(name, "/")
	at := []*Node{f.root}
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		dir := at[len(at)-1]
		switch part {
		case ".", "":
			continue
		case "..":
			if len(at) > 1 {
				at = at[:len(at)-1]
			}
			continue
		}
		n, err := f.c.Lookup(f.ctx, dir.Handle, part)
		if err != nil {
			return nil, pathError(op, name, err)
		}
		if n.Attr.Type == blockstore.TypeLnk && (follow || len(todo) > 0) {
			target, err := f.c.ReadLink(f.ctx, n.Handle)
			if err != nil {
				return nil, pathError(op, name, err)
			}
			if links++; links > linksMax || strings.HasPrefix(target, "/") {
				return nil, pathError(op, name, nfs.ErrNoEnt) // out of the tree
			}
			todo = append(strings.Split(target, "/"), todo...)
			continue
		}
		at = append(at, n)
	}
	return at[len(at)-1], nil
}

// Open implements fs.FS.
func (f *FS) Open(name string) (fs.File, error) {
	n, err := f.find("open", name, true)
	if err != nil {
		return nil, err
	}
	file := &File{c: f.c, ctx: f.ctx, node: n, name: name}
	if n.Attr.Type == blockstore.TypeDir {
		return &dirFile{File: file}, nil
	}
	return file, nil
}

// Stat implements fs.StatFS.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	n, err := f.find("stat", name, true)
	if err != nil {
		return nil, err
	}
	return FileInfo(path.Base(name), &n.Attr), nil
}

// Lstat implements fs.ReadLinkFS.
func (f *FS) Lstat(name string) (fs.FileInfo, error) {
	n, err := f.find("lstat", name, false)
	if err != nil {
		return nil, err
	}
	return FileInfo(path.Base(name), &n.Attr), nil
}

// ReadLink implements fs.ReadLinkFS.
func (f *FS) ReadLink(name string) (string, error) {
	n, err := f.find("readlink", name, false)
	if err != nil {
		return "", err
	}
	t, err := f.c.ReadLink(f.ctx, n.Handle)
	return t, pathError("readlink", name, err)
}

// ReadDir implements fs.ReadDirFS.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	n, err := f.find("readdir", name, true)
	if err != nil {
		return nil, err
	}
	list, err := f.c.list(f.ctx, n)
	return list, pathError("readdir", name, err)
}

// list reads a directory, sorted by name.
func (c *Client) list(ctx context.Context, dir *Node) (list []fs.DirEntry, err error) {
	err = c.ReadDir(ctx, dir.Handle, func(e *Entry) error {
		if e.Attr == nil {
			n, err := c.Lookup(ctx, dir.Handle, e.Name)
			if IsStatus(err, nfs.ErrNoEnt) {
				return nil // gone meanwhile
			}
			if err != nil {
				return err
			}
			e.Attr = &n.Attr
		}
		list = append(list, &info{e.Name, *e.Attr})
		return nil
	})
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, err
}

// dirFile is an open directory.
type dirFile struct {
	*File
	list []fs.DirEntry
	read bool
}

// ReadDir implements fs.ReadDirFile.
func (d *dirFile) ReadDir(n int) ([]fs.DirEntry, error) {
	if !d.read {
		list, err := d.c.list(d.ctx, d.node)
		if err != nil {
			return nil, pathError("readdir", d.name, err)
		}
		d.list, d.read = list, true
	}
	if n <= 0 || n > len(d.list) {
		if n > 0 && len(d.list) == 0 {
			return nil, io.EOF
		}
		n = len(d.list)
	}
	out := d.list[:n]
	d.list = d.list[n:]
	return out, nil
}
