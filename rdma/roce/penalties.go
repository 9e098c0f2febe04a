package roce

import (
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// An R_Key has 32 bits, and a wrong guess costs the guesser its connection: the NAK of a remote
// access error ends the queue pair. A guesser has to connect again for every guess, so hosts whose
// connections end like that over and over have to wait before they may connect.
const (
	penaltyFree  = 8                 // violations within penaltyFade without a penalty
	penaltyFade  = 60 * rdma.Second  // after which the violations of a host are forgotten
	penaltyFirst = 10 * rdma.Second  // the first penalty; each further one is twice as long
	penaltyLong  = 320 * rdma.Second // the longest
	penaltiesMax = 1024              // hosts remembered
)

// penalties are the hosts that named memory which they may not access. Hosts are known by their
// addresses, so all users of a host share the penalty. A host that forges its address gets no
// connection, so it cannot bring a penalty on another host.
type penalties struct {
	hosts map[netip.Addr]*penalty
}

type penalty struct {
	violations int
	last       rdma.Time // of the violations
	until      rdma.Time // REQs are refused until then
	wait       rdma.Time // length of the last penalty
}

// violated counts a connection of addr that ended by a remote access error of that host.
//
//	violation     1 ... 8    9       next after that   next    ...   at most
//	penalty       none       10 s    20 s              40 s          320 s
//
// A violation while a penalty runs does not prolong it. 60 s without violation or penalty reset
// the host. A penalty refuses REQs only: connections that the host has already stay, so a host
// with n connections has up to n guesses for each penalty.
func (p *penalties) violated(addr netip.Addr, now rdma.Time) {
	h := p.hosts[addr]
	if h == nil {
		if p.hosts == nil {
			p.hosts = make(map[netip.Addr]*penalty)
		}
		if len(p.hosts) >= penaltiesMax {
			p.evict(now)
		}
		h = new(penalty)
		p.hosts[addr] = h
	}
	if now-max(h.last, h.until) > penaltyFade {
		*h = penalty{}
	}
	h.violations++
	h.last = now
	if h.violations > penaltyFree && now >= h.until {
		h.wait = min(max(2*h.wait, penaltyFirst), penaltyLong)
		h.until = now + h.wait
	}
}

// evict forgets the host whose last violation or penalty is the oldest.
func (p *penalties) evict(now rdma.Time) {
	var oldest netip.Addr
	at := now + 1
	for a, h := range p.hosts {
		if t := max(h.last, h.until); t < at || !oldest.IsValid() {
			oldest, at = a, t
		}
	}
	delete(p.hosts, oldest)
}

// refused reports whether requests of addr are refused now.
func (p *penalties) refused(addr netip.Addr, now rdma.Time) bool {
	h := p.hosts[addr]
	return h != nil && now < h.until
}
