package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Config describes a client.
type Config struct {
	// Peer names the server in errors.
	Peer string
	// Version is the version of NFS; the zero value takes the highest that the server
	// speaks.
	Version Version
	// Dial makes a connection that carries NFS and MOUNT.
	Dial func(context.Context) (rpc.Client, error)
	// DialMount makes a connection to a MOUNT service elsewhere; nil if it
	// shares the connection of NFS, as rstored's does.
	DialMount func(context.Context) (rpc.Client, error)
	// Cred is the identity of the calls; nil is AUTH_NONE.
	Cred *rpc.Cred
	// GiveUp bounds how long calls wait for a server that does not answer; 0 means two minutes.
	GiveUp time.Duration
	// Depth is the number of requests that one bulk transfer keeps in flight;
	// 0 means 16.
	Depth int
	// Connections is the most connections for NFS at once, as nconnect of nfs(5) has it; 0 means 1.
	// Each further one is made when a call finds all others in use.
	Connections int
}

// Client has the connections to one server. See the package comment.
type Client struct {
	cfg   Config
	nfs   *session
	mount *session

	limits atomic.Pointer[limits] // nil until they are known

	mu     sync.Mutex
	choice choice
	idle   []*session4 // unused sessions of version 4: the client speaks version 3
}

// New makes a client. It connects with the first call.
func New(cfg Config) *Client {
	if cfg.GiveUp == 0 {
		cfg.GiveUp = 2 * time.Minute
	}
	if cfg.Depth <= 0 {
		cfg.Depth = 16
	}
	c := &Client{cfg: cfg, nfs: newSession(cfg.Peer, cfg.Connections, cfg.GiveUp, cfg.Dial)}
	c.mount = c.nfs
	c.choice.probing = newCtxMutex()
	if cfg.Version == Version3 {
		c.choice.procs, c.choice.fixed = proc3{c}, true
	}
	if cfg.DialMount != nil {
		c.mount = newSession(cfg.Peer, 1, cfg.GiveUp, cfg.DialMount)
	}
	return c
}

// Close ends the connections, and the session of version 4 with its open files. Calls in flight
// fail.
func (c *Client) Close() error {
	c.mu.Lock()
	sessions := c.idle
	if c.choice.four != nil {
		sessions = append(sessions, c.choice.four)
	}
	c.mu.Unlock()
	for _, s := range sessions {
		s.close()
	}
	if c.mount != c.nfs {
		_ = c.mount.Close()
	}
	return c.nfs.Close()
}

// Stats are the counts of a client since it was made.
type Stats struct {
	Connections uint64        // made so far, with the first one
	Links       int           // connections for NFS now
	Resent      uint64        // calls that were sent again over a new connection
	Waited      time.Duration // of all calls, from the request to the reply; calls in flight together add up
	Sessions    uint64        // of version 4 that were made
	Reclaimed   uint64        // opens that were reclaimed after restarts of the server
	Relocked    uint64        // locks that were reclaimed after restarts of the server
	Callbacks   uint64        // calls of the server that were answered
	Notified    uint64        // waits for locks that a callback ended

	Delegations     int    // delegations that the client has now
	Delegated       uint64 // delegations that were granted
	Recalled        uint64 // delegations that the server recalled
	Returned        uint64
	Redelegated     uint64 // delegations that were reclaimed after restarts of the server
	LostDelegations uint64 // delegations that the server ended on its own
}

// Stats returns the client's counts.
func (c *Client) Stats() Stats {
	s := Stats{
		Links:       len(c.nfs.connections()),
		Connections: c.nfs.reconnects.Load(), Resent: c.nfs.resent.Load(), Waited: time.Duration(c.nfs.waited.Load()),
	}
	c.mu.Lock()
	if four := c.choice.four; four != nil {
		s.Sessions, s.Reclaimed, s.Relocked = four.sessions.Load(), four.reclaimed.Load(), four.relocked.Load()
		four.opens.count(&s)
	}
	c.mu.Unlock()
	s.Callbacks = c.nfs.calls.calls.Load()
	if c.mount != c.nfs {
		s.Connections += c.mount.reconnects.Load()
		s.Resent += c.mount.resent.Load()
	}
	return s
}

// Handle is a filehandle, at most 64 bytes in version 3 and 128 in version 4. The receiver owns it.
type Handle []byte

// Node is an object: its handle, and its attributes as last seen.
type Node struct {
	Handle Handle
	Attr   nfs3.Attr
}

// Delays after NFS3ERR_JUKEBOX, NFS4ERR_DELAY and NFS4ERR_GRACE. Each is twice the one before, up
// to a bound. A grace period can end at any moment, when the last client has reclaimed.
const (
	jukeboxFirst = 20 * time.Millisecond
	jukeboxMax   = 5 * time.Second
	graceMax     = 500 * time.Millisecond
)

// headroom is the size of the parts of results beside lists and data: the status, handles, and the
// attributes of two directories before and after.
const headroom = 1024

// request is one NFS call whose results begin with a status.
type request struct {
	prog   uint32 // 0 is NFS
	proc   uint32
	args   func(*xdr.Encoder)
	ok     func(*xdr.Decoder) // results of success, after the status
	dst    []byte
	resMax int

	// The rest is the state of a transmission. It is part of the request, so a call allocates
	// nothing else. If the request is reused, a call allocates nothing at all.
	rpc    rpc.Request
	status nfs.Status
	res    func(*xdr.Decoder) error // q.results, made once
}

// results decodes the results of a transmission.
func (q *request) results(d *xdr.Decoder) error {
	q.status = nfs.Status(d.Uint32())
	if q.status == nfs.OK && q.ok != nil && d.Err() == nil {
		q.ok(d)
	}
	return d.Err()
}

// do makes the call, and repeats it while the server answers NFS3ERR_JUKEBOX. A status other
// than OK is returned as nfs.Status.
func (c *Client) do(ctx context.Context, q *request) error {
	if q.res == nil {
		q.res = q.results
	}
	for wait := jukeboxFirst; ; wait = min(2*wait, jukeboxMax) {
		q.rpc = rpc.Request{
			Prog: cmp.Or(q.prog, nfs3.Program), Vers: nfs3.Version, Proc: q.proc, Cred: credOf(ctx, c.cfg.Cred),
			Args: q.args, Dst: q.dst, ResMax: q.resMax + headroom, Res: q.res,
		}
		if err := c.nfs.Call(ctx, &q.rpc); err != nil {
			return err
		}
		if q.status == nfs.OK {
			return nil
		}
		if q.status != nfs.ErrJukebox {
			return q.status
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// pathError wraps err as an fs.PathError. Statuses match the errors of io/fs by errors.Is.
func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: &statusError{err}}
}

// statusError makes an nfs.Status match the errors of io/fs as well.
type statusError struct{ err error }

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// Is implements errors.Is.
func (e *statusError) Is(target error) bool {
	var s nfs.Status
	if !errors.As(e.err, &s) {
		return false
	}
	switch target {
	case fs.ErrNotExist:
		return s == nfs.ErrNoEnt
	case fs.ErrExist:
		return s == nfs.ErrExist || s == nfs.ErrNotEmpty
	case fs.ErrPermission:
		return s == nfs.ErrAcces || s == nfs.ErrPerm
	}
	return false
}

// Mount returns the handle of a directory. It asks the MOUNT service, and fixes the version at
// 3, unless the client speaks version 4 already; then it looks the path up.
func (c *Client) Mount(ctx context.Context, dir string) (Handle, error) {
	c.mu.Lock()
	v, fixed := c.cfg.Version, c.choice.fixed
	four := c.choice.four
	c.mu.Unlock()
	if v >= Version41 || fixed && four != nil {
		n, err := c.Resolve(ctx, dir)
		if err != nil {
			return nil, err
		}
		return n.Handle, nil
	}
	h, err := c.mountDir(ctx, dir)
	if err == nil {
		c.fix(proc3{c})
	}
	return h, err
}

// callMount calls a procedure of the MOUNT service.
func (c *Client) callMount(ctx context.Context, proc uint32, resMax int, args func(*xdr.Encoder),
	res func(*xdr.Decoder),
) error {
	return c.mount.Call(ctx, &rpc.Request{
		Prog: nfs3.MountProgram, Vers: nfs3.MountVersion, Proc: proc, Cred: c.cfg.Cred, ResMax: resMax, Args: args,
		Res: func(d *xdr.Decoder) error {
			res(d)
			return d.Err()
		},
	})
}

// mountDir asks for the handle of a directory (MNT, RFC 1813 section 5.2.1).
func (c *Client) mountDir(ctx context.Context, dir string) (Handle, error) {
	var status nfs.Status
	var h Handle
	err := c.callMount(ctx, nfs3.MountMnt, 0, func(e *xdr.Encoder) { e.String(dir) }, func(d *xdr.Decoder) {
		if status = nfs.Status(d.Uint32()); status == nfs.OK {
			h = copyHandle(nfs3.DecodeHandle(d))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("mounting %s from %s: %w", dir, c.cfg.Peer, err)
	}
	if status != nfs.OK {
		return nil, &fs.PathError{Op: "mount", Path: dir, Err: &statusError{status}}
	}
	return h, nil
}

// Exports returns the paths that the server exports (EXPORT of the MOUNT service).
func (c *Client) Exports(ctx context.Context) (paths []string, err error) {
	err = c.callMount(ctx, nfs3.MountExport, 1<<16, nil, func(d *xdr.Decoder) {
		paths = nil
		for d.Bool() && d.Err() == nil {
			paths = append(paths, d.String(1024))
			for d.Bool() && d.Err() == nil {
				d.String(255)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the exports of %s: %w", c.cfg.Peer, err)
	}
	return paths, nil
}

// Resolve finds the object of an absolute path on the server. In version 4 it looks the path up
// from the root. In version 3 it mounts the longest part of the path that the server lets it
// mount, and looks the rest up. It does not follow symbolic links.
func (c *Client) Resolve(ctx context.Context, name string) (*Node, error) {
	return c.resolve(ctx, path.Clean("/"+name))
}

// resolve3 is Resolve in version 3. mounted says that the server let it mount a part of the path.
func (c *Client) resolve3(ctx context.Context, name string) (n *Node, mounted bool, err error) {
	var h Handle
	var first error
	root := name
	for {
		h, err = c.mountDir(ctx, root)
		if err == nil {
			break
		}
		var s nfs.Status
		if !errors.As(err, &s) {
			return nil, false, err // no answer at all
		}
		if first == nil || s == nfs.ErrAcces {
			first = err
		}
		if root == "/" {
			return nil, false, first
		}
		root = path.Dir(root)
	}
	three := proc3{c}
	a, err := three.getAttr(ctx, h)
	if err != nil {
		return nil, true, pathError("getattr", root, err)
	}
	n = &Node{Handle: h, Attr: a}
	for _, part := range strings.Split(strings.Trim(strings.TrimPrefix(name, root), "/"), "/") {
		if part == "" {
			continue
		}
		if n, err = three.lookup(ctx, n.Handle, part); err != nil {
			return nil, true, pathError("lookup", name, err)
		}
	}
	return n, true, nil
}

// ResolveParent finds the directory that holds the last component of name.
func (c *Client) ResolveParent(ctx context.Context, name string) (dir *Node, base string, err error) {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil, "", pathError("lookup", name, nfs.ErrInval)
	}
	dir, err = c.Resolve(ctx, path.Dir(name))
	return dir, path.Base(name), err
}
