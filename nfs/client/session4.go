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
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// errSessionLost ends the calls that wait for a slot of a session that is lost.
var errSessionLost = errors.New("the session is lost")

// session4 is a client of version 4 with its session (RFC 8881 section 2.10). If the server has
// lost the session, session4 makes a new one and recovers the state of the client.
//
// A request occupies a slot of the session and uses the slot's sequence ID over all connections.
// The server executes each sequence ID of a slot once. A retry gets the reply from its reply cache
// (section 2.10.6.1).
//
// Lock order: recovery, then open4.mu or locks4.mu of a file, then opens.mu, then mu. No call to
// the server is made with opens.mu or mu held.
type session4 struct {
	conn  *session // makes connections again
	cred  *rpc.Cred
	owner []byte // co_ownerid: unique to this client
	verf  [nfs4.VerifierLen]byte
	opens *opens

	// recovery is held while a session is made or state is recovered.
	recovery  ctxMutex
	id        uint64 // client ID; 0 is none. Guarded by recovery
	createSeq uint32 // csa_sequence of the next CREATE_SESSION. Guarded by recovery
	// unreclaimed says that the server made the client ID anew and the client has not reclaimed its
	// state since. It stays set if an attempt is interrupted. Guarded by recovery.
	unreclaimed bool

	mu     sync.Mutex
	minor  uint32
	cur    *live
	closed bool

	creates   atomic.Uint64 // numbers the open-owners of opens that create files
	sessions  atomic.Uint64 // sessions that were made
	reclaimed atomic.Uint64 // opens that were reclaimed after a restart of the server
	relocked  atomic.Uint64 // locks that were reclaimed
}

// live is one session, from its CREATE_SESSION until the server loses it or the client abandons it.
type live struct {
	id    state.SessionID
	minor uint32
	fore  state.Channel // ca_* that the server granted
	slots *slots
	ended chan struct{} // closed when the session is lost
	over  bool          // ended is closed; guarded by session4.mu
	root  Handle
	fsid  [2]uint64 // of the root
	lease time.Duration
	back  bool // the session has a backchannel

	reactions reactions
	// doubt is set while the server may have ended state of the client that the client has not tested.
	doubt atomic.Bool
}

func newSession4(conn *session, cred *rpc.Cred, minor uint32) *session4 {
	var unique [8]byte
	host, _ := os.Hostname()
	s := &session4{conn: conn, cred: cred, minor: minor, recovery: newCtxMutex()}
	_, _ = rand.Read(unique[:])
	_, _ = rand.Read(s.verf[:])
	s.owner = fmt.Appendf(nil, "rstored client %s %s", host, hex.EncodeToString(unique[:]))
	s.opens = newOpens(s)
	return s
}

// withoutSession sends one operation that needs no session: EXCHANGE_ID and the like.
func (s *session4) withoutSession(ctx context.Context, minor uint32, o op4) error {
	q := compound4{ops: []op4{o}}
	for wait := jukeboxFirst; ; wait = min(2*wait, jukeboxMax) {
		_, st, err := s.send(ctx, s.conn, minor, &q, sequence4{})
		if err != nil {
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

// pause waits for d, or until ctx ends.
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

// current returns the session, or nil.
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

// abandon stops using a session. Calls that wait for one of its slots move to the next session.
func (s *session4) abandon(x *live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == x {
		s.cur = nil
	}
	s.conn.calls.remove(x.id)
	if !x.over {
		x.over = true
		close(x.ended)
	}
}

// ready returns the session, and makes one if there is none.
func (s *session4) ready(ctx context.Context) (*live, error) {
	for {
		if x := s.current(); x != nil {
			return x, nil
		}
		if err := s.recovery.lock(ctx); err != nil {
			return nil, err
		}
		var err error
		if s.isClosed() {
			err = &rpc.ConnError{Peer: s.conn.peer, Err: rpc.ErrClosed}
		} else if s.current() == nil {
			err = s.establish(ctx)
		}
		s.recovery.unlock()
		if errors.Is(err, errSessionLost) {
			err = pause(ctx, jukeboxFirst) // the server restarted once more meanwhile
		}
		if err != nil {
			return nil, err
		}
	}
}

// do executes a compound once. It repeats the compound while the server answers NFS4ERR_DELAY or
// NFS4ERR_GRACE. It does not repeat a compound of which a part was executed that must not be
// executed again. A status other than OK is returned as nfs.Status.
func (s *session4) do(ctx context.Context, q *compound4) error {
	for wait := jukeboxFirst; ; {
		x, err := s.ready(ctx)
		if err != nil {
			return err
		}
		again, err := s.try(ctx, x, q)
		switch {
		case (err == nfs.ErrJukebox || err == nfs.ErrGrace) && !q.changed():
			if err == nfs.ErrGrace {
				wait = min(wait, graceMax)
			}
			if err := pause(ctx, wait); err != nil {
				return err
			}
			wait = min(2*wait, jukeboxMax)
		case !again:
			return err
		}
	}
}

// change executes operations that change something: the server caches their reply.
func (s *session4) change(ctx context.Context, ops ...op4) error {
	return s.do(ctx, &compound4{cache: true, ops: ops})
}

// during executes a compound in a session before other calls use that session.
func (s *session4) during(ctx context.Context, x *live, q *compound4) error {
	for wait := jukeboxFirst; ; wait = min(2*wait, jukeboxMax) {
		select {
		case <-x.ended:
			return errSessionLost
		default:
		}
		again, err := s.try(ctx, x, q)
		if !again && err != nfs.ErrJukebox && err != nfs.ErrGrace {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// changeDuring is change in a session before other calls use that session.
func (s *session4) changeDuring(ctx context.Context, x *live, ops ...op4) error {
	return s.during(ctx, x, &compound4{cache: true, ops: ops})
}

// try executes a compound in a session, once. again says that the compound must be sent again.
func (s *session4) try(ctx context.Context, x *live, q *compound4) (again bool, err error) {
	k, err := x.slots.take(ctx, x.ended)
	if errors.Is(err, errSessionLost) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	begin := clock.Now()
	headStatus, st, err := s.sendSlot(ctx, x, k, q)
	if err != nil {
		if errors.As(err, new(*rpc.AcceptError)) || errors.As(err, new(*rpc.DeniedError)) {
			x.slots.unused(k) // RPC refused the call: the server has not seen the SEQUENCE
		} else {
			go s.probeSlot(x, k)
		}
		return false, err
	}
	switch headStatus {
	case nfs.OK:
		x.slots.done(k)
		s.flagged(x, q.flags, begin)
		s.opens.renewed(x, begin)
		if st == nfs.ErrRetryUncachedRep && q.executed == 0 && !q.cache {
			return true, nil
		}
		return false, st.Err()
	case nfs.ErrRetryUncachedRep:
		// The server has executed the request and has not cached its reply.
		x.slots.done(k)
		if q.cache {
			return false, headStatus
		}
		return true, nil
	case nfs.ErrBadSession, nfs.ErrDeadSession, nfs.ErrStaleClientID, nfs.ErrExpired,
		nfs.ErrBadSlot, nfs.ErrBadHighSlot, nfs.ErrSeqMisordered, nfs.ErrSeqFalseRetry:
		// The server has lost the session, or the two sides disagree about the slot. So the server
		// has not executed this transmission. It may have executed an earlier one before it lost
		// the session.
		s.abandon(x)
		q.resent = true
		return true, nil
	}
	x.slots.unused(k)
	return false, headStatus
}

// sendSlot sends a compound in a slot until the server has executed the compound, or has refused it
// for good. While the server answers that the compound must be sent later, sendSlot keeps the slot.
// The server may be executing a transmission that came over a lost connection. Another compound
// with the same sequence ID would get the reply of that one (RFC 8881 sections 2.10.6.2 and
// 15.1.1.3).
func (s *session4) sendSlot(ctx context.Context, x *live, k *slot, q *compound4) (
	headStatus, st nfs.Status, err error,
) {
	for wait := jukeboxFirst; ; wait = min(2*wait, jukeboxMax) {
		head := sequence4{x: x, slot: k.id, seq: k.seq, highest: k.highest, cache: q.cache}
		headStatus, st, err = s.send(ctx, s.conn, x.minor, q, head)
		switch {
		case err != nil, headStatus != nfs.ErrJukebox && headStatus != nfs.ErrConnNotBound:
			return headStatus, st, err
		case headStatus == nfs.ErrConnNotBound:
			for _, c := range s.conn.connections() { // the call may have used any
				_ = s.bind(ctx, c, x) // if it fails the server has lost the session, and says so next
			}
		}
		if err := pause(ctx, wait); err != nil {
			return 0, 0, err
		}
	}
}

// probeSlot finds out whether the server has seen a request that the client gave up, so that the
// slot can be used again. It sends a SEQUENCE alone with the sequence ID of the request. If the
// server has not seen the request, it executes the SEQUENCE. If it has seen the request, it refuses
// the SEQUENCE as a false retry, or returns the cached reply. That reply does not fit and is
// errResults (RFC 8881 section 2.10.6.1.3).
//
// While no answer arrives the slot stays out of use.
func (s *session4) probeSlot(x *live, k *slot) {
	ctx, cancel := context.WithTimeout(context.Background(), s.conn.giveUp)
	defer cancel()
	for wait := jukeboxFirst; ; wait = min(2*wait, jukeboxMax) {
		head := sequence4{x: x, slot: k.id, seq: k.seq, highest: k.highest}
		headStatus, _, err := s.send(ctx, s.conn, x.minor, &compound4{}, head)
		if err != nil && !errors.Is(err, errResults) {
			return
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
			s.abandon(x)
		}
		return
	}
}
