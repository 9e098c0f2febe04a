package driver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// Copy implements servers. The server copies the data of files (COPY), and shares blocks if its
// file system can. If the server has no COPY, the data goes through this process.
func (s *remote) Copy(ctx context.Context, from client.URL, fromDir string, to client.URL, toDir string) error {
	_, at, err := s.at(ctx, from)
	if err != nil {
		return err
	}
	c, dir, err := s.at(ctx, to)
	if err != nil {
		return err
	}
	source, err := c.Lookup(ctx, at, fromDir)
	if err != nil {
		return err
	}
	target, err := c.Lookup(ctx, dir, toDir)
	if err != nil {
		return err
	}
	if source.Attr.Type != blockstore.TypeDir || target.Attr.Type != blockstore.TypeDir {
		return fmt.Errorf("%s or %s is not a directory", fromDir, toDir)
	}
	t := copier{c: c, links: make(map[uint64]client.Handle)}
	return t.tree(ctx, branch{bytes.Clone(source.Handle), bytes.Clone(target.Handle), source.Attr.Attr})
}

// copier copies a directory with its contents.
type copier struct {
	c *client.Client
	// links are the copies of files with several names, by the number of the original.
	links map[uint64]client.Handle
}

// branch is a directory and its copy.
type branch struct {
	from, to client.Handle
	attr     blockstore.Attr // of the original
}

// tree copies the contents of a directory to an empty directory. Depth costs no stack. It sets the
// attributes of directories at the end, from the deepest one up, because every copy below a
// directory changes its times.
func (t *copier) tree(ctx context.Context, root branch) error {
	all := []branch{root}
	for i := 0; i < len(all); i++ {
		at := all[i]
		err := t.c.ReadDir(ctx, at.from, func(e *client.Entry) error {
			name := strings.Clone(e.Name)
			n, err := t.c.Lookup(ctx, at.from, name)
			if gone(err) {
				return nil // removed meanwhile
			}
			if err != nil {
				return err
			}
			n.Handle = bytes.Clone(n.Handle)
			if n.Attr.Type == blockstore.TypeDir {
				mode := uint32(0o700)
				made, err := t.c.Mkdir(ctx, at.to, name, &blockstore.SetAttr{Mode: &mode})
				if err == nil {
					all = append(all, branch{n.Handle, bytes.Clone(made.Handle), n.Attr.Attr})
				}
				return err
			}
			return t.object(ctx, at.to, name, n)
		})
		if err != nil {
			return err
		}
	}
	for i := len(all) - 1; i >= 0; i-- {
		if err := t.attributes(ctx, all[i].to, &all[i].attr); err != nil {
			return err
		}
	}
	return nil
}

// object copies an object that is no directory.
func (t *copier) object(ctx context.Context, dir client.Handle, name string, from *client.Node) error {
	a := &from.Attr.Attr
	if a.NLink > 1 {
		if h, ok := t.links[a.FileID]; ok {
			return t.c.Link(ctx, h, dir, name)
		}
	}
	made, err := t.create(ctx, dir, name, from)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	h := bytes.Clone(made.Handle)
	if a.NLink > 1 {
		t.links[a.FileID] = h
	}
	return t.attributes(ctx, h, a)
}

func (t *copier) create(ctx context.Context, dir client.Handle, name string, from *client.Node) (*client.Node, error) {
	a := &from.Attr.Attr
	mode := uint32(0o600)
	switch a.Type {
	case blockstore.TypeReg:
		made, err := t.c.Create(ctx, dir, name, blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
		if err == nil && a.Size > 0 {
			made.Handle = bytes.Clone(made.Handle)
			err = t.data(ctx, from.Handle, made.Handle, a.Size)
		}
		return made, err
	case blockstore.TypeLnk:
		target, err := t.c.ReadLink(ctx, from.Handle)
		if err != nil {
			return nil, err
		}
		return t.c.Symlink(ctx, dir, name, target, nil)
	default:
		return t.c.Mknod(ctx, dir, name, a.Type, a.Major, a.Minor, &blockstore.SetAttr{Mode: &mode})
	}
}

// data copies the data of a file. The file may become shorter meanwhile.
func (t *copier) data(ctx context.Context, from, to client.Handle, size uint64) error {
	err := t.c.Copy(ctx, from, to, 0, size, nil)
	if client.IsStatus(err, nfs.ErrNotSupp) {
		err = t.c.Upload(ctx, to, &reader{ctx, t.c, from}, 0, size, nil)
	}
	return err
}

// attributes gives a copy the owner, mode and times of the original. The owner comes first, because
// a change of the owner clears the set-user-ID bit.
func (t *copier) attributes(ctx context.Context, h client.Handle, a *blockstore.Attr) error {
	if err := t.c.SetAttr(ctx, h, &blockstore.SetAttr{UID: &a.UID, GID: &a.GID}, nil); err != nil {
		return err
	}
	s := blockstore.SetAttr{
		Mode: &a.Mode, AtimeHow: blockstore.TimeClient, Atime: a.Atime, MtimeHow: blockstore.TimeClient, Mtime: a.Mtime,
	}
	if a.Type == blockstore.TypeLnk {
		s.Mode = nil // a symbolic link has none
	}
	return t.c.SetAttr(ctx, h, &s, nil)
}

// reader is a file as io.ReaderAt, for servers that cannot copy.
type reader struct {
	ctx context.Context
	c   *client.Client
	h   client.Handle
}

// ReadAt implements io.ReaderAt.
func (r *reader) ReadAt(p []byte, off int64) (done int, err error) {
	for done < len(p) {
		n, eof, err := r.c.Read(r.ctx, r.h, p[done:], uint64(off)+uint64(done))
		done += n
		if err != nil {
			return done, err
		}
		if done < len(p) && (eof || n == 0) {
			return done, io.ErrUnexpectedEOF
		}
	}
	return done, nil
}
