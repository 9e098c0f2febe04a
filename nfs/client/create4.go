package client

import (
	"context"
	"fmt"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// create is an OPEN that creates a file, and a CLOSE with the current stateid (section
// 16.2.3.1.2).
func (p proc4) create(ctx context.Context, dir Handle, name string, mode blockstore.CreateMode, s *blockstore.SetAttr,
	verifier [nfs3.VerifierLen]byte,
) (*Node, error) {
	var res opened4
	n, err := p.made(ctx, dir, name, p.openNewOp(name, mode, s, &verifier, &res), closeOp(state.Current))
	if err == nil && res.given {
		p.opens.returnUnused(ctx, n.Handle, res.deleg)
	}
	return n, createError(err)
}

// createError maps the status of an OPEN that creates a file to a status of version 3.
func createError(err error) error {
	switch err {
	case nfs.ErrSymlink, nfs.ErrWrongType, nfs.ErrIsDir:
		return nfs.ErrExist
	}
	return err
}

// openNewOp is an OPEN for writing that creates a file. Each has an open-owner of its own, so that
// concurrent creates do not share an open. verifier is for mode Exclusive.
func (p proc4) openNewOp(name string, mode blockstore.CreateMode, s *blockstore.SetAttr,
	verifier *[nfs3.VerifierLen]byte, res *opened4,
) op4 {
	owner := fmt.Sprintf("make %d", p.creates.Add(1))
	return createFileOp(owner, ShareWrite|nfs4.WantNoDeleg, name, mode, s, verifier, res)
}

// createFileOp is an OPEN that creates a file by its name (RFC 8881 section 18.16). access also has
// the delegation that the client wants. verifier is for mode Exclusive.
func createFileOp(owner string, access uint32, name string, mode blockstore.CreateMode, s *blockstore.SetAttr,
	verifier *[nfs3.VerifierLen]byte, res *opened4,
) op4 {
	return op4{nfs4.OpOpen, func(e *xdr.Encoder) {
		e.Uint32(0) // seqid
		e.Uint32(access)
		e.Uint32(0)
		e.Uint64(0) // client ID
		e.String(owner)
		e.Uint32(nfs4.OpenCreate)
		switch mode {
		case blockstore.Exclusive:
			e.Uint32(nfs4.CreateExclusive41)
			e.Fixed(verifier[:])
			encodeSetAttr4(e, nil)
		case blockstore.Guarded:
			e.Uint32(nfs4.CreateGuarded)
			encodeSetAttr4(e, s)
		default:
			e.Uint32(nfs4.CreateUnchecked)
			encodeSetAttr4(e, s)
		}
		e.Uint32(nfs4.ClaimNull)
		e.String(name)
	}, res.decode}
}
