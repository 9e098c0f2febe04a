package client

import (
	"context"
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
)

// releaser returns the function that ends one acquire of a file. The context of the caller does
// not end it.
func (p proc4) releaser(ctx context.Context, h Handle) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		return p.opens.release(ctx, h)
	}
}

// OpenHandle opens a regular file until release is called, and checks that the caller has this
// access. access is ShareRead, ShareWrite or ShareBoth. Reads, writes and changes of the size by
// handle use the open while it lasts. Version 3 has no OPEN: there OpenHandle only checks the
// permission (ACCESS). A caller without permission gets nfs.ErrAcces.
func (c *Client) OpenHandle(ctx context.Context, h Handle, access uint32) (release func() error, err error) {
	p, err := c.procs(ctx)
	if err != nil {
		return nil, err
	}
	release = func() error { return nil }
	four, ok := p.(proc4)
	who := permit{whoIs(credOf(ctx, c.cfg.Cred)), access}
	if ok {
		sent, err := four.opens.acquire(ctx, h, access, 0)
		if err != nil {
			return nil, as3(err)
		}
		release = four.releaser(ctx, h)
		if sent || four.opens.permitted(h, who) {
			return release, nil
		}
	}
	var want uint32
	if access&ShareRead != 0 {
		want |= blockstore.AccessRead
	}
	if access&ShareWrite != 0 {
		want |= blockstore.AccessModify
	}
	granted, err := p.access(ctx, h, want)
	if err == nil && granted&want != want {
		err = nfs.ErrAcces
	}
	if err != nil {
		_ = release()
		return nil, err
	}
	if ok {
		four.opens.permit(h, who)
	}
	return release, nil
}

// CreateOpen is Create, but leaves the file open until release is called, as OpenHandle does. The
// mode of the new file does not restrict this open. mode must not be blockstore.Exclusive.
func (c *Client) CreateOpen(ctx context.Context, dir Handle, name string, mode blockstore.CreateMode,
	s *blockstore.SetAttr, access uint32,
) (n *Node, release func() error, err error) {
	p, err := c.procs(ctx)
	if err != nil {
		return nil, nil, err
	}
	four, ok := p.(proc4)
	if !ok {
		n, err = p.create(ctx, dir, name, mode, s, [nfs3.VerifierLen]byte{})
		return n, func() error { return nil }, err
	}
	n, err = four.createOpen(ctx, dir, name, mode, s, access)
	if err != nil {
		return nil, nil, err
	}
	return n, four.releaser(ctx, n.Handle), nil
}

// createOpen creates a file by an OPEN with the open-owner of the table, and enters the open into
// the table.
//
// The client does not know the handle before the reply, so another call can open or close the same
// file meanwhile. The server merges two opens of one owner into one stateid (RFC 8881 section 9.9).
// If a CLOSE overtakes this OPEN, the stateid is dead; the first READ or WRITE finds this out and
// opens the file again.
func (p proc4) createOpen(ctx context.Context, dir Handle, name string, mode blockstore.CreateMode,
	s *blockstore.SetAttr, access uint32,
) (*Node, error) {
	var res opened4
	o := p.opens
	defer o.granting()()
	o.mu.Lock()
	want := o.want(nil, access)
	o.mu.Unlock()
	n, err := p.made(ctx, dir, name, createFileOp(openOwner, access|want, name, mode, s, nil, &res),
		res.attrs.get(ofDelegated))
	if err != nil {
		return nil, createError(err)
	}
	f := o.refer(n.Handle)
	if err := f.mu.lock(ctx); err != nil {
		return nil, errors.Join(err, o.drop(ctx, f))
	}
	o.mu.Lock()
	if f.open {
		access |= f.access
	} else {
		f.deny = 0
	}
	f.open, f.id, f.access, f.cred = true, res.id, access, credOf(ctx, nil)
	f.notifies = res.notifies
	o.grant(f, &res, nil) // no permit: the mode of the file may forbid the next open what it allowed this one
	o.renewLater()
	o.mu.Unlock()
	f.mu.unlock()
	return n, nil
}

// FileOf returns an object as a File, without a call. The first call that needs an open opens the
// file. name is for errors. ctx bounds all calls of the File.
func (c *Client) FileOf(ctx context.Context, n *Node, name string) *File {
	return &File{c: c, ctx: ctx, node: n, name: name}
}
