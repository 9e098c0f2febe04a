package postmortem

import (
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
)

// TestLog: the oldest make room, and connections that never were leave half to the others.
func TestLog(t *testing.T) {
	var m Log
	for i := range size + 3 {
		m.add(&softRecord{roce.Record{Outcome: rdma.Broken, Established: true, LocalQPN: uint32(i + 1)}})
	}
	if oldest := m.entries[0].record.(*softRecord).LocalQPN; len(m.entries) != size || oldest != 4 {
		t.Errorf("%d cases, the oldest %d", len(m.entries), oldest)
	}
	for i := range 3 * size {
		m.add(
			&softRecord{
				roce.Record{
					Outcome: rdma.Refused,
					Remote:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1),
				},
			},
		)
	}
	there := count(m.entries, func(e entry) bool { return e.established() })
	if latest := m.entries[len(m.entries)-1].record.(*softRecord).Remote.Addr().As4(); len(m.entries) != size ||
		there < size/2-1 ||
		latest[3] != 3*size-1 {
		t.Errorf("%d cases, %d of connections, the latest of %v", len(m.entries), there, latest)
	}
}
