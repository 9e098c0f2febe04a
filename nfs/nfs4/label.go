package nfs4

import (
	"slices"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Security labels (RFC 7862 section 9) are in limited server mode: the server stores them, and the
// clients enforce them. If the host has a security module, it may refuse a label that is set. The
// server does not report changes of labels: a client reads the label again with the other
// attributes.

// labelsOf returns the store of an export if its labels are served, else nil. x may be nil.
func labelsOf(x *nfs.Export) blockstore.Labels {
	return optional[blockstore.Labels](x, func(l blockstore.Limits) bool { return x.Labels && l.Labels })
}

// encodeLabel appends a sec_label4: uint32 format, uint32 policy, opaque label<>. Format and policy
// are 0, "unspecified" in the registry of label formats, as from the Linux server.
func encodeLabel(e *xdr.Encoder, label []byte) {
	e.Uint32s(0, 0)
	e.Opaque(label)
}

// decodeLabel reads a sec_label4. The server understands no format, so it ignores format and
// policy.
func decodeLabel(d *xdr.Decoder) (label []byte, st nfs.Status) {
	d.Uint32()
	d.Uint32()
	v := d.Opaque(fattrMax)
	if len(v) == 0 || len(v) > blockstore.LabelMax {
		return nil, nfs.ErrInval
	}
	return slices.Clone(v), nfs.OK
}

// setLabel sets the label of an object.
func (k *compound) setLabel(o *object, label []byte) nfs.Status {
	store := labelsOf(o.x)
	if store == nil {
		return nfs.ErrAttrNotSupp
	}
	_, err := store.SetLabel(k.who(o), o.h, label)
	return nfs.StatusOf(err)
}
