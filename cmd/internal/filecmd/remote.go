package filecmd

import (
	"context"
	"errors"
	"io"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// remote is a server's side of a copy.
type remote struct{ c *client.Client }

// child returns the object of a directory entry. If the listing has no handle or no attributes of
// the entry, child calls the server for them.
func child(ctx context.Context, c *client.Client, dir *client.Node, e *client.Entry) (*client.Node, error) {
	switch {
	case e.Handle == nil:
		return c.Lookup(ctx, dir.Handle, e.Name)
	case e.Attr == nil:
		a, err := c.GetAttr(ctx, e.Handle)
		return &client.Node{Handle: e.Handle, Attr: a}, err
	}
	return &client.Node{Handle: e.Handle, Attr: *e.Attr}, nil
}

// below names what is in a directory.
func below(dir *object, name string) string {
	if dir.shown == "/" {
		return "/" + name
	}
	return dir.shown + "/" + name
}

func newObject(shown string, n *client.Node) *object {
	return &object{shown: shown, attr: n.Attr, h: n.Handle}
}

// objectIn describes the result of a call that found or made a name in a directory.
func objectIn(dir *object, name string, n *client.Node, err error) (*object, error) {
	if err != nil {
		return nil, err
	}
	return newObject(below(dir, name), n), nil
}

func (s *remote) list(ctx context.Context, dir *object, each func(string, *object) error) error {
	return s.c.ReadDir(ctx, dir.h, func(e *client.Entry) error {
		n, err := child(ctx, s.c, &client.Node{Handle: dir.h}, e)
		if gone(err) {
			return nil
		}
		if err != nil {
			return named(below(dir, e.Name), err)
		}
		return each(e.Name, newObject(below(dir, e.Name), n))
	})
}

func (s *remote) readlink(ctx context.Context, o *object) (string, error) {
	return s.c.ReadLink(ctx, o.h)
}

func (s *remote) read(ctx context.Context, o *object, p []byte) error {
	_, err := remoteFile{ctx, s.c, o.h}.ReadAt(p, 0)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (s *remote) stream(ctx context.Context, o *object, w io.Writer) error {
	_, err := s.c.Stream(ctx, o.h, w, 0)
	return err
}

func (s *remote) lookup(ctx context.Context, dir *object, name string) (*object, error) {
	n, err := s.c.Lookup(ctx, dir.h, name)
	if err != nil {
		return nil, named(below(dir, name), err)
	}
	return newObject(below(dir, name), n), nil
}

func (s *remote) mkdir(ctx context.Context, dir *object, name string) (*object, error) {
	n, err := s.c.Mkdir(ctx, dir.h, name, &blockstore.SetAttr{Mode: new(uint32(dirMode))})
	return objectIn(dir, name, n, err)
}

func (s *remote) create(ctx context.Context, dir *object, name string) (*object, error) {
	set := &blockstore.SetAttr{Mode: new(uint32(fileMode)), Size: new(uint64(0))}
	n, err := s.c.Create(ctx, dir.h, name, blockstore.Guarded, set, [nfs3.VerifierLen]byte{})
	return objectIn(dir, name, n, err)
}

func (s *remote) reopen(ctx context.Context, dir *object, name string, like *object) (*object, error) {
	n, err := s.c.Lookup(ctx, dir.h, name)
	if err != nil {
		return nil, err
	}
	if !ours(&n.Attr, like) {
		return nil, errNotOurs
	}
	return newObject(below(dir, name), n), nil
}

func (s *remote) attr(ctx context.Context, o *object) (nfs3.Attr, error) {
	return s.c.GetAttr(ctx, o.h)
}

// sync has nothing to do: Upload and Copy make stable what they write.
func (*remote) sync(*object) error { return nil }

// syncDir has nothing to do either: a server has each change of a directory on disk before it
// answers.
func (*remote) syncDir(*object) error { return nil }

func (*remote) close(*object) error { return nil }

func (s *remote) rename(ctx context.Context, dir *object, from, to string) error {
	return s.c.Rename(ctx, dir.h, from, dir.h, to)
}

func (s *remote) symlink(ctx context.Context, dir *object, name, target string) error {
	_, err := s.c.Symlink(ctx, dir.h, name, target, nil)
	return err
}

func (s *remote) mknod(ctx context.Context, dir *object, name string, a *nfs3.Attr) (*object, error) {
	set := &blockstore.SetAttr{Mode: new(uint32(fileMode))}
	n, err := s.c.Mknod(ctx, dir.h, name, a.Type, a.Major, a.Minor, set)
	return objectIn(dir, name, n, err)
}

func (s *remote) link(ctx context.Context, o, dir *object, name string) error {
	return s.c.Link(ctx, o.h, dir.h, name)
}

func (s *remote) remove(ctx context.Context, dir *object, name string) error {
	return s.c.Remove(ctx, dir.h, name)
}

func (s *remote) finish(ctx context.Context, o *object, a *nfs3.Attr, owner bool) error {
	if owner {
		if err := s.c.SetAttr(ctx, o.h, finalOwner(a), nil); err != nil {
			return err
		}
	}
	set := finalAttr(a, owner)
	if a.Type == blockstore.TypeReg && a.Used < a.Size {
		set.Size = &a.Size // it may end with a hole
	}
	return s.c.SetAttr(ctx, o.h, set, nil)
}

// finalOwner is the change of owner of a copy. It comes before finalAttr, because it takes the
// setuid bit away.
func finalOwner(a *nfs3.Attr) *blockstore.SetAttr {
	return &blockstore.SetAttr{UID: &a.UID, GID: &a.GID}
}

// finalAttr is the change of mode and times of a copy.
func finalAttr(a *nfs3.Attr, owner bool) *blockstore.SetAttr {
	return &blockstore.SetAttr{
		Mode: new(finalMode(a, owner)), AtimeHow: blockstore.TimeClient, Atime: a.Atime,
		MtimeHow: blockstore.TimeClient, Mtime: a.Mtime,
	}
}

func (s *remote) placeFiles(ctx context.Context, into *object, files []newFile, owner bool) (made []*object,
	err error,
) {
	list := make([]client.NewFile, len(files))
	for i, f := range files {
		list[i] = client.NewFile{Name: f.name, Part: f.part, Data: f.data, Attr: finalAttr(f.attr, owner)}
		if owner {
			list[i].Owner = finalOwner(f.attr)
		}
	}
	handles, err := s.c.PutFiles(ctx, into.h, list)
	for i, h := range handles {
		made = append(made, &object{shown: below(into, files[i].name), h: h})
	}
	return made, err
}
