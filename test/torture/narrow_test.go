package torture

import (
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/sim"
)

// TestNarrow: a READ whose responses share a queue of four packets with the WRITE behind it. Each
// time the WRITE was sent again as a whole it left no room for them, for ever.
func TestNarrow(t *testing.T) {
	const at = 3473769 * rdma.Microsecond
	if _, err := Run(&Plan{
		Seed: 8466092608015460547, Hosts: 2, MTU: 4200, Port: sim.Port{Rate: 30e6, Queue: 16 << 10},
		Events: []Event{
			{Kind: Connect, Conn: 2, Host: 1, Peer: 0},
			{
				At: at, Kind: Post, Conn: 2, Back: true, Op: rdma.OpRead, Size: 21032, Offset: 9870, Cut: 18920, Quiet: true,
				Flags: rdma.Fence,
			},
			{
				At: at, Kind: Post, Conn: 2, Back: true, Op: rdma.OpWrite, Size: 39858, Offset: 6207, Cut: 22005,
				Flags: rdma.Solicited,
			},
		},
	}); err != nil {
		t.Error(err)
	}
}
