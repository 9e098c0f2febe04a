package bridge

import (
	"encoding/binary"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Room for the results of a COMPOUND beside bulk data.
const (
	opMax = 512 // of one operation with results of fixed form: a handle, a stateid, a delegation
	// attrsMax is for attributes, ACLs among them.
	attrsMax = 64 << 10
	// anyMax is for results that the bridge knows nothing of.
	anyMax = nfs.MaxIO + 64<<10

	bulkMax = nfs.MaxIO
	wordMax = 64 << 10 // of opaque arguments: handles, names, owners, attributes
)

// compound makes the plan of a COMPOUND. The data of a READ that is the last operation, and that of
// the first WRITE, move by chunks of their own. Other results have room in the Reply chunk.
// compound lowers counts that exceed the bridge's memory, in the message: a server may return less
// than a client asks for.
func (p *plan) compound(c *rpc.Call) (*plan, bool) {
	msg := c.Args.Fixed(c.Args.Remaining())
	d := xdr.NewDecoder(msg)
	p.tag = d.Opaque(wordMax)
	p.minor = d.Uint32()
	n := d.Uint32()
	p.head, p.resMax = msg, plainMax
	count := func(limit uint32) int { // reads a count and lowers it
		at := d.Offset()
		v := d.Uint32()
		if d.Err() == nil && v > limit {
			v = limit
			binary.BigEndian.PutUint32(msg[at:], v)
		}
		return int(v)
	}
	bitmap := func() (acl bool) {
		for i := range min(d.Uint32(), wordMax) {
			if w := d.Uint32(); i == 0 {
				acl = w>>12&1 != 0 || w>>13&1 != 0
			}
			if d.Err() != nil {
				return false
			}
		}
		return acl
	}
	for i := range n {
		p.resMax += opMax
		switch d.Uint32() {
		case nfs4.OpAccess, nfs4.OpOpenAttr, nfs4.OpReclaimComplete, nfs4.OpSecInfoNoName:
			d.Skip(4)
		case nfs4.OpClose:
			d.Skip(4 + stateid)
		case nfs4.OpCommit:
			d.Skip(8 + 4)
		case nfs4.OpGetAttr:
			if bitmap() {
				p.resMax += attrsMax
			}
		case nfs4.OpGetFH, nfs4.OpLookupP, nfs4.OpPutPubFH, nfs4.OpPutRootFH, nfs4.OpRestoreFH, nfs4.OpSaveFH:
		case nfs4.OpReadLink:
			p.resMax += targetMax
		case nfs4.OpLookup, nfs4.OpRemove, nfs4.OpPutFH, nfs4.OpLink, nfs4.OpSecInfo:
			d.Opaque(wordMax)
		case nfs4.OpRename:
			d.Opaque(wordMax)
			d.Opaque(wordMax)
		case nfs4.OpNVerify, nfs4.OpVerify:
			bitmap()
			d.Opaque(wordMax)
		case nfs4.OpSetAttr:
			d.Skip(stateid)
			bitmap()
			d.Opaque(wordMax)
		case nfs4.OpRead:
			d.Skip(stateid + 8)
			v := count(bulkMax)
			if i == n-1 {
				p.result = v
			} else {
				p.resMax += v
			}
		case nfs4.OpReadDir:
			d.Skip(8 + 8 + 4)
			p.resMax += count(bulkMax)
			bitmap()
		case nfs4.OpWrite:
			d.Skip(stateid + 8 + 4)
			at := d.Offset()
			data := d.Opaque(bulkMax)
			if !p.has && d.Err() == nil {
				p.has, p.head, p.bulk, p.tail = true, msg[:at:at], data, msg[d.Offset():]
			}
		case nfs4.OpSequence:
			d.Skip(16 + 4*4)
		case nfs4.OpRenew, nfs4.OpDestroyClientID:
			d.Skip(8)
		case nfs4.OpDestroySession, nfs4.OpFreeStateID, nfs4.OpDelegReturn:
			d.Skip(16)
		default: // OPEN, locks and whatever else is seldom followed by data
			p.resMax = anyMax
			return p, true
		}
		if d.Err() != nil {
			return p, true // the server says what is wrong
		}
	}
	p.resMax = min(p.resMax, anyMax)
	if p.result > 0 {
		p.results = relayLast
	}
	return p, true
}

const stateid = 16

// relayLast passes results that end with bulk data.
func relayLast(d *xdr.Decoder, e *xdr.Encoder, _ []byte) { e.B = d.AppendRest(e.B) }
