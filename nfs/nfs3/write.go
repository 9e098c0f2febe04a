package nfs3

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// With up to inlineProcs processors a loop executes WRITEs of any length itself, because the loops
// keep the processors busy anyway. With more processors a worker copies in parallel to the loop.
// The loop then executes only WRITEs of up to inlineMax bytes, which take no longer than handing
// them to a worker.
const (
	inlineProcs = 4
	inlineMax   = 64 << 10
)

func inlineWrite(procs int) int {
	if procs <= inlineProcs {
		return nfs.MaxIO
	}
	return inlineMax
}

// write is WRITE (RFC 1813 section 3.3.7). The data lies where the transport has received it. The
// store may use it only until WriteAt returns. On a loop the call is served if nothing has to wait.
// A WRITE that fails there has changed nothing, so a worker begins it again.
//
// The reply repeats what the store reports. committed is at least as stable as the client asked for
// (stable_how):
//
//	UNSTABLE   a crash of the host can lose the data; the client keeps it until COMMIT
//	DATA_SYNC  the data, and what is needed to read it, is on disk before the reply
//	FILE_SYNC  the data and all attributes are on disk before the reply
func write(o *op) rpc.Status {
	// Over TCP, a long WRITE on the reader would delay the calls behind it, so a worker serves it.
	const head = nfs.HandleMax + 64
	if !o.mayBlock && (o.c.Peer.Transport != rpc.TransportRDMA || o.c.Args.Remaining() > o.s.inlineWrite+head) {
		return rpc.Again
	}
	d := &o.c.Args
	fh := DecodeHandle(d)
	off, count := d.Uint64(), d.Uint32()
	how := blockstore.Stability(d.Uint32())
	data := d.Bulk(nfs.MaxIO)
	if how > blockstore.FileSync {
		d.Fail(xdr.ErrValue)
	}
	var w blockstore.Wcc
	h, st := o.resolveForChange(fh)
	if !o.mayBlock && o.x != nil && (st != nfs.OK || o.s.Delegations != nil && o.s.Delegations.Delegating()) {
		return rpc.Again
	}
	if st == nfs.OK {
		st = o.denied(h, true)
	}
	if st == nfs.OK {
		st = o.beginChange(h)
	}
	if st == nfs.OK && uint64(count) > uint64(len(data)) {
		st = nfs.ErrInval // count must not exceed the data (section 3.3.7)
	}
	if st == nfs.OK {
		count = min(count, o.rule.WriteMax()) // the client sends the rest in another WRITE
		// The verifier is read before the write. If the data is lost before the reply, the client
		// then finds at COMMIT that the verifiers differ, and writes again.
		v := o.x.FS.Verifier()
		n, committed, wcc, err := o.writeAt(h, data[:count], off, how)
		if w, st = wcc, nfs.StatusOf(err); st == nfs.OK {
			o.status(nfs.OK)
			o.wcc(&w, &h)
			o.c.Res.Uint32(uint32(n))
			o.c.Res.Uint32(uint32(committed))
			o.c.Res.Fixed(v[:])
			return rpc.Done
		}
	}
	if !o.mayBlock && o.x != nil {
		return rpc.Again
	}
	return o.failWcc(st, &w, &h)
}

func (o *op) writeAt(
	h blockstore.Handle, p []byte, off uint64, how blockstore.Stability,
) (int, blockstore.Stability, blockstore.Wcc, error) {
	if o.mayBlock {
		return o.x.FS.WriteAt(&o.cred, h, p, off, how)
	}
	if x, ok := o.x.FS.(blockstore.NowaitWriter); ok {
		return x.WriteNowait(&o.cred, h, p, off, how)
	}
	return 0, how, blockstore.Wcc{}, blockstore.ErrWouldBlock
}

// commit is COMMIT (section 3.3.21). A count of 0 means up to the end of the file.
func commit(o *op) rpc.Status {
	d := &o.c.Args
	fh := DecodeHandle(d)
	off, count := d.Uint64(), d.Uint32()
	var w blockstore.Wcc
	h, st := o.resolveForChange(fh)
	if st == nfs.OK {
		var err error
		w, err = o.x.FS.Commit(&o.cred, h, off, count)
		if st = nfs.StatusOf(err); st == nfs.OK {
			// The verifier is read after the sync. If unstable data is lost during the sync, the client sees
			// that its own verifier differs.
			v := o.x.FS.Verifier()
			o.status(nfs.OK)
			o.wcc(&w, &h)
			o.c.Res.Fixed(v[:])
			return rpc.Done
		}
	}
	return o.failWcc(st, &w, &h)
}
