package roce

import (
	"testing"

	"github.com/rstored/rstored/rdma/link"
)

// TestKeptAreBounded: who floods the connection manager while it is held takes no more memory than that, and is counted.
func TestKeptAreBounded(t *testing.T) {
	s := new(shard)
	d := &link.RxDatagram{Data: make([]byte, 300)}
	for range keptMax + 3 {
		s.keep(d)
	}
	if len(s.kept) != keptMax || s.stats.CM.DropFull != 3 {
		t.Errorf("%d are kept, and %d counted as lost", len(s.kept), s.stats.CM.DropFull)
	}
}
