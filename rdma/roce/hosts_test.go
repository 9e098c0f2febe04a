package roce

import (
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
)

// askedLink counts the questions about peers.
type askedLink struct {
	link.Link
	asked int
}

func (*askedLink) HostID() uint32             { return 7 }
func (l *askedLink) Loopback(netip.Addr) bool { l.asked++; return true }

// TestHostsAreBounded: REQs from any number of addresses cause hostsMax questions a second at most.
func TestHostsAreBounded(t *testing.T) {
	l := &askedLink{}
	s := &shard{inner: l, now: rdma.Second}
	peer := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	for range 2 {
		for i := range 4 * hostsMax {
			if local := s.hosts.loopback(s, peer(i)); local != (i < hostsMax) {
				t.Fatalf("address %d: %v", i, local)
			}
		}
		if l.asked != hostsMax {
			t.Errorf("%d questions", l.asked)
		}
	}
	s.now += rdma.Second
	if local := s.hosts.loopback(s, peer(hostsMax)); !local || l.asked != hostsMax+1 {
		t.Errorf("a second later: %v, %d questions", local, l.asked)
	}
}
