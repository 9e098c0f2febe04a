package roce

import (
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/ud"
	"github.com/rstored/rstored/rdma/wire"
)

// udqp is a queue pair for datagrams: an engine and its place in a shard. It implements rdma.QP.
type udqp struct {
	qpBase
	ud *ud.QP
}

var _ rdma.QP = (*udqp)(nil)

// newUD makes a queue pair for datagrams. Datagrams need no timer: they are neither acknowledged
// nor repeated.
func (s *shard) newUD(c rdma.QPConfig) (*udqp, error) {
	b, err := s.newBase(&c, s.newQPN())
	if err != nil {
		return nil, err
	}
	q := &udqp{qpBase: b}
	q.ud = ud.New(ud.Config{
		Num: q.num, PD: b.pd.id, Mem: &s.dev.mem, SRQ: b.receives(), Caps: c.Caps, Addr: s.dev.ip,
		MTU: s.dev.mtu,
	})
	s.uds[q.num] = q
	return q, nil
}

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
		q.touch() // the receives are flushed at once
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
	q.release()
}

// touch notes that something happened to q: it may have completions, or datagrams to send.
func (q *udqp) touch() {
	if !q.dirty {
		q.dirty = true
		q.s.udDirty.Add(q)
	}
}

// harvest implements harvester.
func (q *udqp) harvest() {
	send, recv := q.ud.Pending()
	if send && !q.send.fill(q.ud.PollSend) {
		q.send.waiting = append(q.send.waiting, q)
	}
	if recv && !q.recv.fill(q.ud.PollRecv) {
		q.recv.waiting = append(q.recv.waiting, q)
	}
}

// datagram checks the ICRC of a packet and gives it to a queue pair for datagrams.
func (s *shard) datagram(d *link.RxDatagram, q *udqp) {
	if !s.verify(d, nil) {
		return
	}
	s.pkt.Src, s.pkt.Dst = d.Src, d.Dst
	q.ud.Receive(&s.pkt, d.TOS)
	q.touch()
}

// settleUD is the part of settle for datagrams.
func (s *shard) settleUD() {
	for _, q := range s.udDirty.Take() {
		q.dirty = false
		if q.dead {
			continue
		}
		q.harvest()
		q.watch(q.ud.State(), true) // no datagram is ever half sent
		if !q.ready && q.ud.HasWork() {
			q.ready = true
			s.udReady.Add(q)
		}
	}
}

// udShare is the part of a batch that datagrams may take. udTurn is what one queue pair takes of it
// before the next has its turn.
const (
	udShare = batchSize / 4
	udTurn  = 8
)

// flushUD adds datagrams to a batch that is still empty.
func (s *shard) flushUD(b *wire.Batch) {
	room := func() int { return min(udShare-len(b.D), b.Room()) }
	for s.udReady.Len() > 0 && room() > 0 {
		for _, q := range s.udReady.Take() {
			q.ready = !q.dead
			if q.ready && room() > 0 {
				q.ready = q.ud.Transmit(b, min(udTurn, udShare-len(b.D)))
				q.touch() // datagrams that were sent have completed
			}
			if q.ready {
				s.udReady.Add(q)
			}
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
