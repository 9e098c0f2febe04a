package roce_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// mallory is a host that sends any packets, also with forged addresses.
type mallory struct {
	w    *world
	link *sim.Link
}

func (w *world) mallory() *mallory {
	w.t.Helper()
	l, err := w.net.Open(netip.MustParseAddr("192.0.2.66"))
	if err != nil {
		w.t.Fatal(err)
	}
	return &mallory{w: w, link: l}
}

// send sends a packet from src to side 1.
func (m *mallory) send(src netip.Addr, p *wire.Packet, payload []byte) {
	m.w.t.Helper()
	m.forge(src, simAddr[1], p, payload)
}

func (m *mallory) forge(src, dst netip.Addr, p *wire.Packet, payload []byte) {
	m.w.t.Helper()
	b := wire.NewBatch(1)
	f := wire.Flow{Src: src, Dst: dst, SrcPort: wire.Port}
	var parts [][]byte
	if len(payload) > 0 {
		parts = [][]byte{payload}
	}
	b.Add(&f, p, parts)
	if err := m.link.Send(b); err != nil {
		m.w.t.Fatal(err)
	}
}

// TestForgery: an attacker knows the queue pair, but does not see its packets. Forged packets with
// the peer's address change no memory and do not end the connection. Packets with other addresses
// are dropped at once. (An attacker who guesses the PSN too is taken for the peer: one in 16
// million packets, see docs/security.md.)
func TestForgery(t *testing.T) {
	const packets = 20_000
	w := newWorld(t, sim.Config{Seed: 11})
	w.connect()
	m := w.mallory()
	rnd := w.net.Rand()
	local, remote := w.side[0].mr, w.side[1].mr
	model := make([]byte, simMemory)
	qpn := w.side[1].conn.QP().Num()
	ops := []wire.Opcode{
		wire.SendFirst, wire.SendMiddle, wire.SendLast, wire.SendOnly, wire.SendOnlyInv,
		wire.WriteFirst, wire.WriteMiddle, wire.WriteLast, wire.WriteOnly,
		wire.ReadRequest, wire.ReadRespFirst, wire.ReadRespOnly, wire.Acknowledge, wire.AtomicAck, wire.CompareSwap,
		wire.FetchAdd,
	}
	junk := bytes.Repeat([]byte{0xee}, 1024)
	for i := range packets {
		p := &wire.Packet{
			Op: ops[rnd.IntN(len(ops))], AckReq: rnd.IntN(2) == 0, PKey: wire.DefaultPKey, DestQPN: qpn,
			PSN:  wire.PSN(rnd.Uint32() & wire.PSNMask),
			RETH: wire.RETH{VA: remote.Addr(), RKey: remote.RKey(), Len: 1024},
			AETH: wire.AETH{Syndrome: uint8(rnd.Uint32())},
		}
		p.Atomic.VA, p.Atomic.RKey = remote.Addr(), remote.RKey()
		src := simAddr[0]
		if i%4 == 0 {
			src = m.link.LocalAddr()
		}
		m.send(src, p, junk)
		if i%20 != 0 {
			continue
		}
		n := 1 + rnd.IntN(10_000)
		at := rnd.IntN(simMemory - n)
		for j := range n {
			local.Bytes()[at+j] = byte(rnd.Uint32())
		}
		if wc := w.post(rdma.SendWR{
			Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: local.Bytes()[at : at+n], LKey: local.LKey()}},
			RemoteAddr: remote.Addr() + uint64(at), RKey: remote.RKey(),
		}); wc.Status != rdma.Success {
			t.Fatalf("after %d packets: %v", i, wc.Status)
		}
		copy(model[at:], local.Bytes()[at:at+n])
	}
	if !bytes.Equal(model, remote.Bytes()) {
		t.Error("a forged packet changed memory")
	}
	s := w.dev[1].Stats()
	if s.RC.DropPeer == 0 || s.RC.RxOutOfSequence == 0 || s.RC.RxDuplicate == 0 || s.RC.RxGhostAck == 0 {
		t.Error("not all of it was counted")
	}
}

// TestGuesser: a host that guesses R_Keys loses a connection for each guess, and soon is refused
// for a while. Other hosts are not.
func TestGuesser(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 12})
	w.connect()
	good, goodPeer := w.side[0], w.side[1]
	l, err := w.net.Open(netip.MustParseAddr("192.0.2.66"))
	if err != nil {
		t.Fatal(err)
	}
	guesser, err := roce.NewWithLink(l, roce.Config{Random: w.net.Rand().Uint32})
	if err != nil {
		t.Fatal(err)
	}
	w.dev = append(w.dev, guesser)
	pd, err := guesser.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.Register(make([]byte, 64), rdma.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	// guess reports whether the server took the connection.
	guess := func() bool {
		var wcs []rdma.WC
		var events []rdma.ConnEvent
		var cq rdma.CQ
		cq, err := guesser.CreateCQ(guesser.Loops()[0], rdma.CQOptions{Depth: 8, OnEvent: func() {
			var wc [8]rdma.WC
			wcs = append(wcs, wc[:cq.Poll(wc[:])]...)
		}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := guesser.Dial(guesser.Loops()[0], rdma.DialParams{
			Remote: netip.AddrPortFrom(simAddr[1], 7), QP: rdma.QPConfig{
				PD: pd, SendCQ: cq, RecvCQ: cq,
				Caps: rdma.QPCaps{MaxSendWR: 4, MaxSendSGE: 1},
			},
			Params: rdma.ConnParams{ResponderResources: 4, InitiatorDepth: 4},
			On:     func(_ rdma.Conn, e rdma.ConnEvent) { events = append(events, e) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if !w.run(20*rdma.Second, func() bool { return len(events) > 0 }) {
			t.Fatal("no answer")
		}
		if events[0].Kind != rdma.EventEstablished {
			return false
		}
		if err := c.QP().PostSend([]rdma.SendWR{{
			Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: []rdma.SGE{{Buf: mr.Bytes(), LKey: mr.LKey()}}, RemoteAddr: 4096,
			RKey: w.net.Rand().Uint32(),
		}}); err != nil {
			t.Fatal(err)
		}
		if !w.run(20*rdma.Second, func() bool { return len(wcs) > 0 }) || wcs[0].Status != rdma.RemAccessErr {
			t.Fatalf("%+v", wcs)
		}
		return true
	}
	took := 0
	for range 20 {
		if guess() {
			took++
		}
	}
	s := w.dev[1].Stats()
	if took > 9 || s.RefusedAfterAccessErrors != uint64(20-took) || s.RC.TxNAKAccess != uint64(took) {
		t.Errorf("%d of 20 guesses were let in; %d refused", took, s.RefusedAfterAccessErrors)
	}
	// Other hosts are not affected.
	w.side[0], w.side[1] = good, goodPeer
	if wc := w.post(rdma.SendWR{
		Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: good.mr.Bytes()[:100], LKey: good.mr.LKey()}},
		RemoteAddr: goodPeer.mr.Addr(), RKey: goodPeer.mr.RKey(),
	}); wc.Status != rdma.Success {
		t.Errorf("another connection: %v", wc.Status)
	}
	w.net.Advance(w.net.Now() + 11*rdma.Second)
	for _, d := range w.dev {
		if err := d.Turn(); err != nil { // sets the time of the loop
			t.Fatal(err)
		}
	}
	if !guess() {
		t.Error("still refused after the wait")
	}
}
