package nfs4

import (
	"errors"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Callbacks (RFC 8881 section 20).
const (
	callbackVersion = 1
	procCBCompound  = 1
	opCBGetattr     = 3
	opCBRecall      = 4
	opCBNotify      = 6
	opCBRecallAny   = 8
	opCBSequence    = 11
	opCBNotifyLock  = 13
	opCBOffload     = 15
	opCBIllegal     = 10044
)

// Types of what CB_RECALL_ANY asks for.
const (
	recallAnyRead  = 0
	recallAnyWrite = 1
	recallAnyDir   = 2
)

// Flags of SEQUENCE's result (section 18.46.3).
const (
	statusPathDown        = 0x001
	statusRevoked         = 0x040 // SEQ4_STATUS_RECALLABLE_STATE_REVOKED
	statusSessionPathDown = 0x200
	statusBackFault       = 0x400
)

// Directions of BIND_CONN_TO_SESSION.
const (
	bindFore       = 1
	bindBack       = 2
	bindForeOrBoth = 3
	bindBackOrBoth = 7
	boundBoth      = 3
)

// callbackWait is how long the server waits for the reply to a callback: an eighth of the lease,
// but at least a second, and at most 10 seconds, because another client may be waiting for a
// recall.
func (s *Server) callbackWait() time.Duration {
	return min(max(s.state.Lease()/8, time.Second), 10*time.Second)
}

// bindConn is BIND_CONN_TO_SESSION (section 18.34). Calls of the client need no bound connection,
// because SEQUENCE names their session. Callbacks go only over connections that the client has
// bound for them. Bindable checks that the caller is the session's client: otherwise any host
// that knows a session ID could receive the callbacks.
func bindConn(k *compound) nfs.Status {
	d := &k.c.Args
	id := DecodeSessionID(d)
	dir := d.Uint32()
	d.Bool() // change to RDMA
	if k.bad() {
		return nfs.ErrBadXDR
	}
	x := k.s.state.Bindable(id, k.by())
	if x == nil {
		return nfs.ErrBadSession
	}
	can := k.c.Back != nil && x.Back != nil && x.Back.Usable()
	got := uint32(bindFore)
	switch {
	case dir == bindFore:
		if can {
			x.Back.Unbind(k.c.Back)
		}
	case dir == bindForeOrBoth && !can:
	case can && (dir == bindForeOrBoth || dir == bindBackOrBoth):
		got = boundBoth
	case can && dir == bindBack:
		got = bindBack
	default:
		return nfs.ErrInval
	}
	if got != bindFore {
		k.s.state.Bind(x, k.c.Back)
		k.s.probe(x)
	}
	e := &k.c.Res
	e.Fixed(id[:])
	e.Uint32(got)
	e.Bool(false)
	return nfs.OK
}

// backchannelCtl is BACKCHANNEL_CTL (section 18.33).
func backchannelCtl(k *compound) nfs.Status {
	program := k.c.Args.Uint32()
	cred, ok := decodeSecParms(&k.c.Args)
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case !ok:
		return nfs.ErrInval
	}
	if b := k.use.Session.Back; b != nil {
		b.Set(program, cred)
	}
	return nfs.OK
}

// statusFlags are the flags that SEQUENCE returns (section 18.46.3): state of the backchannel, and
// that delegations were revoked. They stay set until the client has done something about it.
func statusFlags(x *state.Session) (flags uint32) {
	n := x.Notices()
	set := func(on bool, bit uint32) {
		if on {
			flags |= bit
		}
	}
	set(n.PathDown, statusPathDown)
	set(n.SessionPathDown, statusSessionPathDown)
	set(n.Fault, statusBackFault)
	set(n.Revoked, statusRevoked)
	return flags
}

// probing is a CB_SEQUENCE without another operation.
type probing struct{}

// probe sends a CB_SEQUENCE alone, if it is not known yet whether the client answers. Until it has
// answered, the client gets no delegation: one that cannot be recalled would block other clients
// for a lease.
func (s *Server) probe(x *state.Session) {
	if x.Back != nil && x.Back.Usable() && x.Back.Probe() {
		s.callBack(x, probing{})
	}
}

// request is what a callback asks for beside CB_SEQUENCE. It must be comparable.
type request interface {
	// op is the number of the operation. encode appends its arguments. It must always append the same
	// bytes, because a callback whose reply was lost is sent again unchanged.
	op() uint32
	encode(s *Server, e *xdr.Encoder)
	// refers returns the client's call that the callback is about (section 2.10.6.3); nil: none.
	refers() *state.Origin
	// answered gets the outcome. received says that the client has received the operation. Then st is
	// the operation's status, and d is behind it in the reply. answered may run on a transport's loop,
	// so it must not wait. It may run more than once, if the callback was sent again.
	answered(s *Server, received bool, st nfs.Status, d *xdr.Decoder)
}

// recalling is CB_RECALL (section 20.2).
type recalling struct{ *state.Recall }

func (r recalling) op() uint32            { return opCBRecall }
func (r recalling) refers() *state.Origin { return &r.Origin }

func (r recalling) encode(s *Server, e *xdr.Encoder) {
	EncodeStateid(e, r.ID)
	e.Bool(false) // it is not about to be truncated
	s.encodeFile(e, &r.File)
}

func (r recalling) answered(s *Server, received bool, st nfs.Status, _ *xdr.Decoder) {
	s.state.Recalled(r.Recall, received && willReturn(st))
}

// willReturn reports whether a client will return the delegation of a CB_RECALL. A client that does
// not know the delegation may not have got the reply to its OPEN yet, or has returned the
// delegation already.
func willReturn(st nfs.Status) bool {
	return st != nfs.ErrJukebox && st != nfs.ErrBadStateID && st != nfs.ErrBadHandle
}

// recall sends CB_RECALLs. It implements state.Config.Recall.
func (s *Server) recall(list []state.Recall) {
	for i := range list {
		s.recallOne(&list[i])
	}
}

func (s *Server) recallOne(r *state.Recall) {
	if r.Client.Minor0() {
		s.recall40(r)
		return
	}
	if !s.callAny(r.Client, 1, recalling{r}) {
		s.state.Recalled(r, false)
	}
}

// callAny sends a callback by the first of the client's backchannels on which that is possible now.
// minor is the lowest minor version that has the operation.
func (s *Server) callAny(c *state.Client, minor uint32, what any) bool {
	return slices.ContainsFunc(c.Backchannels(), func(x *state.Session) bool {
		return x.Minor >= minor && s.callBack(x, what)
	})
}

// callBack sends a callback by a session's backchannel. It first sends again the callbacks whose
// replies were lost, unchanged: the client tells from slot and sequence number whether it has
// executed them. The result is false if the session has no usable connection or no free slot.
func (s *Server) callBack(x *state.Session, what any) bool {
	done, ok := s.mayCall()
	if !ok {
		return false
	}
	defer done()
	for {
		a, ok := x.Back.Begin(what)
		if !ok {
			return false
		}
		s.callbacks.Add(1)
		a.Path.Call(&rpc.BackwardCall{
			Prog: a.Program, Vers: callbackVersion, Proc: procCBCompound, Cred: a.Cred,
			Args: s.encodeCallback(x, &a), Timeout: s.callbackWait(),
			Done: func(res *xdr.Decoder, err error) { s.calledBack(x, &a, res, err) },
		})
		if a.What == what {
			return true
		}
	}
}

// encodeCallback makes a CB_COMPOUND4args: CB_SEQUENCE (section 20.9), and the operation if there
// is one. csa_cachethis is false, because every operation here may be executed twice. The referring
// call list names the client's request that created the state. The client may not have the reply to
// that request yet (section 2.10.6.3).
func (s *Server) encodeCallback(x *state.Session, a *state.Attempt) []byte {
	var e xdr.Encoder
	r, asks := a.What.(request)
	e.String("")
	e.Uint32(x.Minor)
	e.Uint32(0) // callback_ident, of version 4.0
	if asks {
		e.Uint32(2)
	} else {
		e.Uint32(1)
	}
	e.Uint32(opCBSequence)
	e.Fixed(x.ID[:])
	e.Uint32(a.Sequence)
	e.Uint32(a.Slot)
	e.Uint32(a.Highest)
	e.Bool(false)
	if !asks {
		e.Uint32(0)
		return e.B
	}
	if from := r.refers(); from != nil {
		e.Uint32(1)
		e.Fixed(from.Session[:])
		e.Uint32(1)
		e.Uint32(from.Sequence)
		e.Uint32(from.Slot)
	} else {
		e.Uint32(0)
	}
	e.Uint32(r.op())
	r.encode(s, &e)
	return e.B
}

// calledBack ends a callback. It may run on a transport's loop, so it must not wait.
func (s *Server) calledBack(x *state.Session, a *state.Attempt, res *xdr.Decoder, err error) {
	r, asks := a.What.(request)
	op := uint32(0)
	if asks {
		op = r.op()
	}
	o := outcomeOf(res, err, op)
	if o.slot == state.Lost {
		s.callbacksLost.Add(1)
	}
	x.Back.End(a, o.slot)
	if asks {
		r.answered(s, o.received, o.status, res)
	}
}

// outcome is what became of a callback.
type outcome struct {
	slot     state.Outcome
	received bool // the client has executed the operation, or refused it
	status   nfs.Status
}

// outcomeOf reads a CB_COMPOUND4res, and leaves the decoder behind the status of the operation that
// was asked for. The reply comes from the client and may be anything. Its slot outcome decides what
// the backchannel does next:
//
//	Lost         no reply: the callback is sent again when there is a connection
//	Refused      not executed, and may be sent again at once
//	Executed     the slot's sequence number goes on
//	Misordered   client and server disagree about the slot
//	Unknown      the client does not know the session, or its reply makes no sense
func outcomeOf(d *xdr.Decoder, err error, asked uint32) outcome {
	var accept *rpc.AcceptError
	var denied *rpc.DeniedError
	switch {
	case errors.As(err, &accept), errors.As(err, &denied):
		return outcome{slot: state.Unknown}
	case errors.Is(err, rpc.ErrTooMany), errors.Is(err, rpc.ErrTooLarge):
		return outcome{slot: state.Refused} // it was not sent
	case err != nil:
		return outcome{slot: state.Lost}
	}
	d.Uint32() // the last status
	d.Opaque(tagMax)
	n := d.Uint32()
	op, st := d.Uint32(), nfs.Status(d.Uint32())
	if d.Err() != nil || n == 0 || op != opCBSequence {
		return outcome{slot: state.Unknown}
	}
	switch st {
	case nfs.OK:
	case nfs.ErrJukebox:
		return outcome{slot: state.Refused, status: st}
	case nfs.ErrRetryUncachedRep:
		return outcome{slot: state.Executed, received: true, status: st}
	case nfs.ErrSeqMisordered, nfs.ErrSeqFalseRetry, nfs.ErrBadSlot, nfs.ErrBadHighSlot:
		return outcome{slot: state.Misordered, status: st}
	default:
		return outcome{slot: state.Unknown, status: st}
	}
	d.Skip(16 + 4*4)
	op, st = d.Uint32(), nfs.Status(d.Uint32())
	if d.Err() != nil || n < 2 || op != asked && op != opCBIllegal {
		return outcome{slot: state.Executed}
	}
	return outcome{slot: state.Executed, received: true, status: st}
}
