package nfs3

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// read is READ (RFC 1813 section 3.3.6). Its data is never encoded: the store reads into memory of
// the transport, or the transport sends pages of the page cache in place. That memory belongs to
// the transport from then on. The transport frees it when the SEND of the reply has completed
// (RDMA), or when the reply was written to the socket (TCP).
//
// On a loop the store must not wait. If it would have to, a worker begins the call again; nothing
// was done so far. The client's count is bounded by the rule and by the Write chunk before memory
// is taken: a READ may return less than it was asked for.
func read(o *op) rpc.Status {
	d := &o.c.Args
	fh := DecodeHandle(d)
	off, count := d.Uint64(), d.Uint32()
	o.data += int(min(count, nfs.MaxIO))
	h, st := o.resolve(fh)
	if st == nfs.OK {
		st = o.denied(h, false)
	}
	if st == nfs.OK {
		st = o.readable(h)
	}
	if st != nfs.OK {
		return o.readFailed(st, &h)
	}
	count = min(count, o.rule.ReadMax())
	if m := o.c.BulkMax; m >= 0 && int(count) > m {
		count = uint32(m)
	}
	if w, eof := o.mapped(h, off, int(count)); w != nil {
		o.status(nfs.OK)
		o.postOp(&h)
		o.c.Res.Uint32(uint32(len(w.Bytes())))
		o.c.Res.Bool(eof)
		o.c.Borrow(w)
		return rpc.Done
	}
	var p []byte
	if count > 0 {
		if p = o.c.Payload(int(count)); len(p) != int(count) {
			o.s.Counters.NoMemory.Add(1)
			return o.readFailed(nfs.ErrJukebox, &h)
		}
	}
	n, eof, err := o.x.FS.ReadAt(&o.cred, h, p, off, !o.mayBlock)
	if err == nil && !o.mayBlock && n < len(p) && !eof {
		err = blockstore.ErrWouldBlock // a short reply, though legal, costs the client a second call
	}
	if err != nil {
		if !o.mayBlock && errors.Is(err, blockstore.ErrWouldBlock) {
			o.s.Counters.ReadsMoved.Add(1)
			return rpc.Again
		}
		return o.readFailed(nfs.StatusOf(err), &h)
	}
	o.status(nfs.OK)
	o.postOp(&h)
	o.c.Res.Uint32(uint32(n))
	o.c.Res.Bool(eof)
	o.c.Res.Bulk(p[:n])
	return rpc.Done
}

// mapped returns the data of a READ as pages of the page cache, if store and transport can do so;
// else ok is false.
func (o *op) mapped(h blockstore.Handle, off uint64, n int) (blockstore.Window, bool) {
	if m, ok := o.x.FS.(blockstore.Mapper); ok && o.c.Borrows(n) {
		return m.Map(&o.cred, h, off, n)
	}
	return nil, false
}

// readFailed answers a READ that failed. The reply has attributes, for which the store may have to
// wait. So a loop leaves the whole call to a worker, and the worker's outcome counts.
func (o *op) readFailed(st nfs.Status, h *blockstore.Handle) rpc.Status {
	if o.x != nil && !o.mayBlock {
		return rpc.Again
	}
	return o.failPost(st, h)
}
