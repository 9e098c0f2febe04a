package client

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// ErrLinkOutside says that a symbolic link in a path has an absolute target. Only the server's
// host knows which object that is.
var ErrLinkOutside = errors.New("a symbolic link in the path has an absolute target")

// ErrLinkLoop says that a path has too many symbolic links.
var ErrLinkLoop = errors.New("too many levels of symbolic links")

// Follow is Resolve, but it follows relative symbolic links on the way. With last it also follows a
// link that is the final component.
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

// FollowParent is ResolveParent, and follows relative symbolic links on the way.
func (c *Client) FollowParent(ctx context.Context, name string) (dir *Node, base string, err error) {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil, "", pathError("lookup", name, nfs.ErrInval)
	}
	dir, err = c.Follow(ctx, path.Dir(name), true)
	return dir, path.Base(name), err
}

// substitute replaces the first symbolic link in a path by its target. found says that there is
// one.
func (c *Client) substitute(ctx context.Context, name string) (next string, found bool, err error) {
	for end := 1; end <= len(name); end++ {
		if end < len(name) && name[end] != '/' {
			continue
		}
		n, err := c.Resolve(ctx, name[:end])
		if err != nil {
			continue // version 3: above the directory that can be mounted
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
