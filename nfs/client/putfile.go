package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	made, err := c.PutFiles(ctx, dir, []NewFile{*f})
	if err != nil {
		return nil, err
	}
	return made[0], nil
}

// PutFiles is PutFile of several small files in one directory, with as many in one round trip as
// the session allows. It makes them in order, and returns the handles of those that are complete.
// After an error there may be files with the other names Part.
func (c *Client) PutFiles(ctx context.Context, dir Handle, files []NewFile) (made []Handle, err error) {
	p, err := c.procs(ctx)
	if err != nil {
		return nil, err
	}
	four, ok := p.(proc4)
	if !ok {
		return nil, fmt.Errorf("several operations in one call in version 3: %w", errors.ErrUnsupported)
	}
	most := 0
	for i := range files {
		most = max(most, len(files[i].Data))
	}
	l, err := c.limit(ctx, dir, most)
	if err != nil {
		return nil, err
	}
	if most > l.write {
		return nil, fmt.Errorf("%d bytes in one WRITE: %w", most, errors.ErrUnsupported)
	}
	for len(made) < len(files) {
		some, err := four.putFiles(ctx, dir, files[len(made):])
		made = append(made, some...)
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

// putting is a NewFile while putFiles makes it.
type putting struct {
	f         *NewFile
	h         Handle
	opened    opened4
	w         Written
	committed [nfs3.VerifierLen]byte
	end       int // operations of the compound up to its RENAME
}

// putReply is more than the results of one file, and putReplyHead more than what is in front of
// them in the reply, in bytes.
const (
	putReply     = 300
	putReplyHead = 256
)

// together is how many of the files one compound makes: at least one.
func (x *live) together(files []NewFile) (n int) {
	ops := int(x.fore.MaxOps) - 3 // SEQUENCE, PUTFH, SAVEFH
	reply := int(x.fore.MaxCached) - putReplyHead
	call := int(x.fore.MaxRequest) - overhead
	for i := range files {
		f := &files[i]
		ops -= f.ops()
		reply -= putReply
		call -= xdr.Padded(len(f.Data)) + len(f.Name) + 2*len(f.Part) + overhead
		if min(ops, reply, call) < 0 {
			break
		}
		n++
	}
	return max(n, 1)
}

// ops is the number of operations that make the file.
func (f *NewFile) ops() int {
	n := 5 // OPEN, GETFH, CLOSE, RESTOREFH, RENAME
	if len(f.Data) > 0 {
		n += 3 // WRITE, COMMIT, VERIFY
	}
	for _, s := range []*blockstore.SetAttr{f.Owner, f.Attr} {
		if s != nil {
			n++
		}
	}
	return n
}

// putFiles is PutFile of the first of the files, as many as fit into one compound (RFC 8881
// sections 18.16, 18.32, 18.30, 18.3 and 18.26):
//
//	SEQUENCE  PUTFH dir  SAVEFH
//	for each file:  OPEN create Part  GETFH  WRITE  SETATTR  COMMIT  VERIFY size  CLOSE
//	                RESTOREFH  RENAME Part, Name
//
// A server ends the compound at the first operation that fails. The VERIFY fails after a WRITE of
// less than all data, so RENAME never puts an incomplete file in place. SETATTR comes before
// COMMIT: on many servers it makes all data of the file stable, and COMMIT then has nothing left to
// do. Behind the RENAME the directory is the current filehandle again.
//
// The data of several files is a part of the call, and not bulk data, which would need an RDMA READ
// for each file.
func (p proc4) putFiles(ctx context.Context, dir Handle, files []NewFile) (made []Handle, err error) {
	x, err := p.ready(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]putting, x.together(files))
	ops := []op4{putFH(dir), {num: nfs4.OpSaveFH}}
	for i := range list {
		list[i].f = &files[i]
		ops = p.appendPut(ops, &list[i], len(list) == 1)
	}
	if len(ops)+1 > int(x.fore.MaxOps) {
		return nil, fmt.Errorf("%d operations in one call: %w", len(ops)+1, errors.ErrUnsupported)
	}
	q := &compound4{cache: true, ops: ops}
	err = p.do(ctx, q)
	done := slices.IndexFunc(list, func(u putting) bool { return u.end > q.executed })
	if err == nil {
		done = len(list)
	}
	for i := range list {
		u := &list[i]
		switch {
		case i >= done && u.h != nil:
			// The compound may have ended behind the OPEN. A file that stays open keeps its space
			// when its name is removed, so this CLOSE is needed. If the compound has closed the
			// file, the server refuses this CLOSE.
			_ = p.opens.close(ctx, u.h, u.opened.id)
		case i < done && u.opened.given:
			p.opens.returnUnused(ctx, u.h, u.opened.deleg)
		}
	}
	for i := range list[:max(done, 0)] {
		u := &list[i]
		if len(u.f.Data) > 0 && u.w.Committed != blockstore.FileSync && u.w.Verifier != u.committed {
			return made, errors.New("the server has lost the data before it was stable")
		}
		made = append(made, u.h)
	}
	return made, as3(err)
}

// appendPut appends the operations that make one file. bulk says that its data is bulk data of the
// call.
func (p proc4) appendPut(ops []op4, u *putting, bulk bool) []op4 {
	f := u.f
	ops = append(ops, p.openNewOp(f.Part, blockstore.Guarded, &blockstore.SetAttr{Mode: new(uint32(partMode))}, nil,
		&u.opened), getFH(&u.h))
	if len(f.Data) > 0 {
		ops = append(ops, op4{nfs4.OpWrite, func(e *xdr.Encoder) {
			nfs4.EncodeStateid(e, state.Current)
			e.Uint64(0)
			e.Uint32(uint32(blockstore.Unstable))
			if bulk {
				e.Bulk(f.Data)
			} else {
				e.Opaque(f.Data)
			}
		}, u.w.decode4})
	}
	for _, s := range []*blockstore.SetAttr{f.Owner, f.Attr} {
		if s != nil {
			ops = append(ops, setAttrOp(state.Anonymous, s))
		}
	}
	if len(f.Data) > 0 {
		ops = append(ops, commitOp(0, 0, &u.committed), compareOp(nfs4.OpVerify, nfs4.AttrSize,
			func(e *xdr.Encoder) { e.Uint64(uint64(len(f.Data))) }))
	}
	ops = append(ops, closeOp(state.Current), op4{num: nfs4.OpRestoreFH}, renameOp(f.Part, f.Name))
	u.end = len(ops)
	return ops
}

// partMode is the mode of an incomplete file.
const partMode = 0o600
