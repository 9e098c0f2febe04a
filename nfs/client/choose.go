package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// choice is the version of NFS that a client speaks. It is fixed once the client has returned a
// handle, because handles of one version mean nothing in another. Client.mu guards the fields.
type choice struct {
	probing ctxMutex // held while the client finds out which versions the server speaks
	fixed   bool     // by the configuration, or by the first handle
	procs   procs
	four    *session4 // nil for version 3
}

// Version returns the version that the client speaks. It is VersionAuto until the client knows.
func (c *Client) Version() Version {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.choice.procs == nil:
		return c.cfg.Version
	case c.choice.four == nil:
		return Version3
	}
	return Version(40 + c.choice.four.minor)
}

// procs returns the procedures of the version that the client speaks, and fixes the version.
func (c *Client) procs(ctx context.Context) (procs, error) {
	p, fixed, err := c.probe(ctx)
	if err == nil && !fixed {
		c.fix(p)
	}
	return p, err
}

func (c *Client) fix(p procs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.choice.fixed {
		return
	}
	c.choice.procs, c.choice.fixed = p, true
	if _, three := p.(proc3); three && c.choice.four != nil {
		c.idle = append(c.idle, c.choice.four)
		c.choice.four = nil
	}
}

// probe finds the highest version that the server speaks. fixed says that the version cannot change
// any more.
func (c *Client) probe(ctx context.Context) (p procs, fixed bool, err error) {
	c.mu.Lock()
	p, fixed = c.choice.procs, c.choice.fixed
	c.mu.Unlock()
	if p != nil {
		return p, fixed, nil
	}
	if err := c.choice.probing.lock(ctx); err != nil {
		return nil, false, err
	}
	defer c.choice.probing.unlock()
	c.mu.Lock()
	p, fixed = c.choice.procs, c.choice.fixed
	c.mu.Unlock()
	if p != nil {
		return p, fixed, nil
	}
	var four *session4
	for _, v := range []Version{Version42, Version41} {
		if c.cfg.Version != VersionAuto && c.cfg.Version != v {
			continue
		}
		s := newSession4(c.nfs, c.cfg.Cred, v.minor())
		_, err = s.ready(ctx)
		if err == nil {
			four = s
			break
		}
		if c.cfg.Version == v {
			return nil, false, c.refused(v, err)
		}
		if !lower(err) {
			return nil, false, err
		}
		s.close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if four != nil {
		c.choice.four, c.choice.procs, c.choice.fixed = four, proc4{four}, c.cfg.Version != VersionAuto
	} else {
		c.choice.procs, c.choice.fixed = proc3{c}, true
	}
	return c.choice.procs, c.choice.fixed, nil
}

// refused returns the error for a server that does not speak v, the only version that the caller
// wants.
func (c *Client) refused(v Version, err error) error {
	if !lower(err) {
		return err
	}
	return fmt.Errorf("%s does not serve NFS version %v: %w", c.cfg.Peer, v, err)
}

// lower reports whether a server that answered EXCHANGE_ID or CREATE_SESSION with err may speak
// a lower version. Some servers accept every minor version and send results that do not decode.
func lower(err error) bool {
	if errors.As(err, new(*rpc.AcceptError)) || errors.As(err, new(nfs.Status)) {
		return true
	}
	undecodable := []error{errTooSmall, errResults, xdr.ErrShort, xdr.ErrLength, xdr.ErrValue}
	return slices.ContainsFunc(undecodable, func(target error) bool { return errors.Is(err, target) })
}

// resolve is Resolve. While the version is not fixed, a path that version 4 does not find is
// tried with version 3: some servers export a path only there, because they have no pseudo file
// system, or because the export is at "/". If version 3 finds the path, the client speaks
// version 3 from then on.
func (c *Client) resolve(ctx context.Context, name string) (*Node, error) {
	p, fixed, err := c.probe(ctx)
	if err != nil {
		return nil, err
	}
	four, ok := p.(proc4)
	if !ok {
		n, _, err := c.resolve3(ctx, name)
		return n, err
	}
	n, walked, err := four.resolve(ctx, name)
	var st nfs.Status
	status := errors.As(err, &st)
	if !fixed && walked == 0 && (status || err == nil && four.pseudo()) {
		n3, mounted, err3 := c.resolve3(ctx, name)
		if err3 == nil || mounted {
			c.fix(proc3{c})
			return n3, err3
		}
	}
	switch {
	case err == nil:
		c.fix(p)
	case status:
		err = pathError("lookup", name, err)
	}
	return n, err
}

// pseudo reports whether the root seems to be that of a pseudo file system, whose fsid is 0:0 on
// many servers (RFC 8881 section 7.3).
func (p proc4) pseudo() bool {
	x := p.current()
	return x != nil && x.fsid == [2]uint64{}
}

// releaseTime bounds the CLOSE of a file. The context of the File does not end it.
const releaseTime = 30 * time.Second

// acquire has the server open a file until release is called. In version 3, which has no OPEN,
// it does nothing.
func (c *Client) acquire(ctx context.Context, h Handle, access, deny uint32) (release func() error, err error) {
	p, err := c.procs(ctx)
	if err != nil {
		return nil, err
	}
	four, ok := p.(proc4)
	if !ok {
		if deny != 0 {
			return nil, nfs.ErrNotSupp
		}
		return func() error { return nil }, nil
	}
	if _, err := four.opens.acquire(ctx, h, access, deny); err != nil {
		return nil, as3(err)
	}
	return four.releaser(ctx, h), nil
}
