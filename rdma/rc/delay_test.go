package rc

import (
	"fmt"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// delayed is a SEND of 8 bytes whose completion is not urgent.
func delayed(id uint64, s *side) rdma.SendWR {
	return rdma.SendWR{
		ID: id, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.DelayAck,
		SGL: []rdma.SGE{{Buf: s.buf[:8], LKey: pairKey}},
	}
}

// measured makes a pair that has measured its round-trip time and has receives posted.
func measured(t *testing.T) (p *pair, s *side) {
	t.Helper()
	p = newPair(t, 1024, 7, 4096)
	s = p.s[0]
	for range 100 {
		p.recv(1, 2048, 64)
	}
	p.post(0, delayed(0, s))
	settle(p, s)
	if len(s.sent) != 1 || s.q.req.srtt == 0 {
		t.Fatalf("the first message, before there is a round-trip time: %+v", s.sent)
	}
	s.sent = nil
	p.now += rdma.Millisecond // the pacer has credit then
	return p, s
}

// settle runs the pair until the requester has nothing in flight.
func settle(p *pair, s *side) {
	p.t.Helper()
	p.until(60*rdma.Second, func() bool { return s.q.sq.Len() == 0 })
	p.poll(s)
	p.poll(p.s[1])
}

// TestDelayAck: one of delayedMax+1 messages requests an acknowledgement, and its ACK completes
// all.
func TestDelayAck(t *testing.T) {
	p, s := measured(t)
	asked := 0
	for i := range 3 * (delayedMax + 1) {
		p.post(0, delayed(uint64(i), s))
		for _, k := range say(p, s.q) {
			if k.AckReq {
				asked++
			}
			hear(p, p.s[1].q, k)
		}
		for _, k := range say(p, p.s[1].q) {
			hear(p, s.q, k)
		}
	}
	p.poll(s)
	if asked != 3 || len(s.sent) != 3*(delayedMax+1) || s.q.Deadline() != 0 {
		t.Errorf("%d requests, %d completions", asked, len(s.sent))
	}
	if n := s.q.Counters(); n.TxTailProbes+n.TxRetransmits+n.AckTimeouts != 0 || p.s[1].q.Counters().TxPackets != 4 {
		t.Errorf("%+v", n)
	}
}

// TestTailProbe: after a silence the last message is sent again for its ACK. That counts as no
// loss: there is no timeout, the window does not shrink, and the responder repeats no ACKs.
func TestTailProbe(t *testing.T) {
	p, s := measured(t)
	for i := range 3 {
		p.post(0, delayed(uint64(i), s))
	}
	size := s.q.req.window.size
	settle(p, s)
	n, peer := s.q.Counters(), p.s[1].q.Counters()
	if len(s.sent) != 3 || n.TxTailProbes != 1 || n.TxRetransmits+n.AckTimeouts != 0 || s.q.req.window.size < size {
		t.Errorf("%d completions, window %d of %d, %+v", len(s.sent), s.q.req.window.size, size, n)
	}
	if peer.RxDuplicate != 1 || peer.TxPackets != 2 || len(p.s[1].got) != 4 {
		t.Errorf("%d messages, %+v", len(p.s[1].got), peer)
	}
}

// TestTailProbeLoss: any loss is detected while ACKs are delayed.
func TestTailProbeLoss(t *testing.T) {
	for lost := range 1 << 4 { // bits: which of three messages and the tail probe are lost
		t.Run(fmt.Sprintf("%04b", lost), func(t *testing.T) {
			p, s := measured(t)
			for i := range 3 {
				p.post(0, delayed(uint64(i), s))
			}
			for i, k := range say(p, s.q) {
				if lost>>i&1 == 0 {
					hear(p, p.s[1].q, k)
				}
			}
			p.now = s.q.Deadline()
			s.q.Expire(p.now)
			out := say(p, s.q)
			if len(out) != 1 || !out[0].AckReq || out[0].PSN != s.q.req.next.Add(-1) {
				t.Fatalf("%+v", out)
			}
			if lost>>3&1 == 0 {
				hear(p, p.s[1].q, out[0])
			}
			settle(p, s)
			if len(s.sent) != 3 || len(p.s[1].got) != 4 {
				t.Errorf("%d completions, %d messages", len(s.sent), len(p.s[1].got))
			}
		})
	}
}

// TestNoDelay: a message requests an ACK if something waits for that ACK.
func TestNoDelay(t *testing.T) {
	for name, more := range map[string]func(p *pair, s *side) []rdma.SendWR{
		"urgent": func(_ *pair, s *side) []rdma.SendWR {
			wr := delayed(2, s)
			wr.Flags = rdma.Signaled
			return []rdma.SendWR{wr}
		},
		"followed by a local request": func(p *pair, s *side) []rdma.SendWR {
			s.mem[0x2200] = &region{buf: make([]byte, 8), va: pairVA, access: rdma.RemoteRead}
			return []rdma.SendWR{delayed(2, s), {Op: rdma.OpLocalInv, InvRKey: 0x2200}}
		},
		"half of the send queue": func(_ *pair, s *side) (wrs []rdma.SendWR) {
			s.q.cfg.Caps.MaxSendWR = 3
			return []rdma.SendWR{delayed(2, s)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, s := measured(t)
			p.post(0, delayed(1, s))
			p.post(0, more(p, s)...)
			out := say(p, s.q)
			if len(out) != 2 || out[0].AckReq && name != "half of the send queue" || !out[1].AckReq {
				t.Errorf("%+v", out)
			}
		})
	}
}

// TestEndAckDelay: a local request and the transition to SQD end the delay.
func TestEndAckDelay(t *testing.T) {
	for name, do := range map[string]func(p *pair, s *side){
		"local request": func(p *pair, s *side) {
			s.mem[0x2200] = &region{buf: make([]byte, 8), va: pairVA, access: rdma.RemoteRead}
			p.post(0, rdma.SendWR{ID: 9, Op: rdma.OpLocalInv, InvRKey: 0x2200, Flags: rdma.Signaled})
		},
		"drain": func(p *pair, s *side) {
			if err := s.q.Modify(p.now, rdma.QPAttr{State: rdma.StateSQD}); err != nil {
				p.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, s := measured(t)
			p.post(0, delayed(1, s))
			for _, k := range say(p, s.q) {
				hear(p, p.s[1].q, k)
			}
			do(p, s)
			if d := s.q.Deadline(); d != p.now {
				t.Fatalf("the deadline is %d, now is %d", d, p.now)
			}
			s.q.Expire(p.now)
			out := say(p, s.q)
			if len(out) != 1 || !out[0].AckReq {
				t.Fatalf("%+v", out)
			}
			hear(p, p.s[1].q, out[0])
			hear(p, s.q, say(p, p.s[1].q)[0])
			say(p, s.q)
			p.poll(s)
			if send, _ := s.q.Outstanding(); send != 0 {
				t.Errorf("%d requests are left, %+v", send, s.sent)
			}
		})
	}
}

// TestEndAckDelayBehind: a local request does not wait for the timer, also if the last message did
// not request an ACK.
func TestEndAckDelayBehind(t *testing.T) {
	p, s := measured(t)
	urgent := delayed(1, s)
	urgent.Flags = rdma.Signaled
	s.mem[0x2200] = &region{buf: make([]byte, 8), va: pairVA, access: rdma.RemoteRead}
	p.post(0, urgent, delayed(2, s))
	for _, k := range say(p, s.q) {
		hear(p, p.s[1].q, k)
	}
	p.post(0, rdma.SendWR{ID: 9, Op: rdma.OpLocalInv, InvRKey: 0x2200, Flags: rdma.Signaled})
	hear(p, s.q, wire.Packet{Op: wire.Acknowledge, PSN: s.q.req.una})
	if d := s.q.Deadline(); d != p.now {
		t.Errorf("the deadline is %d, now is %d", d, p.now)
	}
	settle(p, s)
}

// TestDelayedThenError: messages without an ACK are flushed with the QP. A peer that is gone is
// detected.
func TestDelayedThenError(t *testing.T) {
	p, s := measured(t)
	p.post(0, delayed(1, s), delayed(2, s))
	say(p, s.q)
	if err := s.q.Modify(p.now, rdma.QPAttr{State: rdma.StateErr}); err != nil {
		t.Fatal(err)
	}
	p.poll(s)
	if len(s.sent) != 2 || s.sent[0].Status != rdma.WRFlushErr || s.sent[1].Status != rdma.WRFlushErr {
		t.Errorf("%+v", s.sent)
	}

	p, s = measured(t)
	p.post(0, delayed(1, s))
	p.stop = true
	settle(p, s)
	if len(s.sent) != 1 || s.sent[0].Status != rdma.RetryExcErr {
		t.Errorf("a peer that is gone: %+v", s.sent)
	}
}

// TestDelayedNotReady: an RNR NAK comes without being requested.
func TestDelayedNotReady(t *testing.T) {
	p, s := measured(t)
	peer := p.s[1]
	for peer.q.rq.Len() > 0 {
		peer.q.rq.Pop()
	}
	p.post(0, delayed(1, s))
	for _, k := range say(p, s.q) {
		hear(p, peer.q, k)
	}
	out := say(p, peer.q)
	if len(out) != 1 || out[0].AETH.Syndrome&wire.SyndromeTypeMask != wire.SyndromeTypeRNR {
		t.Fatalf("%+v", out)
	}
	hear(p, s.q, out[0])
	p.recv(1, 2048, 64)
	settle(p, s)
	if len(s.sent) != 1 || s.sent[0].Status != rdma.Success || s.q.Counters().AckTimeouts != 0 {
		t.Errorf("%+v, %+v", s.sent, s.q.Counters())
	}
}

// TestDelayTimer: the timer of a message with AckReq does not start at a delayed message before it.
func TestDelayTimer(t *testing.T) {
	p, s := measured(t)
	p.post(0, delayed(1, s))
	for _, k := range say(p, s.q) {
		hear(p, p.s[1].q, k)
	}
	p.now = s.q.Deadline() - 1
	urgent := delayed(2, s)
	urgent.Flags = rdma.Signaled
	p.post(0, urgent)
	for _, k := range say(p, s.q) {
		hear(p, p.s[1].q, k)
	}
	p.now += 2 // the ACK is in flight
	if d := s.q.Deadline(); d <= p.now {
		s.q.Expire(p.now)
	}
	for _, k := range say(p, p.s[1].q) {
		hear(p, s.q, k)
	}
	p.poll(s)
	if n := s.q.Counters(); n.AckTimeouts+n.TxTailProbes+n.TxRetransmits != 0 || len(s.sent) != 2 {
		t.Errorf("%d completions, %+v", len(s.sent), n)
	}
}
