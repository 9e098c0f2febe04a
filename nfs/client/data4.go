package client

import (
	"context"
	"sync"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The compounds of READ and WRITE are pooled, as the requests of version 3 are.

// read4 is the compound of one READ (RFC 8881 section 18.22). with makes the compound anew for
// each stateid.
type read4 struct {
	compound4
	both [2]op4 // PUTFH and READ
	with func(state.Stateid) *compound4
	h    Handle
	p    []byte
	off  uint64
	id   state.Stateid
	n    int
	eof  bool
}

var reads4 = sync.Pool{New: func() any {
	q := &read4{}
	q.both = [2]op4{{num: nfs4.OpPutFH, args: func(e *xdr.Encoder) { e.Opaque(q.h) }}, {nfs4.OpRead, q.encode, q.decode}}
	q.with = func(id state.Stateid) *compound4 {
		q.id, q.compound4 = id, compound4{dst: q.p, ops: q.both[:]}
		return &q.compound4
	}
	return q
}}

func (q *read4) encode(e *xdr.Encoder) {
	nfs4.EncodeStateid(e, q.id)
	e.Uint64(q.off)
	e.Uint32(uint32(len(q.p)))
}

func (q *read4) decode(d *xdr.Decoder) {
	q.eof = d.Bool()
	b := d.Bulk(len(q.p))
	q.n = len(b)
	if q.n > 0 && &b[0] != &q.p[0] {
		copy(q.p, b) // the transport returned a short result inline
	}
}

func (p proc4) read(ctx context.Context, h Handle, b []byte, off uint64) (n int, eof bool, err error) {
	q := reads4.Get().(*read4)
	q.h, q.p, q.off = h, b, off
	if err = p.withState(ctx, h, ShareRead, q.with); err == nil {
		n, eof = q.n, q.eof
	}
	*q = read4{both: q.both, with: q.with}
	reads4.Put(q)
	return n, eof, err
}

// ReadStateid is Read with a stateid of the caller, which is not one of this client: the copy
// stateid of a COPY_NOTIFY, by which a server reads from another one (RFC 7862 section 15.3). The
// version must be 4.2, else the error is nfs.ErrNotSupp. A stateid that the server does not know is
// an error (nfs.ErrBadStateID); nothing is opened again.
func (c *Client) ReadStateid(ctx context.Context, id state.Stateid, h Handle, p []byte, off uint64) (
	n int, eof bool, err error,
) {
	v, err := c.must42(ctx)
	if err != nil {
		return 0, false, err
	}
	l, err := c.limit(ctx, h, len(p))
	if err != nil {
		return 0, false, err
	}
	q := reads4.Get().(*read4)
	q.h, q.p, q.off = h, p[:min(len(p), l.read)], off
	if err = v.do(ctx, q.with(id)); err == nil {
		n, eof = q.n, q.eof
	}
	*q = read4{both: q.both, with: q.with}
	reads4.Put(q)
	return n, eof, as3(err)
}

type unchangedKey struct{}

// Unchanged returns a context for a WRITE that needs version 4. The server executes the WRITE only
// if the file has this ctime. Otherwise the error is nfs.ErrNotSync. A compound is not atomic, so
// another client can still change the file between the test and the WRITE.
func Unchanged(ctx context.Context, ctime time.Time) context.Context {
	return context.WithValue(ctx, unchangedKey{}, &ctime)
}

// write4 is the compound of one WRITE (RFC 8881 section 18.32).
type write4 struct {
	compound4
	both [2]op4 // PUTFH and WRITE
	with func(state.Stateid) *compound4
	h    Handle
	p    []byte
	off  uint64
	how  blockstore.Stability
	id   state.Stateid
	only *time.Time // the ctime that the file must have (Unchanged)
	w    Written
}

var writes4 = sync.Pool{New: func() any {
	q := &write4{}
	q.both = [2]op4{{num: nfs4.OpPutFH, args: func(e *xdr.Encoder) { e.Opaque(q.h) }}, {nfs4.OpWrite, q.encode, q.decode}}
	q.with = func(id state.Stateid) *compound4 {
		q.id, q.compound4 = id, compound4{ops: q.both[:]}
		if q.only != nil {
			q.ops = []op4{q.both[0], unchangedSince(*q.only), q.both[1]}
		}
		return &q.compound4
	}
	return q
}}

func (q *write4) encode(e *xdr.Encoder) {
	nfs4.EncodeStateid(e, q.id)
	e.Uint64(q.off)
	e.Uint32(uint32(q.how))
	e.Bulk(q.p)
}

func (q *write4) decode(d *xdr.Decoder) { q.w.decode4(d) }

// decode4 reads a WRITE4resok.
func (w *Written) decode4(d *xdr.Decoder) {
	w.N = int(d.Uint32())
	w.Committed = blockstore.Stability(d.Uint32())
	w.Verifier = nfs3.DecodeVerifier(d)
}

func (p proc4) write(ctx context.Context, h Handle, b []byte, off uint64, how blockstore.Stability) (w Written,
	err error,
) {
	q := writes4.Get().(*write4)
	q.h, q.p, q.off, q.how = h, b, off, how
	q.only, _ = ctx.Value(unchangedKey{}).(*time.Time)
	err = p.withState(ctx, h, ShareWrite, q.with)
	w = q.w
	if q.only != nil && err == nfs.ErrNotSame {
		err = nfs.ErrNotSync
	}
	*q = write4{both: q.both, with: q.with}
	writes4.Put(q)
	return w, err
}
