package roce

import (
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/ud"
	"github.com/rstored/rstored/rdma/wire"
)

// udqp is a queue pair for datagrams: an engine and its place in a shard. It implements
// rdma.QP.
type udqp struct {
	s     *shard
	ud    *ud.QP
	num   uint32
	caps  rdma.QPCaps
	since rdma.Time
	send  *cq
	recv  *cq
	srq   *srq // nil if it has receives of its own
	on    func(rdma.QPEvent)
	told  rdma.QPState // what on was called for
	dirty bool         // in shard.udDirty
	ready bool         // in shard.udReady
	dead  bool
}

var _ rdma.QP = (*udqp)(nil)

// newUD makes a queue pair for datagrams.
func (s *shard) newUD(c rdma.QPConfig) (*udqp, error) {
	k, err := s.reserve(&c)
	if err != nil {
		return nil, err
	}
	q := &udqp{s: s, num: s.newQPN(), caps: c.Caps, send: k.send, recv: k.recv, srq: k.srq, on: c.OnEvent, since: s.now}
	q.ud = ud.New(ud.Config{Num: q.num, PD: k.pd.id, Mem: &s.dev.mem, SRQ: k.source(), Caps: c.Caps, Addr: s.dev.ip, MTU: s.dev.mtu})
	s.uds[q.num] = q
	return q, nil
}

// Num implements rdma.QP.
func (q *udqp) Num() uint32 { return q.num }

// State implements rdma.QP.
func (q *udqp) State() rdma.QPState { return q.ud.State() }

// Modify implements rdma.QP.
func (q *udqp) Modify(a rdma.QPAttr) error {
	if q.dead {
		return rdma.ErrClosed
	}
	if err := q.s.dev.initPKey(&a); err != nil {
		return err
	}
	err := q.ud.Modify(a)
	q.touch()
	return err
}

// PostSend implements rdma.QP.
func (q *udqp) PostSend(wrs []rdma.SendWR) error {
	if q.dead {
		return rdma.ErrClosed
	}
	err := q.ud.PostSend(wrs)
	q.touch()
	return err
}

// PostRecv implements rdma.QP.
func (q *udqp) PostRecv(wrs []rdma.RecvWR) error {
	if q.dead {
		return rdma.ErrClosed
	}
	err := q.ud.PostRecv(wrs)
	if q.ud.State() == rdma.StateErr {
		q.touch()
	}
	return err
}

// Destroy implements rdma.QP.
func (q *udqp) Destroy() {
	if q.dead {
		return
	}
	q.dead = true
	delete(q.s.uds, q.num)
	q.s.stats.UD.Add(q.ud.Counters())
	q.s.release(q.num, q.srq)
}

func (q *udqp) gone() bool { return q.dead }

// touch notes that something happened to q: completions may be there, datagrams may have
// to be sent.
func (q *udqp) touch() {
	if !q.dirty {
		q.dirty = true
		q.s.udDirty = append(q.s.udDirty, q)
	}
}

// harvest moves completions to the queues, as far as there is room.
func (q *udqp) harvest() {
	send, recv := q.ud.Pending()
	if send && !fill(q.send, q.ud.PollSend) {
		q.send.waiting = append(q.send.waiting, q)
	}
	if recv && !fill(q.recv, q.ud.PollRecv) {
		q.recv.waiting = append(q.recv.waiting, q)
	}
}

// watch tells the user of events beside completions.
func (q *udqp) watch() {
	if q.srq != nil {
		q.srq.watch()
	}
	state := q.ud.State()
	if q.on == nil || q.told == state {
		return
	}
	q.told = state
	var e rdma.QPEvent
	switch {
	case state == rdma.StateSQD:
		e = rdma.SQDrained // no datagram is ever half sent
	case state == rdma.StateErr && q.srq != nil:
		e = rdma.LastWQEReached
	default:
		return
	}
	q.s.later = append(q.s.later, func() {
		if !q.dead {
			q.on(e)
		}
	})
}

// datagram takes a packet to a queue pair for datagrams.
func (s *shard) datagram(d *link.RxDatagram, q *udqp) {
	if !s.verify(d) {
		return
	}
	s.pkt.Src, s.pkt.Dst = d.Src, d.Dst
	q.ud.Receive(&s.pkt, d.TOS)
	q.touch()
}

// settleUD is the part of settle for datagrams.
func (s *shard) settleUD() {
	for len(s.udDirty) > 0 {
		q := s.udDirty[len(s.udDirty)-1]
		s.udDirty[len(s.udDirty)-1] = nil
		s.udDirty = s.udDirty[:len(s.udDirty)-1]
		q.dirty = false
		if q.dead {
			continue
		}
		q.harvest()
		q.watch()
		if !q.ready && q.ud.HasWork() {
			q.ready = true
			s.udReady = append(s.udReady, q)
		}
	}
}

// udShare is the part of a batch that datagrams may take, and udTurn what one queue pair
// takes of it before the next has its turn.
const (
	udShare = batchSize / 4
	udTurn  = 8
)

// flushUD puts datagrams into a batch that is empty yet.
func (s *shard) flushUD(b *wire.Batch) {
	for len(s.udReady) > 0 && len(b.D) < udShare && !b.Full() {
		q := s.udReady[0]
		copy(s.udReady, s.udReady[1:])
		s.udReady = s.udReady[:len(s.udReady)-1]
		q.ready = false
		if q.dead {
			continue
		}
		more := q.ud.Transmit(b, min(udTurn, udShare-len(b.D)))
		q.touch() // what was sent is complete
		if more {
			q.ready = true
			s.udReady = append(s.udReady, q)
		}
	}
}

// info describes the queue pair.
func (q *udqp) info() QPInfo {
	a, n := q.ud.Attr(), q.ud.Counters()
	i := QPInfo{
		QPN: q.num, Type: rdma.UD, State: q.ud.State(), Loop: q.s.index, Age: q.s.now - q.since,
		Local: netip.AddrPortFrom(q.s.dev.ip, 0), PathMTU: q.s.dev.mtu, PKey: a.PKey, NextPSN: q.ud.NextPSN(),
		SendDepth: q.caps.MaxSendWR, RecvDepth: q.caps.MaxRecvWR,
		Counters: rc.Counters{
			TxPackets: n.TxPackets, RxPackets: n.RxPackets, TxBytesSend: n.TxBytes, RxBytesSend: n.RxBytes,
			DropState: n.DropState, DropPKey: n.DropPKey, DropOpcode: n.DropOpcode,
		},
	}
	i.SendQueued, i.RecvQueued = q.ud.Outstanding()
	return i
}
