package client

import (
	"context"
	"errors"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TransferMax is the largest READ or WRITE that is asked for, in bytes.
const TransferMax = 1 << 20

// errResults is a reply whose results contradict themselves or the call.
var errResults = errors.New("the server's results do not fit the call")

// copyHandle takes a handle out of a message that will be reused.
func copyHandle(b []byte) Handle { return append(Handle(nil), b...) }

// Null does nothing, at the server.
func (c *Client) Null(ctx context.Context) error {
	r := rpcNull()
	r.Cred = c.cfg.Cred
	return c.nfs.Call(ctx, r)
}

// GetAttr reads the attributes of an object.
func (c *Client) GetAttr(ctx context.Context, h Handle) (a nfs3.Attr, err error) {
	err = c.do(ctx, &request{
		proc: nfs3.ProcGetAttr,
		args: func(e *xdr.Encoder) { nfs3.EncodeHandle(e, h) },
		ok:   func(d *xdr.Decoder) { a = nfs3.DecodeAttr(d) },
	})
	return a, err
}

// SetAttr changes attributes. With guard it fails with nfs.ErrNotSync unless
// the object's ctime is *guard.
func (c *Client) SetAttr(ctx context.Context, h Handle, s *blockstore.SetAttr, guard *time.Time) error {
	return c.do(ctx, &request{proc: nfs3.ProcSetAttr, args: func(e *xdr.Encoder) {
		nfs3.EncodeHandle(e, h)
		nfs3.EncodeSetAttr(e, s)
		e.Bool(guard != nil)
		if guard != nil {
			nfs3.EncodeTime(e, *guard)
		}
	}})
}

// Lookup finds a name in a directory.
func (c *Client) Lookup(ctx context.Context, dir Handle, name string) (*Node, error) {
	n := &Node{}
	var a *nfs3.Attr
	err := c.do(ctx, &request{
		proc: nfs3.ProcLookup,
		args: diropargs(dir, name),
		ok: func(d *xdr.Decoder) {
			n.Handle = copyHandle(nfs3.DecodeHandle(d))
			a = nfs3.DecodePostOp(d)
		},
	})
	return c.complete(ctx, n, a, err)
}

// complete fills in attributes that a reply left out.
func (c *Client) complete(ctx context.Context, n *Node, a *nfs3.Attr, err error) (*Node, error) {
	if err != nil {
		return nil, err
	}
	if a == nil {
		got, err := c.GetAttr(ctx, n.Handle)
		if err != nil {
			return nil, err
		}
		a = &got
	}
	n.Attr = *a
	return n, nil
}

func diropargs(dir Handle, name string) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		nfs3.EncodeHandle(e, dir)
		e.String(name)
	}
}

// Access returns which of the access bits of want the caller has.
func (c *Client) Access(ctx context.Context, h Handle, want uint32) (granted uint32, err error) {
	err = c.do(ctx, &request{
		proc: nfs3.ProcAccess,
		args: func(e *xdr.Encoder) { nfs3.EncodeHandle(e, h); e.Uint32(want) },
		ok: func(d *xdr.Decoder) {
			nfs3.DecodePostOp(d)
			granted = d.Uint32()
		},
	})
	return granted, err
}

// ReadLink reads the target of a symbolic link.
func (c *Client) ReadLink(ctx context.Context, h Handle) (target string, err error) {
	err = c.do(ctx, &request{
		proc: nfs3.ProcReadLink, resMax: nfs3.PathLimit,
		args: func(e *xdr.Encoder) { nfs3.EncodeHandle(e, h) },
		ok: func(d *xdr.Decoder) {
			nfs3.DecodePostOp(d)
			target = d.String(nfs3.PathLimit)
		},
	})
	return target, err
}

// limits are the largest READ and WRITE of a server, in bytes.
type limits struct{ read, write int }

// limitsAsked is the length up to which every server is expected to serve READ and
// WRITE (RFC 1813 section 3.3.19 leaves it open; none offers less).
const limitsAsked = 8 << 10

// limit is what the server takes at once, which is asked when it first matters: a
// server refuses a longer call as a whole, RPC-over-RDMA ones by the chunk.
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

// Read reads up to len(p) bytes at off into p, at most TransferMax and what the
// server takes at once. Over RDMA the bytes are placed there by the server. It may
// return fewer bytes than asked without the end of the file being reached.
func (c *Client) Read(ctx context.Context, h Handle, p []byte, off uint64) (n int, eof bool, err error) {
	l, err := c.limit(ctx, h, len(p))
	if err != nil {
		return 0, false, err
	}
	p = p[:min(len(p), l.read)]
	bad := false
	err = c.do(ctx, &request{
		proc: nfs3.ProcRead, dst: p,
		args: func(e *xdr.Encoder) {
			nfs3.EncodeHandle(e, h)
			e.Uint64(off)
			e.Uint32(uint32(len(p)))
		},
		ok: func(d *xdr.Decoder) {
			nfs3.DecodePostOp(d)
			count := d.Uint32()
			eof = d.Bool()
			b := d.Bulk(len(p))
			bad = d.Err() == nil && int(count) != len(b)
			n = len(b)
			if n > 0 && &b[0] != &p[0] {
				copy(p, b) // a short result came inline
			}
		},
	})
	if err == nil && bad {
		err = errResults
	}
	if err != nil {
		return 0, false, err
	}
	return n, eof, nil
}

// Written is the outcome of a WRITE.
type Written struct {
	N         int
	Committed blockstore.Stability
	Verifier  [nfs3.VerifierLen]byte
}

// Write writes p at off, at most TransferMax and what the server takes at once, and
// asks the server to make it as stable as how says before it answers. Over RDMA the
// server fetches the bytes from p.
func (c *Client) Write(ctx context.Context, h Handle, p []byte, off uint64, how blockstore.Stability) (w Written, err error) {
	l, err := c.limit(ctx, h, len(p))
	if err != nil {
		return w, err
	}
	p = p[:min(len(p), l.write)]
	err = c.do(ctx, &request{
		proc: nfs3.ProcWrite,
		args: func(e *xdr.Encoder) {
			nfs3.EncodeHandle(e, h)
			e.Uint64(off)
			e.Uint32(uint32(len(p)))
			e.Uint32(uint32(how))
			e.Bulk(p)
		},
		ok: func(d *xdr.Decoder) {
			nfs3.DecodeWcc(d)
			w.N = int(d.Uint32())
			w.Committed = blockstore.Stability(d.Uint32())
			w.Verifier = nfs3.DecodeVerifier(d)
		},
	})
	if err == nil && (w.N > len(p) || w.N == 0 && len(p) > 0 || w.Committed < how || w.Committed > blockstore.FileSync) {
		err = errResults
	}
	return w, err
}

// Commit makes unstable writes stable; n 0 means to the end of the file. If
// the verifier is not that of the writes, they have to be sent again.
func (c *Client) Commit(ctx context.Context, h Handle, off uint64, n uint32) (verifier [nfs3.VerifierLen]byte, err error) {
	err = c.do(ctx, &request{
		proc: nfs3.ProcCommit,
		args: func(e *xdr.Encoder) {
			nfs3.EncodeHandle(e, h)
			e.Uint64(off)
			e.Uint32(n)
		},
		ok: func(d *xdr.Decoder) {
			nfs3.DecodeWcc(d)
			verifier = nfs3.DecodeVerifier(d)
		},
	})
	return verifier, err
}

// made decodes what the procedures that create objects return; a server that
// leaves the handle out is asked for it.
func (c *Client) made(ctx context.Context, proc uint32, dir Handle, name string, rest func(*xdr.Encoder)) (*Node, error) {
	n := &Node{}
	var a *nfs3.Attr
	err := c.do(ctx, &request{
		proc: proc,
		args: func(e *xdr.Encoder) {
			diropargs(dir, name)(e)
			rest(e)
		},
		ok: func(d *xdr.Decoder) {
			if h := nfs3.DecodePostOpHandle(d); h != nil {
				n.Handle = copyHandle(h)
			}
			a = nfs3.DecodePostOp(d)
			nfs3.DecodeWcc(d)
		},
	})
	if err == nil && n.Handle == nil {
		return c.Lookup(ctx, dir, name)
	}
	return c.complete(ctx, n, a, err)
}

// Create makes a regular file. mode says what happens if the name exists;
// verifier is used by blockstore.Exclusive, where s is not sent.
func (c *Client) Create(ctx context.Context, dir Handle, name string, mode blockstore.CreateMode, s *blockstore.SetAttr, verifier [nfs3.VerifierLen]byte) (*Node, error) {
	return c.made(ctx, nfs3.ProcCreate, dir, name, func(e *xdr.Encoder) {
		e.Uint32(uint32(mode))
		if mode == blockstore.Exclusive {
			e.Fixed(verifier[:])
		} else {
			nfs3.EncodeSetAttr(e, s)
		}
	})
}

// Mkdir makes a directory.
func (c *Client) Mkdir(ctx context.Context, dir Handle, name string, s *blockstore.SetAttr) (*Node, error) {
	return c.made(ctx, nfs3.ProcMkdir, dir, name, func(e *xdr.Encoder) { nfs3.EncodeSetAttr(e, s) })
}

// Symlink makes a symbolic link.
func (c *Client) Symlink(ctx context.Context, dir Handle, name, target string, s *blockstore.SetAttr) (*Node, error) {
	return c.made(ctx, nfs3.ProcSymlink, dir, name, func(e *xdr.Encoder) {
		nfs3.EncodeSetAttr(e, s)
		e.String(target)
	})
}

// Mknod makes a device, socket or fifo. Device numbers are used for devices.
func (c *Client) Mknod(ctx context.Context, dir Handle, name string, typ blockstore.FileType, major, minor uint32, s *blockstore.SetAttr) (*Node, error) {
	return c.made(ctx, nfs3.ProcMknod, dir, name, func(e *xdr.Encoder) {
		e.Uint32(uint32(typ))
		switch typ {
		case blockstore.TypeChr, blockstore.TypeBlk:
			nfs3.EncodeSetAttr(e, s)
			e.Uint32(major)
			e.Uint32(minor)
		case blockstore.TypeSock, blockstore.TypeFifo:
			nfs3.EncodeSetAttr(e, s)
		}
	})
}

// Remove removes a name that is no directory's.
func (c *Client) Remove(ctx context.Context, dir Handle, name string) error {
	return c.do(ctx, &request{proc: nfs3.ProcRemove, args: diropargs(dir, name)})
}

// Rmdir removes an empty directory.
func (c *Client) Rmdir(ctx context.Context, dir Handle, name string) error {
	return c.do(ctx, &request{proc: nfs3.ProcRmdir, args: diropargs(dir, name)})
}

// Rename moves a name, over one that may be there.
func (c *Client) Rename(ctx context.Context, from Handle, fromName string, to Handle, toName string) error {
	return c.do(ctx, &request{proc: nfs3.ProcRename, args: func(e *xdr.Encoder) {
		diropargs(from, fromName)(e)
		diropargs(to, toName)(e)
	}})
}

// Link gives an object another name.
func (c *Client) Link(ctx context.Context, h, dir Handle, name string) error {
	return c.do(ctx, &request{proc: nfs3.ProcLink, args: func(e *xdr.Encoder) {
		nfs3.EncodeHandle(e, h)
		diropargs(dir, name)(e)
	}})
}

// Stat reads the numbers of a filesystem.
func (c *Client) Stat(ctx context.Context, h Handle) (s blockstore.Stat, err error) {
	err = c.do(ctx, &request{
		proc: nfs3.ProcFSStat,
		args: func(e *xdr.Encoder) { nfs3.EncodeHandle(e, h) },
		ok: func(d *xdr.Decoder) {
			nfs3.DecodePostOp(d)
			for _, p := range []*uint64{&s.TotalBytes, &s.FreeBytes, &s.AvailBytes, &s.TotalFiles, &s.FreeFiles, &s.AvailFiles} {
				*p = d.Uint64()
			}
			d.Uint32()
		},
	})
	return s, err
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
func (c *Client) Info(ctx context.Context, h Handle) (i Info, err error) {
	err = c.do(ctx, &request{
		proc: nfs3.ProcFSInfo,
		args: func(e *xdr.Encoder) { nfs3.EncodeHandle(e, h) },
		ok: func(d *xdr.Decoder) {
			nfs3.DecodePostOp(d)
			for _, p := range []*uint32{&i.ReadMax, &i.ReadPref, &i.ReadMult, &i.WriteMax, &i.WritePref, &i.WriteMult, &i.DirPref} {
				*p = d.Uint32()
			}
			i.FileMax = d.Uint64()
			i.TimeDelta = time.Duration(d.Uint32())*time.Second + time.Duration(d.Uint32())
			i.Properties = d.Uint32()
		},
	})
	return i, err
}

// PathConf are the limits of names and links.
type PathConf struct {
	LinkMax, NameMax                                          uint32
	NoTrunc, ChownRestricted, CaseInsensitive, CasePreserving bool
}

// PathConf reads the limits of names and links.
func (c *Client) PathConf(ctx context.Context, h Handle) (p PathConf, err error) {
	err = c.do(ctx, &request{
		proc: nfs3.ProcPathConf,
		args: func(e *xdr.Encoder) { nfs3.EncodeHandle(e, h) },
		ok: func(d *xdr.Decoder) {
			nfs3.DecodePostOp(d)
			p.LinkMax, p.NameMax = d.Uint32(), d.Uint32()
			p.NoTrunc, p.ChownRestricted, p.CaseInsensitive, p.CasePreserving = d.Bool(), d.Bool(), d.Bool(), d.Bool()
		},
	})
	return p, err
}

// Entry is one entry of a directory. Handle and Attr are nil where the server
// left them out.
type Entry struct {
	Name   string
	FileID uint64
	Handle Handle
	Attr   *nfs3.Attr
}

// dirReply is how many bytes of a directory are asked for at once.
const dirReply = 256 << 10

// ReadDir calls each for every entry of a directory but "." and "..", with
// handles and attributes, as they arrive. It stops at the first error of each.
func (c *Client) ReadDir(ctx context.Context, dir Handle, each func(*Entry) error) error {
	var cookie uint64
	var verifier [nfs3.VerifierLen]byte
	for eof := false; !eof; {
		var page []Entry
		last := cookie
		err := c.do(ctx, &request{
			proc: nfs3.ProcReadDirPlus, resMax: dirReply,
			args: func(e *xdr.Encoder) {
				nfs3.EncodeHandle(e, dir)
				e.Uint64(cookie)
				e.Fixed(verifier[:])
				e.Uint32(dirReply / 4)
				e.Uint32(dirReply)
			},
			ok: func(d *xdr.Decoder) {
				page = page[:0]
				nfs3.DecodePostOp(d)
				v := nfs3.DecodeVerifier(d)
				for d.Bool() && d.Err() == nil {
					e := Entry{FileID: d.Uint64(), Name: d.String(nfs3.NameLimit)}
					last = d.Uint64()
					e.Attr = nfs3.DecodePostOp(d)
					if h := nfs3.DecodePostOpHandle(d); h != nil {
						e.Handle = copyHandle(h)
					}
					page = append(page, e)
				}
				eof = d.Bool()
				verifier = v
			},
		})
		if err != nil {
			return err
		}
		for i := range page {
			if page[i].Name == "." || page[i].Name == ".." {
				continue
			}
			if err := each(&page[i]); err != nil {
				return err
			}
		}
		if !eof && last == cookie {
			return errResults // a page without entries that is not the end
		}
		cookie = last
	}
	return nil
}

// IsStatus reports whether err is, or wraps, the NFS status s.
func IsStatus(err error, s nfs.Status) bool {
	var got nfs.Status
	return errors.As(err, &got) && got == s
}
