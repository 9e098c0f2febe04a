package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// choice is the version of NFS that a client speaks. Handles of one version mean
// nothing to another, so it stays once somebody has a handle.
type choice struct {
	// turn is held by who asks the server.
	turn  chan struct{}
	fixed bool // by the configuration, or by the first handle; guarded by Client.mu
	procs procs
	four  *session4 // nil for version 3
}

// Version is the version that the client speaks, VersionAuto as long as that is open.
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

// procs are the procedures of the version that is chosen, which is final then.
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

// probe finds out the highest version that the server speaks. fixed says that no
// other will do any more.
func (c *Client) probe(ctx context.Context) (p procs, fixed bool, err error) {
	c.mu.Lock()
	p, fixed = c.choice.procs, c.choice.fixed
	c.mu.Unlock()
	if p != nil {
		return p, fixed, nil
	}
	select {
	case c.choice.turn <- struct{}{}:
		defer func() { <-c.choice.turn }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
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

// refused says that the one version that is wanted is not there.
func (c *Client) refused(v Version, err error) error {
	if !lower(err) {
		return err
	}
	return fmt.Errorf("%s does not serve NFS version %v: %w", c.cfg.Peer, v, err)
}

// lower reports whether a server that answered a version so may speak a lower one.
// There are servers that take every version for theirs, and answer what is nonsense in
// this one.
func lower(err error) bool {
	var refused *rpc.AcceptError
	var st nfs.Status
	if errors.As(err, &refused) || errors.As(err, &st) {
		return true
	}
	for _, nonsense := range []error{errTooSmall, errResults, xdr.ErrShort, xdr.ErrLength, xdr.ErrValue} {
		if errors.Is(err, nonsense) {
			return true
		}
	}
	return false
}

// resolve is Resolve where the version may not be final: a path may mean something to
// version 3 alone, as when an export appears at "/" there, or where a server has no
// pseudo file system. Then that is the version.
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

// pseudo reports whether the root looks like that of a pseudo file system, which has
// no number of its own.
func (p proc4) pseudo() bool {
	x := p.current()
	return x != nil && x.fsid == [2]uint64{}
}

// releaseTime bounds how long the CLOSE of a file may take after its user has lost
// interest.
const releaseTime = 30 * time.Second

// hold has a file open at the server, in versions that have such a thing, until
// release is called.
func (c *Client) hold(ctx context.Context, h Handle, access, deny uint32) (release func() error, err error) {
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
	if err := four.opens.hold(ctx, h, access, deny); err != nil {
		return nil, as3(err)
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		return four.opens.release(ctx, h)
	}, nil
}
