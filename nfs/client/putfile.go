package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// NewFile is a file that PutFile makes.
type NewFile struct {
	Name string // its final name; an existing file with this name is replaced
	Part string // its name until it is complete; no other file may have it
	Data []byte // all of it
	// Owner, if not nil, is set before Attr, because a change of owner clears set-ID bits. Attr is
	// set last. Neither may change the size.
	Owner, Attr *blockstore.SetAttr
}

// PutFile makes a complete file in one round trip: it creates the file as f.Part, writes the data,
// sets the attributes, makes all of that stable, and renames the file to f.Name. Others see
// either the old file of that name or the complete new one.
//
// PutFile needs version 4, data that fits into one WRITE, and a session with enough operations.
// Otherwise it makes no call, and its error matches errors.ErrUnsupported. After any other error
// there may be a file with the name f.Part.
func (c *Client) PutFile(ctx context.Context, dir Handle, f *NewFile) (Handle, error) {
	p, err := c.procs(ctx)
	if err != nil {
		return nil, err
	}
	four, ok := p.(proc4)
	if !ok {
		return nil, fmt.Errorf("several operations in one call in version 3: %w", errors.ErrUnsupported)
	}
	l, err := c.limit(ctx, dir, len(f.Data))
	if err != nil {
		return nil, err
	}
	if len(f.Data) > l.write {
		return nil, fmt.Errorf("%d bytes in one WRITE: %w", len(f.Data), errors.ErrUnsupported)
	}
	return four.putFile(ctx, dir, f)
}

// putFile is PutFile (RFC 8881 sections 18.16, 18.32, 18.30, 18.3 and 18.26):
//
//	SEQUENCE  PUTFH dir  SAVEFH  OPEN create Part  GETFH  WRITE  SETATTR  COMMIT
//	VERIFY size  CLOSE  RESTOREFH  RENAME Part, Name
//
// A server ends the compound at the first operation that fails. The VERIFY fails after a WRITE of
// less than all data, so RENAME never puts an incomplete file in place. SETATTR comes before
// COMMIT: on many servers it makes all data of the file stable, and COMMIT then has nothing left to
// do.
func (p proc4) putFile(ctx context.Context, dir Handle, f *NewFile) (h Handle, err error) {
	var opened opened4
	var w Written
	var committed [nfs3.VerifierLen]byte
	ops := []op4{
		putFH(dir),
		{num: nfs4.OpSaveFH},
		p.openNewOp(f.Part, blockstore.Guarded, &blockstore.SetAttr{Mode: new(uint32(partMode))}, nil, &opened), getFH(&h),
	}
	if len(f.Data) > 0 {
		ops = append(ops, op4{nfs4.OpWrite, func(e *xdr.Encoder) {
			nfs4.EncodeStateid(e, state.Current)
			e.Uint64(0)
			e.Uint32(uint32(blockstore.Unstable))
			e.Bulk(f.Data)
		}, func(d *xdr.Decoder) { w.decode4(d) }})
	}
	for _, s := range []*blockstore.SetAttr{f.Owner, f.Attr} {
		if s != nil {
			ops = append(ops, setAttrOp(state.Anonymous, s))
		}
	}
	if len(f.Data) > 0 {
		ops = append(ops, commitOp(0, 0, &committed), compareOp(nfs4.OpVerify, nfs4.AttrSize,
			func(e *xdr.Encoder) { e.Uint64(uint64(len(f.Data))) }))
	}
	ops = append(ops, closeOp(state.Current), op4{num: nfs4.OpRestoreFH}, renameOp(f.Part, f.Name))
	x, err := p.ready(ctx)
	if err != nil {
		return nil, err
	}
	if len(ops)+1 > int(x.fore.MaxOps) {
		return nil, fmt.Errorf("%d operations in one call: %w", len(ops)+1, errors.ErrUnsupported)
	}
	if err := p.change(ctx, ops...); err != nil {
		if h != nil {
			// The compound may have ended behind the OPEN. A file that stays open keeps its space
			// when its name is removed, so this CLOSE is needed. If the compound has closed the
			// file, the server refuses this CLOSE.
			_ = p.opens.close(ctx, h, opened.id)
		}
		return nil, as3(err)
	}
	if opened.given {
		p.opens.returnDelegation(ctx, h, opened.deleg)
	}
	if len(f.Data) > 0 && w.Committed != blockstore.FileSync && w.Verifier != committed {
		return nil, errors.New("the server has lost the data before it was stable")
	}
	return h, nil
}

// partMode is the mode of an incomplete file.
const partMode = 0o600
