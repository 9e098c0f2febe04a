package client

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// proc4 are the procedures as COMPOUNDs of versions 4.1 and 4.2 (RFC 8881 section 18). Most
// compounds are PUTFH, the operation, and GETATTR.
type proc4 struct{ *session4 }

// as3 maps a status of version 4 to one of version 3, so that callers test for the same status with
// every version.
func as3(err error) error {
	if err == nil {
		return nil
	}
	var st nfs.Status
	if !errors.As(err, &st) {
		return err
	}
	switch st {
	case nfs.ErrSymlink:
		return nfs.ErrNotDir
	case nfs.ErrWrongType:
		return nfs.ErrInval
	}
	return err
}

func (p proc4) null(ctx context.Context) error {
	return p.conn.Call(ctx, &rpc.Request{Prog: nfs4.Program, Vers: nfs4.Version, Proc: nfs4.ProcNull, Cred: p.cred})
}

func (p proc4) attrs(ctx context.Context, h Handle, want nfs4.Bitmap) (a attrs4, err error) {
	err = p.do(ctx, &compound4{ops: []op4{putFH(h), a.get(want)}})
	return a, err
}

func (p proc4) getAttr(ctx context.Context, h Handle) (nfs3.Attr, error) {
	a, err := p.attrs(ctx, h, ofObject)
	return a.attr, err
}

// setAttr is SETATTR (section 18.30). A change of the size uses the stateid of a WRITE (ioState):
// with the anonymous stateid it would conflict with the client's own share reservation. The guard is
// a VERIFY of the ctime, before the SETATTR.
func (p proc4) setAttr(ctx context.Context, h Handle, s *blockstore.SetAttr, guard *time.Time) error {
	if s.Mode != nil || s.UID != nil || s.GID != nil {
		defer p.opens.forbid(h)
	}
	for range restores {
		u := ioState{id: state.Anonymous}
		if s.Size != nil {
			var err error
			if u, err = p.opens.ioState(ctx, h, ShareWrite); err != nil {
				return err
			}
		}
		ops := []op4{putFH(h)}
		if guard != nil {
			ops = append(ops, unchangedSince(*guard))
		}
		err := p.change(ctx, append(ops, setAttrOp(u.id, s))...)
		if err == nfs.ErrNotSame {
			return nfs.ErrNotSync
		}
		again, err := p.opens.retry(ctx, &u, err)
		if !again {
			return as3(err)
		}
	}
	return nfs.ErrBadStateID
}

// unchangedSince is a VERIFY of the ctime of the current file.
func unchangedSince(ctime time.Time) op4 {
	return compareOp(nfs4.OpVerify, nfs4.AttrTimeMetadata, func(e *xdr.Encoder) { nfs4.EncodeTime(e, ctime) })
}

// setAttrOp is a SETATTR of the current file.
func setAttrOp(id state.Stateid, s *blockstore.SetAttr) op4 {
	return op4{nfs4.OpSetAttr, func(e *xdr.Encoder) {
		nfs4.EncodeStateid(e, id)
		encodeSetAttr4(e, s)
	}, func(d *xdr.Decoder) { nfs4.DecodeBitmap(d) }}
}

func (p proc4) lookup(ctx context.Context, dir Handle, name string) (*Node, error) {
	n := &Node{}
	var a attrs4
	if err := p.do(ctx, &compound4{ops: []op4{
		putFH(dir), lookupOp(name), getFH(&n.Handle),
		a.get(ofObject),
	}}); err != nil {
		return nil, as3(err)
	}
	n.Attr = a.attr
	return n, nil
}

// lookupsMax bounds the LOOKUPs of one compound.
const lookupsMax = 16

// resolve looks up an absolute path from the root of the pseudo file system (RFC 8881 section
// 7.3), with several LOOKUPs in a compound. walked is the number of components that were found.
func (p proc4) resolve(ctx context.Context, name string) (n *Node, walked int, err error) {
	x, err := p.ready(ctx)
	if err != nil {
		return nil, 0, err
	}
	parts := strings.FieldsFunc(path.Clean("/"+name), func(r rune) bool { return r == '/' })
	n = &Node{}
	from := op4{num: nfs4.OpPutRootFH}
	for first := true; first || len(parts) > 0; first = false {
		k := min(len(parts), lookupsMax, int(x.fore.MaxOps)-4) // SEQUENCE, PUTFH, GETFH and GETATTR
		var a attrs4
		q := &compound4{ops: []op4{from}}
		for _, part := range parts[:k] {
			q.ops = append(q.ops, lookupOp(part))
		}
		parts = parts[k:]
		q.ops = append(q.ops, getFH(&n.Handle), a.get(ofObject))
		if err := p.do(ctx, q); err != nil {
			return nil, walked + max(q.executed-1, 0), as3(err)
		}
		walked += k
		n.Attr = a.attr
		from = putFH(n.Handle)
	}
	return n, walked, nil
}

// access is ACCESS (section 18.1).
func (p proc4) access(ctx context.Context, h Handle, want uint32) (granted uint32, err error) {
	err = p.do(ctx, &compound4{ops: []op4{
		putFH(h),
		{nfs4.OpAccess, func(e *xdr.Encoder) { e.Uint32(want) }, func(d *xdr.Decoder) {
			d.Uint32() // supported
			granted = d.Uint32()
		}},
	}})
	return granted, err
}

// readLink is READLINK (section 18.24).
func (p proc4) readLink(ctx context.Context, h Handle) (target string, err error) {
	err = p.do(ctx, &compound4{
		resMax: nfs3.PathLimit,
		ops: []op4{putFH(h), {num: nfs4.OpReadLink, res: func(d *xdr.Decoder) {
			target = string(d.Bulk(nfs3.PathLimit))
		}}},
	})
	return target, as3(err)
}

// commit is COMMIT (section 18.3).
func (p proc4) commit(ctx context.Context, h Handle, off uint64, n uint32) (verifier [nfs3.VerifierLen]byte,
	err error,
) {
	err = p.do(ctx, &compound4{ops: []op4{putFH(h), commitOp(off, n, &verifier)}})
	return verifier, err
}

func commitOp(off uint64, n uint32, verifier *[nfs3.VerifierLen]byte) op4 {
	return op4{nfs4.OpCommit, func(e *xdr.Encoder) {
		e.Uint64(off)
		e.Uint32(n)
	}, func(d *xdr.Decoder) { *verifier = nfs3.DecodeVerifier(d) }}
}

// made executes a compound that creates an object and reads its handle and attributes. If only an
// operation after the creation failed, made looks the object up.
func (p proc4) made(ctx context.Context, dir Handle, name string, makes op4, after ...op4) (*Node, error) {
	n := &Node{}
	var a attrs4
	q := &compound4{cache: true, ops: append([]op4{putFH(dir), makes, getFH(&n.Handle), a.get(ofObject)}, after...)}
	err := p.do(ctx, q)
	switch {
	case err == nil:
		n.Attr = a.attr
		return n, nil
	case q.executed >= 2 && errors.As(err, new(nfs.Status)):
		return p.lookup(ctx, dir, name)
	}
	return nil, err
}

// createOp is a CREATE (section 18.4), of anything but a regular file.
func createOp(typ blockstore.FileType, rest func(*xdr.Encoder), name string, s *blockstore.SetAttr) op4 {
	return op4{nfs4.OpCreate, func(e *xdr.Encoder) {
		e.Uint32(uint32(typ))
		rest(e)
		e.String(name)
		encodeSetAttr4(e, s)
	}, func(d *xdr.Decoder) {
		d.Skip(changeInfoBytes)
		nfs4.DecodeBitmap(d)
	}}
}

func (p proc4) mkdir(ctx context.Context, dir Handle, name string, s *blockstore.SetAttr) (*Node, error) {
	n, err := p.made(ctx, dir, name, createOp(blockstore.TypeDir, func(*xdr.Encoder) {}, name, s))
	return n, as3(err)
}

func (p proc4) symlink(ctx context.Context, dir Handle, name, target string, s *blockstore.SetAttr) (*Node, error) {
	n, err := p.made(ctx, dir, name, createOp(blockstore.TypeLnk, func(e *xdr.Encoder) { e.String(target) }, name, s))
	return n, as3(err)
}

func (p proc4) mknod(ctx context.Context, dir Handle, name string, typ blockstore.FileType, major, minor uint32,
	s *blockstore.SetAttr,
) (*Node, error) {
	n, err := p.made(ctx, dir, name, createOp(typ, func(e *xdr.Encoder) {
		if typ == blockstore.TypeBlk || typ == blockstore.TypeChr {
			e.Uint32(major)
			e.Uint32(minor)
		}
	}, name, s))
	return n, as3(err)
}

// removed removes a name by REMOVE (section 18.25), which removes directories and other objects.
// test is a VERIFY or NVERIFY of the type: the object must be a directory, or must be none. A
// compound is not atomic. So another client can replace the object between the test and the REMOVE.
func (p proc4) removed(ctx context.Context, dir Handle, name string, test uint32) error {
	q := &compound4{cache: true, ops: []op4{
		putFH(dir),
		{num: nfs4.OpSaveFH},
		lookupOp(name),
		compareOp(test, nfs4.AttrType, func(e *xdr.Encoder) { e.Uint32(uint32(blockstore.TypeDir)) }),
		{num: nfs4.OpRestoreFH},
		{nfs4.OpRemove, func(e *xdr.Encoder) { e.String(name) }, func(d *xdr.Decoder) { d.Skip(changeInfoBytes) }},
	}}
	err := p.do(ctx, q)
	if err == nfs.ErrNoEnt && q.resent && q.failed == nfs4.OpLookup {
		// The server may have removed the name before the session was lost. If it remembers replies
		// over a restart, it returns the reply of that REMOVE to a second one with the same
		// handles.
		err = p.change(ctx, q.ops[0], q.ops[1], q.ops[5])
	}
	return as3(err)
}

func (p proc4) remove(ctx context.Context, dir Handle, name string) error {
	err := p.removed(ctx, dir, name, nfs4.OpNVerify)
	if err == nfs.ErrSame {
		return nfs.ErrIsDir
	}
	return err
}

func (p proc4) rmdir(ctx context.Context, dir Handle, name string) error {
	err := p.removed(ctx, dir, name, nfs4.OpVerify)
	if err == nfs.ErrNotSame {
		return nfs.ErrNotDir
	}
	return err
}

// rename is RENAME (section 18.26): the saved filehandle is the source directory, the current
// one the target.
func (p proc4) rename(ctx context.Context, from Handle, fromName string, to Handle, toName string) error {
	return as3(p.change(ctx, putFH(from), op4{num: nfs4.OpSaveFH}, putFH(to), renameOp(fromName, toName)))
}

func renameOp(from, to string) op4 {
	return op4{nfs4.OpRename, func(e *xdr.Encoder) {
		e.String(from)
		e.String(to)
	}, func(d *xdr.Decoder) { d.Skip(2 * changeInfoBytes) }}
}

// link is LINK (section 18.9): the saved filehandle is the object, the current one the directory.
func (p proc4) link(ctx context.Context, h, dir Handle, name string) error {
	return as3(p.change(ctx, putFH(h), op4{num: nfs4.OpSaveFH}, putFH(dir),
		op4{nfs4.OpLink, func(e *xdr.Encoder) { e.String(name) }, func(d *xdr.Decoder) { d.Skip(changeInfoBytes) }}))
}

func (p proc4) stat(ctx context.Context, h Handle) (blockstore.Stat, error) {
	a, err := p.attrs(ctx, h, nfs4.BitmapOf(nfs4.AttrFilesAvail, nfs4.AttrFilesFree, nfs4.AttrFilesTotal,
		nfs4.AttrSpaceAvail, nfs4.AttrSpaceFree, nfs4.AttrSpaceTotal))
	return a.stat, err
}

// defaultMax is the largest READ and WRITE of a server that returns no maxread or maxwrite.
const defaultMax = limitsAsked

// info has the limits of FSINFO. READ and WRITE must also fit into the messages of the session.
func (p proc4) info(ctx context.Context, h Handle) (i Info, err error) {
	x, err := p.ready(ctx)
	if err != nil {
		return i, err
	}
	a, err := p.attrs(ctx, h, nfs4.BitmapOf(nfs4.AttrLinkSupport, nfs4.AttrSymlinkSupp, nfs4.AttrCanSetTime,
		nfs4.AttrHomogeneous,
		nfs4.AttrMaxFileSize, nfs4.AttrMaxRead, nfs4.AttrMaxWrite, nfs4.AttrTimeDelta))
	if err != nil {
		return i, err
	}
	i = a.info
	within := func(n, message uint32) uint32 {
		if n == 0 {
			n = defaultMax
		}
		return min(n, message-overhead)
	}
	i.ReadMax, i.WriteMax = within(i.ReadMax, x.fore.MaxResponse), within(i.WriteMax, x.fore.MaxRequest)
	i.ReadPref, i.WritePref, i.ReadMult, i.WriteMult = i.ReadMax, i.WriteMax, 1, 1
	i.DirPref = min(dirReply, x.fore.MaxResponse-overhead)
	return i, nil
}

func (p proc4) pathConf(ctx context.Context, h Handle) (PathConf, error) {
	a, err := p.attrs(ctx, h, nfs4.BitmapOf(nfs4.AttrMaxLink, nfs4.AttrMaxName, nfs4.AttrNoTrunc, nfs4.AttrChownRestr,
		nfs4.AttrCaseInsens, nfs4.AttrCasePreserv))
	return a.conf, err
}
