package roce

import (
	"testing"

	"github.com/rstored/rstored/rdma/link"
)

// wakeLink is the link of a shard that receives nothing but Wake.
type wakeLink struct{ link.Link }

func (wakeLink) Wake() {}

// TestForwardedIsBounded: forwarded packets, whose ICRC is not checked, do not fill the memory of a
// busy shard.
func TestForwardedIsBounded(t *testing.T) {
	s, busy := new(shard), &shard{link: wakeLink{}}
	const packets = 3 * forwardedMax
	for range packets {
		s.forward(busy, &link.RxDatagram{Data: make([]byte, 64)})
	}
	if n := len(busy.inbox.Take()); n != forwardedMax || s.stats.Forwarded != forwardedMax ||
		s.stats.ForwardDropped != packets-forwardedMax {
		t.Errorf("%d wait, %d were handed over, %d dropped", n, s.stats.Forwarded, s.stats.ForwardDropped)
	}
}
