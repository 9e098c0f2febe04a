package client

import (
	"context"
	"sync"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// READ and WRITE are most of what a client sends. So their requests are pooled and allocate
// nothing. A transport does not touch a request after its Call has returned, also if the context
// ended the call. From then on another call may use the request.

// read3 is one READ (RFC 1813 section 3.3.6). p is both Dst of the request and the caller's buffer.
type read3 struct {
	request
	h     Handle
	p     []byte
	off   uint64
	n     int
	count uint32 // as the server says
	eof   bool
}

var reads3 = sync.Pool{New: func() any {
	q := &read3{}
	q.proc, q.args, q.ok = nfs3.ProcRead, q.encode, q.decode
	return q
}}

func (q *read3) encode(e *xdr.Encoder) {
	nfs3.EncodeHandle(e, q.h)
	e.Uint64(q.off)
	e.Uint32(uint32(len(q.p)))
}

func (q *read3) decode(d *xdr.Decoder) {
	nfs3.SkipPostOp(d)
	q.count, q.eof = d.Uint32(), d.Bool()
	b := d.Bulk(len(q.p))
	q.n = len(b)
	if d.Err() == nil && q.n > 0 && &b[0] != &q.p[0] {
		copy(q.p, b) // the transport returned a short result inline
	}
}

func (c proc3) read(ctx context.Context, h Handle, p []byte, off uint64) (n int, eof bool, err error) {
	q := reads3.Get().(*read3)
	q.h, q.p, q.dst, q.off = h, p, p, off
	err = c.do(ctx, &q.request)
	if err == nil && int(q.count) != q.n {
		err = errResults
	}
	if err == nil {
		n, eof = q.n, q.eof
	}
	*q = read3{request: q.again()}
	reads3.Put(q)
	return n, eof, err
}

// write3 is one WRITE (RFC 1813 section 3.3.7).
type write3 struct {
	request
	h   Handle
	p   []byte
	off uint64
	how blockstore.Stability
	w   Written
}

var writes3 = sync.Pool{New: func() any {
	q := &write3{}
	q.proc, q.args, q.ok = nfs3.ProcWrite, q.encode, q.decode
	return q
}}

func (q *write3) encode(e *xdr.Encoder) {
	nfs3.EncodeHandle(e, q.h)
	e.Uint64(q.off)
	e.Uint32(uint32(len(q.p)))
	e.Uint32(uint32(q.how))
	e.Bulk(q.p)
}

func (q *write3) decode(d *xdr.Decoder) {
	nfs3.SkipWcc(d)
	q.w.N = int(d.Uint32())
	q.w.Committed = blockstore.Stability(d.Uint32())
	q.w.Verifier = nfs3.DecodeVerifier(d)
}

func (c proc3) write(ctx context.Context, h Handle, p []byte, off uint64, how blockstore.Stability) (w Written,
	err error,
) {
	q := writes3.Get().(*write3)
	q.h, q.p, q.off, q.how = h, p, off, how
	err = c.do(ctx, &q.request)
	w = q.w
	*q = write3{request: q.again()}
	writes3.Put(q)
	return w, err
}

// again returns the request without references to the caller's data, for the pool.
func (q *request) again() request {
	return request{proc: q.proc, args: q.args, ok: q.ok, res: q.res}
}
