package rc

import (
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// lone is one side of a pair. The test plays its peer.
func lone(t *testing.T, i int) (*pair, *side, *QP) {
	t.Helper()
	p := newPair(t, 256, 7, 1<<16)
	return p, p.s[i], p.s[i].q
}

// hear passes a packet of the peer to a QP.
func hear(p *pair, q *QP, k wire.Packet) {
	k.Src, k.Dst, k.PKey = q.flow.Dst, q.flow.Src, wire.DefaultPKey
	q.Receive(p.now, &k)
}

// say returns the packets that the QP sends now.
func say(p *pair, q *QP) (out []wire.Packet) {
	p.t.Helper()
	for q.HasWork(p.now) {
		p.batch.Reset()
		q.Transmit(p.now, p.batch)
		for _, d := range p.batch.D {
			raw := append([]byte(nil), d.Hdr...)
			for _, b := range d.Payload {
				raw = append(raw, b...)
			}
			raw = append(raw, make([]byte, int(d.Pad)+wire.ICRCLen)...)
			var k wire.Packet
			if err := k.Parse(raw); err != nil {
				p.t.Fatal(err)
			}
			out = append(out, k)
		}
	}
	return out
}

func bytesOf(n int) []byte { return make([]byte, n) }

// TestRefusedPackets: illegal requests, each with the NAK and its PSN (IBTA 9.7.4). The QP is then
// in ERR, with a reason.
func TestRefusedPackets(t *testing.T) {
	reth := wire.RETH{VA: pairVA, RKey: pairKey, Len: 1000}
	with := func(n uint32) wire.RETH { return wire.RETH{VA: pairVA, RKey: pairKey, Len: n} }
	atomic := wire.Atomic{VA: pairVA, RKey: pairKey}
	read := func(psn wire.PSN) wire.Packet { return wire.Packet{Op: wire.ReadRequest, PSN: psn, RETH: with(10)} }
	for _, c := range []struct {
		name    string
		setup   func(p *pair, q *QP)
		packets []wire.Packet
		nak     uint8
	}{
		{
			"a SEND that does not begin", nil,
			[]wire.Packet{{Op: wire.SendMiddle, PSN: 7, Payload: bytesOf(256)}},
			wire.NAKInvalidRequest,
		},
		{
			"a WRITE that does not begin", nil,
			[]wire.Packet{{Op: wire.WriteLast, PSN: 7, Payload: bytesOf(1)}},
			wire.NAKInvalidRequest,
		},
		{
			"a SEND within a WRITE", nil,
			[]wire.Packet{
				{Op: wire.WriteFirst, PSN: 7, RETH: reth, Payload: bytesOf(256)},
				{Op: wire.SendLast, PSN: 8, Payload: bytesOf(1)},
			},
			wire.NAKInvalidRequest,
		},
		{
			"a READ within a SEND", recvs(2),
			[]wire.Packet{{Op: wire.SendFirst, PSN: 7, Payload: bytesOf(256)}, read(8)},
			wire.NAKInvalidRequest,
		},
		{
			"a message within a message", recvs(2),
			[]wire.Packet{{Op: wire.SendFirst, PSN: 7, Payload: bytesOf(256)}, {Op: wire.SendOnly, PSN: 8}},
			wire.NAKInvalidRequest,
		},
		{
			"a first packet that is short", recvs(1),
			[]wire.Packet{{Op: wire.SendFirst, PSN: 7, Payload: bytesOf(252)}},
			wire.NAKInvalidRequest,
		},
		{
			"a middle packet with padding", recvs(1),
			[]wire.Packet{
				{Op: wire.SendFirst, PSN: 7, Payload: bytesOf(256)},
				{Op: wire.SendMiddle, PSN: 8, Payload: bytesOf(255), Pad: 1},
			},
			wire.NAKInvalidRequest,
		},
		{
			"a last packet without payload", recvs(1),
			[]wire.Packet{{Op: wire.SendFirst, PSN: 7, Payload: bytesOf(256)}, {Op: wire.SendLast, PSN: 8}},
			wire.NAKInvalidRequest,
		},
		{
			"a packet over the path MTU", recvs(1),
			[]wire.Packet{{Op: wire.SendOnly, PSN: 7, Payload: bytesOf(260)}},
			wire.NAKInvalidRequest,
		},
		{
			"a WRITE of less than it says", nil,
			[]wire.Packet{{Op: wire.WriteOnly, PSN: 7, RETH: with(100), Payload: bytesOf(96)}},
			wire.NAKInvalidRequest,
		},
		{
			"a WRITE of more than it says", nil,
			[]wire.Packet{
				{Op: wire.WriteFirst, PSN: 7, RETH: with(300), Payload: bytesOf(256)},
				{Op: wire.WriteLast, PSN: 8, Payload: bytesOf(48)},
			},
			wire.NAKInvalidRequest,
		},
		{
			"a WRITE that goes on after its end", nil,
			[]wire.Packet{{Op: wire.WriteFirst, PSN: 7, RETH: with(256), Payload: bytesOf(256)}},
			wire.NAKInvalidRequest,
		},
		{
			"a WRITE of more than 2^31 bytes", nil,
			[]wire.Packet{{Op: wire.WriteFirst, PSN: 7, RETH: with(1<<31 + 1), Payload: bytesOf(256)}},
			wire.NAKInvalidRequest,
		},
		{
			"a WRITE to memory that is withdrawn meanwhile", nil,
			[]wire.Packet{
				{Op: wire.WriteFirst, PSN: 7, RETH: wire.RETH{VA: 0, RKey: 99, Len: 300}, Payload: bytesOf(256)},
				{Op: wire.WriteLast, PSN: 8, Payload: bytesOf(44)},
			},
			wire.NAKRemoteAccess,
		},
		{
			"a READ of more than 2^31 bytes", nil,
			[]wire.Packet{{Op: wire.ReadRequest, PSN: 7, RETH: with(1<<31 + 1)}},
			wire.NAKInvalidRequest,
		},
		{
			"a READ beyond the region", nil,
			[]wire.Packet{{Op: wire.ReadRequest, PSN: 7, RETH: with(1<<16 + 1)}},
			wire.NAKRemoteAccess,
		},
		{
			"READs beyond those agreed on", nil,
			[]wire.Packet{read(7), read(8), read(9), read(10), read(11)},
			wire.NAKInvalidRequest,
		},
		{
			"an atomic on an unaligned word", nil,
			[]wire.Packet{{Op: wire.FetchAdd, PSN: 7, Atomic: wire.Atomic{VA: pairVA + 4, RKey: pairKey}}},
			wire.NAKInvalidRequest,
		},
		{
			"an atomic beyond the region", nil,
			[]wire.Packet{{Op: wire.CompareSwap, PSN: 7, Atomic: wire.Atomic{VA: pairVA + 1<<16, RKey: pairKey}}},
			wire.NAKRemoteAccess,
		},
		{
			"an atomic that the QP does not allow", func(_ *pair, q *QP) { q.attr.Access = rdma.RemoteRead },
			[]wire.Packet{{Op: wire.FetchAdd, PSN: 7, Atomic: atomic}},
			wire.NAKInvalidRequest,
		},
		{"a receive of memory that is not registered", func(p *pair, q *QP) {
			if err := q.PostRecv(p.now, []rdma.RecvWR{{SGL: []rdma.SGE{{Buf: make([]byte, 9), LKey: 5}}}}); err != nil {
				p.t.Fatal(err)
			}
		}, []wire.Packet{{Op: wire.SendOnly, PSN: 7, Payload: bytesOf(4)}}, wire.NAKRemoteOp},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, s, q := lone(t, 1)
			s.mem[99] = &region{buf: make([]byte, 300), access: rdma.LocalWrite | rdma.RemoteWrite}
			if c.setup != nil {
				c.setup(p, q)
			}
			for i, k := range c.packets {
				if q.State() != rdma.StateRTS {
					t.Fatalf("refused before packet %d", i)
				}
				hear(p, q, k)
				delete(s.mem, 99)
			}
			last := c.packets[len(c.packets)-1]
			out := say(p, q)
			if len(out) == 0 {
				t.Fatal("no NAK")
			}
			if nak := out[len(out)-1]; nak.Op != wire.Acknowledge || nak.AETH.Syndrome != c.nak || nak.PSN != last.PSN {
				t.Errorf("answered by %v, syndrome %#x (%s), PSN %d", nak.Op, nak.AETH.Syndrome, SyndromeText(nak.AETH.Syndrome),
					nak.PSN)
			}
			if q.State() != rdma.StateErr || q.Err() == nil {
				t.Errorf("in %v: %v", q.State(), q.Err())
			}
			if q.Summary().TxNAK.Last != (NAK{c.nak, last.PSN}) {
				t.Errorf("remembered %+v", q.Summary().TxNAK)
			}
			hear(p, q, last)
			if out := say(p, q); len(out) != 0 || q.n.DropState != 1 {
				t.Errorf("then it says %+v", out)
			}
		})
	}
}

func recvs(n int) func(*pair, *QP) {
	return func(p *pair, _ *QP) {
		for i := range n {
			p.recv(1, 4096*i, 4096)
		}
	}
}

// TestResponses: legal and illegal responses. The requests in flight are a WRITE of two packets
// (PSN 7 and 8), a READ of 300 bytes (9 and 10) and a FETCH_ADD (11).
func TestResponses(t *testing.T) {
	ack := func(psn wire.PSN, syndrome uint8) wire.Packet {
		return wire.Packet{Op: wire.Acknowledge, PSN: psn, AETH: wire.AETH{Syndrome: syndrome}}
	}
	acked := ack(8, wire.SyndromeAck)
	first := wire.Packet{Op: wire.ReadRespFirst, PSN: 9, Payload: bytesOf(256)}
	last := wire.Packet{Op: wire.ReadRespLast, PSN: 10, Payload: bytesOf(44)}
	for _, c := range []struct {
		name      string
		packets   []wire.Packet
		succeeded int         // completions with success
		failed    rdma.Status // of the next request, if the QP is in ERR
		counter   func(*Counters) uint64
	}{
		{name: "an ACK for each", packets: []wire.Packet{ack(7, 0), ack(8, 0)}, succeeded: 1},
		{
			name: "everything", packets: []wire.Packet{acked, first, last, {Op: wire.AtomicAck, PSN: 11, AtomicAck: 5}},
			succeeded: 3,
		},
		{name: "READ data acknowledges the WRITE", packets: []wire.Packet{first, last}, succeeded: 2},
		{
			name: "an ACK of what was never sent", packets: []wire.Packet{ack(12, 0)},
			counter: func(n *Counters) uint64 { return n.RxGhostAck },
		},
		{
			name: "an ACK again", packets: []wire.Packet{acked, ack(7, 0)}, succeeded: 1,
			counter: func(n *Counters) uint64 { return n.RxStaleResponse },
		},
		{
			name: "a reserved syndrome", packets: []wire.Packet{ack(8, 0x40)},
			counter: func(n *Counters) uint64 { return n.RxBadResponse },
		},
		{
			name: "a NAK of a reserved code", packets: []wire.Packet{ack(7, wire.SyndromeTypeNAK|9)}, failed: rdma.RemOpErr,
			counter: func(n *Counters) uint64 { return n.RxNAKOperation },
		},
		{name: "a NAK of the first", packets: []wire.Packet{ack(7, wire.NAKRemoteAccess)}, failed: rdma.RemAccessErr},
		{
			name: "a NAK of the READ", packets: []wire.Packet{ack(9, wire.NAKInvalidRequest)}, succeeded: 1,
			failed: rdma.RemInvReqErr,
		},
		{
			name: "a NAK of what is beyond a READ without data", packets: []wire.Packet{ack(11, wire.NAKRemoteOp)},
			succeeded: 1,
		},
		{name: "a sequence NAK beyond", packets: []wire.Packet{ack(11, wire.NAKSequence)}, succeeded: 1},
		{
			name: "RNR of the READ", packets: []wire.Packet{ack(9, wire.SyndromeRNR|1)}, succeeded: 1,
			counter: func(n *Counters) uint64 { return n.RxRNR },
		},
		{
			name: "RNR of what is beyond", packets: []wire.Packet{ack(11, wire.SyndromeRNR|1)}, succeeded: 1,
			counter: func(n *Counters) uint64 { return n.RxRNR },
		},
		{
			name: "READ data with a NAK in it",
			packets: []wire.Packet{{
				Op: wire.ReadRespFirst, PSN: 9, AETH: wire.AETH{Syndrome: wire.NAKRemoteOp},
				Payload: bytesOf(256),
			}}, failed: rdma.BadRespErr,
		},
		{
			name: "READ data for the WRITE", packets: []wire.Packet{{Op: wire.ReadRespOnly, PSN: 8, Payload: bytesOf(4)}},
			failed: rdma.BadRespErr,
		},
		{
			name:    "READ data for the atomic",
			packets: []wire.Packet{acked, first, last, {Op: wire.ReadRespOnly, PSN: 11, Payload: bytesOf(8)}}, succeeded: 2,
			failed: rdma.BadRespErr,
		},
		{
			name:    "READ data that is short",
			packets: []wire.Packet{acked, {Op: wire.ReadRespFirst, PSN: 9, Payload: bytesOf(252)}}, succeeded: 1,
			failed: rdma.BadRespErr,
		},
		{
			name:    "READ data that is long",
			packets: []wire.Packet{acked, first, {Op: wire.ReadRespLast, PSN: 10, Payload: bytesOf(48)}}, succeeded: 1,
			failed: rdma.BadRespErr,
		},
		{
			name: "READ data again", packets: []wire.Packet{acked, first, first}, succeeded: 1,
			counter: func(n *Counters) uint64 { return n.RxStaleResponse },
		},
		{
			name: "READ data with a gap", packets: []wire.Packet{acked, last}, succeeded: 1,
			counter: func(n *Counters) uint64 { return n.ReadReissues },
		},
		{
			name: "an atomic's result for the READ", packets: []wire.Packet{acked, {Op: wire.AtomicAck, PSN: 9}}, succeeded: 1,
			failed: rdma.BadRespErr,
		},
		{
			name: "an atomic's result before the READ's data", packets: []wire.Packet{acked, {Op: wire.AtomicAck, PSN: 11}},
			succeeded: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, s, q := lone(t, 0)
			wr := write(1, s, 300, pairVA, pairKey)
			p.post(0, wr,
				rdma.SendWR{ID: 2, Op: rdma.OpRead, SGL: s.sge(1000, 300), RemoteAddr: pairVA, RKey: pairKey},
				rdma.SendWR{ID: 3, Op: rdma.OpFetchAdd, SGL: s.sge(2000, 8), RemoteAddr: pairVA, RKey: pairKey})
			q.sq.At(0).wr.Flags |= rdma.Signaled
			q.sq.At(1).wr.Flags |= rdma.Signaled
			q.sq.At(2).wr.Flags |= rdma.Signaled
			if out := say(p, q); len(out) != 4 || out[0].PSN != 7 || out[3].PSN != 11 {
				t.Fatalf("%+v", out)
			}
			for _, k := range c.packets {
				hear(p, q, k)
				_ = say(p, q)
			}
			p.poll(s)
			for i, wc := range s.sent {
				switch {
				case i < c.succeeded:
					if wc.Status != rdma.Success || wc.ID != uint64(i+1) {
						t.Errorf("completion %d: %+v", i, wc)
					}
				case c.failed == rdma.Success:
					t.Errorf("completion %d: %+v", i, wc)
				case i == c.succeeded && wc.Status != c.failed, i > c.succeeded && wc.Status != rdma.WRFlushErr:
					t.Errorf("completion %d: %+v, want %v", i, wc, c.failed)
				}
			}
			if len(s.sent) < c.succeeded {
				t.Errorf("%d completions", len(s.sent))
			}
			if (q.State() == rdma.StateErr) != (c.failed != rdma.Success) {
				t.Errorf("in %v: %v", q.State(), q.Err())
			}
			if c.counter != nil && c.counter(q.n) == 0 {
				t.Errorf("not counted: %+v", *q.n)
			}
		})
	}
}
