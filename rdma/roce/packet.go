package roce

import (
	"errors"
	"slices"

	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/connstate"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// packet handles one datagram: it parses the headers, finds the queue pair, and checks the ICRC.
// The ICRC comes last because it costs the most: a flood of forged packets for no queue pair stays
// cheap.
//
//	check                              otherwise
//	BTH and extension headers parse    DropMalformed, DropVersion, DropOpcode
//	QP1                                connection manager (gsi)
//	QPN of this shard                  another shard (forward), or DropUnknownQPN
//	ICRC, unless it is omitted         ICRCErrors
//	addresses, partition, state, PSN   counters of the queue pair (package rc)
//
// The peer gets no answer before the ICRC is checked.
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
	// Most packets are for the queue pair of the packet before, so it is compared before the map is
	// read.
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

// connected gives the parsed datagram to the queue pair of a connection. Where the queue pair knows
// the place of the payload, the payload is copied there while its ICRC is computed.
func (s *shard) connected(d *link.RxDatagram, q *qp) {
	p := &s.pkt
	p.Src, p.Dst, p.ECN = d.Src, d.Dst, d.TOS&ecnMask
	if q.rc.OmitsICRC() && !wire.HasICRC(d.Data) {
		s.stats.ICRCOmitted++
	} else {
		dst := q.rc.Placement(p)
		if !s.verify(d, dst) {
			return
		}
		p.Placed = len(dst) > 0
	}
	q.rc.Receive(s.now, p)
	s.touch(q)
	if p.Op.Is(wire.Ends|wire.Payload) && !p.Op.Is(wire.ClassWrite) {
		s.messages++
	}
	if c := q.conn; c != nil && c.Phase == connstate.Accepted && c.proven() {
		c.traffic()
	}
}

// ecnMask holds the ECN bits of a traffic class.
const ecnMask = 3

// verify checks the ICRC of a datagram, copies its payload to dst if that is not nil, and counts
// the result. dst needs a datagram without extended headers. The ICRC covers the IPv4
// identification, which a socket does not see. Any identification is accepted: a host may count for
// each stream, or choose at random.
func (s *shard) verify(d *link.RxDatagram, dst []byte) bool {
	s.flow.Src, s.flow.Dst, s.flow.SrcPort = d.Src, d.Dst, d.SrcPort
	ok, exact, _ := wire.VerifyCopy(&s.flow, d.Data, d.Nth, dst)
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

// gsi handles a datagram to QP1, the general services interface: it is for the connection manager.
func (s *shard) gsi(d *link.RxDatagram) {
	if s.cm == nil {
		s.forward(s.dev.shards[0], d)
		return
	}
	if s.postponing {
		s.postpone(d)
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
	case s.verify(d, nil):
		s.cm.Receive(s.now, d.Src, d.Dst, p.Payload)
	}
}

// stray handles a datagram to a queue pair that is not on this shard. The kernel may merge
// datagrams before it chooses the socket, so datagrams of another shard can arrive here.
func (s *shard) stray(d *link.RxDatagram) {
	if to := s.dev.shardOfQPN(s.pkt.DestQPN); to != s {
		s.forward(to, d)
		return
	}
	s.stats.DropUnknownQPN++
}

// forwardedMax bounds the datagrams that wait for a shard. Their ICRC is not checked yet, so
// anybody can send them.
const forwardedMax = 1024

// forward copies a datagram to another shard. Datagrams beyond the bound are lost, as on any
// network: peers send them again.
func (s *shard) forward(to *shard, d *link.RxDatagram) {
	if to.forwarded.Add(1) > forwardedMax {
		to.forwarded.Add(-1)
		s.stats.ForwardDropped++
		return
	}
	s.stats.Forwarded++
	c := *d
	c.Data = slices.Clone(d.Data)
	to.Submit(func() {
		to.forwarded.Add(-1)
		to.packet(&c)
	})
}
