package client

import (
	"context"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// What a server tells by the flags of SEQUENCE (RFC 8881 section 18.46.3) that the client
// has to do something about. That the callback path is down does not matter to a client
// without delegations, and file systems that move it does not follow.
const (
	noticeExpiredAll    = 0x008
	noticeExpiredSome   = 0x010
	noticeAdminRevoked  = 0x020
	noticeRecallRevoked = 0x040
	noticeReclaimNeeded = 0x100
	noticesLost         = noticeExpiredAll | noticeExpiredSome | noticeAdminRevoked | noticeRecallRevoked
	noticesThatCount    = noticesLost | noticeReclaimNeeded

	// stateidsOfOneTest bounds a TEST_STATEID.
	stateidsOfOneTest = 64
)

// notice is told of the flags of every SEQUENCE. What is new is attended to once, however
// long the server goes on to say it.
func (s *session4) notice(x *live, flags uint32) {
	flags &= noticesThatCount
	if fresh := flags &^ x.noticed.Swap(flags); fresh != 0 {
		s.notices.Add(1)
		go s.attend(x, fresh)
	}
}

// attend finds out what the server has taken away, gives the stateids back, and opens
// again what may be opened.
func (s *session4) attend(x *live, flags uint32) {
	ctx, cancel := context.WithTimeout(context.Background(), s.conn.giveUp)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-x.ended:
		return
	case <-ctx.Done():
		return
	}
	if s.current() != x {
		return // what came after it has recovered everything
	}
	if flags&noticeReclaimNeeded != 0 {
		if s.opens.reclaim(ctx, x) != nil {
			return
		}
		done := &compound4{cache: true, ops: []op4{{num: nfs4.OpReclaimComplete, args: func(e *xdr.Encoder) { e.Bool(false) }}}}
		if err := s.within(ctx, x, done); err != nil && err != nfs.ErrCompleteAlready {
			return
		}
	}
	s.opens.examine(ctx, x)
}

// examine asks the server for every stateid that the client has, frees those that it has
// taken away (section 18.38), and opens their files anew.
func (o *opens) examine(ctx context.Context, x *live) {
	type entry struct {
		f  *open4
		l  *locks4 // nil: the open
		id state.Stateid
	}
	var list []entry
	o.mu.Lock()
	for _, f := range o.byFile {
		if !f.held {
			continue
		}
		list = append(list, entry{f, nil, f.id})
		for _, l := range f.locks {
			if l.made {
				list = append(list, entry{f, l, l.id})
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
			_ = o.s.within(ctx, x, &compound4{cache: true, ops: []op4{freeStateidOp(e.id)}})
			o.mu.Lock()
			if e.l != nil && e.l.id == e.id {
				e.l.lost = e.l.lost || len(e.l.held) > 0
				e.l.made, e.l.held = false, nil
			}
			o.mu.Unlock()
		}
	}
	o.reopen(ctx, x)
}

// test is a TEST_STATEID.
func (o *opens) test(ctx context.Context, x *live, ids []state.Stateid) (statuses []nfs.Status, err error) {
	err = o.s.within(ctx, x, &compound4{resMax: 4 * len(ids), ops: []op4{{nfs4.OpTestStateID, func(e *xdr.Encoder) {
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
