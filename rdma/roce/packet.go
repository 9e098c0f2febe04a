package roce

import (
	"errors"

	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// packet takes one datagram: it is parsed, its queue pair found, its ICRC
// checked, in this order, as strangers' packets shall cost little.
func (s *shard) packet(d *link.RxDatagram) {
	p := &s.pkt
	if err := p.Parse(d.Data); err != nil {
		switch {
		case errors.Is(err, wire.ErrOpcode) && p.Op.ReservedRC() && s.qps[p.DestQPN] != nil:
			s.connected(d, s.qps[p.DestQPN])
		case errors.Is(err, wire.ErrOpcode):
			s.stats.DropOpcode++
		case errors.Is(err, wire.ErrVersion):
			s.stats.DropVersion++
		default:
			s.stats.DropMalformed++
		}
		return
	}
	if p.DestQPN == wire.QP1 {
		s.gsi(d)
		return
	}
	q := s.last
	if q == nil || q.num != p.DestQPN {
		if q = s.qps[p.DestQPN]; q == nil {
			if u := s.uds[p.DestQPN]; u != nil {
				s.datagram(d, u)
			} else {
				s.stray(d)
			}
			return
		}
		s.last = q
	}
	s.connected(d, q)
}

// connected takes the datagram that was parsed to its queue pair.
func (s *shard) connected(d *link.RxDatagram, q *qp) {
	if !s.verify(d) {
		return
	}
	p := &s.pkt
	p.Src, p.Dst, p.ECN = d.Src, d.Dst, d.TOS&ecnMask
	q.rc.Receive(s.now, p)
	s.touch(q)
	if c := q.conn; c != nil && c.phase == accepted && c.proven() {
		c.traffic()
	}
}

// ecnMask holds the ECN bits of a traffic class.
const ecnMask = 3

// verify checks the ICRC of a datagram and counts how. Any IPv4 identification is as good as another: a host may have a
// counter for each stream, or choose at random.
func (s *shard) verify(d *link.RxDatagram) bool {
	s.flow.Src, s.flow.Dst, s.flow.SrcPort = d.Src, d.Dst, d.SrcPort
	ok, exact, _ := wire.VerifyICRC(&s.flow, d.Data, d.Nth)
	switch {
	case !ok:
		s.stats.ICRCErrors++
	case exact:
		s.stats.ICRCExact++
	default:
		s.stats.ICRCResidual++
	}
	return ok
}

// gsi takes a datagram to QP1.
func (s *shard) gsi(d *link.RxDatagram) {
	if s.cm == nil {
		s.forward(s.dev.shards[0], d)
		return
	}
	if s.holding {
		s.keep(d)
		return
	}
	p := &s.pkt
	switch {
	case p.Op != wire.UDSendOnly:
		s.stats.DropGSI++
	case !s.dev.pkeys.Load().management(p.PKey):
		s.stats.DropPKey++
	case p.DETH.QKey != cm.QKey:
		s.stats.DropQKey++
	case s.verify(d):
		s.cm.Receive(s.now, d.Src, d.Dst, p.Payload)
	}
}

// stray takes a datagram to a queue pair that is not here. When the kernel
// merges datagrams before it steers them, those of another shard may come
// along.
func (s *shard) stray(d *link.RxDatagram) {
	if to := s.dev.shards[s.pkt.DestQPN&uint32(len(s.dev.shards)-1)]; to != s {
		s.forward(to, d)
		return
	}
	s.stats.DropUnknownQPN++
}

// forwardedMax bounds the datagrams that wait for a shard. Nothing of them is checked yet.
const forwardedMax = 1024

// forward hands a datagram to another shard, by copy. What is too much is lost, and sent again by
// those who are waited for.
func (s *shard) forward(to *shard, d *link.RxDatagram) {
	if to.forwarded.Add(1) > forwardedMax {
		to.forwarded.Add(-1)
		s.stats.ForwardDropped++
		return
	}
	s.stats.Forwarded++
	c := *d
	c.Data = append([]byte(nil), d.Data...)
	to.Submit(func() {
		to.forwarded.Add(-1)
		to.packet(&c)
	})
}
