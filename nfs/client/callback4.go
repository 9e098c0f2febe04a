package client

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The callback program (RFC 8881 section 20).
const (
	callbackVersion = 1
	procCBNull      = 0
	procCBCompound  = 1
)

// Operations of a CB_COMPOUND. The numbers from the first to the last constant exist. Operations
// that have no constant here get NOTSUPP.
const (
	opCBGetattr    = 3
	opCBRecall     = 4
	opCBRecallAny  = 8
	opCBSequence   = 11
	opCBNotifyLock = 13
	opCBFirst      = opCBGetattr
	opCBLast       = 15
	opCBIllegal    = 10044
)

// Limits that the client grants to the backchannel of a session. The transport posts receives for
// rpc.BackwardCalls calls.
const (
	backSlots = rpc.BackwardCalls
	backOps   = 8
)

// cbOps are the operations of the client that callbacks use. None of them waits for a call to the
// server.
type cbOps interface {
	// sequence finds the backchannel of a session, or nil.
	sequence(id state.SessionID, minor uint32) *backchannel
	recall(h Handle, id state.Stateid) nfs.Status
	// getAttr returns the change attribute and the size of a file that this client may change.
	getAttr(h Handle) (change, size uint64, st nfs.Status)
	recallAny(keep uint32, kinds nfs4.Bitmap) nfs.Status
	notifyLock(h Handle, owner string) nfs.Status
}

// backchannel is the client's side of a session's slot table for callbacks (RFC 8881 section
// 2.10.6.1). Its owner guards it. It retains the reply of each slot, whatever csa_cachethis says:
// a reply is short.
//
//	sequence ID of the slot + 1    executed
//	the slot's sequence ID         the retained reply
//	the slot is executing          DELAY
//	any other                      SEQ_MISORDERED
type backchannel struct {
	minor uint32
	slots [backSlots]backSlot
}

type backSlot struct {
	seq   uint32
	busy  bool
	reply []byte // of seq: a CB_COMPOUND4res
}

// begin starts a request. If reply is not nil, it is the answer, and there is nothing to execute.
func (b *backchannel) begin(slot, seq uint32) (st nfs.Status, reply []byte) {
	if slot >= backSlots {
		return nfs.ErrBadSlot, nil
	}
	s := &b.slots[slot]
	switch {
	case s.busy:
		return nfs.ErrJukebox, nil
	case seq == s.seq && s.reply != nil:
		return nfs.OK, s.reply
	case seq != s.seq+1:
		return nfs.ErrSeqMisordered, nil
	}
	s.busy = true
	return nfs.OK, nil
}

// end ends a request that begin has started, and retains its reply.
func (b *backchannel) end(slot, seq uint32, reply []byte) {
	b.slots[slot] = backSlot{seq: seq, reply: append([]byte(nil), reply...)}
}

// cbSequence is the part of a CB_SEQUENCE4args that the client uses.
type cbSequence struct {
	session            state.SessionID
	seq, slot, highest uint32
}

// decodeCBSequence reads a CB_SEQUENCE4args:
//
//	sessionid (16), sequenceid, slotid, highest_slotid, cachethis,
//	referring_call_list4<>: sessionid (16), referring_call4<>: sequenceid, slotid
//
// The referring calls are not used: a callback about state that is not known yet waits for the
// OPENs in flight (opens.recall).
func decodeCBSequence(d *xdr.Decoder) (q cbSequence) {
	q.session = nfs4.DecodeSessionID(d)
	q.seq, q.slot, q.highest = d.Uint32(), d.Uint32(), d.Uint32()
	d.Bool()
	for n := d.Uint32(); n > 0 && d.Err() == nil; n-- {
		d.Skip(len(q.session))
		for k := d.Uint32(); k > 0 && d.Err() == nil; k-- {
			d.Skip(4 + 4)
		}
	}
	return q
}

// serveCallback executes a procedure of the callback program.
func serveCallback(o cbOps, proc uint32, d *xdr.Decoder, e *xdr.Encoder) rpc.AcceptStat {
	switch proc {
	case procCBNull:
		return rpc.RPCSuccess
	case procCBCompound:
		return serveCBCompound(o, d, e)
	}
	return rpc.ProcUnavail
}

// serveCBCompound executes a CB_COMPOUND and appends its CB_COMPOUND4res:
//
//	CB_COMPOUND4args   tag<>, minorversion, callback_ident, operations<>
//	CB_COMPOUND4res    status, tag<>, results<>: operation, status, result if the status is OK
//
// The first operation has to be CB_SEQUENCE (section 20.9.3). The execution ends at the first
// operation that fails.
func serveCBCompound(o cbOps, d *xdr.Decoder, e *xdr.Encoder) rpc.AcceptStat {
	begin := len(e.B)
	tag := d.Opaque(tagMax)
	minor := d.Uint32()
	d.Uint32() // callback_ident, of version 4.0
	n := d.Uint32()
	if d.Err() != nil {
		return rpc.GarbageArgs
	}
	e.Uint32(uint32(nfs.OK))
	e.Opaque(tag)
	count := len(e.B)
	e.Uint32(0)
	finish := func(st nfs.Status, results uint32) rpc.AcceptStat {
		patch(e.B[begin:], uint32(st))
		patch(e.B[count:], results)
		return rpc.RPCSuccess
	}
	if minor == 0 || minor > 2 {
		return finish(nfs.ErrMinorVersMismatch, 0)
	}
	if n == 0 {
		return finish(nfs.OK, 0)
	}
	result := func(op uint32, st nfs.Status) {
		e.Uint32(op)
		e.Uint32(uint32(st))
	}
	if op := d.Uint32(); op != opCBSequence {
		op, st := knownCB(op, nfs.ErrOpNotInSession)
		result(op, st)
		return finish(st, 1)
	}
	q := decodeCBSequence(d)
	var b *backchannel
	st := nfs.OK
	switch {
	case d.Err() != nil:
		st = nfs.ErrBadXDR
	case n > backOps:
		st = nfs.ErrTooManyOps
	default:
		if b = o.sequence(q.session, minor); b == nil {
			st = nfs.ErrBadSession
		}
	}
	if st == nfs.OK {
		var reply []byte
		if st, reply = b.begin(q.slot, q.seq); reply != nil {
			e.Truncate(begin)
			e.Fixed(reply)
			return rpc.RPCSuccess
		}
	}
	result(opCBSequence, st)
	if st != nfs.OK {
		return finish(st, 1)
	}
	e.Fixed(q.session[:])
	e.Uint32s(q.seq, q.slot, backSlots-1, backSlots-1)
	results := uint32(1)
	for ; results < n && st == nfs.OK; results++ {
		op := d.Uint32()
		at := len(e.B)
		result(op, nfs.OK)
		if st = serveCBOp(o, op, d, e); st != nfs.OK {
			e.Truncate(at)
			op, st = knownCB(op, st)
			result(op, st)
		}
	}
	finish(st, results)
	b.end(q.slot, q.seq, e.B[begin:])
	return rpc.RPCSuccess
}

// knownCB returns the operation and the status for a result. For an operation that does not exist
// it returns CB_ILLEGAL.
func knownCB(op uint32, st nfs.Status) (uint32, nfs.Status) {
	if op < opCBFirst || op > opCBLast {
		return opCBIllegal, nfs.ErrOpIllegal
	}
	return op, st
}

// serveCBOp executes an operation behind CB_SEQUENCE and appends its result.
func serveCBOp(o cbOps, op uint32, d *xdr.Decoder, e *xdr.Encoder) nfs.Status {
	switch op {
	case opCBSequence:
		return nfs.ErrSequencePos
	case opCBRecall: // stateid, truncate, filehandle
		id := nfs4.DecodeStateid(d)
		d.Bool()
		h := d.Opaque(nfs4.FHMax)
		if d.Err() != nil {
			return nfs.ErrBadXDR
		}
		return o.recall(h, id)
	case opCBGetattr: // filehandle, bitmap
		h := d.Opaque(nfs4.FHMax)
		want, _ := nfs4.DecodeBitmap(d)
		if d.Err() != nil {
			return nfs.ErrBadXDR
		}
		change, size, st := o.getAttr(h)
		if st == nfs.OK {
			encodeCBAttrs(e, want, change, size)
		}
		return st
	case opCBRecallAny: // objects_to_keep, type mask
		keep := d.Uint32()
		kinds, _ := nfs4.DecodeBitmap(d)
		if d.Err() != nil {
			return nfs.ErrBadXDR
		}
		return o.recallAny(keep, kinds)
	case opCBNotifyLock: // filehandle, client ID, owner
		h := d.Opaque(nfs4.FHMax)
		d.Uint64()
		owner := d.String(nfs4.OwnerMax)
		if d.Err() != nil {
			return nfs.ErrBadXDR
		}
		return o.notifyLock(h, owner)
	}
	return nfs.ErrNotSupp
}

// encodeCBAttrs appends the fattr4 of a CB_GETATTR: the change attribute and the size, if they are
// wanted (RFC 8881 section 20.1.3).
func encodeCBAttrs(e *xdr.Encoder, want nfs4.Bitmap, change, size uint64) {
	var has nfs4.Bitmap
	var vals xdr.Encoder
	want.Each(func(n int) {
		switch n {
		case nfs4.AttrChange:
			vals.Uint64(change)
		case nfs4.AttrSize:
			vals.Uint64(size)
		default:
			return
		}
		has[n/32] |= 1 << (n % 32)
	})
	has.Encode(e)
	e.Opaque(vals.B)
}

// patch overwrites the first word of b.
func patch(b []byte, v uint32) {
	b[0], b[1], b[2], b[3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
}
