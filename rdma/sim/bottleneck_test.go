package sim

import (
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// burst sends count datagrams at once from a to b, of 100 bytes on the wire and with a traffic
// class.
func burst(t *testing.T, a *Link, to netip.Addr, count int, tos uint8) {
	t.Helper()
	batch := wire.NewBatch(count)
	f := &wire.Flow{Src: a.addr, Dst: to, TOS: tos}
	pad := 100 - ipUDPLen - wire.BTHLen - wire.ICRCLen
	for i := range count {
		batch.Add(f, &wire.Packet{Op: wire.SendOnly, PSN: wire.PSN(i)}, [][]byte{make([]byte, pad)})
	}
	if err := a.Send(batch); err != nil {
		t.Fatal(err)
	}
}

func hosts(t *testing.T, n *Network, k int) []*Link {
	t.Helper()
	l := make([]*Link, k)
	for i := range l {
		var err error
		if l[i], err = n.Open(netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// arrivals advances the network until nothing is in flight. It returns the time at which each
// datagram arrived at b, in microseconds from the start, and its ECN codepoint.
func arrivals(n *Network, b *Link) (us []int, ecn []uint8) {
	rx := link.NewRx(64, 0)
	start := n.Now()
	for n.Next() != 0 {
		n.Advance(n.Next())
		for k, _ := b.Recv(rx, 0); k > 0; k, _ = b.Recv(rx, 0) {
			for i := range rx.D {
				us = append(us, int((n.Now()-start)/rdma.Microsecond))
				ecn = append(ecn, rx.D[i].TOS&3)
			}
		}
	}
	return us, ecn
}

func TestBottleneck(t *testing.T) {
	const ect0, ect1 = 2, 1
	for _, c := range []struct {
		what    string
		port    Port
		tos     uint8
		arrive  int
		dropped uint64
		marked  uint64
		last    int // microseconds: 10 each at 10 MB/s, and 10 on the wire
	}{
		{"without limits", Port{Rate: 10e6}, 0, 50, 0, 0, 510},
		{"with a queue of 20", Port{Rate: 10e6, Queue: 2000}, ect0, 20, 30, 0, 210},
		{"that marks behind 5", Port{Rate: 10e6, Mark: 500}, ect0, 50, 0, 44, 510},
		{"that marks ECT(1)", Port{Rate: 10e6, Mark: 500}, ect1 | 46<<2, 50, 0, 44, 510},
		{"that may not mark", Port{Rate: 10e6, Mark: 500}, 46 << 2, 50, 0, 0, 510},
	} {
		n := New(Config{})
		h := hosts(t, n, 2)
		b := n.NewBottleneck(c.port)
		n.Via(b, h[0].addr, h[1].addr)
		burst(t, h[0], h[1].addr, 50, c.tos)
		us, ecn := arrivals(n, h[1])
		if len(us) != c.arrive || us[len(us)-1] != c.last || b.Stats.Dropped != c.dropped || b.Stats.Marked != c.marked {
			t.Errorf("a port %s: %d arrived, the last after %d us; %+v", c.what, len(us), us[len(us)-1], b.Stats)
		}
		marked := uint64(0)
		for _, e := range ecn {
			if e == ce {
				marked++
			}
		}
		if marked != c.marked || n.Stats.Marked != c.marked || n.Stats.QueueDrops != c.dropped {
			t.Errorf("a port %s: %d marked datagrams arrived; %+v", c.what, marked, n.Stats)
		}
	}
}

// TestBottleneckShared: two senders share the rate of a port in the order in which their datagrams
// arrive there. The opposite direction is not affected.
func TestBottleneckShared(t *testing.T) {
	n := New(Config{Bandwidth: 20e6})
	h := hosts(t, n, 3)
	b := n.NewBottleneck(Port{Rate: 10e6})
	n.Via(b, netip.Addr{}, h[2].addr)
	burst(t, h[0], h[2].addr, 20, 0)
	burst(t, h[1], h[2].addr, 20, 0)
	burst(t, h[2], h[0].addr, 1, 0)
	us, _ := arrivals(n, h[2])
	// The first datagram arrives at the port after 5 us. From then on the port is never idle.
	if len(us) != 40 || us[0] != 25 || us[39] != 415 {
		t.Errorf("%d arrived: %v", len(us), us)
	}
	if b.Stats.Passed != 40 || b.Stats.Bytes != 4000 || h[0].Arrived() != 1 {
		t.Errorf("%+v, %d on the way back", b.Stats, h[0].Arrived())
	}
}

// TestReceiver: a host needs 10 us for a datagram. Datagrams without room in its buffer are lost;
// it receives the others at its speed.
func TestReceiver(t *testing.T) {
	n := New(Config{Delay: rdma.Microsecond})
	h := hosts(t, n, 2)
	const inHand, data = 1, 100 - ipUDPLen
	h[1].SetReceiver(Receiver{Buffer: 10 * (data + 28), Charge: 28, Each: 10 * rdma.Microsecond})
	burst(t, h[0], h[1].addr, 1, 0)
	n.Advance(n.Next())
	rx := link.NewRx(64, 0)
	if k, _ := h[1].Recv(rx, 0); k != inHand {
		t.Fatal("the first did not arrive")
	}
	burst(t, h[0], h[1].addr, 50, 0)
	us, _ := arrivals(n, h[1])
	if len(us) != 10 || us[0] != 10 || n.Stats.BufferDrops != 40 {
		t.Errorf("%d arrived, at %v us; %+v", len(us), us, n.Stats)
	}
	burst(t, h[0], h[1].addr, 10, 0)
	// The host still handles the first ten.
	if us, _ := arrivals(n, h[1]); len(us) != 10 || n.Stats.BufferDrops != 40 {
		t.Errorf("%d arrived, at %v us, once there was room; %+v", len(us), us, n.Stats)
	}
}
