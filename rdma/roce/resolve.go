package roce

import (
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/connstate"
)

// sidrRequest is a SIDR REQ that was received. It implements rdma.UDRequest.
type sidrRequest struct {
	incoming
	req cm.SIDRREQ
}

var _ rdma.UDRequest = (*sidrRequest)(nil)

// sidrRequest gives a SIDR REQ to its service, on one of the shards in turn. First shard only.
func (s *shard) sidrRequest(id *cm.ID) {
	d := s.dev
	d.mu.Lock()
	l := d.services[id.Service]
	d.mu.Unlock()
	refuse := func(why cm.SIDRStatus) {
		_ = s.cm.Answer(s.now, id, cm.AnswerParams{Status: why}) // fails only if answered before
	}
	// The reasons of a REJ have their counterparts among the statuses of a SIDR REP (IBTA
	// 12.11.2.2).
	switch s.admit(id, l != nil, id.Resolution.REQ.PKey) {
	case cm.InvalidServiceID:
		refuse(cm.SIDRUnsupported)
		return
	case cm.NoResources:
		refuse(cm.SIDRNoQP)
		return
	}
	r := &sidrRequest{incoming{s: d.nextShard(), id: id, remote: id.Peer, port: id.Service}, id.Resolution.REQ}
	if !s.on(r.s, func() { l.accept(r) }) {
		refuse(cm.SIDRNoQP)
	}
}

func (r *sidrRequest) PrivateData() []byte { return r.req.Private[cm.IPHeaderLen:] }
func (r *sidrRequest) PKey() uint16        { return r.s.dev.pkeys.Load().of(r.req.PKey) }

// Accept implements rdma.UDRequest.
func (r *sidrRequest) Accept(qpn, qkey uint32, private []byte) error {
	return r.answer(cm.AnswerParams{QPN: qpn, QKey: qkey, Private: private})
}

// Reject implements rdma.UDRequest.
func (r *sidrRequest) Reject(why rdma.SIDRStatus, private []byte) {
	if why == rdma.SIDRStatus(cm.SIDRValid) {
		why = rdma.SIDRReject
	}
	_ = r.answer(cm.AnswerParams{Status: cm.SIDRStatus(why), Private: private[:min(len(private), cm.SIDRREPPrivateLen)]})
}

func (r *sidrRequest) answer(a cm.AnswerParams) error {
	if r.answered {
		return errAnswered
	}
	if err := connstate.CheckPrivate(a.Private, cm.SIDRREPPrivateLen, "a SIDR REP"); err != nil {
		return err
	}
	r.answered = true
	a.Private = slices.Clone(a.Private)
	first := r.s.dev.shards[0]
	r.s.on(first, func() { _ = first.cm.Answer(first.now, r.id, a) }) // it fails if the peer has given up
	return nil
}

// resolution is a SIDR REQ of ours.
type resolution struct {
	s    *shard // of the user
	id   *cm.ID // first shard only
	on   func(rdma.UDAddress)
	pkey uint16
	over bool // answered or canceled; on s
}

// ResolveUD implements rdma.Device.
func (d *Device) ResolveUD(l rdma.Loop, p rdma.ResolveParams) (func(), error) {
	s, err := d.shardOf(l)
	if err != nil {
		return nil, err
	}
	if s.leaving {
		return nil, rdma.ErrClosed
	}
	if err := connstate.CheckRemote(d.addr, p.Remote); err != nil {
		return nil, err
	}
	if err := connstate.CheckPrivate(p.PrivateData, cm.ResolvePrivateLen, "a SIDR REQ"); err != nil {
		return nil, err
	}
	pkey, err := d.partition(p.PKey)
	if err != nil {
		return nil, err
	}
	r := &resolution{s: s, on: p.On, pkey: pkey}
	s.resolutions[r] = struct{}{}
	ask := cm.ResolveParams{Remote: p.Remote, SourcePort: d.ephemeral(), PKey: pkey, Private: slices.Clone(p.PrivateData)}
	first := d.shards[0]
	if !s.on(first, func() {
		id, err := first.cm.Resolve(first.now, ask)
		if err != nil {
			first.on(s, func() { r.answer(rdma.UDAddress{Err: err}) })
			return
		}
		id.User, r.id = r, id
	}) {
		delete(s.resolutions, r)
		return nil, rdma.ErrClosed
	}
	return r.cancel, nil
}

// cancel abandons the request.
func (r *resolution) cancel() {
	if r.over {
		return
	}
	r.end()
	first := r.s.dev.shards[0]
	r.s.on(first, func() {
		if r.id != nil && r.id.State == cm.SIDRREQSent {
			first.cm.Forget(r.id)
		}
	})
}

func (r *resolution) end() {
	r.over = true
	delete(r.s.resolutions, r)
}

// answer queues the answer for the user, for the callbacks of this turn.
func (r *resolution) answer(a rdma.UDAddress) {
	r.s.later.Add(func() {
		if !r.over {
			r.end()
			r.on(a)
		}
	})
}

// report takes the answer from the first shard to the shard of the user.
func (r *resolution) report(e cm.Event) {
	a := rdma.UDAddress{PKey: r.pkey, Err: e.Err}
	if e.Kind == cm.Resolved {
		rep := &e.ID.Resolution.REP
		a.AH = rdma.AH{Remote: e.ID.Peer.Addr(), QPN: rep.QPN, QKey: rep.QKey}
		a.PrivateData = slices.Clone(rep.Private[:])
	}
	r.s.dev.shards[0].on(r.s, func() { r.answer(a) })
}
