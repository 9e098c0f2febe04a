package ud

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// sent transmits everything, parses the packets, and polls the completions.
func sent(t testing.TB, q *QP) (out []wire.Packet, wcs []rdma.WC) {
	t.Helper()
	b := wire.NewBatch(16)
	if q.Transmit(b, 16) || q.HasWork() {
		t.Error("there is more")
	}
	for _, d := range b.D {
		raw := append([]byte(nil), d.Hdr...)
		for _, s := range d.Payload {
			raw = append(raw, s...)
		}
		raw = append(raw, make([]byte, int(d.Pad)+wire.ICRCLen)...)
		var p wire.Packet
		if err := p.Parse(raw); err != nil {
			t.Fatal(err)
		}
		p.Src, p.Dst, p.ECN = d.Flow.Src, d.Flow.Dst, d.Flow.TOS
		out = append(out, p)
	}
	wcs = make([]rdma.WC, 8)
	return out, wcs[:q.PollSend(wcs)]
}

// TestSend: the packet and the completion of each kind of send.
func TestSend(t *testing.T) {
	mem := func(n int) rdma.SGE { return rdma.SGE{Buf: bytes.Repeat([]byte{'x'}, n), LKey: goodKey} }
	to := rdma.AH{Remote: there, QPN: 99, QKey: 5, TrafficClass: 0x6b}
	own := to
	own.QKey |= 1 << 31
	for _, c := range []struct {
		name    string
		wr      rdma.SendWR
		packets int
		op      wire.Opcode
		qkey    uint32
		length  int
		status  rdma.Status
	}{
		{"nothing", rdma.SendWR{AH: &to}, 1, wire.UDSendOnly, 5, 0, rdma.Success},
		{"gathered", rdma.SendWR{AH: &to, SGL: []rdma.SGE{mem(3), mem(6)}}, 1, wire.UDSendOnly, 5, 9, rdma.Success},
		{"its own Q_Key", rdma.SendWR{AH: &own}, 1, wire.UDSendOnly, testQKey, 0, rdma.Success},
		{"immediate", rdma.SendWR{AH: &to, Op: rdma.OpSendImm, Imm: 0x55aa}, 1, wire.UDSendOnlyImm, 5, 0, rdma.Success},
		{
			"inline",
			rdma.SendWR{AH: &to, Flags: rdma.Inline, SGL: []rdma.SGE{{Buf: make([]byte, 8)}}},
			1, wire.UDSendOnly, 5,
			8, rdma.Success,
		},
		{"solicited", rdma.SendWR{AH: &to, Flags: rdma.Solicited}, 1, wire.UDSendOnly, 5, 0, rdma.Success},
		{"the MTU", rdma.SendWR{AH: &to, SGL: []rdma.SGE{mem(testMTU)}}, 1, wire.UDSendOnly, 5, testMTU, rdma.Success},
		{"more than the MTU", rdma.SendWR{AH: &to, SGL: []rdma.SGE{mem(testMTU), mem(1)}}, 0, 0, 0, 0, rdma.Success},
		{
			"memory of others",
			rdma.SendWR{AH: &to, SGL: []rdma.SGE{{Buf: make([]byte, 1), LKey: otherKey}}},
			0, 0, 0, 0,
			rdma.LocProtErr,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQP(t, rdma.StateRTS, nil)
			post(t, q, c.wr) // without a completion, if it is good
			c.wr.ID, c.wr.Flags = 9, c.wr.Flags|rdma.Signaled
			post(t, q, c.wr)
			out, wcs := sent(t, q)
			if len(out) != 2*c.packets {
				t.Fatalf("%d packets", len(out))
			}
			for i, p := range out {
				if p.Op != c.op || p.DETH != (wire.DETH{QKey: c.qkey, SrcQPN: testQPN}) || p.DestQPN != 99 ||
					len(p.Payload) != c.length || p.PKey != wire.DefaultPKey ||
					p.Src != here || p.Dst != there || p.ECN != 0x68 || p.PSN != wire.PSN(wire.PSNMask).Add(i) ||
					p.Imm != c.wr.Imm && c.op == wire.UDSendOnlyImm ||
					p.Solicited != (c.wr.Flags&rdma.Solicited != 0) || p.AckReq {
					t.Errorf("%+v", p)
				}
			}
			want := []rdma.WC{{ID: 9, QPN: testQPN, Op: rdma.WCSend}}
			state, tooLong := rdma.StateRTS, uint64(0)
			if c.status != rdma.Success {
				want = []rdma.WC{{QPN: testQPN, Status: c.status}, {ID: 9, QPN: testQPN, Status: rdma.WRFlushErr}}
				state = rdma.StateSQE
			} else if c.packets == 0 {
				tooLong = 2
			}
			if len(wcs) != len(want) || wcs[0] != want[0] || wcs[len(wcs)-1] != want[len(want)-1] || q.State() != state {
				t.Errorf("%+v, in %v", wcs, q.State())
			}
			if n := q.Counters(); n.TxPackets != uint64(len(out)) || n.TxBytes != uint64(len(out)*c.length) ||
				n.TxTooLong != tooLong {
				t.Errorf("%+v", n)
			}
		})
	}
}

// TestInlineCopied: the buffers are the caller's again when PostSend returns.
func TestInlineCopied(t *testing.T) {
	q := newQP(t, rdma.StateRTS, nil)
	buf := []byte("good")
	post(t, q, rdma.SendWR{Flags: rdma.Inline, SGL: []rdma.SGE{{Buf: buf[:2]}, {Buf: buf[2:]}}})
	copy(buf, "evil")
	if out, _ := sent(t, q); len(out) != 1 || string(out[0].Payload) != "good" {
		t.Errorf("%+v", out)
	}
}

// TestTransmitShare: sends stay queued when the batch is full or the share is used up.
func TestTransmitShare(t *testing.T) {
	q := newQP(t, rdma.StateRTS, nil)
	for range 4 {
		post(t, q, rdma.SendWR{})
	}
	if !q.Transmit(wire.NewBatch(2), 3) || !q.Transmit(wire.NewBatch(3), 1) {
		t.Error("nothing is left of four")
	}
	if q.Transmit(wire.NewBatch(3), 3) || q.Counters().TxPackets != 4 {
		t.Errorf("%d were sent", q.Counters().TxPackets)
	}
}

// TestRefused: PostSend and PostRecv refuse illegal requests, and queue nothing of the list.
func TestRefused(t *testing.T) {
	ah := &rdma.AH{Remote: there, QPN: 99}
	sge := rdma.SGE{Buf: make([]byte, 9), LKey: goodKey}
	for name, wr := range map[string]rdma.SendWR{
		"RDMA WRITE":       {Op: rdma.OpWrite, AH: ah},
		"SEND invalidate":  {Op: rdma.OpSendInv, AH: ah},
		"no address":       {},
		"address of none":  {AH: &rdma.AH{QPN: 99}},
		"other family":     {AH: &rdma.AH{Remote: netip.IPv6Loopback(), QPN: 99}},
		"multicast":        {AH: &rdma.AH{Remote: netip.MustParseAddr("224.0.0.1"), QPN: 99}},
		"unspecified":      {AH: &rdma.AH{Remote: netip.IPv4Unspecified(), QPN: 99}},
		"QP0":              {AH: &rdma.AH{Remote: there}},
		"QP1":              {AH: &rdma.AH{Remote: there, QPN: 1}},
		"multicast QP":     {AH: &rdma.AH{Remote: there, QPN: 0xffffff}},
		"more than a QPN":  {AH: &rdma.AH{Remote: there, QPN: 1 << 24}},
		"too many pieces":  {AH: ah, SGL: []rdma.SGE{sge, sge, sge}},
		"too long to copy": {AH: ah, Flags: rdma.Inline, SGL: []rdma.SGE{sge}},
	} {
		q := newQP(t, rdma.StateRTS, nil)
		if err := q.PostSend([]rdma.SendWR{{AH: ah}, wr}); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("%s: %v", name, err)
		}
		if q.HasWork() {
			t.Errorf("%s: the request before it was queued", name)
		}
	}
	q := newQP(t, rdma.StateRTS, nil)
	if err := q.PostSend(make([]rdma.SendWR, 5)); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("five sends: %v", err)
	}
	if err := q.PostRecv(make([]rdma.RecvWR, 5)); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("five receives: %v", err)
	}
	if err := q.PostRecv([]rdma.RecvWR{{SGL: make([]rdma.SGE, 3)}}); !errors.Is(err, rdma.ErrInvalidWR) {
		t.Errorf("a receive of three pieces: %v", err)
	}
	for _, s := range []rdma.QPState{rdma.StateReset, rdma.StateInit, rdma.StateRTR} {
		if err := newQP(t, s, nil).PostSend([]rdma.SendWR{{AH: ah}}); !errors.Is(err, rdma.ErrBadTransition) {
			t.Errorf("a send in %v: %v", s, err)
		}
	}
	if err := newQP(t, rdma.StateReset, nil).PostRecv(nil); !errors.Is(err, rdma.ErrBadTransition) {
		t.Errorf("a receive in RESET: %v", err)
	}
}

// TestTransitions tests the transitions between all pairs of states.
func TestTransitions(t *testing.T) {
	const (
		reset = rdma.StateReset
		ini   = rdma.StateInit
		rtr   = rdma.StateRTR
		rts   = rdma.StateRTS
		sqd   = rdma.StateSQD
		sqe   = rdma.StateSQE
		bad   = rdma.StateErr
	)
	legal := map[rdma.QPState][]rdma.QPState{
		reset: {reset, ini, bad},
		ini:   {reset, ini, rtr, bad},
		rtr:   {reset, rts, bad},
		rts:   {reset, rts, sqd, bad},
		sqd:   {reset, rts, bad},
		sqe:   {reset, rts, bad},
		bad:   {reset, bad},
	}
	for from, to := range legal {
		for s := reset; s <= bad; s++ {
			q := newQP(t, from, nil)
			err := q.Modify(rdma.QPAttr{State: s, PKey: wire.DefaultPKey, QKey: 77})
			want := false
			for _, l := range to {
				want = want || l == s
			}
			switch {
			case want && (err != nil || q.State() != s):
				t.Errorf("%v to %v: %v, in %v", from, s, err, q.State())
			case !want && (!errors.Is(err, rdma.ErrBadTransition) || q.State() != from || q.Attr().QKey == 77):
				t.Errorf("%v to %v: %v, in %v", from, s, err, q.State())
			case want && s != bad && s != reset && q.Attr().QKey != 77:
				t.Errorf("%v to %v: Q_Key %d", from, s, q.Attr().QKey)
			}
		}
	}
}

// TestFlush: in ERR all requests complete, also those posted then. In SQD sends wait, in SQE they
// are flushed.
func TestFlush(t *testing.T) {
	q := newQP(t, rdma.StateSQD, nil)
	post(t, q, rdma.SendWR{ID: 1, Flags: rdma.Signaled})
	receive(t, q, 2, make([]byte, 60))
	if q.HasWork() {
		t.Error("something to send in SQD")
	}
	if s, r := q.Outstanding(); s != 1 || r != 1 {
		t.Errorf("%d sends and %d receives", s, r)
	}
	if err := q.Modify(rdma.QPAttr{State: rdma.StateErr}); err != nil {
		t.Fatal(err)
	}
	post(t, q, rdma.SendWR{ID: 3})
	receive(t, q, 4, make([]byte, 60))
	if s, r := q.Pending(); !s || !r {
		t.Error("no completions")
	}
	for i, poll := range []func([]rdma.WC) int{q.PollSend, q.PollRecv} {
		var wc [3]rdma.WC
		if n := poll(wc[:]); n != 2 || wc[0].ID != uint64(1+i) || wc[1].ID != uint64(3+i) ||
			wc[0].Status != rdma.WRFlushErr || wc[1].Status != rdma.WRFlushErr {
			t.Errorf("%d completions: %+v", n, wc)
		}
	}
	q = newQP(t, rdma.StateSQE, nil)
	post(t, q, rdma.SendWR{ID: 5})
	var wc [2]rdma.WC
	if n := q.PollSend(wc[:]); n != 1 || wc[0].ID != 5 || wc[0].Status != rdma.WRFlushErr {
		t.Errorf("%d completions: %+v", n, wc)
	}
	if err := q.Modify(rdma.QPAttr{State: rdma.StateReset}); err != nil || q.Counters().RxPackets != 0 {
		t.Error(err)
	}
}

// TestCountersAdd: no counter is left out.
func TestCountersAdd(t *testing.T) {
	one := Counters{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	sum := one
	sum.Add(&one)
	if sum != (Counters{2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22}) {
		t.Errorf("%+v", sum)
	}
}

// FuzzReceive gives a QP any packets. They write only to posted receives, to each once and not
// beyond its end. Every packet counts in one counter.
func FuzzReceive(f *testing.F) {
	for _, payload := range []string{"", "x", "more than the receive has room for, by a few bytes"} {
		p := arriving(payload)
		b := wire.AppendHeaders(nil, p)
		f.Add(append(append(b, payload...), 0, 0, 0, 0), uint8(0), false)
		p.Op = wire.UDSendOnlyImm
		f.Add(append(append(wire.AppendHeaders(nil, p), payload...), 0, 0, 0, 0), uint8(0xff), true)
	}
	f.Fuzz(func(t *testing.T, dgram []byte, tos uint8, six bool) {
		var p wire.Packet
		if p.Parse(dgram) != nil {
			return
		}
		p.Src, p.Dst = there, here
		if six {
			p.Src, p.Dst = netip.IPv6Unspecified(), netip.IPv6Loopback()
		}
		q := newQP(t, rdma.StateRTS, nil)
		mem := bytes.Repeat([]byte{0x5a}, 300)
		for id := range uint64(2) {
			receive(t, q, id, mem[id*100:][:80])
		}
		done := 0
		for range 3 {
			q.Receive(&p, tos)
			var wc [2]rdma.WC
			for i := range q.PollRecv(wc[:]) {
				c := &wc[i]
				if c.ID != uint64(done) || c.Status != rdma.Success || c.ByteLen > 80 || c.SrcQPN != p.DETH.SrcQPN ||
					!bytes.Equal(mem[c.ID*100:][40:c.ByteLen], p.Payload) {
					t.Fatalf("%+v", *c)
				}
				if src, dst := rdma.GRHAddrs(mem[c.ID*100:]); src != p.Src || dst != p.Dst {
					t.Errorf("%v to %v", src, dst)
				}
				done++
			}
		}
		n := q.Counters()
		if n.RxPackets != 3 || uint64(
			done)+n.DropOpcode+n.DropState+n.DropPKey+n.DropQKey+n.DropNoReceive+n.DropTooLong != 3 {
			t.Errorf("%d delivered, %+v", done, *n)
		}
		for i, b := range mem {
			if at := i % 100; (at >= 80 || i >= 200) && b != 0x5a {
				t.Fatalf("byte %d was written", i)
			}
		}
		if b := binary.BigEndian.Uint16(mem[20+2:]); done > 0 && !six && int(b) != 20+8+len(dgram) {
			t.Errorf("an IPv4 length of %d for %d bytes", b, len(dgram))
		}
	})
}
