package filecmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

func (t *tool) mkdir() *cobra.Command {
	var parents bool
	var mode string
	c := t.command("mkdir URL...", "Make directories", cobra.MinimumNArgs(1), func(r *run, args []string) error {
		m, err := strconv.ParseUint(mode, 8, 12)
		if err != nil {
			return cli.Usagef("%q is not a mode: give an octal number such as 0755", mode)
		}
		perm := uint32(m)
		return r.each(args, func(u client.URL) error {
			return makeDir(r.ctx, r.dialer.Client(u), u.Path, perm, parents)
		})
	})
	c.Flags().BoolVarP(&parents, "parents", "p", false, "make the directories above too; one that exists is fine")
	c.Flags().StringVarP(&mode, "mode", "m", "0755", "permission `BITS`, octal")
	return c
}

// makeDir makes a directory, with parents also those above it.
func makeDir(ctx context.Context, c *client.Client, name string, mode uint32, parents bool) error {
	dir, base, err := c.FollowParent(ctx, name)
	if parents && errors.Is(err, fs.ErrNotExist) {
		if err = makeDir(ctx, c, path.Dir(name), 0o755, true); err == nil {
			dir, base, err = c.FollowParent(ctx, name)
		}
	}
	if err != nil {
		if n, e := c.Follow(ctx, name, true); parents && e == nil && isDir(n) {
			return nil // an export: it has no parent that could be mounted
		}
		return err
	}
	_, err = c.Mkdir(ctx, dir.Handle, base, &blockstore.SetAttr{Mode: &mode})
	if parents && client.IsStatus(err, nfs.ErrExist) {
		n, e := c.Lookup(ctx, dir.Handle, base)
		if e == nil && isDir(n) {
			return nil
		}
	}
	return err
}

func (t *tool) remove() *cobra.Command {
	var recursive, force bool
	var jobs int
	c := t.command("rm URL...", "Remove files", cobra.MinimumNArgs(1), func(r *run, args []string) error {
		return r.each(args, func(u client.URL) error {
			c := r.dialer.Client(u)
			dir, base, err := c.FollowParent(r.ctx, u.Path)
			var n *client.Node
			if err == nil {
				n, err = c.Lookup(r.ctx, dir.Handle, base)
			}
			if force && gone(err) {
				return nil
			}
			if err != nil {
				return err
			}
			if !isDir(n) {
				return c.Remove(r.ctx, dir.Handle, base)
			}
			if !recursive {
				return fmt.Errorf("is a directory (use -r)")
			}
			x := &remover{r: r, c: c, slots: make(chan struct{}, max(jobs, 1))}
			x.dir(dir.Handle, base, u.String(), n.Handle)
			return r.ctx.Err()
		})
	})
	f := c.Flags()
	f.BoolVarP(&recursive, "recursive", "r", false, "remove directories and what is in them")
	f.BoolVarP(&force, "force", "f", false, "do not complain about what does not exist")
	f.IntVarP(&jobs, "jobs", "j", defaultJobs, "how many removals at once")
	return c
}

// remover removes trees, with a bounded number of calls at a time.
type remover struct {
	r     *run
	c     *client.Client
	slots chan struct{}
}

// dir removes a directory, and before it all that is in the directory.
func (x *remover) dir(parent client.Handle, name, shown string, h client.Handle) {
	type item struct {
		name   string
		handle client.Handle // of a directory
	}
	// The whole list is read before the first removal: some servers lose their place when a
	// directory changes while it is read.
	var items []item
	err := x.c.ReadDir(x.r.ctx, h, func(e *client.Entry) error {
		n, err := child(x.r.ctx, x.c, &client.Node{Handle: h}, e)
		switch {
		case gone(err):
		case err != nil:
			return err
		case isDir(n):
			items = append(items, item{strings.Clone(e.Name), n.Handle})
		default:
			items = append(items, item{strings.Clone(e.Name), nil})
		}
		return nil
	})
	if err != nil {
		x.fail(shown, err)
		return
	}
	var wg sync.WaitGroup
	for _, it := range items {
		if x.r.ctx.Err() != nil {
			break
		}
		one := func() {
			if it.handle != nil {
				x.dir(h, it.name, shown+"/"+it.name, it.handle)
			} else if err := x.c.Remove(x.r.ctx, h, it.name); err != nil && !gone(err) {
				x.fail(shown+"/"+it.name, err)
			}
		}
		select {
		case x.slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-x.slots }()
				one()
			})
		default:
			one() // no slot is free: a deep tree must not wait for slots that its upper levels have
		}
	}
	wg.Wait()
	if err := x.c.Rmdir(x.r.ctx, parent, name); err != nil && !gone(err) {
		x.fail(shown, err)
	}
}

func (x *remover) fail(name string, err error) {
	if x.r.ctx.Err() == nil {
		x.r.fail(named(name, err))
	}
}
