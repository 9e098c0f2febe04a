package client

import (
	"context"
	"errors"
	"strconv"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ACLs are the POSIX ACLs of an object.
type ACLs struct {
	// Access is never nil: an object without an ACL has that of its mode (blockstore.ACL.Minimal).
	Access blockstore.ACL
	// Default is of a directory; nil: there is none.
	Default blockstore.ACL
}

// aclBytes bounds an ACL of version 4 on the wire, in bytes.
const aclBytes = 64 << 10

// GetACL reads the ACLs of an object. Version 3 uses NFSACL. Version 4 uses the attribute acl,
// which package nfs/acl maps to POSIX ACLs. The error is nfs.ErrNotSupp if the server has no ACLs,
// or if POSIX ACLs cannot express the object's ACL.
func (c *Client) GetACL(ctx context.Context, h Handle) (ACLs, error) {
	return using(ctx, c, func(p procs) (ACLs, error) { return p.getACL(ctx, h) })
}

// SetACL replaces all ACLs of an object. dir says that the object is a directory. The mode follows
// the access ACL. The error is nfs.ErrNotSupp if the server has no ACLs.
func (c *Client) SetACL(ctx context.Context, h Handle, dir bool, l ACLs) error {
	return c.with(ctx, func(p procs) error { return p.setACL(ctx, h, dir, l) })
}

// getACL is GETACL of NFSACL (nfs3.ACLProgram).
func (c proc3) getACL(ctx context.Context, h Handle) (l ACLs, err error) {
	const want = nfs3.MaskACL | nfs3.MaskDefault
	err = c.do(ctx, &request{
		prog: nfs3.ACLProgram, proc: nfs3.ProcGetACL, resMax: nfs3.ACLResMax,
		args: func(e *xdr.Encoder) {
			nfs3.EncodeHandle(e, h)
			e.Uint32(want)
		},
		ok: func(d *xdr.Decoder) {
			nfs3.SkipPostOp(d)
			d.Uint32() // the mask
			l = ACLs{nfs3.DecodeACL(d).POSIX(), nfs3.DecodeACL(d).POSIX()}
		},
	})
	if err == nil && l.Access.Check() != nil {
		err = errResults
	}
	return l, noACLProgram(err)
}

// setACL is SETACL of NFSACL.
func (c proc3) setACL(ctx context.Context, h Handle, dir bool, l ACLs) error {
	a, err := c.getAttr(ctx, h) // for the numbers of the owner and the group on the wire
	if err != nil {
		return err
	}
	mask := uint32(nfs3.MaskACL)
	if dir {
		mask |= nfs3.MaskDefault
	}
	err = c.do(ctx, &request{
		prog: nfs3.ACLProgram, proc: nfs3.ProcSetACL,
		args: func(e *xdr.Encoder) {
			nfs3.EncodeHandle(e, h)
			e.Uint32(mask)
			nfs3.EncodeACL(e, nfs3.ACLToWire(l.Access, a.UID, a.GID, true), false)
			nfs3.EncodeACL(e, nfs3.ACLToWire(l.Default, a.UID, a.GID, true), true)
		},
	})
	return noACLProgram(err)
}

// noACLProgram returns nfs.ErrNotSupp for the error of a server that does not have NFSACL.
func noACLProgram(err error) error {
	if errors.As(err, new(*rpc.AcceptError)) {
		return nfs.ErrNotSupp
	}
	return err
}

var ofACL = nfs4.BitmapOf(nfs4.AttrType, nfs4.AttrACL)

// getACL is GETATTR of the attribute acl (RFC 8881 section 6.2.1).
func (p proc4) getACL(ctx context.Context, h Handle) (l ACLs, err error) {
	var a attrs4
	err = p.do(ctx, &compound4{resMax: aclBytes, ops: []op4{putFH(h), a.get(ofACL)}})
	switch {
	case err != nil:
		return l, as3(err)
	case !a.has.Has(nfs4.AttrACL) || a.aclErr != nil:
		return l, nfs.ErrNotSupp
	}
	if l.Access, l.Default, err = acl.ToPOSIX(a.aces, a.attr.Type == blockstore.TypeDir); err != nil {
		return l, nfs.ErrNotSupp
	}
	return l, nil
}

// setACL is SETATTR of the attribute acl.
func (p proc4) setACL(ctx context.Context, h Handle, dir bool, l ACLs) error {
	var v xdr.Encoder
	acl.Encode(&v, acl.FromPOSIX(l.Access, l.Default, dir), func(b []byte, id uint32, _ bool) []byte {
		return strconv.AppendUint(b, uint64(id), 10)
	})
	set := nfs4.BitmapOf(nfs4.AttrACL)
	defer p.opens.forbid(h)
	err := p.change(ctx, putFH(h), op4{nfs4.OpSetAttr, func(e *xdr.Encoder) {
		nfs4.EncodeStateid(e, state.Anonymous)
		set.Encode(e)
		e.Opaque(v.B)
	}, func(d *xdr.Decoder) { nfs4.DecodeBitmap(d) }})
	var st nfs.Status
	if errors.As(err, &st) && st == nfs.ErrAttrNotSupp {
		return nfs.ErrNotSupp
	}
	return as3(err)
}

// aclID returns the user or group of a name in an ACL. ok is false for a name that this host cannot
// resolve. aclID does not return nobody for such a name: a program that reads the ACL and writes it
// back would then change the entry.
func aclID(who []byte, group bool) (uint32, bool) {
	if id, ok := nfs4.DecodeID(who); ok {
		return id, true
	}
	names := &ids.users
	if group {
		names = &ids.groups
	}
	id := names.id(who)
	return id, id != nobody
}
