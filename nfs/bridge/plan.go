package bridge

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Room for results, in bytes. If a reply needs more, the far server fails the call.
const (
	// plainMax is more than any result of fixed form: three handles and
	// the attributes of three objects.
	plainMax = 1024
	// listingMax bounds a listing of exports or of mounts. The protocol has no bound for them.
	listingMax = 256 << 10
	// targetMax is the longest target of a symbolic link that a READLINK can return.
	targetMax = 4096
)

// plan says how the bridge sends a call to the far server.
type plan struct {
	head    []byte // the arguments, up to the bulk data
	bulk    []byte // bulk argument, if hasBulk
	has     bool
	tail    []byte // the arguments behind it
	minor   uint32 // of a COMPOUND
	tag     []byte // of a COMPOUND
	result  int    // bytes of bulk result to make room for
	dst     []byte // that room
	resMax  int
	results func(d *xdr.Decoder, e *xdr.Encoder, dst []byte)
}

// planOf reads the arguments up to the last field that the plan depends on. The plan aliases the
// memory of the call.
func planOf(c *rpc.Call) (*plan, bool) {
	p := &plan{resMax: plainMax}
	d := c.Args // a copy, for looking ahead
	if c.Prog == nfs3.MountProgram {
		if c.Proc == nfs3.MountDump || c.Proc == nfs3.MountExport {
			p.resMax = listingMax
		}
		return p.whole(c)
	}
	if c.Prog == nfs3.ACLProgram {
		if c.Proc == nfs3.ProcGetACL {
			p.resMax = nfs3.ACLResMax
		}
		return p.whole(c)
	}
	if c.Vers == nfs4.Version {
		if c.Proc == nfs4.ProcCompound {
			return p.compound(c)
		}
		return p.whole(c)
	}
	switch c.Proc {
	case nfs3.ProcRead:
		fh := nfs3.DecodeHandle(&d)
		off, count := d.Uint64(), min(d.Uint32(), nfs.MaxIO)
		e := xdr.Encoder{B: make([]byte, 0, 4+nfs.HandleMax+12)}
		nfs3.EncodeHandle(&e, fh)
		e.Uint64(off)
		e.Uint32(count)
		p.head, p.result, p.results = e.B, int(count), relayRead
		return p, d.Err() == nil
	case nfs3.ProcReadLink:
		p.result, p.results = targetMax, relayReadLink
	case nfs3.ProcWrite:
		nfs3.DecodeHandle(&d)
		d.Skip(8 + 4 + 4) // offset, count, stable
		return p.cut(c, &d, nfs.MaxIO)
	case nfs3.ProcSymlink:
		nfs3.DecodeHandle(&d)
		d.Opaque(nfs3.NameLimit)
		nfs3.DecodeSetAttr(&d)
		return p.cut(c, &d, nfs3.PathLimit)
	case nfs3.ProcReadDir, nfs3.ProcReadDirPlus:
		nfs3.DecodeHandle(&d)
		d.Skip(8 + nfs3.VerifierLen)
		count := d.Uint32()
		if c.Proc == nfs3.ProcReadDirPlus {
			count = d.Uint32() // maxcount, after dircount
		}
		if d.Err() != nil {
			return nil, false
		}
		p.resMax += int(min(count, nfs.MaxIO))
	}
	return p.whole(c)
}

// whole plans to send the arguments as they are.
func (p *plan) whole(c *rpc.Call) (*plan, bool) {
	p.head = c.Args.Fixed(c.Args.Remaining())
	return p, c.Args.Err() == nil
}

// cut splits the arguments into head and bulk. d stands at the bulk item, which is the last
// argument.
func (p *plan) cut(c *rpc.Call, d *xdr.Decoder, limit int) (*plan, bool) {
	if d.Err() != nil {
		return nil, false
	}
	p.head = c.Args.Fixed(d.Offset() - c.Args.Offset())
	p.bulk, p.has = c.Args.Bulk(limit), true
	return p, c.Args.Err() == nil
}

// encode appends the arguments. It may be called for each transmission.
func (p *plan) encode(e *xdr.Encoder) {
	e.Fixed(p.head)
	if p.has {
		e.Bulk(p.bulk)
	}
	e.Fixed(p.tail)
}

// relay returns the function that copies the results from the far server's reply into e.
func (p *plan) relay(e *xdr.Encoder) func(*xdr.Decoder) error {
	return func(d *xdr.Decoder) error {
		if p.results != nil {
			p.results(d, e, p.dst)
		} else {
			e.Fixed(d.Fixed(d.Remaining()))
		}
		return d.Err()
	}
}

// relayPostOp passes a post_op_attr.
func relayPostOp(d *xdr.Decoder, e *xdr.Encoder) {
	has := d.Bool()
	e.Bool(has)
	if has {
		e.Fixed(d.Fixed(nfs3.AttrLen))
	}
}

// relayRead passes READ3res.
func relayRead(d *xdr.Decoder, e *xdr.Encoder, dst []byte) {
	st := d.Uint32()
	e.Uint32(st)
	relayPostOp(d, e)
	if st == uint32(nfs.OK) {
		e.Uint32(d.Uint32()) // count
		e.Bool(d.Bool())     // eof
		relayBulk(d, e, dst)
	}
}

// relayReadLink passes READLINK3res.
func relayReadLink(d *xdr.Decoder, e *xdr.Encoder, dst []byte) {
	st := d.Uint32()
	e.Uint32(st)
	relayPostOp(d, e)
	if st == uint32(nfs.OK) {
		relayBulk(d, e, dst)
	}
}

// relayBulk passes bulk data: what RDMA has placed in dst stays there.
func relayBulk(d *xdr.Decoder, e *xdr.Encoder, dst []byte) {
	b := d.Bulk(len(dst))
	if len(b) > 0 && &b[0] != &dst[0] {
		copy(dst, b)
	}
	e.Bulk(dst[:len(b)])
}
