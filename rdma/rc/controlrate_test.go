package rc

import (
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// TestCNPSlowsRequests: a CNP halves the window if a WRITE is in flight. Otherwise it has no
// effect.
func TestCNPSlowsRequests(t *testing.T) {
	p, s, q := lone(t, 0)
	hear(p, q, wire.Packet{Op: wire.CNP, Payload: bytesOf(16)})
	if q.n.CNPHandled != 0 || q.n.RxCNP != 1 {
		t.Errorf("%+v", *q.n)
	}
	p.post(0, write(1, s, 1<<16, pairVA, pairKey))
	was := len(say(p, q))
	hear(p, q, wire.Packet{Op: wire.CNP, Payload: bytesOf(16)})
	if q.n.CNPHandled != 1 || was != windowStart || q.req.window.packets() != windowStart/2 {
		t.Errorf("%d packets were sent, then a window of %d; %+v", was, q.req.window.packets(), *q.n)
	}
}

// TestReadParts: a long READ becomes several READ requests, each for the part behind the one
// before. A retransmission requests the rest of a part.
func TestReadParts(t *testing.T) {
	const size = 2 << 20 // 8192 packets of 256 bytes
	p := newPair(t, 256, 7, size)
	s := p.s[0]
	q := s.q
	p.post(0, rdma.SendWR{
		ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: s.sge(0, size), RemoteAddr: pairVA,
		RKey: pairKey,
	})
	type ask struct {
		psn wire.PSN
		off uint64
		n   uint32
	}
	asked := func() (all []ask) {
		t.Helper()
		for _, k := range say(p, q) {
			if k.Op != wire.ReadRequest || k.RETH.RKey != pairKey {
				t.Fatalf("%+v", k)
			}
			all = append(all, ask{k.PSN, k.RETH.VA - pairVA, k.RETH.Len})
		}
		return all
	}
	give := func(psn wire.PSN, n int) {
		hear(p, q, wire.Packet{Op: wire.ReadRespMiddle, PSN: psn, Payload: bytesOf(n)})
	}
	part := uint32(q.readPart() * 256)
	if part == 0 || part >= size/2 {
		t.Fatalf("parts of %d bytes", part)
	}
	first := asked()
	for i, a := range first {
		if a.psn != wire.PSN(7+i*int(part)/256) || a.off != uint64(i)*uint64(part) || a.n != part {
			t.Errorf("request %d: %+v", i, a)
		}
	}
	if len(first) < 2 {
		t.Fatalf("%d requests", len(first))
	}
	for i := range 3 {
		p.now += 10 * us
		give(wire.PSN(7+i), 256)
	}
	if more := asked(); len(more) != 0 && more[0].psn <= first[len(first)-1].psn {
		t.Errorf("asked again: %+v", more)
	}
	p.now += ms
	give(12, 256) // 10 and 11 are lost
	again := asked()
	if len(again) == 0 || again[0] != (ask{10, 3 * 256, part - 3*256}) {
		t.Fatalf("asked again for %+v", again)
	}
	for i, a := range again[1:] {
		if a.off != uint64(i+1)*uint64(part) {
			t.Errorf("then for %+v", a)
		}
	}
	for psn := wire.PSN(10); q.sq.Len() > 0; psn = psn.Add(1) {
		p.now += 10 * us
		give(psn, 256)
		_ = say(p, q)
	}
	var wc [2]rdma.WC
	if n := q.PollSend(wc[:]); n != 1 || wc[0].Status != rdma.Success || wc[0].ByteLen != size {
		t.Errorf("%d completions, %+v", n, wc[0])
	}
	if q.req.reads != 0 || q.req.readPSNs != 0 || q.req.una != q.req.next {
		t.Errorf("left: %d requests, %d responses", q.req.reads, q.req.readPSNs)
	}
}

// TestResponsesSlowDown: READ responses are limited after a CNP, and after the peer has requested
// many packets again. What the rate holds back is sent later.
func TestResponsesSlowDown(t *testing.T) {
	for _, c := range []struct {
		what string
		sign func(p *pair, q *QP)
	}{
		{"a CNP", func(p *pair, q *QP) { hear(p, q, wire.Packet{Op: wire.CNP, Payload: bytesOf(16)}) }},
		{"much asked for again", func(p *pair, q *QP) {
			hear(p, q, wire.Packet{
				Op: wire.ReadRequest, PSN: 8,
				RETH: wire.RETH{VA: pairVA + 256, RKey: pairKey, Len: 1<<16 - 256},
			})
		}},
	} {
		p, _, q := lone(t, 1)
		read := wire.Packet{Op: wire.ReadRequest, PSN: 7, RETH: wire.RETH{VA: pairVA, RKey: pairKey, Len: 1 << 16}}
		hear(p, q, read)
		if n := len(say(p, q)); n != 256 || q.resp.rate.window.limited() {
			t.Fatalf("%s: %d packets at first", c.what, n)
		}
		p.now += ms
		c.sign(p, q)
		if !q.resp.rate.window.limited() {
			t.Fatalf("%s: no limit", c.what)
		}
		if q.resp.active == 0 {
			read.PSN = 7 + 256
			hear(p, q, read)
		}
		n, start := len(say(p, q)), p.now
		for q.resp.active > 0 {
			d := q.Deadline()
			if d <= p.now {
				t.Fatalf("%s: at %d the deadline is %d, with %d packets sent", c.what, p.now, d, n)
			}
			p.now = d
			q.Expire(p.now)
			n += len(say(p, q))
		}
		if d := p.now - start; n < 255 || d < 50*us || d > 100*ms {
			t.Errorf("%s: %d packets in %d us", c.what, n, d/us)
		}
		p.now += 2 * rateIdle
		read.PSN = q.resp.epsn
		hear(p, q, read)
		if n := len(say(p, q)); n != 256 || q.resp.rate.window.limited() {
			t.Errorf("%s: a limit after a long pause: %d packets at once", c.what, n)
		}
	}
}

// TestLossOfWhatWasSentAgain: a request whose PSN is not behind the last one shows that the peer
// has gone back. Its retransmission was lost too, and gets another NAK.
func TestLossOfWhatWasSentAgain(t *testing.T) {
	p, _, q := lone(t, 1)
	naks := func(psn wire.PSN) (n int) {
		hear(p, q, wire.Packet{Op: wire.WriteMiddle, PSN: psn, Payload: bytesOf(256)})
		for _, k := range say(p, q) {
			if k.Op == wire.Acknowledge && k.AETH.Syndrome == wire.NAKSequence && k.PSN == 7 {
				n++
			}
		}
		return n
	}
	for i, c := range []struct {
		psn  wire.PSN
		wait rdma.Time
		want int
	}{{8, 0, 1}, {9, 50 * us, 0}, {10, 50 * us, 0}, {8, 50 * us, 1}, {9, 0, 0}, {8, 5 * us, 0}, {8, 50 * us, 1}} {
		p.now += c.wait
		if n := naks(c.psn); n != c.want {
			t.Errorf("packet %d with PSN %d: %d NAKs, want %d", i, c.psn, n, c.want)
		}
	}
}

// TestRTRAnswers: a QP in RTR answers READs at their rate. A QP without an ACK timeout never gives
// its peer up.
func TestRTRAnswers(t *testing.T) {
	p, _, q := lone(t, 1)
	for _, a := range []rdma.QPAttr{
		{State: rdma.StateReset},
		{State: rdma.StateInit, Access: rdma.RemoteRead, PKey: wire.DefaultPKey},
		{
			State: rdma.StateRTR, LocalAddr: p.s[1].q.flow.Src, RemoteAddr: p.s[0].q.flow.Src, PathMTU: 256, RQPSN: 7,
			MaxDestRd: 4,
		},
	} {
		if a.State == rdma.StateRTR {
			a.LocalAddr, a.RemoteAddr = p.s[0].q.flow.Dst, p.s[0].q.flow.Src
		}
		if err := q.Modify(p.now, a); err != nil {
			t.Fatal(err)
		}
	}
	if q.Deadline() != 0 {
		t.Error("a deadline with nothing to do")
	}
	read := func() {
		hear(p, q, wire.Packet{
			Op: wire.ReadRequest, PSN: q.resp.epsn,
			RETH: wire.RETH{VA: pairVA, RKey: pairKey, Len: 1 << 14},
		})
	}
	read()
	if n := len(say(p, q)); n != 64 {
		t.Fatalf("%d packets", n)
	}
	p.now += ms
	hear(p, q, wire.Packet{Op: wire.CNP, Payload: bytesOf(16)})
	read()
	n := len(say(p, q))
	for q.resp.active > 0 {
		if p.now = q.Deadline(); p.now == 0 {
			t.Fatal("responses wait for nothing")
		}
		q.Expire(p.now)
		n += len(say(p, q))
	}
	if n != 64 {
		t.Errorf("%d packets", n)
	}
	if err := q.Modify(p.now, rdma.QPAttr{State: rdma.StateRTS, SQPSN: 1, RetryCount: 1}); err != nil {
		t.Fatal(err)
	}
	p.post(1, rdma.SendWR{Op: rdma.OpSend})
	_ = say(p, q)
	for range 50 {
		p.now = q.Deadline()
		q.Expire(p.now)
		_ = say(p, q)
	}
	if q.State() != rdma.StateRTS {
		t.Errorf("%v: %v", q.State(), q.Err())
	}
}
