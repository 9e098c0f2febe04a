package nfs3

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// write is WRITE (RFC 1813 section 3.3.7).
func write(o *op, _ bool) rpc.Status {
	d := &o.c.Args
	fh := DecodeHandle(d)
	off, count := d.Uint64(), d.Uint32()
	how := blockstore.Stability(d.Uint32())
	data := d.Bulk(nfs.MaxIO)
	if how > blockstore.FileSync {
		d.Fail(xdr.ErrValue)
	}
	if o.bad() {
		return rpc.Garbage
	}
	var w blockstore.Wcc
	h, st := o.resolveForChange(fh)
	if st == nfs.OK {
		st = o.denied(h, true, true)
	}
	if st == nfs.OK {
		st = o.hold(h)
	}
	switch {
	case st != nfs.OK:
	case uint64(count) > uint64(len(data)):
		st = nfs.ErrInval // section 3.3.7: count is the data's, or less
	default:
		count = min(count, o.rule.WriteMax()) // the client sends the rest again
		n, committed, wcc, err := o.x.FS.WriteAt(&o.cred, h, data[:count], off, how)
		if w, st = wcc, nfs.StatusOf(err); st != nfs.OK {
			break
		}
		v := o.x.FS.Verifier()
		o.status(nfs.OK)
		o.wcc(&w, &h)
		o.c.Res.Uint32(uint32(n))
		o.c.Res.Uint32(uint32(committed))
		o.c.Res.Fixed(v[:])
		return rpc.Done
	}
	return o.failWcc(st, &w, &h)
}

// commit is COMMIT (section 3.3.21).
func commit(o *op, _ bool) rpc.Status {
	d := &o.c.Args
	fh := DecodeHandle(d)
	off, count := d.Uint64(), d.Uint32()
	if o.bad() {
		return rpc.Garbage
	}
	var w blockstore.Wcc
	h, st := o.resolveForChange(fh)
	if st == nfs.OK {
		// The verifier of before: if unstable writes are lost in between, the
		// client has to see that its own does not match.
		v := o.x.FS.Verifier()
		var err error
		w, err = o.x.FS.Commit(&o.cred, h, off, count)
		if st = nfs.StatusOf(err); st == nfs.OK {
			o.status(nfs.OK)
			o.wcc(&w, &h)
			o.c.Res.Fixed(v[:])
			return rpc.Done
		}
	}
	return o.failWcc(st, &w, &h)
}
