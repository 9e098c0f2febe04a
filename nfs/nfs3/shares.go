package nfs3

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// Version 3 has no opens, so share reservations of others apply to its READs and WRITEs. The status
// is ACCES, and the program sees the error at once. After JUKEBOX the client would repeat the call
// until the reservation ends, without any bound.

// denied returns the status for reading or writing a file: OK, or ACCES if a reservation denies it.
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
