package client

import (
	"context"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// removeNode removes a name of an object of a type.
func (c *Client) removeNode(ctx context.Context, dir Handle, name string, typ blockstore.FileType) error {
	if typ == blockstore.TypeDir {
		return c.Rmdir(ctx, dir, name)
	}
	return c.Remove(ctx, dir, name)
}

// removeTree removes an object and, if it is a directory, all below it.
func (c *Client) removeTree(ctx context.Context, dir Handle, name string, n *Node) error {
	if n.Attr.Type == blockstore.TypeDir {
		if err := c.removeChildren(ctx, n.Handle); err != nil {
			return err
		}
	}
	err := c.removeNode(ctx, dir, name, n.Attr.Type)
	if IsStatus(err, nfs.ErrNoEnt) {
		return nil // removed meanwhile
	}
	return err
}

// removeChildren empties a directory. Entries are removed after the directory has been read: the
// cookies of some servers do not survive a removal.
func (c *Client) removeChildren(ctx context.Context, dir Handle) error {
	list, err := c.list(ctx, &Node{Handle: dir})
	if err != nil {
		return err
	}
	for _, e := range list {
		n, err := c.Lookup(ctx, dir, e.Name())
		if IsStatus(err, nfs.ErrNoEnt) {
			continue
		}
		if err != nil {
			return err
		}
		if err := c.removeTree(ctx, dir, e.Name(), n); err != nil {
			return err
		}
	}
	return nil
}
