package roce

import (
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
)

// question is a SIDR REQ. It implements rdma.UDRequest.
type question struct {
	s        *shard // whose loop it is answered on
	id       *cm.ID // on the first shard only
	req      cm.SIDRREQ
	remote   netip.AddrPort
	port     uint16
	answered bool
}

var _ rdma.UDRequest = (*question)(nil)

// question takes a SIDR REQ to its service, on one of the shards in turn. It runs on the
// first shard.
func (s *shard) question(id *cm.ID) {
	d := s.dev
	d.mu.Lock()
	l := d.services[id.Service]
	d.mu.Unlock()
	refuse := func(why cm.SIDRStatus) { _ = s.cm.Answer(s.now, id, cm.AnswerParams{Status: why}) } // it was not answered yet
	switch {
	case l == nil || s.leaving:
		refuse(cm.SIDRUnsupported)
		return
	case d.pkeys.Load().hears(id.Resolution.REQ.PKey) == 0:
		// Who is not in the partition need not know what is in it.
		s.stats.RefusedPKey++
		refuse(cm.SIDRUnsupported)
		return
	case s.suspects.refused(id.Peer.Addr(), s.now):
		s.stats.RefusedSuspects++
		refuse(cm.SIDRNoQP)
		return
	}
	home := d.shards[d.next.Add(1)%uint32(len(d.shards))]
	q := &question{s: home, id: id, req: id.Resolution.REQ, remote: id.Peer, port: id.Service}
	if !s.on(home, func() { l.accept(q) }) {
		refuse(cm.SIDRNoQP)
	}
}

func (q *question) Loop() rdma.Loop        { return q.s }
func (q *question) Remote() netip.AddrPort { return q.remote }
func (q *question) Local() netip.AddrPort  { return netip.AddrPortFrom(q.s.dev.ip, q.port) }
func (q *question) PrivateData() []byte    { return q.req.Private[cm.IPHeaderLen:] }
func (q *question) PKey() uint16           { return q.s.dev.pkeys.Load().of(q.req.PKey) }

// Accept implements rdma.UDRequest.
func (q *question) Accept(qpn, qkey uint32, private []byte) error {
	return q.answer(cm.AnswerParams{QPN: qpn, QKey: qkey, Private: private})
}

// Reject implements rdma.UDRequest.
func (q *question) Reject(why rdma.SIDRStatus, private []byte) {
	if why == rdma.SIDRStatus(cm.SIDRValid) {
		why = rdma.SIDRReject
	}
	_ = q.answer(cm.AnswerParams{Status: cm.SIDRStatus(why), Private: private[:min(len(private), cm.SIDRREPPrivateLen)]})
}

func (q *question) answer(a cm.AnswerParams) error {
	switch {
	case q.answered:
		return fmt.Errorf("%w: the request was answered already", rdma.ErrInvalidWR)
	case len(a.Private) > cm.SIDRREPPrivateLen:
		return fmt.Errorf("%w: %d bytes of private data; a SIDR REP carries %d", rdma.ErrInvalidWR, len(a.Private), cm.SIDRREPPrivateLen)
	}
	q.answered = true
	a.Private = append([]byte(nil), a.Private...)
	first := q.s.dev.shards[0]
	q.s.on(first, func() { _ = first.cm.Answer(first.now, q.id, a) }) // it fails if its sender waits no longer
	return nil
}

// resolution is a question of ours.
type resolution struct {
	s    *shard // whose loop the answer is for
	id   *cm.ID // on the first shard only
	on   func(rdma.UDAddress)
	pkey uint16
	over bool // on s
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
	if !p.Remote.Addr().IsValid() || p.Remote.Addr().Unmap().Is4() != d.addr.Is4() {
		return nil, fmt.Errorf("%w: %v cannot be reached from %v", rdma.ErrInvalidWR, p.Remote, d.addr)
	}
	if len(p.PrivateData) > cm.ResolvePrivateLen {
		return nil, fmt.Errorf("%w: %d bytes of private data; a SIDR REQ carries %d", rdma.ErrInvalidWR, len(p.PrivateData), cm.ResolvePrivateLen)
	}
	pkey, err := d.partition(p.PKey)
	if err != nil {
		return nil, err
	}
	r := &resolution{s: s, on: p.On, pkey: pkey}
	s.resolutions[r] = struct{}{}
	ask := cm.ResolveParams{Remote: p.Remote, SourcePort: d.ephemeral(), PKey: pkey, Private: append([]byte(nil), p.PrivateData...)}
	first := d.shards[0]
	if !s.on(first, func() {
		id, err := first.cm.Resolve(first.now, ask)
		if err != nil {
			first.on(s, func() { r.tell(rdma.UDAddress{Err: err}) })
			return
		}
		id.User, r.id = r, id
	}) {
		delete(s.resolutions, r)
		return nil, rdma.ErrClosed
	}
	return r.cancel, nil
}

// cancel abandons the question.
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

// tell gives the answer, later in this turn.
func (r *resolution) tell(a rdma.UDAddress) {
	r.s.later = append(r.s.later, func() {
		if !r.over {
			r.end()
			r.on(a)
		}
	})
}

// report takes what the connection manager says to the shard of the question. It runs on
// the first shard.
func (r *resolution) report(e cm.Event) {
	a := rdma.UDAddress{PKey: r.pkey, Err: e.Err}
	if e.Kind == cm.Resolved {
		rep := &e.ID.Resolution.REP
		a.AH = rdma.AH{Remote: e.ID.Peer.Addr(), QPN: rep.QPN, QKey: rep.QKey}
		a.PrivateData = append([]byte(nil), rep.Private[:]...)
	}
	r.s.dev.shards[0].on(r.s, func() { r.tell(a) })
}
