package rc

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

func write(id uint64, s *side, n int, va uint64, key uint32) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpWrite, SGL: s.sge(0, n), RemoteAddr: va, RKey: key}
}

// TestFatalRequests: what the peer must refuse, with which NAK, and what
// becomes of the requests around it.
func TestFatalRequests(t *testing.T) {
	const size = 1 << 16
	for _, c := range []struct {
		name   string
		wr     func(a *side) rdma.SendWR
		setup  func(p *pair)
		status rdma.Status
		nak    func(c *Counters) uint64
	}{
		{
			"wrong R_Key", func(a *side) rdma.SendWR { return write(2, a, 10, pairVA, pairKey+1) }, nil, rdma.RemAccessErr,
			func(c *Counters) uint64 { return c.TxNAKAccess },
		},
		{
			"beyond the region", func(a *side) rdma.SendWR { return write(2, a, 11, pairVA+size-10, pairKey) }, nil,
			rdma.RemAccessErr, func(c *Counters) uint64 { return c.TxNAKAccess },
		},
		{
			"address wraps", func(a *side) rdma.SendWR { return write(2, a, 11, 1<<64-5, pairKey) }, nil, rdma.RemAccessErr,
			func(c *Counters) uint64 { return c.TxNAKAccess },
		},
		{
			"before the region", func(a *side) rdma.SendWR { return write(2, a, 11, pairVA-1, pairKey) }, nil, rdma.RemAccessErr,
			func(c *Counters) uint64 { return c.TxNAKAccess },
		},
		{
			"READ without the right", func(a *side) rdma.SendWR {
				return rdma.SendWR{ID: 2, Op: rdma.OpRead, SGL: a.sge(0, 10), RemoteAddr: pairVA, RKey: pairKey}
			}, func(p *pair) { p.s[1].mem[pairKey].access = rdma.LocalWrite | rdma.RemoteWrite }, rdma.RemAccessErr,
			func(c *Counters) uint64 { return c.TxNAKAccess },
		},
		{
			"READ not allowed on the QP", func(a *side) rdma.SendWR {
				return rdma.SendWR{ID: 2, Op: rdma.OpRead, SGL: a.sge(0, 10), RemoteAddr: pairVA, RKey: pairKey}
			}, func(p *pair) { p.s[1].q.attr.Access = rdma.RemoteWrite }, rdma.RemInvReqErr,
			func(c *Counters) uint64 { return c.TxNAKInvalid },
		},
		{
			"WRITE not allowed on the QP", func(a *side) rdma.SendWR { return write(2, a, 11, pairVA, pairKey) },
			func(p *pair) { p.s[1].q.attr.Access = rdma.RemoteRead }, rdma.RemInvReqErr,
			func(c *Counters) uint64 { return c.TxNAKInvalid },
		},
		{"SEND longer than the receive", func(a *side) rdma.SendWR {
			return rdma.SendWR{ID: 2, Op: rdma.OpSend, SGL: a.sge(0, 5000)}
		}, func(p *pair) { p.recv(1, 0, 4999) }, rdma.RemInvReqErr, func(c *Counters) uint64 { return c.TxNAKInvalid }},
		{"SEND invalidates a key that is none", func(a *side) rdma.SendWR {
			return rdma.SendWR{ID: 2, Op: rdma.OpSendInv, SGL: a.sge(0, 5), InvRKey: 77}
		}, func(p *pair) { p.recv(1, 0, 4999) }, rdma.RemAccessErr, func(c *Counters) uint64 { return c.TxNAKAccess }},
		{"local memory of another region", func(a *side) rdma.SendWR {
			return rdma.SendWR{
				ID: 2, Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: make([]byte, 8), LKey: pairKey}},
				RemoteAddr: pairVA, RKey: pairKey,
			}
		}, nil, rdma.LocProtErr, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, 1024, 0xfffffe, size)
			if c.setup != nil {
				c.setup(p)
			}
			a, b := p.s[0], p.s[1]
			before := append([]byte(nil), b.buf...)
			for i := range a.buf {
				a.buf[i] = 0xee
			}
			first := write(1, a, 0, 0, 0) // no bytes: no key is looked at
			if b.q.attr.Access&rdma.RemoteWrite == 0 {
				first.Op = rdma.OpLocalInv
				first.InvRKey = pairKey + 5
				a.mem[pairKey+5] = &region{}
			}
			first.Flags = rdma.Signaled
			p.post(0, first)
			p.until(rdma.Second, func() bool { return len(a.sent) == 1 })
			p.post(0, c.wr(a), write(3, a, 10, pairVA, pairKey))
			p.recv(0, 0, 10)
			p.until(10*rdma.Second, func() bool { return len(a.sent) == 3 && len(a.got) == 1 })
			if a.sent[0].Status != rdma.Success || a.sent[1].Status != c.status || a.sent[1].ID != 2 ||
				a.sent[2].Status != rdma.WRFlushErr || a.got[0].Status != rdma.WRFlushErr {
				t.Errorf("completions %+v, receives %+v", a.sent, a.got)
			}
			if a.q.State() != rdma.StateErr || a.q.Err() == nil {
				t.Errorf("requester is in %v, error %v", a.q.State(), a.q.Err())
			}
			if c.nak != nil && (c.nak(b.q.n) != 1 || b.q.State() != rdma.StateErr || b.q.Err() == nil) {
				t.Errorf("responder is in %v, error %v, counters %+v", b.q.State(), b.q.Err(), *b.q.n)
			}
			if c.name[:4] != "SEND" && string(b.buf) != string(before) {
				t.Error("memory was written")
			}
			// Later posts are flushed at once.
			p.post(0, write(4, a, 1, pairVA, pairKey))
			p.poll(a)
			if len(a.sent) != 4 || a.sent[3].Status != rdma.WRFlushErr {
				t.Errorf("a post in ERR gave %+v", a.sent)
			}
		})
	}
}

func TestRNRIsRetriedUntilAReceiveIsPosted(t *testing.T) {
	p := newPair(t, 1024, 7, 1<<16)
	a, b := p.s[0], p.s[1]
	p.post(0, rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 3000)})
	for b.q.n.TxRNR < 5 {
		if !p.turn() {
			t.Fatal("stuck")
		}
	}
	p.recv(1, 0, 4096)
	p.until(rdma.Second, func() bool { return len(a.sent) == 1 && len(b.got) == 1 })
	if a.sent[0].Status != rdma.Success || b.got[0].ByteLen != 3000 {
		t.Errorf("%+v %+v", a.sent, b.got)
	}
}

func TestRNRRetriesRunOut(t *testing.T) {
	p := newPair(t, 1024, 7, 1<<16)
	a := p.s[0]
	a.q.attr.RNRRetryCount = 2
	p.post(0, rdma.SendWR{ID: 1, Op: rdma.OpSend, SGL: a.sge(0, 30)})
	p.until(rdma.Second, func() bool { return len(a.sent) == 1 })
	if a.sent[0].Status != rdma.RNRRetryExcErr || p.s[1].q.n.TxRNR != 3 || p.s[1].q.State() != rdma.StateRTS {
		t.Errorf("%+v after %d RNR NAKs, peer in %v", a.sent, p.s[1].q.n.TxRNR, p.s[1].q.State())
	}
}

func TestDeadPeerIsGivenUpAfterTheTimeOfItsRetries(t *testing.T) {
	p := newPair(t, 1024, 7, 1<<16)
	a := p.s[0]
	p.stop = true
	start := p.now
	p.post(0, write(1, a, 10, pairVA, pairKey))
	p.until(60*rdma.Second, func() bool { return len(a.sent) == 1 })
	d := p.now - start
	if want := 6 * a.q.ackTimeout(); a.sent[0].Status != rdma.RetryExcErr || d < want || d > 2*want {
		t.Errorf("%+v after %d ms, want about %d", a.sent, d/rdma.Millisecond, want/rdma.Millisecond)
	}
}

func TestRemoteInvalidateEndsAccess(t *testing.T) {
	p := newPair(t, 1024, 7, 1<<16)
	a, b := p.s[0], p.s[1]
	b.mem[99] = &region{buf: make([]byte, 64), va: 0, access: rdma.LocalWrite | rdma.RemoteWrite}
	p.recv(1, 0, 100)
	p.post(0, write(1, a, 64, 0, 99), rdma.SendWR{ID: 2, Op: rdma.OpSendInv, SGL: a.sge(0, 3), InvRKey: 99})
	p.until(rdma.Second, func() bool { return len(b.got) == 1 })
	if b.got[0].Flags != rdma.WithInv || b.got[0].InvRKey != 99 {
		t.Errorf("%+v", b.got[0])
	}
	p.post(0, write(3, a, 1, 0, 99))
	p.until(rdma.Second, func() bool { return len(a.sent) == 1 })
	if a.sent[0].Status != rdma.RemAccessErr {
		t.Errorf("%+v", a.sent)
	}
}

func TestWriteWithImmediateTakesAReceive(t *testing.T) {
	p := newPair(t, 256, 7, 1<<16)
	a, b := p.s[0], p.s[1]
	copy(a.buf, "immediately")
	w := write(1, a, 1000, pairVA+2000, pairKey)
	w.Op, w.Imm, w.Flags = rdma.OpWriteImm, 0xabcd, rdma.Signaled
	p.post(0, w)
	for b.q.n.TxRNR == 0 {
		p.turn()
	}
	p.recv(1, 0, 0)
	p.until(rdma.Second, func() bool { return len(b.got) == 1 && len(a.sent) == 1 })
	if g := b.got[0]; g.Op != rdma.WCRecvWithImm || g.Imm != 0xabcd || g.ByteLen != 1000 ||
		string(b.buf[2000:2011]) != "immediately" {
		t.Errorf("%+v", g)
	}
}

// TestLateDuplicateOfARead: the network repeats a READ request long after its answer
// was used and its memory withdrawn. It is dropped; a first request for such memory
// is not.
func TestLateDuplicateOfARead(t *testing.T) {
	p := newPair(t, 256, 7, 1<<16)
	a, b := p.s[0], p.s[1]
	b.mem[99] = &region{buf: make([]byte, 1000), va: 0, access: rdma.RemoteRead}
	p.post(0, rdma.SendWR{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.sge(0, 1000), RKey: 99})
	p.until(rdma.Second, func() bool { return len(a.sent) == 1 })
	delete(b.mem, 99)
	again := wire.Packet{
		Src: b.q.flow.Dst, Dst: b.q.flow.Src, Op: wire.ReadRequest, PKey: wire.DefaultPKey, PSN: 7, AckReq: true,
		RETH: wire.RETH{RKey: 99, Len: 1000},
	}
	b.q.Receive(p.now, &again)
	w := write(2, a, 10, pairVA, pairKey)
	w.Flags = rdma.Signaled
	p.post(0, w)
	p.until(rdma.Second, func() bool { return len(a.sent) == 2 })
	if a.sent[1].Status != rdma.Success || b.q.State() != rdma.StateRTS || b.q.n.RxDuplicateNoResource != 1 {
		t.Errorf("%+v, the responder is in %v: %v; %+v", a.sent, b.q.State(), b.q.Err(), *b.q.n)
	}
	p.post(0, rdma.SendWR{ID: 3, Op: rdma.OpRead, SGL: a.sge(0, 1000), RKey: 99})
	p.until(rdma.Second, func() bool { return len(a.sent) == 3 })
	if a.sent[2].Status != rdma.RemAccessErr {
		t.Errorf("a new READ of withdrawn memory: %+v", a.sent[2])
	}
}

func TestMoreReadsThanNegotiatedWait(t *testing.T) {
	p := newPair(t, 256, 7, 1<<16)
	a, b := p.s[0], p.s[1]
	for i := range 40 {
		p.post(0, rdma.SendWR{
			ID: uint64(i), Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.sge(i*1000, 1000),
			RemoteAddr: pairVA, RKey: pairKey,
		})
	}
	p.until(rdma.Second, func() bool { return len(a.sent) == 40 })
	if b.q.n.TxNAKInvalid != 0 {
		t.Error("more READs at once than the peer holds")
	}
}

func TestIllegalTransitions(t *testing.T) {
	q := New(Config{Mem: memory{}})
	for _, s := range []rdma.QPState{rdma.StateRTR, rdma.StateRTS, rdma.StateSQD, rdma.StateSQE} {
		if err := q.Modify(1, rdma.QPAttr{State: s}); !errors.Is(err, rdma.ErrBadTransition) {
			t.Errorf("RESET to %v: %v", s, err)
		}
	}
	if err := q.PostRecv(1, make([]rdma.RecvWR, 1)); !errors.Is(err, rdma.ErrBadTransition) {
		t.Errorf("receive in RESET: %v", err)
	}
	if err := q.Modify(1, rdma.QPAttr{State: rdma.StateInit}); err != nil {
		t.Error(err)
	}
	if err := q.PostSend(1, make([]rdma.SendWR, 1)); !errors.Is(err, rdma.ErrBadTransition) {
		t.Errorf("send in INIT: %v", err)
	}
}

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

// TestForeignPackets: what is not from the peer, or not for this connection,
// changes nothing.
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

// TestCNPOfAnotherPartition: network cards send CNPs with the default P_Key, and nothing else.
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

// TestReservedOpcodes: what the class has no meaning for is an invalid request where a request is
// due, and nothing elsewhere, so that nobody ends a connection who does not know its sequence
// number.
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

// exchange drives two QPs without a wire in between, as fast as they go.
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

// FuzzReceive feeds anything to a connected QP with work on both halves: it
// never panics, and memory outside of the region does not change.
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
