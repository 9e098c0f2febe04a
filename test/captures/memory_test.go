package captures_test

import (
	"net/netip"

	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
)

// place is memory that a host offered.
type place struct {
	host netip.Addr
	rkey uint32
}

// extent is what was last seen of a part of it.
type extent struct {
	va   uint64
	data []byte
}

// cursor is where the next packet of a message puts its bytes.
type cursor struct {
	place
	va uint64
}

// memory is the contents of offered memory as far as RDMA READ and WRITE told them.
type memory struct {
	known  map[place][]extent
	writes map[queue]*cursor
	asked  map[queue]map[wire.PSN]cursor // READ requests, by who will get the response
	reads  map[queue]*cursor
}

func newMemory() memory {
	return memory{
		known: make(map[place][]extent), writes: make(map[queue]*cursor),
		asked: make(map[queue]map[wire.PSN]cursor), reads: make(map[queue]*cursor),
	}
}

func (m *memory) packet(p *wire.Packet) {
	q := queue{p.Dst, p.DestQPN}
	switch p.Op {
	case wire.WriteFirst, wire.WriteOnly:
		m.writes[q] = &cursor{place{p.Dst, p.RETH.RKey}, p.RETH.VA}
		m.put(m.writes[q], p.Payload)
	case wire.WriteMiddle, wire.WriteLast:
		m.put(m.writes[q], p.Payload)
	case wire.ReadRequest:
		// Requester and responder of a connection number their queue pairs
		// themselves: only the address tells who will be answered.
		to := queue{p.Src, 0}
		if m.asked[to] == nil {
			m.asked[to] = make(map[wire.PSN]cursor)
		}
		m.asked[to][p.PSN] = cursor{place{p.Dst, p.RETH.RKey}, p.RETH.VA}
	case wire.ReadRespFirst, wire.ReadRespOnly:
		c := m.asked[queue{p.Dst, 0}][p.PSN]
		m.reads[q] = &c
		m.put(&c, p.Payload)
	case wire.ReadRespMiddle, wire.ReadRespLast:
		m.put(m.reads[q], p.Payload)
	}
}

func (m *memory) put(c *cursor, b []byte) {
	if c == nil {
		return // its beginning was before the capture's
	}
	m.known[c.place] = append(m.known[c.place], extent{c.va, b})
	c.va += uint64(len(b))
}

// read returns the bytes of segments; false if some were never seen.
func (m *memory) read(host netip.Addr, segs []rpcrdma.Segment) ([]byte, bool) {
	var out []byte
	for _, s := range segs {
		list := m.known[place{host, s.Handle}]
		for va, end := s.Offset, s.Offset+uint64(s.Length); va < end; {
			n := 0
			for i := len(list) - 1; i >= 0 && n == 0; i-- { // the latest counts
				if e := &list[i]; va >= e.va && va < e.va+uint64(len(e.data)) {
					b := e.data[va-e.va:]
					b = b[:min(uint64(len(b)), end-va)]
					out = append(out, b...)
					n = len(b)
				}
			}
			if n == 0 {
				return nil, false
			}
			va += uint64(n)
		}
	}
	return out, true
}
