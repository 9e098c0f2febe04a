package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// Bounds of a removal.
const (
	removals     = 16   // calls at a time
	removalBatch = 1024 // names that are read before they are removed
)

// removeNode removes a name of an object of a type.
func (c *Client) removeNode(ctx context.Context, dir Handle, name string, typ blockstore.FileType) error {
	if typ == blockstore.TypeDir {
		return c.Rmdir(ctx, dir, name)
	}
	return c.Remove(ctx, dir, name)
}

// treeLevel is a directory whose contents are being removed.
type treeLevel struct {
	parent Handle
	name   string
	handle Handle
}

// errFull ends the reading of a directory when a batch is complete.
var errFull = errors.New("a batch of names")

// RemoveTree removes n, which has a name in dir. If n is a directory, it removes all below it too,
// however deep and large. It does not follow symbolic links. An object that others remove meanwhile
// is no error. After an error a part may be removed.
//
// It reads names in batches, and removes each batch before it reads the next one from the start of
// the directory: the cookies of some servers do not survive a removal.
func (c *Client) RemoveTree(ctx context.Context, dir Handle, name string, n *Node) error {
	if n.Attr.Type != blockstore.TypeDir {
		return unlessGone(c.Remove(ctx, dir, name))
	}
	for stack := []treeLevel{{dir, name, n.Handle}}; len(stack) > 0; {
		at := stack[len(stack)-1]
		files, below, err := c.readBatch(ctx, at.handle)
		if gone(err) {
			stack = stack[:len(stack)-1]
			continue
		}
		if err == nil {
			err = c.removeFiles(ctx, at.handle, files)
		}
		if err != nil {
			return err
		}
		if len(below) > 0 {
			stack = append(stack, below...)
			continue
		}
		if len(files) > 0 {
			continue // there may be more
		}
		err = c.Rmdir(ctx, at.parent, at.name)
		if IsStatus(err, nfs.ErrNotEmpty) && ctx.Err() == nil {
			return fmt.Errorf("%s is still being written to: %w", at.name, err)
		}
		if err = unlessGone(err); err != nil {
			return err
		}
		stack = stack[:len(stack)-1]
	}
	return nil
}

// readBatch reads the first names of a directory. below has the directories, files all other names.
func (c *Client) readBatch(ctx context.Context, dir Handle) (files []string, below []treeLevel, err error) {
	err = c.ReadDir(ctx, dir, func(e *Entry) error {
		name, h, a := strings.Clone(e.Name), e.Handle, e.Attr
		if h == nil || a == nil {
			n, err := c.Lookup(ctx, dir, name)
			if err != nil {
				return unlessGone(err)
			}
			h, a = n.Handle, &n.Attr
		}
		if a.Type == blockstore.TypeDir {
			below = append(below, treeLevel{dir, name, bytes.Clone(h)})
		} else {
			files = append(files, name)
		}
		if len(files)+len(below) >= removalBatch {
			return errFull
		}
		return nil
	})
	if errors.Is(err, errFull) {
		err = nil
	}
	return files, below, err
}

// removeFiles removes names of objects that are not directories.
func (c *Client) removeFiles(ctx context.Context, dir Handle, names []string) error {
	var wg sync.WaitGroup
	errs := make([]error, min(removals, len(names)))
	for w := range errs {
		wg.Go(func() {
			for i := w; i < len(names) && errs[w] == nil; i += len(errs) {
				errs[w] = unlessGone(c.Remove(ctx, dir, names[i]))
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// gone reports whether an object does not exist any more.
func gone(err error) bool { return IsStatus(err, nfs.ErrNoEnt) || IsStatus(err, nfs.ErrStale) }

func unlessGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}
