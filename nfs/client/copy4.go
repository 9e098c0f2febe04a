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

// Extent is a run of bytes of a file.
type Extent struct{ Off, Size uint64 }

// Words of SEEK (RFC 7862 section 15.11).
const (
	seekData = 0
	seekHole = 1
)

// absent reports whether an operation of version 4.2 failed because the server does not support
// it, for this file or at all. Every operation of 4.2 is optional.
func absent(err error) bool {
	var st nfs.Status
	if !errors.As(err, &st) {
		return false
	}
	switch st {
	case nfs.ErrNotSupp, nfs.ErrOpIllegal, nfs.ErrUnionNotSupp:
		return true
	}
	return false
}

// four2 returns the procedures if the version has the operations of 4.2.
func (c *Client) four2(ctx context.Context) (p proc4, ok bool, err error) {
	v, err := c.procs(ctx)
	if err != nil {
		return p, false, err
	}
	p, ok = v.(proc4)
	return p, ok && p.minor >= 2, nil
}

// seek is SEEK (RFC 7862 section 15.11). It returns where the next data, or the next hole,
// begins from off on. ok is false if there is none.
func (p proc4) seek(ctx context.Context, h Handle, off uint64, what uint32) (at uint64, ok bool, err error) {
	var eof bool
	err = p.withState(ctx, h, ShareRead, func(id state.Stateid) *compound4 {
		return &compound4{ops: []op4{putFH(h), {nfs4.OpSeek, func(e *xdr.Encoder) {
			nfs4.EncodeStateid(e, id)
			e.Uint64(off)
			e.Uint32(what)
		}, func(d *xdr.Decoder) {
			eof = d.Bool()
			at = d.Uint64()
		}}}}
	})
	if errors.Is(err, nfs.ErrNXIO) {
		return 0, false, nil
	}
	// With sr_eof the hole is the one behind the end of the file, and there is no further data.
	return at, err == nil && (what == seekHole || !eof), err
}

// Extents returns the runs of data in the first size bytes of a file, in order. Holes are
// between them. It is nfs.ErrNotSupp if the server has no SEEK.
func (c *Client) Extents(ctx context.Context, h Handle, size uint64) (list []Extent, err error) {
	p, ok, err := c.four2(ctx)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, nfs.ErrNotSupp
	}
	release, err := c.acquire(ctx, h, ShareRead, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	for off := uint64(0); off < size; {
		data, ok, err := p.seek(ctx, h, off, seekData)
		switch {
		case absent(err):
			return nil, nfs.ErrNotSupp
		case err != nil:
			return nil, err
		case !ok || data >= size:
			return list, nil
		case data < off:
			return nil, errResults
		}
		hole, ok, err := p.seek(ctx, h, data, seekHole)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			hole = size
		case hole <= data:
			return nil, errResults
		}
		hole = min(hole, size)
		list = append(list, Extent{data, hole - data})
		off = hole
	}
	return list, nil
}

// Copy makes the server copy size bytes from off on of one file to the same place in another,
// and makes them stable (COPY, RFC 7862 section 15.2). It is nfs.ErrNotSupp if the server has no
// COPY; a part may be copied then. progress, if not nil, gets the number of bytes that were
// copied.
func (c *Client) Copy(ctx context.Context, from, to Handle, off, size uint64, progress func(int)) (err error) {
	p, ok, err := c.four2(ctx)
	if err != nil {
		return err
	}
	if !ok {
		return nfs.ErrNotSupp
	}
	for _, f := range []struct {
		h      Handle
		access uint32
	}{{from, ShareRead}, {to, ShareWrite}} {
		release, err := c.acquire(ctx, f.h, f.access, 0)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	for attempt := 0; ; attempt++ {
		stable, verifier, err := p.copyAll(ctx, from, to, Extent{off, size}, progress)
		if err != nil || stable {
			return err
		}
		now, err := p.commit(ctx, to, 0, 0)
		if err != nil || now == verifier {
			return err
		}
		if attempt == restores {
			return errRestarts
		}
		if progress != nil {
			progress(-int(size))
		}
	}
}

// copyAll copies an extent. verifier is zero if the server has restarted in between.
func (p proc4) copyAll(ctx context.Context, from, to Handle, x Extent, progress func(int)) (
	stable bool, verifier [nfs3.VerifierLen]byte, err error,
) {
	stable = true
	for first := true; x.Size > 0; first = false {
		w, err := p.copy(ctx, Range{from, x.Off}, Range{to, x.Off}, x.Size)
		if err != nil {
			return false, verifier, err
		}
		switch {
		case w.n == 0 || w.n > x.Size || w.committed > blockstore.FileSync:
			return false, verifier, errResults
		case first:
			verifier = w.verifier
		case verifier != w.verifier:
			verifier = [nfs3.VerifierLen]byte{}
		}
		stable = stable && w.committed == blockstore.FileSync
		x.Off, x.Size = x.Off+w.n, x.Size-w.n
		if progress != nil {
			progress(int(w.n))
		}
	}
	return stable, verifier, nil
}

// copied is a write_response4.
type copied struct {
	n         uint64
	committed blockstore.Stability
	verifier  [nfs3.VerifierLen]byte
	async     bool
}

func (w *copied) decode(d *xdr.Decoder) {
	switch d.Uint32() {
	case 0:
	case 1:
		w.async = true
		nfs4.DecodeStateid(d)
	default:
		d.Fail(errResults)
	}
	w.n = d.Uint64()
	w.committed = blockstore.Stability(d.Uint32())
	w.verifier = nfs3.DecodeVerifier(d)
	d.Bool() // consecutive
	d.Bool() // synchronous
}

// copy is a synchronous COPY: the client has no backchannel for the CB_OFFLOAD of an
// asynchronous one. The server can copy less than it was asked for.
func (p proc4) copy(ctx context.Context, from, to Range, n uint64) (w copied, err error) {
	for range restores {
		p.opens.mu.Lock()
		source, f := p.opens.openState(from.Handle, ShareRead)
		target, t := p.opens.openState(to.Handle, ShareWrite)
		p.opens.mu.Unlock()
		w = copied{}
		// Not cached: a second execution copies the same bytes to the same place.
		err = p.do(ctx, &compound4{ops: []op4{
			putFH(from.Handle),
			{num: nfs4.OpSaveFH},
			putFH(to.Handle),
			{nfs4.OpCopy, func(e *xdr.Encoder) {
				nfs4.EncodeStateid(e, source)
				nfs4.EncodeStateid(e, target)
				e.Uint64(from.Off)
				e.Uint64(to.Off)
				e.Uint64(n)
				e.Bool(true) // consecutive
				e.Bool(true) // synchronous
				e.Uint32(0)  // no other server
			}, w.decode},
		}})
		switch {
		case lostState(err):
			if f != nil {
				if err := p.opens.restore(ctx, f, source); err != nil {
					return w, err
				}
			}
			if t != nil {
				if err := p.opens.restore(ctx, t, target); err != nil {
					return w, err
				}
			}
			continue
		case absent(err), errors.Is(err, nfs.ErrOffloadNoReqs), errors.Is(err, nfs.ErrXDev):
			return w, nfs.ErrNotSupp
		case err == nil && w.async:
			return w, errResults
		}
		return w, as3(err)
	}
	return w, err
}
