package nfs3

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// Version 3 has no opens. A share reservation of another client therefore counts against its READs
// and WRITEs. The status is ACCES, which the program sees at once. With JUKEBOX the client would
// repeat the call for as long as the reservation stays, which has no bound.

// denied is the status for reading or writing a file.
func (o *op) denied(h blockstore.Handle, write bool) nfs.Status {
	if o.s.Shares != nil && o.s.Shares.Denied(o.file(h), o.c.Peer.Addr.Addr().Unmap(), write, o.mayBlock) {
		return nfs.ErrAcces
	}
	return nfs.OK
}

// deniedName is denied for a CREATE that truncates an existing file.
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
