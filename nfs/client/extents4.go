package client

import (
	"context"
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Seek returns where the next data of a file begins from off on, or with hole the next hole (SEEK,
// RFC 7862 section 15.11). The error is nfs.ErrNXIO if off is at or behind the end of the file, or
// if no data follows. It is nfs.ErrNotSupp if the server has no SEEK.
func (c *Client) Seek(ctx context.Context, h Handle, off uint64, hole bool) (uint64, error) {
	p, err := c.must42(ctx)
	if err != nil {
		return 0, err
	}
	what := uint32(seekData)
	if hole {
		what = seekHole
	}
	at, ok, err := p.seek(ctx, h, off, what)
	switch {
	case absent(err):
		return 0, nfs.ErrNotSupp
	case err != nil:
		return 0, err
	case !ok:
		return 0, nfs.ErrNXIO
	case at < off && !hole:
		return 0, errResults
	}
	return max(at, off), nil
}

// must42 returns the procedures, or nfs.ErrNotSupp if the version lacks the operations of 4.2.
func (c *Client) must42(ctx context.Context) (proc4, error) {
	p, ok, err := c.four2(ctx)
	if err == nil && !ok {
		err = nfs.ErrNotSupp
	}
	return p, err
}

// Allocate reserves space for n bytes of a file from off on. If the file ends before them, it
// becomes longer (ALLOCATE, RFC 7862 section 15.1). The change is stable. The error is
// nfs.ErrNotSupp if the server has no ALLOCATE.
func (c *Client) Allocate(ctx context.Context, h Handle, off, n uint64) error {
	return c.reserve(ctx, h, nfs4.OpAllocate, off, n)
}

// Deallocate turns n bytes of a file from off on into a hole (DEALLOCATE, RFC 7862 section 15.4).
// The size stays. The change is stable. The error is nfs.ErrNotSupp if the server has no
// DEALLOCATE.
func (c *Client) Deallocate(ctx context.Context, h Handle, off, n uint64) error {
	return c.reserve(ctx, h, nfs4.OpDeallocate, off, n)
}

func (c *Client) reserve(ctx context.Context, h Handle, op uint32, off, n uint64) error {
	p, err := c.must42(ctx)
	if err != nil {
		return err
	}
	err = p.withState(ctx, h, ShareWrite, func(id state.Stateid) *compound4 {
		return &compound4{ops: []op4{putFH(h), {num: op, args: func(e *xdr.Encoder) {
			nfs4.EncodeStateid(e, id)
			e.Uint64(off)
			e.Uint64(n)
		}}}}
	})
	if absent(err) {
		return nfs.ErrNotSupp
	}
	return err
}

// Range is a part of a file.
type Range struct {
	Handle Handle
	Off    uint64
}

// CopyRange makes the server copy up to n bytes, and returns how many it copied (COPY, RFC 7862
// section 15.2). The copied bytes are stable. The server copies fewer bytes, or none, where the
// source ends. Both files must be open (OpenHandle). The error is nfs.ErrNotSupp if the server has
// no COPY, or does not copy between these files.
func (c *Client) CopyRange(ctx context.Context, from, to Range, n uint64) (copied uint64, err error) {
	p, err := c.must42(ctx)
	if err != nil {
		return 0, err
	}
	for range restores {
		w, err := p.copy(ctx, from, to, n)
		switch {
		case errors.Is(err, nfs.ErrInval):
			// RFC 7862 lets a server refuse a range beyond the end of the source.
			a, aerr := p.getAttr(ctx, from.Handle)
			switch {
			case aerr != nil || n == 0:
				return 0, err
			case from.Off >= a.Size:
				return 0, nil
			case n <= a.Size-from.Off:
				return 0, err
			}
			n = a.Size - from.Off
			continue
		case err != nil:
			return 0, err
		case w.n > n || w.committed > blockstore.FileSync:
			return 0, errResults
		case w.committed == blockstore.FileSync || w.n == 0:
			return w.n, nil
		}
		var now [nfs3.VerifierLen]byte
		if now, err = p.commit(ctx, to.Handle, 0, 0); err != nil {
			return 0, err
		}
		if now == w.verifier {
			return w.n, nil
		}
		// The server has restarted and may have lost what it copied: copy again.
	}
	return 0, errRestarts
}

// errRestarts ends a copy that the server loses again and again.
var errRestarts = errors.New("the server restarts again and again")
