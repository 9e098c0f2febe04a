package client

import (
	"context"

	"github.com/rstored/rstored/nfs"
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

// statusFlags gets the flags of every SEQUENCE reply. The server repeats a flag until the client
// has reacted. So statusFlags starts a reaction only if a flag was not set in the previous reply.
func (s *session4) statusFlags(x *live, flags uint32) {
	flags &= statusUsed
	if fresh := flags &^ x.statusFlags.Swap(flags); fresh != 0 {
		go s.react(x, fresh)
	}
}

// react reclaims the state of the client if the server asks for that. Then it frees the stateids
// that the server has revoked, and opens their files again if possible.
func (s *session4) react(x *live, flags uint32) {
	ctx, cancel := context.WithTimeout(context.Background(), s.conn.giveUp)
	defer cancel()
	select {
	case s.recovery <- struct{}{}:
		defer s.recovery.unlock()
	case <-x.ended:
		return
	case <-ctx.Done():
		return
	}
	if s.current() != x {
		return // the code that made the session after x has recovered everything
	}
	if flags&statusBack != 0 && x.back {
		for _, c := range s.conn.connections() {
			_ = s.bind(ctx, c, x) // if it fails the server grants no delegations
		}
	}
	if flags&statusReclaimNeeded != 0 && s.reclaim(ctx, x) != nil {
		return
	}
	if flags&(statusRevoked|statusReclaimNeeded) != 0 {
		s.opens.freeRevoked(ctx, x)
	}
}

// freeRevoked asks the server for the status of every stateid of the client (TEST_STATEID). It
// frees the revoked ones (FREE_STATEID, RFC 8881 section 18.38), and opens their files anew.
func (o *opens) freeRevoked(ctx context.Context, x *live) {
	type entry struct {
		l  *locks4     // nil: the stateid is of an open
		d  *Delegation // nil: the stateid is not of a delegation
		id state.Stateid
	}
	var list []entry
	o.mu.Lock()
	for _, f := range o.byFile {
		if !f.open {
			continue
		}
		list = append(list, entry{id: f.id})
		if d := f.deleg; d != nil {
			list = append(list, entry{d: d, id: d.id})
		}
		for _, l := range f.locks {
			if l.made {
				list = append(list, entry{l: l, id: l.id})
			}
		}
	}
	o.mu.Unlock()
	for len(list) > 0 {
		some := list[:min(len(list), stateidsOfOneTest)]
		list = list[len(some):]
		ids := make([]state.Stateid, len(some))
		for i := range some {
			ids[i] = some[i].id
		}
		statuses, err := o.test(ctx, x, ids)
		if err != nil {
			return
		}
		for i, st := range statuses {
			e := &some[i]
			if st == nfs.OK || st == nfs.ErrOldStateID {
				continue
			}
			_ = o.s.changeDuring(ctx, x, freeStateidOp(e.id))
			o.mu.Lock()
			if e.l != nil && e.l.id == e.id {
				e.l.lose()
			}
			if e.d != nil && e.d.id == e.id {
				o.lose(e.d)
			}
			o.mu.Unlock()
		}
	}
	o.reopen(ctx, x)
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
