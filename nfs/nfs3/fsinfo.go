package nfs3

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Sizes that FSINFO reports, in bytes.
const (
	ioMultiple = 4096
	// dirPreferred is the size that FSINFO recommends for a listing: large enough to save round trips,
	// small enough to be built in one step.
	dirPreferred = 64 << 10
)

// object finds the object of a procedure whose only argument is a file handle, and its attributes.
func (o *op) object() (h blockstore.Handle, st nfs.Status) {
	if h, st = o.resolve(DecodeHandle(&o.c.Args)); st == nfs.OK {
		var err error
		o.attr, err = o.x.FS.GetAttr(&o.cred, h)
		st = nfs.StatusOf(err)
	}
	return h, st
}

// fsStat is FSSTAT (RFC 1813 section 3.3.18).
func fsStat(o *op) rpc.Status {
	h, st := o.object()
	if st != nfs.OK {
		return o.failPost(st, &h)
	}
	s, err := o.x.FS.Stat(&o.cred, h)
	if err != nil {
		return o.failPost(nfs.StatusOf(err), &h)
	}
	o.status(nfs.OK)
	o.putPostOp(&o.attr)
	e := &o.c.Res
	for _, v := range [...]uint64{s.TotalBytes, s.FreeBytes, s.AvailBytes, s.TotalFiles, s.FreeFiles, s.AvailFiles} {
		e.Uint64(v)
	}
	e.Uint32(0) // invarsec: no time during which the values stay the same
	return rpc.Done
}

// fsInfo is FSINFO (section 3.3.19). The sizes are those of the client's rule. A READ or WRITE of
// more is shortened.
func fsInfo(o *op) rpc.Status {
	h, st := o.object()
	if st != nfs.OK {
		return o.failPost(st, &h)
	}
	o.status(nfs.OK)
	o.putPostOp(&o.attr)
	e := &o.c.Res
	for _, most := range [...]uint32{o.rule.ReadMax(), o.rule.WriteMax()} { // most, preferred, multiple
		e.Uint32(most)
		e.Uint32(most)
		e.Uint32(min(ioMultiple, most))
	}
	e.Uint32(min(dirPreferred, o.rule.ReadMax()))
	e.Uint64(o.x.FS.Limits().MaxFileSize)
	e.Uint32(0) // time_delta: seconds
	e.Uint32(1) // and nanoseconds
	e.Uint32(PropLink | PropSymlink | PropHomogeneous | PropCanSetTime)
	return rpc.Done
}

// pathConf is PATHCONF (section 3.3.20).
func pathConf(o *op) rpc.Status {
	h, st := o.object()
	if st != nfs.OK {
		return o.failPost(st, &h)
	}
	o.status(nfs.OK)
	o.putPostOp(&o.attr)
	l := o.x.FS.Limits()
	e := &o.c.Res
	e.Uint32(l.LinkMax)
	e.Uint32(l.NameMax)
	e.Bool(true) // no_trunc
	e.Bool(true) // chown_restricted
	e.Bool(l.CaseInsensitive)
	e.Bool(true) // case_preserving
	return rpc.Done
}
