package roce_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
)

func faultyRun(t *testing.T, seed uint64) string {
	w := newWorld(t, sim.Config{
		Seed: seed, Loss: 0.02, Duplicate: 0.01, Reorder: 0.02, Corrupt: 0.01,
		Jitter: 5 * rdma.Microsecond,
	})
	w.connect()
	rnd := w.net.Rand()
	local, remote := w.side[0].mr, w.side[1].mr
	model := make([]byte, simMemory)
	for i := range local.Bytes() {
		local.Bytes()[i] = byte(rnd.Uint32())
	}
	for step := range 60 {
		n := 1 + rnd.IntN(200_000)
		from, to := rnd.IntN(simMemory-n), rnd.IntN(simMemory-n)
		sge := []rdma.SGE{{Buf: local.Bytes()[from : from+n], LKey: local.LKey()}}
		wr := rdma.SendWR{Op: rdma.OpWrite, SGL: sge, RemoteAddr: remote.Addr() + uint64(to), RKey: remote.RKey()}
		if step%3 == 2 {
			wr.Op = rdma.OpRead
		}
		if wc := w.post(wr); wc.Status != rdma.Success {
			t.Fatalf("step %d: %v", step, wc.Status)
		}
		if wr.Op == rdma.OpWrite {
			copy(model[to:], local.Bytes()[from:from+n])
		} else if !bytes.Equal(sge[0].Buf, model[to:to+n]) {
			t.Fatalf("step %d: a READ returned other bytes", step)
		}
	}
	if !bytes.Equal(model, remote.Bytes()) {
		t.Fatal("the memory differs from the model")
	}
	a, b := w.dev[0].Stats(), w.dev[1].Stats()
	if a.RC.TxRetransmits == 0 || a.ICRCErrors+b.ICRCErrors == 0 || b.RC.TxNAKSequence == 0 {
		t.Errorf("the faults left no trace:\n%+v\n%+v", a, b)
	}
	return fmt.Sprint(w.net.Now(), a, b)
}

// TestSilence cuts the network. Both sides must detect that within the negotiated time.
func TestSilence(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 1})
	w.connect()
	w.net.Cut(simAddr[0], simAddr[1], true)
	local, remote := w.side[0].mr, w.side[1].mr
	start := w.net.Now()
	wc := w.post(rdma.SendWR{
		Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: local.Bytes()[:100], LKey: local.LKey()}},
		RemoteAddr: remote.Addr(), RKey: remote.RKey(),
	})
	if wc.Status != rdma.RetryExcErr {
		t.Errorf("got %v", wc.Status)
	}
	w.run(rdma.Second, func() bool { return len(w.side[0].events) > 1 })
	if e := w.side[0].events; len(e) != 2 || e[1].Kind != rdma.EventDisconnected || e[1].Err == nil ||
		!strings.Contains(e[1].Err.Error(), simAddr[1].String()) {
		t.Errorf("events %+v", e)
	}
	// The retries allow 7 times 134 ms, and with back-off up to twice that time.
	if d := w.net.Now() - start; d < 900*rdma.Millisecond || d > 5*rdma.Second {
		t.Errorf("it took %d ms", d/rdma.Millisecond)
	}
}

// TestPartingNAK: a peer that breaks the rules gets the NAK, also if the user destroys the queue
// pair as soon as the failure is reported.
func TestPartingNAK(t *testing.T) {
	for _, hasty := range []bool{false, true} {
		w := newWorld(t, sim.Config{Seed: 4})
		w.connect()
		if hasty {
			w.side[1].fallen = func() { w.side[1].conn.Close() }
		}
		local, remote := w.side[0].mr, w.side[1].mr
		wc := w.post(rdma.SendWR{
			Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: local.Bytes()[:100], LKey: local.LKey()}},
			RemoteAddr: remote.Addr(), RKey: remote.RKey() ^ 1,
		})
		if wc.Status != rdma.RemAccessErr {
			t.Errorf("closed at once %t: %v", hasty, wc.Status)
		}
	}
}

// TestNobodyAnswers dials an address without a host.
func TestNobodyAnswers(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 2, Loss: 1})
	var events []rdma.ConnEvent
	_, err := w.dev[0].Dial(w.dev[0].Loops()[0], rdma.DialParams{
		Remote: netip.AddrPortFrom(simAddr[1], 7), QP: w.qp(0),
		On: func(_ rdma.Conn, e rdma.ConnEvent) { events = append(events, e) },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.run(30*rdma.Second, func() bool { return len(events) > 0 })
	if len(events) != 1 || events[0].Kind != rdma.EventUnreachable || events[0].Err == nil {
		t.Errorf("%+v", events)
	}
	if s := w.dev[0].Stats(); s.CM.Resent == 0 {
		t.Error("the REQ was not repeated")
	}
}

// TestPathMTU: the device rejects a path MTU that the interface does not carry.
func TestPathMTU(t *testing.T) {
	n := sim.New(sim.Config{Seed: 3, MTU: 1500})
	l, err := n.Open(simAddr[0])
	if err != nil {
		t.Fatal(err)
	}
	d, err := roce.NewWithLink(l, roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if d.MTU() != 1024 {
		t.Errorf("an interface of 1500 gives a path MTU of %d", d.MTU())
	}
	n = sim.New(sim.Config{Seed: 3, MTU: 300})
	l, _ = n.Open(simAddr[0])
	if _, err := roce.NewWithLink(l, roce.Config{}); err == nil {
		t.Error("an interface of 300 bytes carries RDMA")
	}
}

// TestAcksTogether: while packets come in, one acknowledgement is for several of them. In a turn in
// which nothing arrives it leaves, so it is late by one turn at most.
func TestAcksTogether(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 1})
	w.connect()
	s, peer := w.side[0], w.side[1]
	w.run(rdma.Second, func() bool { return false }) // until neither side has packets to send
	turn := func(i int) {
		t.Helper()
		if err := w.dev[i].Turn(); err != nil {
			t.Fatal(err)
		}
	}
	acks := func() uint64 { return w.dev[1].Stats().RC.TxPackets }
	before, wcs := acks(), len(s.wcs)
	const writes = 12
	for range writes {
		wr := rdma.SendWR{
			Op: rdma.OpWrite, Flags: rdma.Signaled, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey(),
			SGL: []rdma.SGE{{Buf: s.mr.Bytes()[:8], LKey: s.mr.LKey()}},
		}
		if err := s.conn.QP().PostSend([]rdma.SendWR{wr}); err != nil {
			t.Fatal(err)
		}
		turn(0)
		w.net.Advance(w.net.Now() + 10*rdma.Microsecond)
		turn(1) // receives one packet
	}
	if n := acks() - before; n == 0 || n > writes/4 {
		t.Errorf("%d acknowledgements of %d packets that came one after the other", n, writes)
	}
	if w.dev[1].Deadline() >= 0 {
		t.Error("the loop would sleep on what it owes")
	}
	turn(1) // receives nothing
	w.net.Advance(w.net.Now() + 10*rdma.Microsecond)
	turn(0)
	if n := len(s.wcs) - wcs; n != writes {
		t.Errorf("%d of %d requests are complete when the peer's loop is idle", n, writes)
	}
	turn(1)
	if w.dev[1].Deadline() == link.NoWait {
		t.Error("the loop does not sleep")
	}
}

// TestStarting connects to a device that is starting. No request is rejected before the port is
// open, and the peer need not repeat it.
func TestStarting(t *testing.T) {
	w := &world{t: t, net: sim.New(sim.Config{Seed: 1}), port: 7}
	for i := range simAddr {
		l, err := w.net.Open(simAddr[i])
		if err != nil {
			t.Fatal(err)
		}
		d, err := roce.NewWithLink(l, roce.Config{Random: w.net.Rand().Uint32, AckTimeout: 15, Starting: i == 1})
		if err != nil {
			t.Fatal(err)
		}
		w.dev = append(w.dev, d)
	}
	var events []rdma.ConnEvent
	params := rdma.ConnParams{ResponderResources: 4, InitiatorDepth: 4}
	dial := func(port uint16) {
		if _, err := w.dev[0].Dial(w.dev[0].Loops()[0], rdma.DialParams{
			Remote: netip.AddrPortFrom(simAddr[1], port), QP: w.qp(0), Params: params,
			On: func(_ rdma.Conn, e rdma.ConnEvent) { events = append(events, e) },
		}); err != nil {
			t.Fatal(err)
		}
	}
	dial(7)
	w.run(10*rdma.Millisecond, func() bool { return len(events) > 0 })
	if len(events) != 0 || w.dev[1].Stats().CM.Early != 1 {
		t.Fatalf("before the port is open: %+v", events)
	}
	began := w.net.Now()
	if _, err := w.dev[1].Listen(7, func(r rdma.ConnRequest) {
		if _, err := r.Accept(w.qp(1), params, nil, func(rdma.Conn, rdma.ConnEvent) {}); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !w.run(rdma.Second, func() bool { return len(events) > 0 }) || events[0].Kind != rdma.EventEstablished {
		t.Fatalf("the port is open: %+v", events)
	}
	if took := w.net.Now() - began; took > 10*rdma.Millisecond {
		t.Errorf("it took %v", took)
	}
	w.dev[1].Started()
	dial(8)
	if !w.run(rdma.Second, func() bool { return len(events) > 1 }) || events[1].Kind != rdma.EventRejected {
		t.Errorf("nobody listens: %+v", events)
	}
}
