package rc

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

func TestQueueLimitsAndBadRequests(t *testing.T) {
	p := newPair(t, 1024, 7, 1<<16)
	a := p.s[0]
	if err := a.q.PostSend(p.now, make([]rdma.SendWR, 257)); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("257 sends: %v", err)
	}
	if err := a.q.PostRecv(p.now, make([]rdma.RecvWR, 257)); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("257 receives: %v", err)
	}
	for _, w := range []rdma.SendWR{
		{Op: 99},
		{Op: rdma.OpSend, SGL: make([]rdma.SGE, 5)},
		{Op: rdma.OpFetchAdd, SGL: a.sge(0, 7)},
		{Op: rdma.OpFetchAdd, SGL: a.sge(0, 8), RemoteAddr: 4},
	} {
		if err := a.q.PostSend(p.now, []rdma.SendWR{w}); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("%+v: %v", w, err)
		}
	}
	if s, r := a.q.Outstanding(); s != 0 || r != 0 {
		t.Errorf("%d and %d requests are queued", s, r)
	}
}

// TestForeignPackets: packets that are not from the peer, or not for this connection, change
// nothing.
func TestForeignPackets(t *testing.T) {
	p := newPair(t, 1024, 7, 1<<16)
	q := p.s[1].q
	good := wire.Packet{
		Src: q.flow.Dst, Dst: q.flow.Src, Op: wire.WriteOnly, PKey: wire.DefaultPKey, PSN: 7,
		RETH: wire.RETH{VA: pairVA, RKey: pairKey, Len: 4}, Payload: []byte("evil"),
	}
	for name, change := range map[string]func(*wire.Packet){
		"source":      func(k *wire.Packet) { k.Src = netip.MustParseAddr("192.0.2.9") },
		"destination": func(k *wire.Packet) { k.Dst = netip.MustParseAddr("192.0.2.9") },
		"partition":   func(k *wire.Packet) { k.PKey = 0x8001 },
		"both limited": func(k *wire.Packet) {
			q.attr.PKey, k.PKey = 0x7fff, 0x7fff
		},
		"class": func(k *wire.Packet) { k.Op = wire.UDSendOnly },
	} {
		k := good
		pk := q.attr.PKey
		change(&k)
		q.Receive(p.now, &k)
		q.attr.PKey = pk
		if q.HasWork(p.now) || q.resp.epsn != 7 || string(p.s[1].buf[:4]) == "evil" {
			t.Errorf("a packet with another %s had an effect", name)
		}
	}
	if q.n.DropPeer != 2 || q.n.DropPKey != 2 || q.n.DropOpcode != 1 {
		t.Errorf("counters %+v", *q.n)
	}
}

// TestCNPOfAnotherPartition: only a CNP may have the default P_Key. Network cards send CNPs with
// it.
func TestCNPOfAnotherPartition(t *testing.T) {
	p := newPair(t, 1024, 7, 1<<16)
	q := p.s[1].q
	q.attr.PKey = 0x8005
	for _, k := range []wire.Packet{
		{Op: wire.CNP, PKey: wire.DefaultPKey, Payload: make([]byte, 16)},
		{Op: wire.CNP, PKey: 0x8006, Payload: make([]byte, 16)},
		{Op: wire.SendOnly, PKey: wire.DefaultPKey, PSN: 7},
	} {
		k.Src, k.Dst = q.flow.Dst, q.flow.Src
		q.Receive(p.now, &k)
	}
	if q.n.RxCNP != 1 || q.n.DropPKey != 2 {
		t.Errorf("%d CNPs, %d packets of other partitions", q.n.RxCNP, q.n.DropPKey)
	}
}

// TestReservedOpcodes: a reserved opcode is an invalid request if its PSN is the expected one.
// Otherwise it has no effect, so that nobody who does not know the PSN can end a connection.
func TestReservedOpcodes(t *testing.T) {
	for _, c := range []struct {
		op   wire.Opcode
		psn  wire.PSN
		ends bool
	}{{0x15, 7, true}, {0x18, 7, true}, {0x1f, 7, true}, {0x15, 6, false}, {0x15, 8, false}, {0x15, 1 << 23, false}} {
		p := newPair(t, 1024, 7, 1<<16)
		q := p.s[1].q
		hear(p, q, wire.Packet{Op: c.op, PSN: c.psn, AckReq: true})
		if c.ends != (q.State() == rdma.StateErr) || q.n.DropOpcode != 1 {
			t.Errorf("opcode %#x at PSN %d: %v", uint8(c.op), c.psn, q.State())
		}
		out := say(p, q)
		if c.ends && (len(out) != 1 || out[0].AETH.Syndrome != wire.NAKInvalidRequest || out[0].PSN != 7) ||
			!c.ends && len(out) != 0 {
			t.Errorf("opcode %#x at PSN %d: sent %+v", uint8(c.op), c.psn, out)
		}
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	p := newPair(t, 4096, 7, 1<<20)
	a, b := p.s[0], p.s[1]
	wr := []rdma.SendWR{
		write(1, a, 65536, pairVA, pairKey),
		{ID: 2, Op: rdma.OpRead, SGL: a.sge(0, 65536), RemoteAddr: pairVA, RKey: pairKey},
		{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 4096)},
	}
	rr := []rdma.RecvWR{{SGL: b.sge(0, 4096)}}
	x := exchange{batch: wire.NewBatch(256), side: p.s}
	if n := testing.AllocsPerRun(50, func() { x.run(t, wr, rr) }); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
}

// exchange runs two QPs without a wire in between, without delay.
type exchange struct {
	batch *wire.Batch
	side  [2]*side
	pkt   wire.Packet
	buf   []byte
	now   rdma.Time
}

func (x *exchange) run(t testing.TB, wr []rdma.SendWR, rr []rdma.RecvWR) {
	a, b := x.side[0].q, x.side[1].q
	if rr != nil {
		if err := b.PostRecv(x.now, rr); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.PostSend(x.now, wr); err != nil {
		t.Fatal(err)
	}
	var wc [8]rdma.WC
	for a.PollSend(wc[:]) == 0 {
		x.now += 1000
		for i, q := range [2]*QP{a, b} {
			x.batch.Reset()
			q.Transmit(x.now, x.batch)
			for j := range x.batch.D {
				d := &x.batch.D[j]
				x.buf = append(x.buf[:0], d.Hdr...)
				for _, s := range d.Payload {
					x.buf = append(x.buf, s...)
				}
				x.buf = append(x.buf, 0, 0, 0, 0, 0, 0, 0)[:len(x.buf)+int(d.Pad)+wire.ICRCLen]
				if err := x.pkt.Parse(x.buf); err != nil {
					t.Fatal(err)
				}
				to := x.side[1-i].q
				x.pkt.Src, x.pkt.Dst = to.flow.Dst, to.flow.Src
				to.Receive(x.now, &x.pkt)
			}
		}
	}
	b.PollRecv(wc[:])
}

func BenchmarkEngine(b *testing.B) {
	for _, c := range []struct {
		name string
		op   rdma.SendOp
		n    int
	}{
		{"WRITE/4KiB", rdma.OpWrite, 4096},
		{"WRITE/1MiB", rdma.OpWrite, 1 << 20},
		{"READ/1MiB", rdma.OpRead, 1 << 20},
		{"SEND/64B", rdma.OpSend, 64},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := newPair(b, 4096, 7, 1<<20)
			wr := []rdma.SendWR{{Op: c.op, Flags: rdma.Signaled, SGL: p.s[0].sge(0, c.n), RemoteAddr: pairVA, RKey: pairKey}}
			var rr []rdma.RecvWR
			if c.op == rdma.OpSend {
				rr = []rdma.RecvWR{{SGL: p.s[1].sge(0, c.n)}}
			}
			x := exchange{batch: wire.NewBatch(256), side: p.s}
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			for b.Loop() {
				x.run(b, wr, rr)
			}
		})
	}
}

// FuzzReceive feeds any packets to a connected QP that serves and sends requests. It never panics,
// and memory outside of the region does not change.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{4, 0, 0xff, 0xff, 0, 0, 0, 1, 0x80, 0, 0, 7, 1, 2, 3, 4, 0, 0, 0, 0})
	f.Add([]byte{0x11, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 8, 0x1f, 0, 0, 1, 0, 0, 0, 0})
	f.Add([]byte{
		0x0c, 0, 0xff, 0xff, 0, 0, 0, 1, 0x80, 0, 0, 7, 0, 0, 0x70, 0, 0, 0, 0, 0, 0, 0, 0x11, 0, 0, 0, 4, 0, 0,
		0, 0, 0,
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		p := newPair(t, 256, 7, 4096)
		s := p.s[1]
		s.mem[pairKey].buf = s.buf[1024:2048]
		s.mem[2] = &region{buf: s.buf[2048:3072], access: rdma.LocalWrite}
		if err := s.q.PostRecv(p.now, []rdma.RecvWR{{SGL: []rdma.SGE{{Buf: s.buf[2048:3072], LKey: 2}}}}); err != nil {
			t.Fatal(err)
		}
		if err := s.q.PostSend(p.now, []rdma.SendWR{{
			Op: rdma.OpRead, SGL: []rdma.SGE{{Buf: s.buf[2048:3072], LKey: 2}},
			RKey: 1,
		}, {Op: rdma.OpSend}}); err != nil {
			t.Fatal(err)
		}
		var k wire.Packet
		for len(data) >= wire.BTHLen+wire.ICRCLen {
			n := min(len(data), wire.BTHLen+wire.ICRCLen+int(data[5])*2)
			p.batch.Reset()
			s.q.Transmit(p.now, p.batch)
			if k.Parse(data[:n]) == nil {
				k.Src, k.Dst = s.q.flow.Dst, s.q.flow.Src
				if data[6]&1 == 0 {
					k.PKey, k.PSN = wire.DefaultPKey, s.q.resp.epsn
					if k.Op.Is(wire.Response) {
						k.PSN = s.q.req.una
					}
					k.RETH.RKey, k.RETH.VA = pairKey, pairVA+uint64(data[7])
				}
				s.q.Receive(p.now, &k)
			}
			p.now += rdma.Millisecond
			if d := s.q.Deadline(); d != 0 && d <= p.now {
				s.q.Expire(p.now)
			}
			p.poll(s)
			data = data[n:]
		}
		for i, c := range s.buf {
			if c != 0 && (i < 1024 || i >= 3072) {
				t.Fatalf("byte %d outside of the regions was written", i)
			}
		}
	})
}
