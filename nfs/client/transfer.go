package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

func rpcNull() *rpc.Request {
	return &rpc.Request{Prog: nfs3.Program, Vers: nfs3.Version, Proc: nfs3.ProcNull}
}

// piece is one part of a transfer, of at most TransferMax bytes. verifier and stable are of its
// WRITE.
type piece struct {
	off      uint64
	n        int
	verifier [nfs3.VerifierLen]byte
	stable   bool
}

// buffers are the memory of transfers in flight.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, TransferMax)
	return &b
}}

// pieces cuts [off, off+size) at multiples of TransferMax.
func pieces(off, size uint64) (list []*piece) {
	for end := off + size; off < end; {
		n := min(end-off, TransferMax-off%TransferMax)
		list = append(list, &piece{off: off, n: int(n)})
		off += n
	}
	return list
}

// each runs f for the pieces, Depth at a time. The first error ends it: each starts f no more, and
// ends the context of the calls in flight.
func (c *Client) each(ctx context.Context, list []*piece, f func(context.Context, *piece, []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(c.cfg.Depth, len(list)) {
		wg.Go(func() {
			buf := buffers.Get().(*[]byte)
			defer buffers.Put(buf)
			for i := int(next.Add(1)) - 1; i < len(list) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, list[i], (*buf)[:list[i].n]); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// acquireFor opens a file at the server for a transfer of n pieces. A single piece needs no open:
// the server checks the permission of each READ and WRITE.
func (c *Client) acquireFor(ctx context.Context, h Handle, access uint32, n int) (release func() error, err error) {
	if n < 2 {
		return func() error { return nil }, nil
	}
	return c.acquire(ctx, h, access, 0)
}

// Upload writes size bytes of src, from off on, to the same place in a file, and makes them stable.
// If a restart of the server has lost unstable writes, Upload reads that part of src again.
// progress, if not nil, gets the number of bytes that the server has acknowledged, and a negative
// number for bytes that are lost.
func (c *Client) Upload(ctx context.Context, h Handle, src io.ReaderAt, off, size uint64,
	progress func(int),
) (err error) {
	todo := pieces(off, size)
	how := blockstore.Unstable
	if len(todo) == 1 {
		how = blockstore.FileSync // one call instead of two
	}
	release, err := c.acquireFor(ctx, h, ShareWrite, len(todo))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	for len(todo) > 0 {
		err := c.each(ctx, todo, func(ctx context.Context, p *piece, buf []byte) error {
			if n, err := src.ReadAt(buf, int64(p.off)); n < len(buf) {
				if err == nil || err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return err
			}
			first := true
			for at := 0; at < len(buf); {
				w, err := c.Write(ctx, h, buf[at:], p.off+uint64(at), how)
				if err != nil {
					return err
				}
				if !first && w.Verifier != p.verifier {
					at, first = 0, true // the server has restarted, and lost the beginning of the piece
					continue
				}
				p.verifier, p.stable, first = w.Verifier, w.Committed == blockstore.FileSync, false
				at += w.N
			}
			if progress != nil {
				progress(p.n)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(todo, func(p *piece) bool { return !p.stable }) {
			return nil
		}
		verifier, err := c.Commit(ctx, h, 0, 0)
		if err != nil {
			return err
		}
		lost := todo[:0]
		for _, p := range todo {
			if !p.stable && p.verifier != verifier {
				lost = append(lost, p)
				if progress != nil {
					progress(-p.n)
				}
			}
		}
		todo = lost
	}
	return nil
}

// Download reads [off, off+size) of a file into dst at the same place. If the file is shorter,
// the error is io.ErrUnexpectedEOF.
func (c *Client) Download(ctx context.Context, h Handle, dst io.WriterAt, off, size uint64,
	progress func(int),
) (err error) {
	list := pieces(off, size)
	release, err := c.acquireFor(ctx, h, ShareRead, len(list))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	return c.each(ctx, list, func(ctx context.Context, p *piece, buf []byte) error {
		for at := 0; at < len(buf); {
			n, eof, err := c.Read(ctx, h, buf[at:], p.off+uint64(at))
			if err != nil {
				return err
			}
			at += n
			if at < len(buf) && (eof || n == 0) {
				return io.ErrUnexpectedEOF
			}
		}
		if _, err := dst.WriteAt(buf, int64(p.off)); err != nil {
			return err
		}
		if progress != nil {
			progress(p.n)
		}
		return nil
	})
}
