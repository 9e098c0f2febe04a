package sim

import (
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

var addrA, addrB = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

// traffic sends n packets from a to b. It returns the PSNs that arrived intact, in the order of
// arrival, and the number of corrupt packets.
func traffic(t *testing.T, cfg Config, n int) (psns []wire.PSN, corrupt int, net *Network) {
	t.Helper()
	net = New(cfg)
	a, err := net.Open(addrA)
	if err != nil {
		t.Fatal(err)
	}
	b, err := net.Open(addrB)
	if err != nil {
		t.Fatal(err)
	}
	batch, rx := wire.NewBatch(16), link.NewRx(16, 64)
	f := &wire.Flow{Src: addrA, Dst: addrB}
	from := &wire.Flow{Src: addrA, Dst: addrB, SrcPort: wire.Port}
	for i := range n {
		batch.Reset()
		batch.Add(f, &wire.Packet{Op: wire.SendOnly, PSN: wire.PSN(i), PKey: wire.DefaultPKey}, [][]byte{[]byte("payload")})
		if err := a.Send(batch); err != nil {
			t.Fatal(err)
		}
	}
	for net.Next() != 0 {
		net.Advance(net.Next())
		for k, _ := b.Recv(rx, 0); k > 0; k, _ = b.Recv(rx, 0) {
			for _, d := range rx.D {
				var p wire.Packet
				if ok, exact, _ := wire.VerifyICRC(from, d.Data, 0); !ok || !exact || p.Parse(d.Data) != nil {
					corrupt++
					continue
				}
				psns = append(psns, p.PSN)
			}
		}
	}
	return psns, corrupt, net
}

func TestPerfectNetworkKeepsOrder(t *testing.T) {
	psns, _, net := traffic(t, Config{}, 1000)
	if len(psns) != 1000 {
		t.Fatalf("%d of 1000 arrived", len(psns))
	}
	for i, p := range psns {
		if p != wire.PSN(i) {
			t.Fatalf("packet %d arrived as number %d", p, i)
		}
	}
	if net.Now() != rdma.Second+10*rdma.Microsecond {
		t.Errorf("the clock is at %d", net.Now())
	}
}

func TestFaultsHappenAsOftenAsAskedAndTheSameForASeed(t *testing.T) {
	cfg := Config{Seed: 3, Loss: 0.2, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.05}
	p1, c1, net := traffic(t, cfg, 10_000)
	p2, c2, _ := traffic(t, cfg, 10_000)
	if c1 != c2 || len(p1) != len(p2) {
		t.Fatalf("two runs of one seed differ: %d and %d arrived, %d and %d corrupt", len(p1), len(p2), c1, c2)
	}
	swapped := 0
	for i := range p1 {
		if p1[i] != p2[i] {
			t.Fatal("two runs of one seed differ")
		}
		if i > 0 && p1[i].Before(p1[i-1]) {
			swapped++
		}
	}
	s := net.Stats
	for _, c := range []struct {
		what string
		n    uint64
		want float64
	}{{"lost", s.Lost, 2000}, {"duplicated", s.Duplicated, 800}, {"held", s.Held, 800}, {"corrupted", s.Corrupted, 400}} {
		if f := float64(c.n); f < c.want*0.8 || f > c.want*1.2 {
			t.Errorf("%d %s, want about %.0f", c.n, c.what, c.want)
		}
	}
	if swapped == 0 || c1 == 0 {
		t.Errorf("%d out of order, %d corrupt", swapped, c1)
	}
}

func TestBandwidthAndQueue(t *testing.T) {
	// 52 bytes on the wire, 520 kB/s: 10,000 packets a second; the queue holds 100.
	psns, _, net := traffic(t, Config{Bandwidth: 520_000, QueueBytes: 5200}, 1000)
	if len(psns) < 95 || len(psns) > 105 || net.Stats.QueueDrops == 0 {
		t.Errorf("%d arrived, %d dropped", len(psns), net.Stats.QueueDrops)
	}
	if took := net.Now() - rdma.Second; took < 9*rdma.Millisecond || took > 11*rdma.Millisecond {
		t.Errorf("they took %d us", took/rdma.Microsecond)
	}
}

func TestCutAndClose(t *testing.T) {
	net := New(Config{})
	a, _ := net.Open(addrA)
	b, _ := net.Open(addrB)
	if _, err := net.Open(addrA); err == nil {
		t.Error("an address was opened twice")
	}
	batch, rx := wire.NewBatch(1), link.NewRx(4, 64)
	batch.Add(&wire.Flow{Src: addrA, Dst: addrB}, &wire.Packet{Op: wire.SendOnly}, nil)
	for i, cut := range []bool{true, false} {
		net.Cut(addrA, addrB, cut)
		_ = a.Send(batch)
		net.Advance(net.Now() + rdma.Second)
		if n, _ := b.Recv(rx, 0); n != i {
			t.Errorf("cut %v: %d arrived", cut, n)
		}
	}
	_ = b.Close()
	_ = a.Send(batch)
	net.Advance(net.Now() + rdma.Second)
	if net.Stats.NoReceiver != 1 {
		t.Errorf("%+v", net.Stats)
	}
	if _, err := b.Recv(rx, 0); err == nil {
		t.Error("a closed link received")
	}
}
