package roce_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/sim"
)

// udSide makes a queue pair for datagrams on side i of the world.
func (w *world) udSide(i int) rdma.QP {
	w.t.Helper()
	cfg := w.qp(i)
	cfg.Type = rdma.UD
	q, err := w.dev[i].CreateQP(w.dev[i].Loops()[0], cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range []rdma.QPState{rdma.StateInit, rdma.StateRTR, rdma.StateRTS} {
		if err := q.Modify(rdma.QPAttr{State: s, QKey: rdma.UDQKey}); err != nil {
			w.t.Fatal(err)
		}
	}
	return q
}

// TestDatagramsOnAFaultyNetwork: a resolution succeeds in spite of losses. Every datagram that
// arrives is whole and was sent, and few are lost.
func TestDatagramsOnAFaultyNetwork(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const (
		sends = 2000
		size  = 500
		piece = size + rdma.GRHLen
		depth = 64
	)
	w := newWorld(t, sim.Config{Seed: seed, Loss: 0.1, Duplicate: 0.05, Reorder: 0.05, Corrupt: 0.05})
	a, b := w.udSide(0), w.udSide(1)
	asked := 0
	l, err := w.dev[1].ListenUD(7, func(r rdma.UDRequest) {
		asked++
		if err := r.Accept(b.Num(), rdma.UDQKey, nil); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var to *rdma.UDAddress
	if _, err := w.dev[0].ResolveUD(w.dev[0].Loops()[0],
		rdma.ResolveParams{
			Remote: netip.AddrPortFrom(w.dev[1].Addr(), 7),
			On:     func(r rdma.UDAddress) { to = &r },
		}); err != nil {
		t.Fatal(err)
	}
	if !w.run(20*rdma.Second, func() bool { return to != nil }) || to.Err != nil || asked != 1 {
		t.Fatalf("%+v; the service was asked %d times", to, asked)
	}
	_ = l.Close()

	in, out := w.side[1], w.side[0]
	post := func(id uint64) {
		buf := in.mr.Bytes()[int(id)*piece:][:piece]
		if err := b.PostRecv([]rdma.RecvWR{{ID: id, SGL: []rdma.SGE{{Buf: buf, LKey: in.mr.LKey()}}}}); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(depth) {
		post(id)
	}
	fill := func(buf []byte, n uint32) {
		binary.BigEndian.PutUint32(buf, n)
		for i := 4; i < len(buf); i++ {
			buf[i] = byte(n*31 + uint32(i))
		}
	}
	got := map[uint32]int{}
	want := make([]byte, size)
	for n := range uint32(sends) {
		buf := out.mr.Bytes()[:size]
		fill(buf, n)
		if err := a.PostSend([]rdma.SendWR{{
			ID: 1, Flags: rdma.Signaled, Op: rdma.OpSendImm, Imm: n,
			SGL: []rdma.SGE{{Buf: buf, LKey: out.mr.LKey()}}, AH: &to.AH,
		}}); err != nil {
			t.Fatal(err)
		}
		w.run(rdma.Millisecond, func() bool { return false })
		if len(out.wcs) != 1 || out.wcs[0].Status != rdma.Success {
			t.Fatalf("send %d: %+v", n, out.wcs)
		}
		out.wcs = out.wcs[:0]
		for _, wc := range in.wcs {
			data := in.mr.Bytes()[int(wc.ID)*piece:][:wc.ByteLen]
			fill(want, wc.Imm)
			if src, _ := rdma.GRHAddrs(data); wc.Status != rdma.Success || wc.SrcQPN != a.Num() || src != w.dev[0].Addr() ||
				!bytes.Equal(data[rdma.GRHLen:], want) {
				t.Fatalf("%+v", wc)
			}
			got[wc.Imm]++
			post(wc.ID)
		}
		in.wcs = in.wcs[:0]
	}
	sent, st := w.dev[0].Stats(), w.dev[1].Stats()
	if sent.UD.TxPackets != sends || len(got) < sends*3/4 || len(got) == sends || st.ICRCErrors == 0 ||
		st.UD.DropNoReceive != 0 || st.UD.RxBytes%size != 0 {
		t.Errorf("%d of %d arrived; %+v", len(got), sends, st.UD)
	}
	for i, q := range []rdma.QP{a, b} {
		list := w.dev[i].QPs()
		if len(list) != 1 || list[0].Type != rdma.UD || list[0].QPN != q.Num() || list[0].State != rdma.StateRTS ||
			list[0].Counters.TxPackets+list[0].Counters.RxPackets == 0 || list[0].Remote.IsValid() {
			t.Errorf("listed as %+v", list)
		}
		q.Destroy()
		q.Destroy()
		if st := w.dev[i].Stats(); st.QPs != 0 || st.UD.TxPackets+st.UD.RxPackets == 0 {
			t.Errorf("%d queue pairs are left", st.QPs)
		}
	}
}

// TestDatagramsAndPartitions: a queue pair for datagrams ends with its partition.
func TestDatagramsAndPartitions(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 1})
	q := w.udSide(0)
	if err := q.Modify(rdma.QPAttr{State: rdma.StateReset}); err != nil {
		t.Fatal(err)
	}
	if err := q.Modify(rdma.QPAttr{State: rdma.StateInit, PKey: 0x8005}); err == nil {
		t.Error("in a partition that the device is not in")
	}
	for _, s := range []rdma.QPState{rdma.StateInit, rdma.StateRTR, rdma.StateRTS} {
		if err := q.Modify(rdma.QPAttr{State: s}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.dev[0].SetPKeys([]uint16{0x8005}); err != nil {
		t.Fatal(err)
	}
	w.run(rdma.Millisecond, func() bool { return false })
	if q.State() != rdma.StateErr {
		t.Errorf("in %v", q.State())
	}
	// A resolution from another partition gets the answer for a closed port.
	if _, err := w.dev[1].ListenUD(7, func(r rdma.UDRequest) { t.Error("asked") }); err != nil {
		t.Fatal(err)
	}
	var got *rdma.UDAddress
	if _, err := w.dev[0].ResolveUD(w.dev[0].Loops()[0],
		rdma.ResolveParams{Remote: netip.AddrPortFrom(simAddr[1], 7), On: func(r rdma.UDAddress) { got = &r }}); err != nil {
		t.Fatal(err)
	}
	if !w.run(20*rdma.Second, func() bool { return got != nil }) || got.Err == nil || w.dev[1].Stats().RefusedPKey != 1 {
		t.Errorf("%+v", got)
	}
}

// TestDatagramsShareTheTurn: many sends of many UD queue pairs and of a connection all get their
// share of the batches.
func TestDatagramsShareTheTurn(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 1})
	w.connect()
	conn := w.side
	const pairs, each = 12, 64
	var sides []*simSide
	for range pairs {
		q := w.udSide(0)
		sides = append(sides, w.side[0])
		wrs := make([]rdma.SendWR, each)
		for i := range wrs {
			wrs[i] = rdma.SendWR{Flags: rdma.Signaled, AH: &rdma.AH{Remote: simAddr[1], QPN: 99}}
		}
		if err := q.PostSend(wrs); err != nil {
			t.Fatal(err)
		}
	}
	w.side = conn
	if wc := w.post(rdma.SendWR{
		Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: conn[0].mr.Bytes(), LKey: conn[0].mr.LKey()}},
		RemoteAddr: conn[1].mr.Addr(), RKey: conn[1].mr.RKey(),
	}); wc.Status != rdma.Success {
		t.Error(wc.Status)
	}
	w.run(rdma.Second, func() bool { return false })
	if st := w.dev[0].Stats(); st.UD.TxPackets != pairs*each {
		t.Errorf("%d datagrams were sent", st.UD.TxPackets)
	}
	if st := w.dev[1].Stats(); st.DropUnknownQPN != pairs*each {
		t.Errorf("%d arrived", st.DropUnknownQPN)
	}
	for i, s := range sides {
		if len(s.wcs) != each {
			t.Errorf("queue pair %d: %d of %d sends completed", i, len(s.wcs), each)
		}
	}
}
