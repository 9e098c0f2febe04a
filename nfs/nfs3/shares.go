package nfs3

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// Version 3 has no opens, so that whoever has reserved a file against others stands
// against its reads and writes too. The error is one that the caller's program sees at
// once: for how long it will be so nobody knows.

// denied is the status for reading or writing a file.
func (o *op) denied(h blockstore.Handle, write bool) nfs.Status {
	if o.s.Shares != nil && o.s.Shares.Denied(o.file(h), o.c.Peer.Addr.Addr().Unmap(), write, o.mayBlock) {
		return nfs.ErrAcces
	}
	return nfs.OK
}

// deniedName is denied for a CREATE that cuts off what it finds.
func (o *op) deniedName(dir blockstore.Handle, name string, cuts bool) nfs.Status {
	if !cuts || o.s.Shares == nil || !o.s.Shares.Denying() {
		return nfs.OK
	}
	h, a, err := o.x.FS.Lookup(&o.cred, dir, name)
	if err != nil || a.Type != blockstore.TypeReg {
		return nfs.OK
	}
	return o.denied(h, true)
}
