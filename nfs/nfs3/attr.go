package nfs3

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// getAttr is GETATTR (RFC 1813 section 3.3.1). Its failure reply has no attributes, unlike that of
// other procedures. A loop serves the call only if the store need not wait and nothing fails.
// Otherwise a worker begins the call again.
func getAttr(o *op) rpc.Status {
	fh := DecodeHandle(&o.c.Args)
	h, st := o.resolve(fh)
	if st == nfs.OK {
		st = o.readable(h)
	}
	if st == nfs.OK {
		var err error
		o.attr, err = o.getAttrOf(h)
		st = nfs.StatusOf(err)
	}
	if st != nfs.OK && !o.mayBlock && o.x != nil {
		return rpc.Again
	}
	o.status(st)
	if st == nfs.OK {
		EncodeAttr(&o.c.Res, &o.attr, o.x.FSID())
	}
	return rpc.Done
}

// getAttrOf asks the store for attributes. On a loop it does not wait.
func (o *op) getAttrOf(h blockstore.Handle) (blockstore.Attr, error) {
	if o.mayBlock {
		return o.x.FS.GetAttr(&o.cred, h)
	}
	if x, ok := o.x.FS.(blockstore.NowaitAttr); ok {
		return x.GetAttrNowait(&o.cred, h)
	}
	return blockstore.Attr{}, blockstore.ErrWouldBlock
}

// setAttr is SETATTR (section 3.3.2). The guard is the ctime that the client has in its cache. If
// the object has another ctime, the store refuses the change, and the status is NOT_SYNC. A change
// of the size counts as a WRITE for share reservations.
func setAttr(o *op) rpc.Status {
	d := &o.c.Args
	fh := DecodeHandle(d)
	s := DecodeSetAttr(d)
	var guard *time.Time
	if d.Bool() {
		t := DecodeTime(d)
		guard = &t
	}
	var w blockstore.Wcc
	h, st := o.resolveForChange(fh)
	if st == nfs.OK && s.Size != nil {
		st = o.denied(h, true)
	}
	if st == nfs.OK {
		st = o.beginChange(h)
	}
	if st == nfs.OK {
		yes, err := o.attributed(h, &s, guard)
		if !yes {
			w, err = o.x.FS.SetAttr(&o.cred, h, &s, guard)
		}
		st = nfs.StatusOf(err)
	}
	return o.failWcc(st, &w, &h) // also after success, whose result has the same form
}

// accessChanges are the ACCESS bits that a read-only export never grants.
const accessChanges = blockstore.AccessModify | blockstore.AccessExtend | blockstore.AccessDelete

// access is ACCESS (section 3.3.4). The result is advice: the store checks each call again.
func access(o *op) rpc.Status {
	fh := DecodeHandle(&o.c.Args)
	want := o.c.Args.Uint32()
	h, st := o.resolve(fh)
	if st != nfs.OK {
		return o.failPost(st, &h)
	}
	if o.readOnly() {
		want &^= accessChanges
	}
	granted, a, err := o.x.FS.Access(&o.cred, h, want)
	if err != nil {
		return o.failPost(nfs.StatusOf(err), &h)
	}
	o.attr = a
	o.status(nfs.OK)
	o.putPostOp(&o.attr)
	o.c.Res.Uint32(granted & want)
	return rpc.Done
}

// readLink is READLINK (section 3.3.5).
func readLink(o *op) rpc.Status {
	fh := DecodeHandle(&o.c.Args)
	h, st := o.resolve(fh)
	if st != nfs.OK {
		return o.failPost(st, &h)
	}
	target, err := o.x.FS.ReadLink(&o.cred, h)
	if err != nil {
		return o.failPost(nfs.StatusOf(err), &h)
	}
	// A target cannot be cut like the data of a READ. So BulkMax does not bound it here: it is a
	// cautious estimate where the reply is one piece. The Linux client offers just enough room for its
	// longest target. The transport refuses a reply that does not fit.
	p := o.c.Payload(len(target))
	if len(p) != len(target) {
		o.s.Counters.NoMemory.Add(1)
		return o.failPost(nfs.ErrJukebox, &h)
	}
	copy(p, target)
	o.status(nfs.OK)
	o.postOp(&h)
	o.c.Res.Bulk(p)
	return rpc.Done
}
