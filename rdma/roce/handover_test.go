package roce

import (
	"testing"

	"github.com/rstored/rstored/rdma/link"
)

// TestPostponedAreBounded: datagrams for the connection manager are stored up to a bound; the
// others are counted.
func TestPostponedAreBounded(t *testing.T) {
	s := new(shard)
	d := &link.RxDatagram{Data: make([]byte, 300)}
	for range postponedMax + 3 {
		s.postpone(d)
	}
	if len(s.postponed) != postponedMax || s.stats.CM.DropFull != 3 {
		t.Errorf("%d are kept, and %d counted as lost", len(s.postponed), s.stats.CM.DropFull)
	}
}
