package roce

import (
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// An R_Key has 32 bits, and a guess at one costs the guesser its connection: the NAK
// of a remote access error ends the queue pair. What is left is to connect again for
// every guess, so hosts that do it over and over have to wait.
const (
	suspectFree  = 8                 // violations within suspectFade that cost nothing more
	suspectFade  = 60 * rdma.Second  // after which a host's first ones are forgotten
	suspectFirst = 10 * rdma.Second  // for which REQs are refused then, twice as long each time
	suspectLong  = 320 * rdma.Second // and at most
	suspectsMax  = 1024              // hosts remembered
)

// suspects are the hosts whose requests named memory that they may not touch. Hosts
// are known by their addresses, so all users of one share its fate. A host that forges
// addresses gets no connections, and so does not come here.
type suspects struct {
	hosts map[netip.Addr]*suspect
}

type suspect struct {
	violations int
	last       rdma.Time
	until      rdma.Time // REQs are refused until then
	wait       rdma.Time // of the last refusal
}

// violated notes that a connection of addr ended by a remote access error of its own.
func (s *suspects) violated(addr netip.Addr, now rdma.Time) {
	h := s.hosts[addr]
	if h == nil {
		if s.hosts == nil {
			s.hosts = make(map[netip.Addr]*suspect)
		}
		if len(s.hosts) >= suspectsMax {
			s.evict(now)
		}
		h = new(suspect)
		s.hosts[addr] = h
	}
	if now-max(h.last, h.until) > suspectFade {
		*h = suspect{}
	}
	h.violations++
	h.last = now
	if h.violations > suspectFree && now >= h.until {
		h.wait = min(max(2*h.wait, suspectFirst), suspectLong)
		h.until = now + h.wait
	}
}

// evict forgets the host that was quiet for longest.
func (s *suspects) evict(now rdma.Time) {
	var oldest netip.Addr
	at := now + 1
	for a, h := range s.hosts {
		if t := max(h.last, h.until); t < at || !oldest.IsValid() {
			oldest, at = a, t
		}
	}
	delete(s.hosts, oldest)
}

// refused reports whether a REQ of addr is refused at this time.
func (s *suspects) refused(addr netip.Addr, now rdma.Time) bool {
	h := s.hosts[addr]
	return h != nil && now < h.until
}
