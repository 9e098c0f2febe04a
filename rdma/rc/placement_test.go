package rc

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// placed returns the memory that a QP names for the payload of a packet of its peer. other changes
// the packet.
func placed(q *QP, k wire.Packet, other func(k *wire.Packet)) []byte {
	k.Src, k.Dst, k.PKey = q.flow.Dst, q.flow.Src, wire.DefaultPKey
	if other != nil {
		other(&k)
	}
	return q.Placement(&k)
}

// notPlaced are changes after which a packet is not placed.
var notPlaced = []struct {
	name  string
	other func(k *wire.Packet)
}{
	{"a PSN that is ahead", func(k *wire.Packet) { k.PSN++ }},
	{"a PSN that was served", func(k *wire.Packet) { k.PSN-- }},
	{"another source", func(k *wire.Packet) { k.Src = netip.MustParseAddr("192.0.2.9") }},
	{"another destination", func(k *wire.Packet) { k.Dst = netip.MustParseAddr("192.0.2.9") }},
	{"another partition", func(k *wire.Packet) { k.PKey = 0x8123 }},
	{"a short payload", func(k *wire.Packet) { k.Payload = k.Payload[:255] }},
	{"a pad", func(k *wire.Packet) { k.Pad = 4 }},
	{"a last packet", func(k *wire.Packet) { k.Op++ }},
	{"a first packet", func(k *wire.Packet) { k.Op-- }},
}

// TestPlacementOfReads: the next middle packet of a READ response is placed in the memory of the
// work request, if it fits one element.
func TestPlacementOfReads(t *testing.T) {
	p, a, q := lone(t, 0)
	p.post(0, rdma.SendWR{
		Op: rdma.OpRead, Flags: rdma.Signaled, RemoteAddr: pairVA, RKey: pairKey,
		SGL: []rdma.SGE{
			{Buf: a.buf[:300], LKey: pairKey},
			{Buf: a.buf[1000:1512], LKey: pairKey},
			{Buf: a.buf[2000:3000], LKey: pairKey},
		},
	})
	k := wire.Packet{Op: wire.ReadRespMiddle, PSN: 8, Payload: bytes.Repeat([]byte{0xaa}, 256)}
	if placed(q, k, nil) != nil {
		t.Error("a response has a place before its request was sent")
	}
	say(p, q)
	hear(p, q, wire.Packet{Op: wire.ReadRespFirst, PSN: 7, Payload: bytesOf(256)})
	if placed(q, k, nil) != nil { // 44 bytes in the first element, the rest in the second
		t.Error("a place in two pieces")
	}
	hear(p, q, k)
	for _, c := range notPlaced {
		if c.other == nil {
			continue
		}
		if next := k; placed(q, next, func(k *wire.Packet) { k.PSN++; c.other(k) }) != nil {
			t.Errorf("%s has a place", c.name)
		}
	}
	k.PSN = 9
	dst := placed(q, k, nil)
	if len(dst) != 256 || &dst[0] != &a.buf[1000+212] {
		t.Fatalf("%d bytes are placed", len(dst))
	}
	copy(dst, bytes.Repeat([]byte{0xbb}, 256))
	k.Placed = true
	hear(p, q, k)
	if a.buf[1000+212] != 0xbb || q.n.RxBytesReadResponse != 768 {
		t.Errorf("%#x was written, %d bytes were counted", a.buf[1000+212], q.n.RxBytesReadResponse)
	}
	if err := q.Modify(p.now, rdma.QPAttr{State: rdma.StateErr}); err != nil {
		t.Fatal(err)
	}
	k.PSN, k.Placed = 10, false
	if placed(q, k, nil) != nil {
		t.Error("a place in memory that was given back to the user")
	}
}

// TestPlacementWithWrongICRC: a packet that was placed and has a wrong ICRC has no effect. The peer
// sends it again.
func TestPlacementWithWrongICRC(t *testing.T) {
	p := newPair(t, 256, 7, 1<<16)
	a, b := p.s[0], p.s[1]
	for i := range a.buf {
		a.buf[i] = byte(i / 7)
	}
	p.post(1, rdma.SendWR{
		Op: rdma.OpRead, Flags: rdma.Signaled, SGL: b.sge(0, 5000), RemoteAddr: pairVA, RKey: pairKey,
	})
	p.rnd, p.bits = rand.New(rand.NewPCG(1, 2)), 0.3
	p.until(rdma.Second, func() bool { return len(b.sent) == 1 })
	if b.sent[0].Status != rdma.Success || !bytes.Equal(a.buf[:5000], b.buf[:5000]) || p.placed < 5 || p.wrong == 0 {
		t.Errorf("%v, %d packets were placed, %d were wrong", b.sent[0].Status, p.placed, p.wrong)
	}
}
