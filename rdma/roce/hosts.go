package roce

import (
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
)

// hostMask is the part of a GUID that has the host's ID.
const hostMask = 1<<32 - 1

// guidFor returns the GUID for a REQ or REP. Its low half is the host's ID if this end is ready to
// omit the ICRC, and the complement if not.
func (d *Device) guidFor(local bool) uint64 {
	if d.host == 0 || local {
		return d.guid
	}
	return d.guid ^ hostMask
}

// agrees reports whether the end that sent a GUID in its REQ or REP is in our network namespace of
// our kernel, and ready to omit the ICRC. The wire is memory then, where TCP and UDP have no
// checksum either. A connection omits it if the REQ and the REP say so: one end that cannot ask its
// routing tables keeps the ICRC at both. Without LocalICRC, the low half of a device's GUID
// identifies the namespace. A peer that is not rstored has another GUID, and sees ours as any other.
func (d *Device) agrees(guid uint64) bool {
	return d.host != 0 && guid&hostMask == uint64(d.host)
}

// loopback reports whether packets to and from peer never leave the host.
func (s *shard) loopback(peer netip.Addr) bool {
	h, ok := s.inner.(link.Host)
	return ok && h.Loopback(peer)
}

// localConns is how many connections of a loop may have the wide window of a host. They fill a
// receive buffer of 8 MiB, which many unprivileged clients have. Later connections have the window
// of any other.
const localConns = 4

// widen is called when the ICRC of the connection is omitted.
func (c *conn) widen() {
	if len(c.s.conns) <= localConns {
		c.q.rc.Widen()
	}
}

// hosts remembers for a second what the routing tables say about peers. Anybody can send REQs with
// our GUID and with any source address, and each question takes system calls. So their number is
// bounded, and connections of further addresses keep the ICRC.
type hosts struct {
	since rdma.Time
	known map[netip.Addr]bool
}

// hostsMax is the number of addresses that are asked about in a second.
const hostsMax = 64

// loopback is shard.loopback with a bound. It is false beyond the bound.
func (h *hosts) loopback(s *shard, peer netip.Addr) bool {
	if h.known == nil || s.now-h.since >= rdma.Second {
		h.known, h.since = make(map[netip.Addr]bool), s.now
	}
	local, known := h.known[peer]
	if !known && len(h.known) < hostsMax {
		local = s.loopback(peer)
		h.known[peer] = local
	}
	return local
}
