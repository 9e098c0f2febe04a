package roce

import (
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
)

func TestPenalties(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var s penalties
	now := rdma.Time(1000)
	for range penaltyFree {
		s.violated(a, now)
		now += rdma.Second
	}
	if s.refused(a, now) {
		t.Error("refused after few violations")
	}
	// One violation more starts a penalty. Another one follows after each penalty.
	for _, wait := range []rdma.Time{10, 20, 40, 80, 160, 320, 320} {
		wait *= rdma.Second
		s.violated(a, now)
		if !s.refused(a, now) || !s.refused(a, now+wait-1) || s.refused(a, now+wait) {
			t.Errorf("not refused for %d s", wait/rdma.Second)
		}
		if s.refused(b, now) {
			t.Error("another host is refused")
		}
		now += wait
	}
	now += penaltyFade + 1
	s.violated(a, now)
	if s.refused(a, now) {
		t.Error("not forgotten")
	}
	for i := range 4 * penaltiesMax {
		s.violated(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), now)
		now++
	}
	if len(s.hosts) != penaltiesMax {
		t.Errorf("%d hosts are remembered", len(s.hosts))
	}
}
