package client

import (
	"context"
	"errors"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
)

// TransferMax is the largest READ or WRITE that the client sends, in bytes.
const TransferMax = 1 << 20

// errResults is the error of a reply whose results contradict each other or the call.
var errResults = errors.New("the server's results do not fit the call")

// copyHandle copies a handle from a message. The memory of the message is reused after the decoder
// returns.
func copyHandle(b []byte) Handle { return append(Handle(nil), b...) }

// procs are the procedures of one version of NFS. Their errors are statuses of version 3, so that
// callers need not know the version.
type procs interface {
	null(ctx context.Context) error
	getAttr(ctx context.Context, h Handle) (nfs3.Attr, error)
	setAttr(ctx context.Context, h Handle, s *blockstore.SetAttr, guard *time.Time) error
	lookup(ctx context.Context, dir Handle, name string) (*Node, error)
	access(ctx context.Context, h Handle, want uint32) (uint32, error)
	readLink(ctx context.Context, h Handle) (string, error)
	read(ctx context.Context, h Handle, p []byte, off uint64) (n int, eof bool, err error)
	write(ctx context.Context, h Handle, p []byte, off uint64, how blockstore.Stability) (Written, error)
	commit(ctx context.Context, h Handle, off uint64, n uint32) ([nfs3.VerifierLen]byte, error)
	create(ctx context.Context, dir Handle, name string, mode blockstore.CreateMode, s *blockstore.SetAttr,
		verifier [nfs3.VerifierLen]byte) (*Node, error)
	mkdir(ctx context.Context, dir Handle, name string, s *blockstore.SetAttr) (*Node, error)
	symlink(ctx context.Context, dir Handle, name, target string, s *blockstore.SetAttr) (*Node, error)
	mknod(ctx context.Context, dir Handle, name string, typ blockstore.FileType, major, minor uint32,
		s *blockstore.SetAttr) (*Node, error)
	remove(ctx context.Context, dir Handle, name string) error
	rmdir(ctx context.Context, dir Handle, name string) error
	rename(ctx context.Context, from Handle, fromName string, to Handle, toName string) error
	link(ctx context.Context, h, dir Handle, name string) error
	stat(ctx context.Context, h Handle) (blockstore.Stat, error)
	info(ctx context.Context, h Handle) (Info, error)
	pathConf(ctx context.Context, h Handle) (PathConf, error)
	getACL(ctx context.Context, h Handle) (ACLs, error)
	setACL(ctx context.Context, h Handle, dir bool, l ACLs) error
	// readDir reads the page of a directory that begins at at, which it advances.
	readDir(ctx context.Context, dir Handle, at *dirAt) ([]Entry, error)
}

// using calls do with the procedures of the version that the server and the client speak.
func using[T any](ctx context.Context, c *Client, do func(procs) (T, error)) (v T, err error) {
	p, err := c.procs(ctx)
	if err != nil {
		return v, err
	}
	return do(p)
}

// with is using for procedures without results.
func (c *Client) with(ctx context.Context, do func(procs) error) error {
	p, err := c.procs(ctx)
	if err != nil {
		return err
	}
	return do(p)
}

// Null calls the NULL procedure, which does nothing.
func (c *Client) Null(ctx context.Context) error {
	return c.with(ctx, func(p procs) error { return p.null(ctx) })
}

// GetAttr reads the attributes of an object.
func (c *Client) GetAttr(ctx context.Context, h Handle) (nfs3.Attr, error) {
	return using(ctx, c, func(p procs) (nfs3.Attr, error) { return p.getAttr(ctx, h) })
}

// SetAttr changes attributes. With guard it fails with nfs.ErrNotSync unless
// the object's ctime is *guard.
func (c *Client) SetAttr(ctx context.Context, h Handle, s *blockstore.SetAttr, guard *time.Time) error {
	return c.with(ctx, func(p procs) error { return p.setAttr(ctx, h, s, guard) })
}

// Lookup finds a name in a directory.
func (c *Client) Lookup(ctx context.Context, dir Handle, name string) (*Node, error) {
	return using(ctx, c, func(p procs) (*Node, error) { return p.lookup(ctx, dir, name) })
}

// Access returns which of the access bits of want the caller has.
func (c *Client) Access(ctx context.Context, h Handle, want uint32) (uint32, error) {
	return using(ctx, c, func(p procs) (uint32, error) { return p.access(ctx, h, want) })
}

// ReadLink reads the target of a symbolic link.
func (c *Client) ReadLink(ctx context.Context, h Handle) (string, error) {
	return using(ctx, c, func(p procs) (string, error) { return p.readLink(ctx, h) })
}

// limits are the largest READ and WRITE of a server, in bytes.
type limits struct{ read, write int }

// limitsAsked is the size in bytes up to which the client sends READ and WRITE without a call of
// FSINFO. RFC 1813 section 3.3.19 sets no minimum, but every known server serves this size.
const limitsAsked = 8 << 10

// limit returns the largest READ and WRITE of the server. The client asks for them (FSINFO) before
// the first call of more than limitsAsked bytes. A server can refuse a longer call as a whole. Over
// RDMA it can refuse a longer chunk.
func (c *Client) limit(ctx context.Context, h Handle, n int) (limits, error) {
	if l := c.limits.Load(); l != nil {
		return *l, nil
	}
	if n <= limitsAsked {
		return limits{limitsAsked, limitsAsked}, nil
	}
	i, err := c.Info(ctx, h)
	if err != nil {
		return limits{}, err
	}
	within := func(n uint32) int { return min(max(int(n), 512), TransferMax) }
	l := &limits{within(i.ReadMax), within(i.WriteMax)}
	c.limits.Store(l)
	return *l, nil
}

// Read reads up to len(p) bytes at off into p, but at most TransferMax and the largest READ of the
// server. Over RDMA the server places the bytes in p (RDMA WRITE). Read can return fewer bytes than
// len(p) before the end of the file.
func (c *Client) Read(ctx context.Context, h Handle, p []byte, off uint64) (n int, eof bool, err error) {
	v, err := c.procs(ctx)
	if err != nil {
		return 0, false, err
	}
	l, err := c.limit(ctx, h, len(p))
	if err != nil {
		return 0, false, err
	}
	return v.read(ctx, h, p[:min(len(p), l.read)], off)
}

// Written is the outcome of a WRITE.
type Written struct {
	N         int
	Committed blockstore.Stability
	Verifier  [nfs3.VerifierLen]byte
}

// Write writes p at off, but at most TransferMax and the largest WRITE of the server. Before its
// reply the server makes the data as stable as how says. Over RDMA the server fetches the bytes
// from p (RDMA READ).
func (c *Client) Write(ctx context.Context, h Handle, p []byte, off uint64, how blockstore.Stability) (
	w Written, err error,
) {
	v, err := c.procs(ctx)
	if err != nil {
		return w, err
	}
	l, err := c.limit(ctx, h, len(p))
	if err != nil {
		return w, err
	}
	p = p[:min(len(p), l.write)]
	w, err = v.write(ctx, h, p, off, how)
	if err == nil && (w.N > len(p) || w.N == 0 && len(p) > 0 || w.Committed < how || w.Committed > blockstore.FileSync) {
		err = errResults
	}
	return w, err
}

// Commit makes unstable writes of a range stable. n 0 means to the end of the file. If the verifier
// of Commit differs from that of a Write, the server has restarted, and the caller must write that
// data again.
func (c *Client) Commit(ctx context.Context, h Handle, off uint64, n uint32) ([nfs3.VerifierLen]byte, error) {
	return using(ctx, c, func(p procs) ([nfs3.VerifierLen]byte, error) { return p.commit(ctx, h, off, n) })
}

// Create creates a regular file. mode says what happens if the name exists. With
// blockstore.Exclusive the client sends verifier, and does not send s.
func (c *Client) Create(ctx context.Context, dir Handle, name string, mode blockstore.CreateMode,
	s *blockstore.SetAttr, verifier [nfs3.VerifierLen]byte,
) (*Node, error) {
	return using(ctx, c, func(p procs) (*Node, error) { return p.create(ctx, dir, name, mode, s, verifier) })
}

// Mkdir makes a directory.
func (c *Client) Mkdir(ctx context.Context, dir Handle, name string, s *blockstore.SetAttr) (*Node, error) {
	return using(ctx, c, func(p procs) (*Node, error) { return p.mkdir(ctx, dir, name, s) })
}

// Symlink makes a symbolic link.
func (c *Client) Symlink(ctx context.Context, dir Handle, name, target string, s *blockstore.SetAttr) (*Node, error) {
	return using(ctx, c, func(p procs) (*Node, error) { return p.symlink(ctx, dir, name, target, s) })
}

// Mknod creates a device, socket or fifo. major and minor are for devices.
func (c *Client) Mknod(ctx context.Context, dir Handle, name string, typ blockstore.FileType,
	major, minor uint32, s *blockstore.SetAttr,
) (*Node, error) {
	return using(ctx, c, func(p procs) (*Node, error) { return p.mknod(ctx, dir, name, typ, major, minor, s) })
}

// Remove removes a name of anything but a directory.
func (c *Client) Remove(ctx context.Context, dir Handle, name string) error {
	return c.with(ctx, func(p procs) error { return p.remove(ctx, dir, name) })
}

// Rmdir removes an empty directory.
func (c *Client) Rmdir(ctx context.Context, dir Handle, name string) error {
	return c.with(ctx, func(p procs) error { return p.rmdir(ctx, dir, name) })
}

// Rename renames an object. It replaces toName if that exists.
func (c *Client) Rename(ctx context.Context, from Handle, fromName string, to Handle, toName string) error {
	return c.with(ctx, func(p procs) error { return p.rename(ctx, from, fromName, to, toName) })
}

// Link gives an object another name.
func (c *Client) Link(ctx context.Context, h, dir Handle, name string) error {
	return c.with(ctx, func(p procs) error { return p.link(ctx, h, dir, name) })
}

// Stat reads the numbers of a filesystem.
func (c *Client) Stat(ctx context.Context, h Handle) (blockstore.Stat, error) {
	return using(ctx, c, func(p procs) (blockstore.Stat, error) { return p.stat(ctx, h) })
}

// Info are the limits and preferences of a server (FSINFO).
type Info struct {
	ReadMax, ReadPref, ReadMult    uint32
	WriteMax, WritePref, WriteMult uint32
	DirPref                        uint32
	FileMax                        uint64
	TimeDelta                      time.Duration
	Properties                     uint32
}

// Info reads the limits and preferences of a server.
func (c *Client) Info(ctx context.Context, h Handle) (Info, error) {
	return using(ctx, c, func(p procs) (Info, error) { return p.info(ctx, h) })
}

// PathConf are the limits of names and links.
type PathConf struct {
	LinkMax, NameMax                                          uint32
	NoTrunc, ChownRestricted, CaseInsensitive, CasePreserving bool
}

// PathConf reads the limits of names and links.
func (c *Client) PathConf(ctx context.Context, h Handle) (PathConf, error) {
	return using(ctx, c, func(p procs) (PathConf, error) { return p.pathConf(ctx, h) })
}

// Entry is one entry of a directory. Handle and Attr are nil where the server
// left them out.
type Entry struct {
	Name   string
	FileID uint64
	Cookie uint64 // of the place behind the entry; see DirReader
	Handle Handle
	Attr   *nfs3.Attr
}

// dirAt is the place in a directory up to which the client has read it.
type dirAt struct {
	cookie   uint64
	verifier [nfs3.VerifierLen]byte
	eof      bool
}

// dirReply is how many bytes of a directory the client asks for at once.
const dirReply = 256 << 10

// ReadDir calls each for every entry of a directory but "." and "..", as the entries arrive. They
// have handles and attributes. ReadDir stops at the first error of each.
func (c *Client) ReadDir(ctx context.Context, dir Handle, each func(*Entry) error) error {
	p, err := c.procs(ctx)
	if err != nil {
		return err
	}
	for at := (dirAt{}); !at.eof; {
		page, err := nextPage(ctx, p, dir, &at)
		if err != nil {
			return err
		}
		for i := range page {
			if err := each(&page[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// IsStatus reports whether err is, or wraps, the NFS status s.
func IsStatus(err error, s nfs.Status) bool {
	var got nfs.Status
	return errors.As(err, &got) && got == s
}
