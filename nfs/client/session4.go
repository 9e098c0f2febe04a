package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// What a session is asked for. A message is the data of one READ or WRITE and what
// else a compound says.
const (
	slotsAsked   = 128
	opsAsked     = 50
	cachedAsked  = 2 << 10
	messageAsked = TransferMax + 32<<10
	backAsked    = 4 << 10
	// overhead is what a compound around a READ or a WRITE, and the RPC header with
	// its credential, add to the data.
	overhead = 2 << 10
)

// errSessionLost ends what waits in a session that has ended.
var errSessionLost = errors.New("the session is lost")

// errTooSmall is a session that is granted so little that nothing can be done in it.
var errTooSmall = errors.New("the server's session is too small")

// session4 is a client's session with a server (RFC 8881 section 2.10), made again
// when it is lost. A request has a slot and the slot's sequence ID for as long as the
// session lasts, over all connections: what was executed already is answered from
// the server's reply cache.
type session4 struct {
	conn  *session // that makes connections again
	cred  *rpc.Cred
	owner []byte // co_ownerid: of this client alone
	verf  [nfs4.VerifierLen]byte
	opens *opens

	// turn is held by who makes a session or recovers state.
	turn chan struct{}
	// Guarded by turn.
	id        uint64 // client ID; 0 is none
	createSeq uint32

	mu     sync.Mutex
	minor  uint32
	cur    *live
	closed bool

	makers    atomic.Uint64 // numbers the owners of opens that make files
	sessions  atomic.Uint64 // that were made
	replayed  atomic.Uint64 // connections bound to a session again
	reclaimed atomic.Uint64 // opens that were reclaimed after a restart of the server
	relocked  atomic.Uint64 // locks
	doubts    atomic.Uint64 // slots whose request was given up
	notices   atomic.Uint64 // of the server, that were attended to
}

// live is one session.
type live struct {
	id    state.SessionID
	minor uint32
	fore  state.Channel
	slots *slots
	ended chan struct{}
	over  bool // ended is closed; guarded by session4.mu
	root  Handle
	fsid  [2]uint64 // of the root
	lease time.Duration

	noticed atomic.Uint32 // flags of the last SEQUENCE; see session4.notice
	notice  func(flags uint32)
}

func newSession4(conn *session, cred *rpc.Cred, minor uint32) *session4 {
	var unique [8]byte
	host, _ := os.Hostname()
	s := &session4{conn: conn, cred: cred, minor: minor, turn: make(chan struct{}, 1)}
	_, _ = rand.Read(unique[:])
	_, _ = rand.Read(s.verf[:])
	s.owner = fmt.Appendf(nil, "rstored client %s %s", host, hex.EncodeToString(unique[:]))
	s.opens = newOpens(s)
	return s
}

// op4 is an operation of a compound.
type op4 struct {
	num  uint32
	args func(*xdr.Encoder)
	res  func(*xdr.Decoder) // of success, after the status
}

// compound4 is a COMPOUND but for its SEQUENCE.
type compound4 struct {
	ops []op4
	// cache asks the server to keep the reply: it must not be executed again.
	cache  bool
	dst    []byte
	resMax int
	denied func(*xdr.Decoder) // of a LOCK or LOCKT that is DENIED: what stands in the way

	// The outcome: of the operation that failed, and how many succeeded before it.
	failed   uint32
	executed int
	// resent says that the server may have executed it in a session that is lost.
	resent bool
}

// encode appends a COMPOUND4args with head in front of the operations, if it is there.
func (q *compound4) encode(e *xdr.Encoder, minor uint32, head *op4) {
	e.Uint32(0) // tag
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

// decode reads a COMPOUND4res. headStatus is that of head, and of the whole where
// there are no results at all.
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
		case num != o.num && !(num == nfs4.OpIllegal && st != nfs.OK):
			return 0, errResults
		case st != nfs.OK && (n != 0 || whole != st):
			return 0, errResults
		}
		switch {
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

// request makes the RPC of a compound.
func (s *session4) request(q *compound4, minor uint32, head *op4, headStatus, status *nfs.Status) *rpc.Request {
	return &rpc.Request{
		Prog: nfs4.Program, Vers: nfs4.Version, Proc: nfs4.ProcCompound, Cred: s.cred,
		Args: func(e *xdr.Encoder) { q.encode(e, minor, head) },
		Dst:  q.dst, ResMax: q.resMax + headroom,
		Res: func(d *xdr.Decoder) (err error) {
			*headStatus, *status, err = q.decode(d, head)
			return err
		},
	}
}

// alone sends one operation without a session.
func (s *session4) alone(ctx context.Context, minor uint32, o op4) error {
	q := compound4{ops: []op4{o}}
	for wait := jukeboxFirst; ; wait = min(2*wait, jukeboxMax) {
		var headStatus, st nfs.Status
		if err := s.conn.Call(ctx, s.request(&q, minor, nil, &headStatus, &st)); err != nil {
			return err
		}
		if st != nfs.ErrJukebox {
			return st.Err()
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// current is the session, or nil.
func (s *session4) current() *live {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

func (s *session4) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// lose ends a session that is of no more use.
func (s *session4) lose(x *live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == x {
		s.cur = nil
	}
	if !x.over {
		x.over = true
		close(x.ended)
	}
}

// ready is the session, which is made if there is none.
func (s *session4) ready(ctx context.Context) (*live, error) {
	for {
		if x := s.current(); x != nil {
			return x, nil
		}
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		var err error
		if s.isClosed() {
			err = &rpc.ConnError{Peer: s.conn.peer, Err: rpc.ErrClosed}
		} else if s.current() == nil {
			err = s.establish(ctx)
		}
		<-s.turn
		if errors.Is(err, errSessionLost) {
			err = pause(ctx, jukeboxFirst) // the server was restarted once more
		}
		if err != nil {
			return nil, err
		}
	}
}

// do executes a compound, once, and again while the server asks to come later. A
// status other than OK is returned as nfs.Status.
func (s *session4) do(ctx context.Context, q *compound4) error {
	for wait := jukeboxFirst; ; {
		x, err := s.ready(ctx)
		if err != nil {
			return err
		}
		again, err := s.try(ctx, x, q)
		switch {
		case again == retryLater, err == nfs.ErrJukebox && !q.changed(), err == nfs.ErrGrace && !q.changed():
			if err := pause(ctx, wait); err != nil {
				return err
			}
			wait = min(2*wait, jukeboxMax)
		case again == retryNow:
		default:
			return err
		}
	}
}

// changed reports whether something was done that must not be done again.
func (q *compound4) changed() bool {
	for _, o := range q.ops[:q.executed] {
		switch o.num {
		case nfs4.OpCreate, nfs4.OpLink, nfs4.OpLock, nfs4.OpOpen, nfs4.OpRemove, nfs4.OpRename:
			return true
		}
	}
	return false
}

// retry says whether a compound has to be sent again.
type retry uint8

const (
	final retry = iota
	retryNow
	retryLater
)

// try executes a compound in a session.
func (s *session4) try(ctx context.Context, x *live, q *compound4) (retry, error) {
	k, err := x.slots.take(ctx, x.ended)
	if errors.Is(err, errSessionLost) {
		return retryNow, nil
	}
	if err != nil {
		return final, err
	}
	headStatus, st, err := s.transmit(ctx, x, k, q)
	if err != nil {
		var refused *rpc.AcceptError
		var denied *rpc.DeniedError
		if errors.As(err, &refused) || errors.As(err, &denied) {
			x.slots.unused(k) // it was not looked at
		} else {
			s.doubt(x, k)
		}
		return final, err
	}
	switch headStatus {
	case nfs.OK:
		x.slots.done(k)
		if st == nfs.ErrRetryUncachedRep && q.executed == 0 && !q.cache {
			return retryNow, nil
		}
		return final, st.Err()
	case nfs.ErrRetryUncachedRep:
		x.slots.done(k)
		if q.cache {
			return final, headStatus
		}
		return retryNow, nil
	case nfs.ErrJukebox:
		x.slots.unused(k)
		return retryLater, nil
	case nfs.ErrConnNotBound:
		x.slots.unused(k)
		if err := s.alone(ctx, x.minor, bindOp(x.id)); err != nil {
			s.lose(x)
		}
		return retryNow, nil
	case nfs.ErrBadSession, nfs.ErrDeadSession, nfs.ErrStaleClientID, nfs.ErrExpired,
		nfs.ErrBadSlot, nfs.ErrBadHighSlot, nfs.ErrSeqMisordered, nfs.ErrSeqFalseRetry:
		// Without the session, or without a slot whose state both sides agree on, the
		// request was not executed, unless it was before the server lost the session.
		s.lose(x)
		q.resent = true
		return retryNow, nil
	}
	x.slots.unused(k)
	return final, headStatus
}

// sequence is the SEQUENCE of a request (section 18.46).
func (x *live) sequence(k *slot, cache bool) op4 {
	q := &sequence4{x, k.id, k.seq, k.highest, cache}
	return op4{nfs4.OpSequence, q.encode, q.decode}
}

// sequence4 is a SEQUENCE in the session x.
type sequence4 struct {
	x                  *live
	slot, seq, highest uint32
	cache              bool
}

func (q *sequence4) encode(e *xdr.Encoder) {
	e.Fixed(q.x.id[:])
	e.Uint32(q.seq)
	e.Uint32(q.slot)
	e.Uint32(q.highest)
	e.Bool(q.cache)
}

func (q *sequence4) decode(d *xdr.Decoder) {
	if got := nfs4.DecodeSessionID(d); d.Err() == nil && got != q.x.id {
		d.Fail(errResults)
	}
	if seq, slot := d.Uint32(), d.Uint32(); d.Err() == nil && (seq != q.seq || slot != q.slot) {
		d.Fail(errResults)
	}
	d.Uint32() // highest slot, now
	d.Uint32() // and wished for
	if flags := d.Uint32(); d.Err() == nil {
		q.x.notice(flags)
	}
}

// transmission is a compound on its way in a session. It serves further ones: a carrier
// leaves a request alone once its Call has returned.
type transmission struct {
	rpc                rpc.Request
	q                  *compound4
	seq                sequence4
	head               op4 // seq
	headStatus, status nfs.Status
	args               func(*xdr.Encoder)
	res                func(*xdr.Decoder) error
}

var transmissions = sync.Pool{New: func() any {
	t := &transmission{}
	t.head = op4{nfs4.OpSequence, t.seq.encode, t.seq.decode}
	t.args = func(e *xdr.Encoder) { t.q.encode(e, t.seq.x.minor, &t.head) }
	t.res = func(d *xdr.Decoder) (err error) {
		t.headStatus, t.status, err = t.q.decode(d, &t.head)
		return err
	}
	return t
}}

// transmit sends a compound in a slot of a session.
func (s *session4) transmit(ctx context.Context, x *live, k *slot, q *compound4) (headStatus, status nfs.Status, err error) {
	t := transmissions.Get().(*transmission)
	t.q, t.seq = q, sequence4{x, k.id, k.seq, k.highest, q.cache}
	t.rpc = rpc.Request{
		Prog: nfs4.Program, Vers: nfs4.Version, Proc: nfs4.ProcCompound, Cred: s.cred,
		Args: t.args, Dst: q.dst, ResMax: q.resMax + headroom, Res: t.res,
	}
	err = s.conn.Call(ctx, &t.rpc)
	headStatus, status = t.headStatus, t.status
	*t = transmission{head: t.head, args: t.args, res: t.res}
	transmissions.Put(t)
	return headStatus, status, err
}

// doubt finds out what became of a request that was given up, so that its slot can be
// used again: a SEQUENCE with the same sequence ID is executed if the server has not
// seen the request, and is no retry of it if it has.
func (s *session4) doubt(x *live, k *slot) {
	s.doubts.Add(1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.conn.giveUp)
		defer cancel()
		for wait := jukeboxFirst; ; wait = min(2*wait, jukeboxMax) {
			head := x.sequence(k, false)
			var q compound4
			var headStatus, st nfs.Status
			if err := s.conn.Call(ctx, s.request(&q, x.minor, &head, &headStatus, &st)); err != nil && !errors.Is(err, errResults) {
				return // and the slot stays out of use
			}
			switch headStatus {
			case nfs.ErrJukebox:
				if pause(ctx, wait) != nil {
					return
				}
				continue
			case nfs.OK, nfs.ErrSeqFalseRetry, nfs.ErrRetryUncachedRep:
				x.slots.done(k)
			default:
				s.lose(x)
			}
			return
		}
	}()
}

// Words of EXCHANGE_ID, CREATE_SESSION and BIND_CONN_TO_SESSION.
const (
	exchConfirmed = 0x80000000
	protectNone   = 0
	secNone       = 0
	bindFore      = 1
	bindBack      = 2
	callbackProg  = 0x40000000
)

// establish makes a session, and a client ID where there is none or where the server
// does not know it any more. What was open is reclaimed then. Call with turn held.
func (s *session4) establish(ctx context.Context) error {
	fresh := false
	for attempt := 0; ; attempt++ {
		if s.id == 0 {
			known, err := s.exchangeID(ctx)
			if err != nil {
				return err
			}
			fresh = fresh || !known
		}
		x, err := s.createSession(ctx)
		var st nfs.Status
		switch {
		case err == nil:
			return s.recover(ctx, x, fresh)
		case !errors.As(err, &st) || attempt >= 3:
			return err
		}
		s.id = 0 // unknown, or out of step: EXCHANGE_ID tells
	}
}

// exchangeID is EXCHANGE_ID (RFC 8881 section 18.35). known says that the server has
// the client's state, or had nothing of it to lose.
func (s *session4) exchangeID(ctx context.Context) (known bool, err error) {
	var id uint64
	var seq, flags uint32
	err = s.alone(ctx, s.minor, op4{nfs4.OpExchangeID, func(e *xdr.Encoder) {
		e.Fixed(s.verf[:])
		e.Opaque(s.owner)
		e.Uint32(0) // flags
		e.Uint32(protectNone)
		e.Uint32(0) // no nfs_impl_id4
	}, func(d *xdr.Decoder) {
		id, seq, flags = d.Uint64(), d.Uint32(), d.Uint32()
		if how := d.Uint32(); how != protectNone {
			d.Fail(errResults)
		}
		d.Uint64()
		d.Opaque(nfs4.OwnerMax)
		d.Opaque(nfs4.OwnerMax) // scope
		// Who made the server does not matter.
	}})
	if err != nil {
		return false, err
	}
	s.id, s.createSeq = id, seq
	return flags&exchConfirmed != 0, nil
}

// createSession is CREATE_SESSION (section 18.36). There is no backchannel.
func (s *session4) createSession(ctx context.Context) (*live, error) {
	fore := state.Channel{MaxRequest: messageAsked, MaxResponse: messageAsked, MaxCached: cachedAsked, MaxOps: opsAsked, MaxSlots: slotsAsked}
	back := state.Channel{MaxRequest: backAsked, MaxResponse: backAsked, MaxOps: 8, MaxSlots: 1}
	x := &live{minor: s.minor, ended: make(chan struct{})}
	x.notice = func(flags uint32) { s.notice(x, flags) }
	err := s.alone(ctx, s.minor, op4{nfs4.OpCreateSession, func(e *xdr.Encoder) {
		e.Uint64(s.id)
		e.Uint32(s.createSeq)
		e.Uint32(0) // flags
		nfs4.EncodeChannel(e, &fore)
		nfs4.EncodeChannel(e, &back)
		e.Uint32(callbackProg)
		e.Uint32(1)
		e.Uint32(secNone)
	}, func(d *xdr.Decoder) {
		x.id = nfs4.DecodeSessionID(d)
		d.Uint32() // sequence
		d.Uint32() // flags
		x.fore = nfs4.DecodeChannel(d)
		nfs4.DecodeChannel(d)
	}})
	if err != nil {
		return nil, err
	}
	s.createSeq++
	f := &x.fore
	f.MaxSlots = min(f.MaxSlots, slotsAsked)
	if f.MaxSlots == 0 || f.MaxOps < opsLeast || f.MaxRequest < 2*overhead || f.MaxResponse < 2*overhead {
		return nil, fmt.Errorf("%w: %d slots, %d operations, calls of %d and replies of %d bytes", errTooSmall,
			f.MaxSlots, f.MaxOps, f.MaxRequest, f.MaxResponse)
	}
	x.slots = newSlots(f.MaxSlots)
	s.sessions.Add(1)
	return x, nil
}

// opsLeast is the number of operations that compounds are made of at most, apart
// from those that are cut to measure.
const opsLeast = 9

// recover looks at a new session's server and, if the client ID is new, gets back
// what was open before. Then the session is the one of the client.
func (s *session4) recover(ctx context.Context, x *live, fresh bool) error {
	s.conn.hook(func(ctx context.Context, c rpc.Client) error { return s.bind(ctx, c, x) })
	var a attrs4
	want := nfs4.BitmapOf(nfs4.AttrLeaseTime, nfs4.AttrFSID)
	q := &compound4{ops: []op4{{num: nfs4.OpPutRootFH}, getFH(&x.root), a.get(want)}}
	if err := s.within(ctx, x, q); err != nil {
		return err
	}
	x.lease, x.fsid = time.Duration(a.lease)*time.Second, a.fsid
	if fresh {
		if err := s.opens.reclaim(ctx, x); err != nil {
			return err
		}
		done := &compound4{cache: true, ops: []op4{{num: nfs4.OpReclaimComplete, args: func(e *xdr.Encoder) { e.Bool(false) }}}}
		if err := s.within(ctx, x, done); err != nil && err != nfs.ErrCompleteAlready {
			return err
		}
		s.opens.reopen(ctx, x)
	}
	s.mu.Lock()
	s.cur = x
	s.mu.Unlock()
	return nil
}

// within executes a compound in a session that is not yet for everybody.
func (s *session4) within(ctx context.Context, x *live, q *compound4) error {
	for wait := jukeboxFirst; ; wait = min(2*wait, jukeboxMax) {
		select {
		case <-x.ended:
			return errSessionLost
		default:
		}
		again, err := s.try(ctx, x, q)
		if again == final && err != nfs.ErrJukebox && err != nfs.ErrGrace {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

func bindOp(id state.SessionID) op4 {
	return op4{nfs4.OpBindConnToSession, func(e *xdr.Encoder) {
		e.Fixed(id[:])
		e.Uint32(bindFore)
		e.Bool(false)
	}, func(d *xdr.Decoder) {
		nfs4.DecodeSessionID(d)
		d.Uint32()
		d.Bool()
	}}
}

// bind makes a new connection one of the session (section 18.34). That the session is
// lost is for the next call to find out.
func (s *session4) bind(ctx context.Context, c rpc.Client, x *live) error {
	q := compound4{ops: []op4{bindOp(x.id)}}
	var headStatus, st nfs.Status
	r := s.request(&q, x.minor, nil, &headStatus, &st)
	r.XID = s.conn.nextXID()
	if err := c.Call(ctx, r); err != nil {
		return err
	}
	s.replayed.Add(1)
	return nil
}

// renew shows the server that the client is there.
func (s *session4) renew(ctx context.Context) error { return s.do(ctx, &compound4{}) }

// destroyTime bounds how long the end of a session may take.
const destroyTime = 2 * time.Second

// close gives the server back what the client has there, if it can be reached.
func (s *session4) close() {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTime)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	x := s.current()
	if x == nil {
		return
	}
	s.conn.hook(nil)
	if !s.conn.connected() {
		s.lose(x)
		return
	}
	s.opens.closeAll(ctx, x)
	s.lose(x)
	err := s.alone(ctx, x.minor, op4{num: nfs4.OpDestroySession, args: func(e *xdr.Encoder) { e.Fixed(x.id[:]) }})
	if err == nil {
		_ = s.alone(ctx, x.minor, op4{num: nfs4.OpDestroyClientID, args: func(e *xdr.Encoder) { e.Uint64(s.id) }})
	}
	s.id = 0
}
