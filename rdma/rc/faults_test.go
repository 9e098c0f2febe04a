package rc

import (
	"errors"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

func write(id uint64, s *side, n int, va uint64, key uint32) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpWrite, SGL: s.sge(0, n), RemoteAddr: va, RKey: key}
}

// TestFatalRequests: requests that the peer must refuse, the NAK for each, and the completions of
// the requests around it.
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
			first := write(1, a, 0, 0, 0) // no bytes: the key is not checked
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

// TestLateDuplicateOfARead: the network repeats a READ request long after the response was used and
// its memory invalidated. The duplicate is dropped. A new request for such memory gets a NAK.
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
