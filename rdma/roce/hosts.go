package roce

import (
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
)

// hostMask is the part of a GUID that has the host's ID.
const hostMask = 1<<32 - 1

// agrees reports whether a peer with this GUID omits the ICRC if loopback is true. The two ends are
// then in one network namespace of one kernel. Their wire is memory, where TCP and UDP have no
// checksum either. Without LocalICRC, the low half of a device's GUID identifies the namespace. A
// peer that is not rstored has another GUID. So both ends know from REQ and REP whether the other
// one agrees, and foreign peers see a GUID as any other.
func (s *shard) agrees(guid uint64) bool {
	return s.dev.host != 0 && guid&hostMask == uint64(s.dev.host)
}

// loopback reports whether packets to and from peer never leave the host.
func (s *shard) loopback(peer netip.Addr) bool {
	h, ok := s.inner.(link.Host)
	return ok && h.Loopback(peer)
}

// localConns is how many connections of a loop may have the wide window of a host. 16 of them fill
// half of a receive buffer of 64 MiB. Later connections have the window of any other.
const localConns = 16

// widen is called when the ICRC of the connection is omitted.
func (c *conn) widen() {
	if len(c.s.conns) <= localConns {
		c.q.rc.Widen()
	}
}

// hosts remembers for a second what the routing tables say about peers. Anybody can send REQs with
// our GUID and with any source address, and each question takes system calls. So their number is
// bounded: REQs from further addresses are dropped and counted, and peers repeat them.
type hosts struct {
	since rdma.Time
	known map[netip.Addr]bool
}

// hostsMax is the number of addresses that are asked about in a second.
const hostsMax = 64

// loopback is shard.loopback with a bound. It reports known=false beyond the bound.
func (h *hosts) loopback(s *shard, peer netip.Addr) (local, known bool) {
	if h.known == nil || s.now-h.since >= rdma.Second {
		h.known, h.since = make(map[netip.Addr]bool), s.now
	}
	local, known = h.known[peer]
	if !known && len(h.known) < hostsMax {
		local, known = s.loopback(peer), true
		h.known[peer] = local
	}
	return local, known
}
