package client

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The flags of a SEQUENCE reply to which this client reacts (SEQ4_STATUS_*, RFC 8881 section
// 18.46.3). It does not follow file systems that move.
const (
	statusPathDown      = 0x001 // SEQ4_STATUS_CB_PATH_DOWN
	statusExpiredAll    = 0x008
	statusExpiredSome   = 0x010
	statusAdminRevoked  = 0x020
	statusRecallRevoked = 0x040
	statusReclaimNeeded = 0x100 // SEQ4_STATUS_RESTART_RECLAIM_NEEDED
	statusPathOfSession = 0x200 // SEQ4_STATUS_CB_PATH_DOWN_SESSION
	statusBackFault     = 0x400 // SEQ4_STATUS_BACKCHANNEL_FAULT
	statusRevoked       = statusExpiredAll | statusExpiredSome | statusAdminRevoked | statusRecallRevoked
	statusBack          = statusPathDown | statusPathOfSession | statusBackFault
	statusUsed          = statusRevoked | statusReclaimNeeded | statusBack

	// stateidsOfOneTest bounds a TEST_STATEID.
	stateidsOfOneTest = 64
)

// flagged gets the flags of the reply to a SEQUENCE in the session x that was sent at the time sent,
// before the caller counts the reply as a renewal of the lease.
func (s *session4) flagged(x *live, flags uint32, sent time.Time) {
	if flags &= statusUsed; flags != 0 && x.reactions.flagged(flags, sent, &x.doubt) {
		go s.reacting(x)
	}
}

// reacting reacts until the server has no more flags. There is one such goroutine for each session.
func (s *session4) reacting(x *live) {
	for flags := x.reactions.next(); flags != 0; flags = x.reactions.next() {
		ctx, cancel := context.WithTimeout(context.Background(), s.conn.giveUp)
		useful, err := s.react(ctx, x, flags)
		wait := x.reactions.done(flags, useful, err == nil, clock.Now(), &x.doubt)
		if useful && err == nil {
			_, _ = s.try(ctx, x, &compound4{}) // shows whether the server has revoked more meanwhile
		}
		cancel()
		if errors.Is(err, errSessionLost) {
			return
		}
		select {
		case <-time.After(wait):
		case <-x.ended:
			return
		}
	}
}

// react reclaims the state of the client if the server asks for that. Then it frees the stateids
// that the server has revoked, and opens their files again if possible. useful says that there were
// some. A reclaim alone is not: a server that wants another one at once would get them without end.
func (s *session4) react(ctx context.Context, x *live, flags uint32) (useful bool, err error) {
	select {
	case s.recovery <- struct{}{}:
		defer s.recovery.unlock()
	case <-x.ended:
		return false, errSessionLost
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if s.current() != x {
		return false, errSessionLost // the code that made the session after x has recovered everything
	}
	if flags&statusBack != 0 && x.back {
		for _, c := range s.conn.connections() {
			_ = s.bind(ctx, c, x) // if it fails the server grants no delegations
		}
	}
	if flags&statusReclaimNeeded != 0 {
		if err := s.reclaim(ctx, x); err != nil {
			return false, err
		}
	}
	if flags&(statusRevoked|statusReclaimNeeded) == 0 {
		return false, nil
	}
	return s.opens.freeRevoked(ctx, x)
}

// freeRevoked asks the server for the status of every stateid of the client (TEST_STATEID). It
// frees the revoked ones (FREE_STATEID, RFC 8881 section 18.38), and opens their files anew. found
// says that there were some.
func (o *opens) freeRevoked(ctx context.Context, x *live) (found bool, err error) {
	type entry struct {
		l  *locks4     // nil: the stateid is of an open
		d  *Delegation // nil: the stateid is not of a delegation
		id state.Stateid
	}
	var list []entry
	o.mu.Lock()
	free := o.revoked // the client knows of these already
	o.revoked = nil
	for _, f := range o.byFile {
		if !f.open {
			continue
		}
		list = append(list, entry{id: f.id})
		if d := f.deleg; d != nil && !d.leaving() {
			list = append(list, entry{d: d, id: d.id})
		}
		for _, l := range f.locks {
			if l.made {
				list = append(list, entry{l: l, id: l.id})
			}
		}
	}
	o.mu.Unlock()
	var failed error
	for _, id := range free {
		freed, err := o.free(ctx, x, id)
		found, failed = found || freed, errors.Join(failed, err)
	}
	for len(list) > 0 {
		some := list[:min(len(list), stateidsOfOneTest)]
		list = list[len(some):]
		ids := make([]state.Stateid, len(some))
		for i := range some {
			ids[i] = some[i].id
		}
		statuses, err := o.test(ctx, x, ids)
		if err != nil {
			return found, err
		}
		for i, st := range statuses {
			e := &some[i]
			if st == nfs.OK || st == nfs.ErrOldStateID || e.d != nil && o.returns(e.d) {
				continue
			}
			found = true
			o.mu.Lock()
			if e.l != nil && e.l.id == e.id {
				e.l.lose()
			}
			if e.d != nil && e.d.id == e.id {
				o.lose(e.d)
				o.revoked = slices.DeleteFunc(o.revoked, func(id state.Stateid) bool { return id == e.id })
			}
			o.mu.Unlock()
			_, err := o.free(ctx, x, e.id)
			failed = errors.Join(failed, err)
		}
	}
	if found {
		o.reopen(ctx, x)
	}
	return found, errors.Join(failed, ctx.Err())
}

// free frees a revoked stateid. If the server does not answer, the next reaction frees it: the
// server keeps its flag until then. A status other than OK is an answer, and nothing is left to do.
func (o *opens) free(ctx context.Context, x *live, id state.Stateid) (freed bool, err error) {
	err = o.s.changeDuring(ctx, x, freeStateidOp(id))
	if err == nil || errors.As(err, new(nfs.Status)) {
		return err == nil, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.revoked) < delegationsMax {
		o.revoked = append(o.revoked, id)
	}
	return false, err
}

// returns reports whether the client has begun to return a delegation since it asked for the status.
// The reply to the DELEGRETURN shows what has become of the delegation.
func (o *opens) returns(d *Delegation) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return d.leaving() || d.phase == phaseEnded
}

// test asks the server for the status of each stateid (TEST_STATEID, RFC 8881 section 18.48).
func (o *opens) test(ctx context.Context, x *live, ids []state.Stateid) (statuses []nfs.Status, err error) {
	err = o.s.during(ctx, x, &compound4{resMax: 4 * len(ids), ops: []op4{{nfs4.OpTestStateID, func(e *xdr.Encoder) {
		e.Uint32(uint32(len(ids)))
		for _, id := range ids {
			nfs4.EncodeStateid(e, id)
		}
	}, func(d *xdr.Decoder) {
		if int(d.Uint32()) != len(ids) {
			d.Fail(errResults)
			return
		}
		statuses = statuses[:0]
		for range ids {
			statuses = append(statuses, nfs.Status(d.Uint32()))
		}
	}}}})
	return statuses, err
}
