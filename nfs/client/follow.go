package client

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// ErrLinkOutside is a symbolic link with an absolute target: what it means, only
// the server's own host could say.
var ErrLinkOutside = errors.New("a symbolic link in the path has an absolute target")

// ErrLinkLoop is a path with too many symbolic links in it.
var ErrLinkLoop = errors.New("too many levels of symbolic links")

// Follow is Resolve with relative symbolic links followed: those on the way, and
// with last the final component too.
func (c *Client) Follow(ctx context.Context, name string, last bool) (*Node, error) {
	name = path.Clean("/" + name)
	for range linksMax {
		n, err := c.Resolve(ctx, name)
		switch {
		case err == nil && (!last || n.Attr.Type != blockstore.TypeLnk):
			return n, nil
		case err != nil && !IsStatus(err, nfs.ErrNotDir) && !IsStatus(err, nfs.ErrInval):
			return nil, err
		}
		next, found, e := c.substitute(ctx, name)
		if e != nil {
			return nil, e
		}
		if !found {
			return n, err
		}
		name = next
	}
	return nil, pathError("lookup", name, ErrLinkLoop)
}

// FollowParent is ResolveParent with symbolic links on the way followed.
func (c *Client) FollowParent(ctx context.Context, name string) (dir *Node, base string, err error) {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil, "", pathError("lookup", name, nfs.ErrInval)
	}
	dir, err = c.Follow(ctx, path.Dir(name), true)
	return dir, path.Base(name), err
}

// substitute puts the target of the first symbolic link in a path in its place.
func (c *Client) substitute(ctx context.Context, name string) (next string, found bool, err error) {
	for end := 1; end <= len(name); end++ {
		if end < len(name) && name[end] != '/' {
			continue
		}
		n, err := c.Resolve(ctx, name[:end])
		if err != nil {
			continue // above what can be mounted
		}
		if n.Attr.Type != blockstore.TypeLnk {
			continue
		}
		target, err := c.ReadLink(ctx, n.Handle)
		if err != nil {
			return "", false, pathError("readlink", name[:end], err)
		}
		if strings.HasPrefix(target, "/") {
			return "", false, pathError("lookup", name[:end], ErrLinkOutside)
		}
		return path.Join(path.Dir(name[:end]), target, name[end:]), true, nil
	}
	return name, false, nil
}
