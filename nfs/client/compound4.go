package client

import (
	"context"
	"sync"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// op4 is one operation of a COMPOUND (RFC 8881 section 16.2).
type op4 struct {
	num  uint32
	args func(*xdr.Encoder) // nil: it has none
	res  func(*xdr.Decoder) // its results if it succeeds, after the status; nil: it has none
}

// compound4 is a COMPOUND without its SEQUENCE, and its outcome.
type compound4 struct {
	ops []op4
	// cache asks the server to cache the reply (sa_cachethis): the compound changes something, and
	// a retry must get the reply of the first execution.
	cache  bool
	dst    []byte // where the data of a READ goes; see rpc.Request
	resMax int
	denied func(*xdr.Decoder) // decodes the LOCK4denied of a LOCK or LOCKT

	failed   uint32 // the operation that failed
	executed int    // operations before it, all of which succeeded
	flags    uint32 // sr_status_flags of the SEQUENCE
	// resent says that the compound was also sent in an earlier session, which was lost. The server
	// may have executed it there.
	resent bool
}

// changed reports whether an operation was executed that must not be executed again.
func (q *compound4) changed() bool {
	for _, o := range q.ops[:q.executed] {
		switch o.num {
		case nfs4.OpCreate, nfs4.OpLink, nfs4.OpLock, nfs4.OpOpen, nfs4.OpRemove, nfs4.OpRename:
			return true
		}
	}
	return false
}

// encode appends a COMPOUND4args (RFC 8881 section 16.2.1):
//
//	tag<>, minorversion, argarray<>: operation, its arguments
//
// The tag is empty. head, if not nil, comes before the other operations.
func (q *compound4) encode(e *xdr.Encoder, minor uint32, head *op4) {
	e.Uint32(0) // an empty tag
	e.Uint32(minor)
	n := len(q.ops)
	if head != nil {
		n++
	}
	e.Uint32(uint32(n))
	if head != nil {
		e.Uint32(head.num)
		head.args(e)
	}
	for i := range q.ops {
		e.Uint32(q.ops[i].num)
		if q.ops[i].args != nil {
			q.ops[i].args(e)
		}
	}
}

const tagMax = 1024

// decode reads a COMPOUND4res (RFC 8881 section 16.2.2):
//
//	status, tag<>, resarray<>: operation, status, its results if the status is OK
//
// headStatus is the status of head. If the reply has no results at all, headStatus is the status of
// the whole compound.
//
// A server stops at the first operation that fails. The status of this operation is the status of
// the compound. A reply with more or fewer results, or with results of other operations, is
// errResults.
func (q *compound4) decode(d *xdr.Decoder, head *op4) (headStatus, status nfs.Status, err error) {
	q.failed, q.executed = 0, 0
	whole := nfs.Status(d.Uint32())
	d.Opaque(tagMax)
	n := d.Uint32()
	if d.Err() != nil {
		return 0, 0, d.Err()
	}
	if n == 0 {
		if whole == nfs.OK {
			return 0, 0, errResults
		}
		return whole, whole, nil
	}
	next := func(o *op4) (nfs.Status, error) {
		if n == 0 {
			return 0, errResults
		}
		n--
		num, st := d.Uint32(), nfs.Status(d.Uint32())
		switch {
		case d.Err() != nil:
			return 0, d.Err()
		case num != o.num && !(num == nfs4.OpIllegal && st != nfs.OK), st != nfs.OK && (n != 0 || whole != st):
			return 0, errResults
		case st == nfs.OK && o.res != nil:
			o.res(d)
		case st == nfs.ErrDenied && q.denied != nil:
			q.denied(d)
		}
		return st, d.Err()
	}
	if head != nil {
		if headStatus, err = next(head); err != nil || headStatus != nfs.OK {
			return headStatus, headStatus, err
		}
	}
	for i := range q.ops {
		q.failed = q.ops[i].num
		if status, err = next(&q.ops[i]); err != nil || status != nfs.OK {
			return headStatus, status, err
		}
		q.executed++
	}
	if n != 0 || whole != nfs.OK {
		return 0, 0, errResults
	}
	q.failed = 0
	return nfs.OK, nfs.OK, nil
}

// sequence4 is a SEQUENCE in the session x (RFC 8881 section 18.46).
type sequence4 struct {
	x                  *live
	slot, seq, highest uint32
	cache              bool
	flags              uint32 // sr_status_flags of the reply
}

// encode appends a SEQUENCE4args:
//
//	 0           16           20       24                28          32
//	+-----------+------------+--------+-----------------+-----------+
//	| sessionid | sequenceid | slotid | highest_slotid  | cachethis |
//	+-----------+------------+--------+-----------------+-----------+
func (q *sequence4) encode(e *xdr.Encoder) {
	e.Fixed(q.x.id[:])
	e.Uint32(q.seq)
	e.Uint32(q.slot)
	e.Uint32(q.highest)
	e.Bool(q.cache)
}

// decode reads a SEQUENCE4resok. The first three fields must be those of the request:
//
//	 0           16           20       24               28                      32
//	+-----------+------------+--------+----------------+-----------------------+--------------+
//	| sessionid | sequenceid | slotid | highest_slotid | target_highest_slotid | status_flags |
//	+-----------+------------+--------+----------------+-----------------------+--------------+
func (q *sequence4) decode(d *xdr.Decoder) {
	if got := nfs4.DecodeSessionID(d); d.Err() == nil && got != q.x.id {
		d.Fail(errResults)
	}
	if seq, slot := d.Uint32(), d.Uint32(); d.Err() == nil && (seq != q.seq || slot != q.slot) {
		d.Fail(errResults)
	}
	d.Uint32() // sr_highest_slotid
	d.Uint32() // sr_target_highest_slotid
	q.flags = d.Uint32()
}

// transmission is a compound that is being sent. The pool reuses it: a transport does not touch a
// request any more once its Call has returned.
type transmission struct {
	rpc                rpc.Request
	q                  *compound4
	minor              uint32
	seq                sequence4
	seqOp              op4  // seq as an operation
	head               *op4 // seqOp, or nil
	headStatus, status nfs.Status
	args               func(*xdr.Encoder)
	res                func(*xdr.Decoder) error
}

var transmissions = sync.Pool{New: func() any {
	t := &transmission{}
	t.seqOp = op4{nfs4.OpSequence, t.seq.encode, t.seq.decode}
	t.args = func(e *xdr.Encoder) { t.q.encode(e, t.minor, t.head) }
	t.res = func(d *xdr.Decoder) (err error) {
		t.headStatus, t.status, err = t.q.decode(d, t.head)
		return err
	}
	return t
}}

// send sends a compound over conn, once. seq is its SEQUENCE. If seq has no session, the compound
// has no SEQUENCE.
func (s *session4) send(ctx context.Context, conn rpc.Client, minor uint32, q *compound4, seq sequence4) (
	headStatus, status nfs.Status, err error,
) {
	t := transmissions.Get().(*transmission)
	t.q, t.minor, t.seq = q, minor, seq
	cred := s.cred // without a session the call concerns the client as a whole
	if seq.x != nil {
		t.head = &t.seqOp
		cred = credOf(ctx, cred)
	}
	t.rpc = rpc.Request{
		Prog: nfs4.Program, Vers: nfs4.Version, Proc: nfs4.ProcCompound, Cred: cred, XID: s.conn.nextXID(),
		Args: t.args, Dst: q.dst, ResMax: q.resMax + headroom, Res: t.res,
	}
	err = conn.Call(ctx, &t.rpc)
	headStatus, status, q.flags = t.headStatus, t.status, t.seq.flags
	*t = transmission{seqOp: t.seqOp, args: t.args, res: t.res}
	transmissions.Put(t)
	return headStatus, status, err
}

func putFH(h Handle) op4 {
	return op4{num: nfs4.OpPutFH, args: func(e *xdr.Encoder) { e.Opaque(h) }}
}

func getFH(h *Handle) op4 {
	return op4{num: nfs4.OpGetFH, res: func(d *xdr.Decoder) { *h = copyHandle(d.Opaque(nfs4.FHMax)) }}
}

func lookupOp(name string) op4 {
	return op4{num: nfs4.OpLookup, args: func(e *xdr.Encoder) { e.String(name) }}
}

// compareOp is a VERIFY or NVERIFY of one attribute.
func compareOp(num uint32, attr int, value func(*xdr.Encoder)) op4 {
	return op4{num: num, args: func(e *xdr.Encoder) {
		nfs4.BitmapOf(attr).Encode(e)
		var v xdr.Encoder
		value(&v)
		e.Opaque(v.B)
	}}
}

func closeOp(id state.Stateid) op4 {
	return op4{nfs4.OpClose, func(e *xdr.Encoder) {
		e.Uint32(0) // seqid, which a server of 4.1 ignores
		nfs4.EncodeStateid(e, id)
	}, skipStateid}
}

func skipStateid(d *xdr.Decoder) { nfs4.DecodeStateid(d) }

func freeStateidOp(id state.Stateid) op4 {
	return op4{num: nfs4.OpFreeStateID, args: func(e *xdr.Encoder) { nfs4.EncodeStateid(e, id) }}
}

func bindOp(id state.SessionID) op4 {
	return op4{nfs4.OpBindConnToSession, func(e *xdr.Encoder) {
		e.Fixed(id[:])
		e.Uint32(bindBoth)
		e.Bool(false) // no RDMA mode: RPC-over-RDMA needs no step up
	}, func(d *xdr.Decoder) {
		nfs4.DecodeSessionID(d)
		d.Uint32()
		d.Bool()
	}}
}
