package client

import (
	"context"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// proc3 are the procedures of version 3 (RFC 1813 section 3.3). A server may leave out the
// attributes in most results (post_op_attr); the client asks for those that it needs.
type proc3 struct{ *Client }

func (c proc3) null(ctx context.Context) error {
	r := rpcNull()
	r.Cred = c.cfg.Cred
	return c.nfs.Call(ctx, r)
}

// getAttr is GETATTR (section 3.3.1).
func (c proc3) getAttr(ctx context.Context, h Handle) (a nfs3.Attr, err error) {
	err = c.do(ctx, &request{
		proc: nfs3.ProcGetAttr,
		args: func(e *xdr.Encoder) { nfs3.EncodeHandle(e, h) },
		ok:   func(d *xdr.Decoder) { a = nfs3.DecodeAttr(d) },
	})
	return a, err
}

// ask calls a procedure whose only argument is a handle, and whose results begin with the
// attributes of the object (post_op_attr).
func (c proc3) ask(ctx context.Context, proc uint32, h Handle, resMax int, ok func(*xdr.Decoder)) error {
	return c.do(ctx, &request{
		proc: proc, resMax: resMax,
		args: func(e *xdr.Encoder) { nfs3.EncodeHandle(e, h) },
		ok: func(d *xdr.Decoder) {
			nfs3.SkipPostOp(d)
			ok(d)
		},
	})
}

// setAttr is SETATTR (section 3.3.2). guard is sattrguard3.
func (c proc3) setAttr(ctx context.Context, h Handle, s *blockstore.SetAttr, guard *time.Time) error {
	return c.do(ctx, &request{proc: nfs3.ProcSetAttr, args: func(e *xdr.Encoder) {
		nfs3.EncodeHandle(e, h)
		nfs3.EncodeSetAttr(e, s)
		e.Bool(guard != nil)
		if guard != nil {
			nfs3.EncodeTime(e, *guard)
		}
	}})
}

// lookup is LOOKUP (section 3.3.3).
func (c proc3) lookup(ctx context.Context, dir Handle, name string) (*Node, error) {
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

// complete asks for the attributes of n if the reply had none (a is nil): they are optional in
// version 3 (RFC 1813 section 2.6).
func (c proc3) complete(ctx context.Context, n *Node, a *nfs3.Attr, err error) (*Node, error) {
	if err != nil {
		return nil, err
	}
	if a == nil {
		got, err := c.getAttr(ctx, n.Handle)
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

// access is ACCESS (section 3.3.4).
func (c proc3) access(ctx context.Context, h Handle, want uint32) (granted uint32, err error) {
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

// readLink is READLINK (section 3.3.5).
func (c proc3) readLink(ctx context.Context, h Handle) (target string, err error) {
	err = c.ask(ctx, nfs3.ProcReadLink, h, nfs3.PathLimit, func(d *xdr.Decoder) { target = d.String(nfs3.PathLimit) })
	return target, err
}

// commit is COMMIT (section 3.3.21).
func (c proc3) commit(ctx context.Context, h Handle, off uint64, n uint32) (verifier [nfs3.VerifierLen]byte,
	err error,
) {
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

// made calls a procedure that creates an object. The handle and the attributes are optional in its
// results; the client asks for them if they are missing.
func (c proc3) made(ctx context.Context, proc uint32, dir Handle, name string, rest func(*xdr.Encoder)) (*Node, error) {
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
		return c.lookup(ctx, dir, name)
	}
	return c.complete(ctx, n, a, err)
}

// create is CREATE (section 3.3.8). EXCLUSIVE has a verifier instead of attributes, so that a retry
// finds the file that the first call has made.
func (c proc3) create(ctx context.Context, dir Handle, name string, mode blockstore.CreateMode, s *blockstore.SetAttr,
	verifier [nfs3.VerifierLen]byte,
) (*Node, error) {
	return c.made(ctx, nfs3.ProcCreate, dir, name, func(e *xdr.Encoder) {
		e.Uint32(uint32(mode))
		if mode == blockstore.Exclusive {
			e.Fixed(verifier[:])
		} else {
			nfs3.EncodeSetAttr(e, s)
		}
	})
}

func (c proc3) mkdir(ctx context.Context, dir Handle, name string, s *blockstore.SetAttr) (*Node, error) {
	return c.made(ctx, nfs3.ProcMkdir, dir, name, func(e *xdr.Encoder) { nfs3.EncodeSetAttr(e, s) })
}

func (c proc3) symlink(ctx context.Context, dir Handle, name, target string, s *blockstore.SetAttr) (*Node, error) {
	return c.made(ctx, nfs3.ProcSymlink, dir, name, func(e *xdr.Encoder) {
		nfs3.EncodeSetAttr(e, s)
		e.String(target)
	})
}

// mknod is MKNOD (section 3.3.11). Only devices have device numbers.
func (c proc3) mknod(ctx context.Context, dir Handle, name string, typ blockstore.FileType, major, minor uint32,
	s *blockstore.SetAttr,
) (*Node, error) {
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

func (c proc3) remove(ctx context.Context, dir Handle, name string) error {
	return c.do(ctx, &request{proc: nfs3.ProcRemove, args: diropargs(dir, name)})
}

func (c proc3) rmdir(ctx context.Context, dir Handle, name string) error {
	return c.do(ctx, &request{proc: nfs3.ProcRmdir, args: diropargs(dir, name)})
}

// rename is RENAME (section 3.3.14).
func (c proc3) rename(ctx context.Context, from Handle, fromName string, to Handle, toName string) error {
	return c.do(ctx, &request{proc: nfs3.ProcRename, args: func(e *xdr.Encoder) {
		diropargs(from, fromName)(e)
		diropargs(to, toName)(e)
	}})
}

// link is LINK (section 3.3.15).
func (c proc3) link(ctx context.Context, h, dir Handle, name string) error {
	return c.do(ctx, &request{proc: nfs3.ProcLink, args: func(e *xdr.Encoder) {
		nfs3.EncodeHandle(e, h)
		diropargs(dir, name)(e)
	}})
}

// stat is FSSTAT (section 3.3.18).
func (c proc3) stat(ctx context.Context, h Handle) (s blockstore.Stat, err error) {
	err = c.ask(ctx, nfs3.ProcFSStat, h, 0, func(d *xdr.Decoder) {
		s = blockstore.Stat{
			TotalBytes: d.Uint64(), FreeBytes: d.Uint64(), AvailBytes: d.Uint64(),
			TotalFiles: d.Uint64(), FreeFiles: d.Uint64(), AvailFiles: d.Uint64(),
		}
		d.Uint32() // invarsec
	})
	return s, err
}

// info is FSINFO (section 3.3.19).
func (c proc3) info(ctx context.Context, h Handle) (i Info, err error) {
	err = c.ask(ctx, nfs3.ProcFSInfo, h, 0, func(d *xdr.Decoder) {
		i = Info{
			ReadMax: d.Uint32(), ReadPref: d.Uint32(), ReadMult: d.Uint32(),
			WriteMax: d.Uint32(), WritePref: d.Uint32(), WriteMult: d.Uint32(),
			DirPref: d.Uint32(), FileMax: d.Uint64(),
			TimeDelta:  time.Duration(d.Uint32())*time.Second + time.Duration(d.Uint32()),
			Properties: d.Uint32(),
		}
	})
	return i, err
}

// pathConf is PATHCONF (section 3.3.20).
func (c proc3) pathConf(ctx context.Context, h Handle) (p PathConf, err error) {
	err = c.ask(ctx, nfs3.ProcPathConf, h, 0, func(d *xdr.Decoder) {
		p.LinkMax, p.NameMax = d.Uint32(), d.Uint32()
		p.NoTrunc, p.ChownRestricted, p.CaseInsensitive, p.CasePreserving = d.Bool(), d.Bool(), d.Bool(), d.Bool()
	})
	return p, err
}

// readDir is READDIRPLUS (section 3.3.17). dircount bounds names and cookies, maxcount the whole
// reply.
func (c proc3) readDir(ctx context.Context, dir Handle, at *dirAt) (page []Entry, err error) {
	next := *at
	err = c.do(ctx, &request{
		proc: nfs3.ProcReadDirPlus, resMax: dirReply,
		args: func(e *xdr.Encoder) {
			nfs3.EncodeHandle(e, dir)
			e.Uint64(at.cookie)
			e.Fixed(at.verifier[:])
			e.Uint32(dirReply / 4)
			e.Uint32(dirReply)
		},
		ok: func(d *xdr.Decoder) {
			page = page[:0]
			nfs3.DecodePostOp(d)
			next.verifier = nfs3.DecodeVerifier(d)
			for d.Bool() && d.Err() == nil {
				e := Entry{FileID: d.Uint64(), Name: d.String(nfs3.NameLimit)}
				next.cookie = d.Uint64()
				e.Cookie = next.cookie
				e.Attr = nfs3.DecodePostOp(d)
				if h := nfs3.DecodePostOpHandle(d); h != nil {
					e.Handle = copyHandle(h)
				}
				page = append(page, e)
			}
			next.eof = d.Bool()
		},
	})
	if err != nil {
		return nil, err
	}
	*at = next
	return page, nil
}
