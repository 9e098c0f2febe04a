package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The limits that the client asks for in CREATE_SESSION. A message must have room for the data of
// one READ or WRITE and for the rest of its compound.
const (
	slotsAsked   = 128
	opsAsked     = 50
	cachedAsked  = 2 << 10
	messageAsked = TransferMax + 32<<10
	backAsked    = 4 << 10
	// overhead is what the compound around a READ or WRITE, and the RPC header with its credential,
	// add to the data.
	overhead = 2 << 10
	// opsLeast is the most operations that a compound of this client has. resolve makes longer ones
	// only if the server grants more.
	opsLeast = 9
)

// Constants of EXCHANGE_ID, CREATE_SESSION and BIND_CONN_TO_SESSION.
const (
	exchConfirmed = 0x80000000 // EXCHGID4_FLAG_CONFIRMED_R
	protectNone   = 0          // SP4_NONE
	secNone       = 0          // AUTH_NONE
	bindBoth      = 3          // CDFC4_FORE_OR_BOTH
	backChannel   = 2          // CREATE_SESSION4_FLAG_CONN_BACK_CHAN
	callbackProg  = 0x40000000
)

// errTooSmall is a session in which the server grants too little to do anything.
var errTooSmall = errors.New("the server's session is too small")

// establish makes a session. If the client has no client ID, or the server does not know the ID,
// establish first gets a new one. In the second case it recovers the state of the client. recovery
// is held.
func (s *session4) establish(ctx context.Context) error {
	ctx = WithCred(ctx, s.cred) // not the identity of the call that found no session
	for attempt := 0; ; attempt++ {
		if s.id == 0 {
			known, err := s.exchangeID(ctx)
			if err != nil {
				return err
			}
			s.unreclaimed = s.unreclaimed || !known
		}
		x, err := s.createSession(ctx)
		switch {
		case err == nil:
			return s.recover(ctx, x)
		case !errors.As(err, new(nfs.Status)) || attempt >= 3:
			return err
		}
		s.id = 0 // the server does not know it, or createSeq is wrong: EXCHANGE_ID returns both
	}
}

// exchangeID gets a client ID (EXCHANGE_ID, RFC 8881 section 18.35). known says that the server
// already knew this client and has its state.
func (s *session4) exchangeID(ctx context.Context) (known bool, err error) {
	var id uint64
	var seq, flags uint32
	err = s.withoutSession(ctx, s.minor, op4{nfs4.OpExchangeID, func(e *xdr.Encoder) {
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
		d.Uint64() // so_minor_id, and then so_major_id
		d.Opaque(nfs4.OwnerMax)
		d.Opaque(nfs4.OwnerMax) // server scope
		// The nfs_impl_id4 of the server is not read.
	}})
	if err != nil {
		return false, err
	}
	s.id, s.createSeq = id, seq
	return flags&exchConfirmed != 0, nil
}

// createSession makes a session (CREATE_SESSION, RFC 8881 section 18.36), with a backchannel on the
// same connection if the server makes one.
func (s *session4) createSession(ctx context.Context) (*live, error) {
	fore := state.Channel{
		MaxRequest: messageAsked, MaxResponse: messageAsked, MaxCached: cachedAsked, MaxOps: opsAsked, MaxSlots: slotsAsked,
	}
	back := state.Channel{MaxRequest: backAsked, MaxResponse: backAsked, MaxOps: backOps, MaxSlots: backSlots}
	x := &live{minor: s.minor, ended: make(chan struct{})}
	err := s.withoutSession(ctx, s.minor, op4{nfs4.OpCreateSession, func(e *xdr.Encoder) {
		e.Uint64(s.id)
		e.Uint32(s.createSeq)
		e.Uint32(backChannel)
		nfs4.EncodeChannel(e, &fore)
		nfs4.EncodeChannel(e, &back)
		e.Uint32(callbackProg)
		e.Uint32(1) // one callback_sec_parms4
		e.Uint32(secNone)
	}, func(d *xdr.Decoder) {
		x.id = nfs4.DecodeSessionID(d)
		d.Uint32() // sequence
		x.back = d.Uint32()&backChannel != 0
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
	if x.back {
		s.conn.calls.add(x.id, s, x.minor)
	}
	s.sessions.Add(1)
	return x, nil
}

// recover makes x the session of the client. If the client ID is new, recover first reclaims the
// opens and locks of the old one, and sends RECLAIM_COMPLETE (RFC 8881 section 18.51). Until then
// no other call uses the session.
func (s *session4) recover(ctx context.Context, x *live) error {
	s.conn.hook(func(ctx context.Context, c rpc.Client) error { return s.bind(ctx, c, x) })
	if err := s.bindAll(ctx, x); err != nil {
		return err
	}
	var a attrs4
	want := nfs4.BitmapOf(nfs4.AttrLeaseTime, nfs4.AttrFSID)
	q := &compound4{ops: []op4{{num: nfs4.OpPutRootFH}, getFH(&x.root), a.get(want)}}
	if err := s.during(ctx, x, q); err != nil {
		return err
	}
	x.lease, x.fsid = time.Duration(a.lease)*time.Second, a.fsid
	if s.unreclaimed {
		if err := s.reclaim(ctx, x); err != nil {
			return err
		}
		s.opens.reopen(ctx, x)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.unreclaimed = false
	}
	s.mu.Lock()
	s.cur = x
	s.mu.Unlock()
	return nil
}

// reclaim reclaims all opens and locks, and sends RECLAIM_COMPLETE.
func (s *session4) reclaim(ctx context.Context, x *live) error {
	if err := s.opens.reclaim(ctx, x); err != nil {
		return err
	}
	err := s.changeDuring(ctx, x, op4{num: nfs4.OpReclaimComplete, args: func(e *xdr.Encoder) { e.Bool(false) }})
	if err == nfs.ErrCompleteAlready {
		return nil
	}
	return err
}

// bind associates a new connection with the session (BIND_CONN_TO_SESSION, RFC 8881 section 18.34),
// before the first call on it. If the server has lost the session, the next SEQUENCE fails.
func (s *session4) bind(ctx context.Context, c rpc.Client, x *live) error {
	_, _, err := s.send(ctx, c, x.minor, &compound4{ops: []op4{bindOp(x.id)}}, sequence4{})
	return err
}

// bindAll associates all connections with a session, because calls may use any of them.
// CREATE_SESSION has associated its own connection already, so a single connection needs no call.
func (s *session4) bindAll(ctx context.Context, x *live) error {
	list := s.conn.connections()
	if len(list) < 2 {
		return nil
	}
	for _, c := range list {
		if err := s.bind(ctx, c, x); err != nil && !errors.As(err, new(*rpc.ConnError)) {
			return err
		}
	}
	return nil
}

// destroyTime bounds how long the end of a session may take.
const destroyTime = 2 * time.Second

// close closes the open files, and destroys the session and the client ID, if the server can be
// reached. It does not connect again for that.
func (s *session4) close() {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTime)
	defer cancel()
	if s.recovery.lock(ctx) != nil {
		return
	}
	defer s.recovery.unlock()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	x := s.current()
	if x == nil {
		return
	}
	s.conn.hook(nil)
	if len(s.conn.connections()) == 0 {
		s.abandon(x)
		return
	}
	s.opens.closeAll(ctx, x)
	s.abandon(x)
	destroy := op4{num: nfs4.OpDestroySession, args: func(e *xdr.Encoder) { e.Fixed(x.id[:]) }}
	if s.withoutSession(ctx, x.minor, destroy) == nil {
		_ = s.withoutSession(ctx, x.minor, op4{num: nfs4.OpDestroyClientID, args: func(e *xdr.Encoder) { e.Uint64(s.id) }})
	}
	s.id = 0
}
