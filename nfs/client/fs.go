package client

import (
	"context"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
)

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

// specialBits are the bits of a mode beyond the permissions, as NFS and as Go has them.
var specialBits = [...]struct {
	bit  uint32
	mode fs.FileMode
}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}}

// FileMode is the mode and type of an object in Go's terms.
func FileMode(a *nfs3.Attr) fs.FileMode {
	m := fs.FileMode(a.Mode & 0o777)
	for _, b := range specialBits {
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

// FS is a directory of the server, as os.Root is one of the host: an fs.FS, fs.ReadDirFS,
// fs.ReadFileFS, fs.ReadLinkFS, fs.StatFS and fs.SubFS, with the methods of os.Root that change
// something. Its Open returns a *File, or an fs.ReadDirFile for a directory. An FS may be used from
// any goroutine.
type FS struct {
	c    *Client
	ctx  context.Context
	root *Node
}

// FS returns the directory of an absolute path as a file system. ctx bounds all of its calls.
func (c *Client) FS(ctx context.Context, root string) (*FS, error) {
	n, err := c.Resolve(ctx, root)
	if err != nil {
		return nil, err
	}
	return &FS{c, ctx, n}, nil
}

// linksMax bounds the symbolic links followed in one name.
const linksMax = 40

// find looks a name up below the root. It follows relative symbolic links; a ".." in one does not
// lead above the root.
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
				return nil, pathError(op, name, nfs.ErrNoEnt) // an absolute target is not in the tree
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
				return nil // removed meanwhile
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
