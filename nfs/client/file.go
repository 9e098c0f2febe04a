package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"sync"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
)

// File is an open file: io.ReaderAt, io.WriterAt, io.ReadWriteSeeker. In version 4 the server has
// the file open until Close: for reading, and from the first WriteAt on also for writing. Version 3
// has no OPEN, so there a File is only a handle and a position. ReadAt and WriteAt may be called
// from any goroutine. Only one goroutine at a time may call the methods that use the position.
type File struct {
	c    *Client
	ctx  context.Context
	node *Node
	name string

	mu    sync.Mutex
	pos   int64
	dirty []*unstable

	opening sync.Mutex
	access  uint32         // that the server has granted
	release []func() error // one for each acquire
	locks   *locks4        // nil until the first lock

	refused uint32 // access that the caller of OpenFile did not ask for
	atEnd   bool   // Write writes at the end
	stable  bool   // WriteAt returns when the data is stable
}

// unstable is a write that the server has not committed to disk.
type unstable struct {
	off      uint64
	data     []byte
	verifier [nfs3.VerifierLen]byte
}

// unstableMax bounds the data in bytes that a File retains until Sync. When it is exceeded, WriteAt
// calls Sync.
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
		// A file that the caller may write and not read is opened by the first WriteAt.
		if err := f.acquire(ShareRead, 0); err != nil && !IsStatus(err, nfs.ErrAcces) {
			return nil, pathError("open", name, err)
		}
	}
	return f, nil
}

// OpenShare opens a file with an access and a share reservation (RFC 8881 section 9.7): while the
// file is open, the server refuses opens of others for the access in deny. access and deny are
// ShareRead, ShareWrite or ShareBoth; deny can also be 0. Denial needs version 4; with version 3
// the error is nfs.ErrNotSupp.
func (c *Client) OpenShare(ctx context.Context, name string, access, deny uint32) (*File, error) {
	n, err := c.Resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	f := &File{c: c, ctx: ctx, node: n, name: name}
	if err := f.acquire(access, deny); err != nil {
		return nil, pathError("open", name, err)
	}
	return f, nil
}

// acquire has the server open the file until Close.
func (f *File) acquire(access, deny uint32) error {
	if access&f.refused != 0 {
		return errAccess
	}
	f.opening.Lock()
	defer f.opening.Unlock()
	if access&^f.access == 0 && deny == 0 {
		return nil
	}
	release, err := f.c.acquire(f.ctx, f.node.Handle, access, deny)
	if err != nil {
		return err
	}
	f.access |= access
	f.release = append(f.release, release)
	return nil
}

// CreateFile makes a file, or truncates one that exists, and opens it.
func (c *Client) CreateFile(ctx context.Context, name string, mode fs.FileMode) (*File, error) {
	dir, base, err := c.ResolveParent(ctx, name)
	if err != nil {
		return nil, err
	}
	perm, zero := uint32(mode.Perm()), uint64(0)
	n, err := c.Create(ctx, dir.Handle, base, blockstore.Unchecked, &blockstore.SetAttr{Mode: &perm, Size: &zero},
		[8]byte{})
	if err != nil {
		return nil, pathError("create", name, err)
	}
	return &File{c: c, ctx: ctx, node: n, name: name}, nil
}

// Name is the name that the file was opened by.
func (f *File) Name() string { return f.name }

// Truncate changes the size of the file.
func (f *File) Truncate(size int64) error {
	err := error(nfs.ErrInval)
	if size >= 0 {
		if err = errors.Join(f.Sync(), f.acquire(ShareWrite, 0)); err == nil {
			err = f.c.SetAttr(f.ctx, f.node.Handle, &blockstore.SetAttr{Size: new(uint64(size))}, nil)
		}
	}
	return pathError("truncate", f.name, err)
}

// Node is the file's handle and its attributes when it was opened.
func (f *File) Node() *Node { return f.node }

// ReadAt implements io.ReaderAt. Over RDMA the server places the bytes in p.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, pathError("read", f.name, nfs.ErrInval)
	}
	if err := errors.Join(f.lockLost(), f.acquire(ShareRead, 0)); err != nil {
		return 0, pathError("read", f.name, err)
	}
	ctx := f.UnderLocks(f.ctx)
	for n < len(p) {
		k, eof, err := f.c.Read(ctx, f.node.Handle, p[n:], uint64(off)+uint64(n))
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

// WriteAt implements io.WriterAt. The bytes are stable after Sync or Close. The File retains a
// copy until then, and writes it again if the server restarts. It cannot copy memory of another
// device that is not mapped (see RegisterDMABuf); such bytes are stable when WriteAt returns.
func (f *File) WriteAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, pathError("write", f.name, nfs.ErrInval)
	}
	if err := errors.Join(f.lockLost(), f.acquire(ShareWrite, 0)); err != nil {
		return 0, pathError("write", f.name, err)
	}
	how := blockstore.Unstable
	if f.stable || f.c.nfs.unmapped(p) {
		how = blockstore.FileSync
	}
	ctx := f.UnderLocks(f.ctx)
	for n < len(p) {
		w, err := f.c.Write(ctx, f.node.Handle, p[n:], uint64(off)+uint64(n), how)
		if err != nil {
			return n, pathError("write", f.name, err)
		}
		if w.Committed != blockstore.FileSync {
			retained := 0
			f.mu.Lock()
			f.dirty = append(f.dirty, &unstable{uint64(off) + uint64(n), bytes.Clone(p[n : n+w.N]), w.Verifier})
			for _, u := range f.dirty {
				retained += len(u.data)
			}
			f.mu.Unlock()
			if retained > unstableMax {
				if err := f.Sync(); err != nil {
					return n, err
				}
			}
		}
		n += w.N
	}
	return n, nil
}

// Sync makes the written data stable. If the server has restarted since, it writes again the data
// whose write verifier differs from that of the COMMIT (RFC 1813 section 3.3.21).
func (f *File) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.dirty) == 0 {
		return nil
	}
	v, err := f.c.Commit(f.ctx, f.node.Handle, 0, 0)
	if err != nil {
		return pathError("sync", f.name, err)
	}
	ctx := f.UnderLocks(f.ctx)
	for _, u := range f.dirty {
		for at := 0; u.verifier != v && at < len(u.data); {
			w, err := f.c.Write(ctx, f.node.Handle, u.data[at:], u.off+uint64(at), blockstore.FileSync)
			if err != nil {
				return pathError("sync", f.name, err)
			}
			at += w.N
		}
	}
	f.dirty = nil
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
	if f.atEnd {
		if _, err := f.Seek(0, io.SeekEnd); err != nil {
			return 0, err
		}
	}
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

// Close syncs, ends the locks of the File, and has the server close the file.
func (f *File) Close() error {
	err := f.Sync()
	f.opening.Lock()
	defer f.opening.Unlock()
	if e := f.unlockAll(); e != nil && !errors.Is(e, ErrLockLost) {
		err = errors.Join(err, pathError("close", f.name, e))
	}
	for _, release := range f.release {
		err = errors.Join(err, pathError("close", f.name, release()))
	}
	f.release, f.access = nil, 0
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
