package roce

import (
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// The ICRC covers the IPv4 identification, which a UDP socket does not show. What
// explains a packet's ICRC is therefore one of 2^16 identifications, and a damaged
// packet has one, too, once in 2^15 times. But hosts do not choose them at random:
// rdma_rxe counts, and adds up to one for each millisecond that it was idle (as the
// Linux kernel does for everything); others send 0, or a small number within a burst.
// So a packet whose identification is far from those before it is dropped, once: if
// the next one goes on from there, the host has jumped, and both its retransmission
// and what follows are taken.

// Bounds of what counts as near, in identifications.
const (
	identAhead  = 256 // other packets of the host lie between, and some were lost
	identBack   = 256 // one that was taken wrongly must not shut out those that it overtook
	identPerMS  = 2
	identsMax   = 4096
	identAnyGap = 1 << 15 / identPerMS * rdma.Millisecond // silence after which anything goes
)

// ident is what is known of one host's identifications.
type ident struct {
	addr    netip.Addr
	last    uint16 // the highest of late
	at      rdma.Time
	odd     uint16 // of the packet that was dropped last
	dropped bool
}

// near reports whether id may come after from, with so much room ahead.
func near(id, from uint16, ahead int) bool {
	d := int(int16(id - from))
	return d >= -identBack && d <= ahead
}

// plausible reports whether a packet of the host may have this identification, and
// takes note of it.
func (t *ident) plausible(id uint16, now rdma.Time) bool {
	gap := now - t.at
	switch {
	case gap >= identAnyGap:
		t.last = id
	case near(id, t.last, identAhead+int(gap/rdma.Millisecond)*identPerMS):
		if int16(id-t.last) > 0 {
			t.last = id
		}
	case t.dropped && near(id, t.odd, identAhead):
		t.last = id
	default:
		t.odd, t.dropped = id, true
		return false
	}
	t.at, t.dropped = now, false
	return true
}

// ident is the record of a host, made at its first packet to a queue pair here.
func (s *shard) ident(addr netip.Addr, id uint16) *ident {
	if s.identLast != nil && s.identLast.addr == addr {
		return s.identLast
	}
	t := s.idents[addr]
	if t == nil {
		if len(s.idents) >= identsMax || s.idents == nil {
			s.idents = make(map[netip.Addr]*ident) // they are learnt again at once
		}
		t = &ident{addr: addr, last: id, at: s.now}
		s.idents[addr] = t
	}
	s.identLast = t
	return t
}
