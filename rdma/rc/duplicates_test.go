package rc

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// TestDuplicates: a duplicate is not executed again. It is answered as far as possible.
func TestDuplicates(t *testing.T) {
	p, s, q := lone(t, 1)
	// PSNs 7, 8, 9
	readReq := wire.Packet{
		Op: wire.ReadRequest, PSN: 7, AckReq: true,
		RETH: wire.RETH{VA: pairVA, RKey: pairKey, Len: 600},
	}
	add := wire.Packet{Op: wire.FetchAdd, PSN: 10, Atomic: wire.Atomic{VA: pairVA + 800, RKey: pairKey, SwapAdd: 3}}
	hear(p, q, readReq)
	hear(p, q, add)
	if out := say(p, q); len(out) != 4 || out[3].Op != wire.AtomicAck || out[3].AtomicAck != 0 {
		t.Fatalf("%+v", out)
	}
	part := readReq
	part.PSN, part.RETH.VA, part.RETH.Len = 8, pairVA+256, 344
	other := part
	other.RETH.VA++
	late := readReq
	late.PSN = 3
	swap := add
	swap.Op = wire.CompareSwap
	instead := add
	instead.Op, instead.RETH = wire.ReadRequest, readReq.RETH
	for _, c := range []struct {
		name   string
		packet wire.Packet
		want   []wire.Opcode
	}{
		{"the READ", readReq, []wire.Opcode{wire.ReadRespFirst, wire.ReadRespMiddle, wire.ReadRespLast}},
		{"the rest of it", part, []wire.Opcode{wire.ReadRespFirst, wire.ReadRespLast}},
		{"other bytes", other, nil},
		{"one that is forgotten", late, nil},
		{"the atomic", add, []wire.Opcode{wire.AtomicAck}},
		{"another atomic in its place", swap, []wire.Opcode{wire.AtomicAck}},
		{"a READ in its place", instead, nil},
		{"a WRITE", wire.Packet{Op: wire.WriteOnly, PSN: 6}, []wire.Opcode{wire.Acknowledge}},
	} {
		before := q.n.RxDuplicate
		hear(p, q, c.packet)
		out := say(p, q)
		if len(out) != len(c.want) || q.n.RxDuplicate != before+1 || q.State() != rdma.StateRTS {
			t.Errorf("%s: %d packets, want %d; in %v", c.name, len(out), len(c.want), q.State())
			continue
		}
		for i := range out {
			if out[i].Op != c.want[i] {
				t.Errorf("%s: packet %d is %v", c.name, i, out[i].Op)
			}
		}
	}
	if s.buf[800] != 3 {
		t.Errorf("the word is %d", s.buf[800])
	}
	// If its memory is invalidated during a response, the response ends, and with it the
	// connection: the requester waits for the rest.
	hear(p, q, wire.Packet{Op: wire.ReadRequest, PSN: 11, RETH: wire.RETH{VA: pairVA, RKey: pairKey, Len: 600}})
	delete(s.mem, pairKey)
	if out := say(p, q); len(out) != 1 || out[0].AETH.Syndrome != wire.NAKRemoteAccess || out[0].PSN != 11 ||
		q.State() != rdma.StateErr {
		t.Errorf("%+v in %v", out, q.State())
	}
}

// TestDuplicateBeforeNext: a READ that was requested again, because its response was slow, does not
// count against the limit. The requester may send the next READ when the response has arrived.
func TestDuplicateBeforeNext(t *testing.T) {
	p, _, q := lone(t, 1)
	read := func(psn wire.PSN) wire.Packet {
		return wire.Packet{Op: wire.ReadRequest, PSN: psn, AckReq: true, RETH: wire.RETH{VA: pairVA, RKey: pairKey, Len: 8}}
	}
	for psn := range wire.PSN(4) { // as many as the connection allows
		hear(p, q, read(7+psn))
	}
	if out := say(p, q); len(out) != 4 {
		t.Fatalf("%+v", out)
	}
	hear(p, q, read(7))
	hear(p, q, read(11))
	out := say(p, q)
	if len(out) != 1 || out[0].PSN != 11 || out[0].Op != wire.ReadRespOnly || q.State() != rdma.StateRTS {
		t.Errorf("%+v in %v: %v", out, q.State(), q.Err())
	}
	for psn := range wire.PSN(5) { // one more
		hear(p, q, read(12+psn))
	}
	if q.State() != rdma.StateErr {
		t.Error("five READs at once are served where four are allowed")
	}
}

// TestStates: which packets and posts each state takes (IBTA 10.3.1).
func TestStates(t *testing.T) {
	request := wire.Packet{Op: wire.WriteOnly, PSN: 7, AckReq: true}
	response := wire.Packet{Op: wire.Acknowledge, PSN: 8}
	for _, c := range []struct {
		state             rdma.QPState
		serves            bool
		sends             bool // posted requests are sent
		postSend, posting bool // posts are accepted
	}{
		{rdma.StateReset, false, false, false, false},
		{rdma.StateInit, false, false, false, true},
		{rdma.StateRTR, true, false, false, true},
		{rdma.StateRTS, true, true, true, true},
		{rdma.StateSQD, true, false, true, true},
		{rdma.StateErr, false, false, true, true},
	} {
		t.Run(c.state.String(), func(t *testing.T) {
			p, s, q := lone(t, 1)
			steps := []rdma.QPAttr{
				{State: rdma.StateInit, Access: rdma.RemoteWrite, PKey: wire.DefaultPKey},
				{State: rdma.StateRTR, LocalAddr: q.flow.Src, RemoteAddr: q.flow.Dst, PathMTU: 256, RQPSN: 7},
				{State: rdma.StateRTS, SQPSN: 8, AckTimeout: 14, RetryCount: 6},
				{State: rdma.StateSQD},
			}
			if err := q.Modify(p.now, rdma.QPAttr{State: rdma.StateReset}); err != nil {
				t.Fatal(err)
			}
			if c.state == rdma.StateErr {
				steps = append(steps[:3], rdma.QPAttr{State: rdma.StateErr})
			}
			for _, a := range steps {
				if q.State() == c.state {
					break
				}
				if err := q.Modify(p.now, a); err != nil {
					t.Fatal(err)
				}
			}
			if q.State() != c.state {
				t.Fatalf("in %v", q.State())
			}
			err := q.PostSend(p.now, []rdma.SendWR{{ID: 1, Op: rdma.OpWrite}})
			if (err == nil) != c.postSend {
				t.Errorf("a request: %v", err)
			}
			err = q.PostRecv(p.now, []rdma.RecvWR{{ID: 2}})
			if (err == nil) != c.posting {
				t.Errorf("a receive: %v", err)
			}
			if out := say(p, q); (len(out) == 1) != c.sends {
				t.Errorf("sent %+v", out)
			}
			src := q.flow
			q.flow.Src, q.flow.Dst = p.s[0].q.flow.Dst, p.s[0].q.flow.Src
			hear(p, q, request)
			q.flow = src
			if out := say(p, q); (len(out) == 1) != c.serves {
				t.Errorf("answered %+v", out)
			}
			if c.state != rdma.StateRTS && c.state != rdma.StateSQD {
				dropped := q.n.DropState
				hear(p, q, response)
				if q.n.DropState != dropped+1 {
					t.Error("a response was taken")
				}
			}
			p.poll(s)
			if flushed := len(s.sent) == 1 && s.sent[0].Status == rdma.WRFlushErr && len(s.got) == 1 &&
				s.got[0].Status == rdma.WRFlushErr; flushed != (c.state == rdma.StateErr) {
				t.Errorf("completions %+v %+v", s.sent, s.got)
			}
		})
	}
	// A QP that returns from SQD to RTS continues.
	p, _, q := lone(t, 0)
	for _, st := range []rdma.QPState{rdma.StateSQD, rdma.StateRTS, rdma.StateRTS} {
		if err := q.Modify(p.now, rdma.QPAttr{State: st, Access: rdma.RemoteRead}); err != nil {
			t.Fatal(err)
		}
	}
	if q.Attr().Access != rdma.RemoteRead || q.Num() != 0x100 {
		t.Errorf("%+v", q.Attr())
	}
}

// TestBadAttributes: attributes that the transition to RTR refuses.
func TestBadAttributes(t *testing.T) {
	p, _, q := lone(t, 0)
	good := q.Attr()
	good.State, good.LocalAddr, good.RemoteAddr = rdma.StateRTR, q.flow.Src, q.flow.Dst
	for name, change := range map[string]func(*rdma.QPAttr){
		"an MTU that is none": func(a *rdma.QPAttr) { a.PathMTU = 1500 },
		"addresses of two kinds": func(a *rdma.QPAttr) {
			a.RemoteAddr = p.s[1].q.flow.Src.Next()
			a.LocalAddr = netip.IPv6Loopback()
		},
	} {
		q := New(Config{Mem: memory{}})
		if err := q.Modify(p.now, rdma.QPAttr{State: rdma.StateInit}); err != nil {
			t.Fatal(err)
		}
		a := good
		change(&a)
		if err := q.Modify(p.now, a); err == nil || q.State() != rdma.StateInit {
			t.Errorf("%s: %v, in %v", name, err, q.State())
		}
	}
}

// TestSyndromeTexts: the texts of syndromes in post-mortems.
func TestSyndromeTexts(t *testing.T) {
	for s, want := range map[uint8]string{
		wire.SyndromeAck | 5:        "ACK",
		wire.SyndromeRNR | 1:        "receiver not ready, retry after 10 us",
		wire.NAKSequence:            "PSN sequence error",
		wire.NAKInvalidRequest:      "invalid request",
		wire.NAKRemoteAccess:        "remote access error",
		wire.NAKRemoteOp:            "remote operational error",
		wire.SyndromeTypeNAK | 0x1f: "reserved syndrome",
		0x40:                        "reserved syndrome",
	} {
		if got := SyndromeText(s); got != want {
			t.Errorf("%#x: %q", s, got)
		}
	}
}

// TestTimeoutAsksWithOnePacket: after a timeout only one packet is sent again. If the peer was only
// slow, nothing else is. If packets were lost, they are sent again in a small window that grows.
func TestTimeoutAsksWithOnePacket(t *testing.T) {
	for _, c := range []struct {
		name  string
		acked wire.PSN // by the peer's answer
		again int      // packets sent again after it
	}{
		{"it has everything", 7 + 59, 0},
		{"it has the first", 7, windowMin + 1},
		{"it lost one in the middle", 7 + 49, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, s, q := lone(t, 0)
			wr := write(1, s, 60*256, pairVA, pairKey)
			wr.Flags = rdma.Signaled
			p.post(0, wr)
			if out := say(p, q); len(out) != 60 {
				t.Fatalf("%d packets", len(out))
			}
			for range 3 { // nothing arrives for a while
				p.now = q.Deadline()
				q.Expire(p.now)
				if out := say(p, q); len(out) != 1 || out[0].PSN != 7 || !out[0].AckReq {
					t.Fatalf("at the timeout %d packets, the first %+v", len(out), out[0])
				}
			}
			hear(p, q, wire.Packet{Op: wire.Acknowledge, PSN: c.acked})
			if out := say(p, q); len(out) != c.again || c.again > 0 && out[0].PSN != c.acked.Add(1) {
				t.Errorf("%d packets are sent again, want %d", len(out), c.again)
			}
			hear(p, q, wire.Packet{Op: wire.Acknowledge, PSN: 7 + 59})
			if p.poll(s); len(s.sent) != 1 || s.sent[0].Status != rdma.Success {
				t.Errorf("%+v", s.sent)
			}
		})
	}
}

// TestPartialACKs: a peer that acknowledges the packets of the first transmission bit by bit after a
// timeout gets one packet again for each ACK. The window stays, because nothing was lost. If the
// ACK is for the repeated packet alone, the others were lost.
func TestPartialACKs(t *testing.T) {
	for _, lost := range []bool{false, true} {
		p, s, q := lone(t, 0)
		p.post(0, write(1, s, 60*256, pairVA, pairKey))
		_ = say(p, q)
		size := q.req.window.size
		p.now = q.Deadline()
		q.Expire(p.now)
		_ = say(p, q)
		for _, psn := range []wire.PSN{20, 40, 60} {
			hear(p, q, wire.Packet{Op: wire.Acknowledge, PSN: psn})
			if out := say(p, q); len(out) != 1 || out[0].PSN != psn+1 || !out[0].AckReq {
				t.Fatalf("after the ACK of %d: %d packets", psn, len(out))
			}
		}
		if lost {
			hear(p, q, wire.Packet{Op: wire.Acknowledge, PSN: 61})
			if out := say(p, q); len(out) != 5 || out[0].PSN != 62 || q.req.window.size >= size {
				t.Errorf("after a loss: %d packets, a window of %d, it was %d", len(out), q.req.window.size, size)
			}
		} else if hear(p, q, wire.Packet{Op: wire.Acknowledge, PSN: 66}); q.req.window.size < size || q.HasWork(p.now) {
			t.Errorf("a window of %d, it was %d; more to send: %v", q.req.window.size, size, q.HasWork(p.now))
		}
	}
}

// TestLocalTimeout: a peer on the same host that waits for a processor gets nothing again before
// rtoLocal.
func TestLocalTimeout(t *testing.T) {
	for _, local := range []bool{false, true} {
		p, s := measured(t)
		if local {
			s.q.OmitICRC()
		}
		wr := write(1, s, 64, pairVA, pairKey)
		wr.Flags = rdma.Signaled
		p.post(0, wr)
		_ = say(p, s.q)
		start := p.now
		for s.q.Counters().AckTimeouts == 0 {
			p.now = s.q.Deadline()
			s.q.Expire(p.now)
			if n := len(say(p, s.q)); n > 0 && s.q.Counters().AckTimeouts == 0 {
				t.Fatalf("%d packets again without a timeout", n)
			}
		}
		if d := p.now - start; local != (d >= rtoLocal) || d > 2*rtoLocal {
			t.Errorf("local %v: a timeout after %d us", local, d/rdma.Microsecond)
		}
	}
}

// TestRecorder: a long message is one entry, old entries make room, and each acknowledgement is an
// entry of its own.
func TestRecorder(t *testing.T) {
	p, s, q := lone(t, 0)
	p.post(0, write(1, s, 10*256, pairVA, pairKey))
	_ = say(p, q)
	p.now += 5
	hear(p, q, wire.Packet{Op: wire.Acknowledge, PSN: 10, AETH: wire.AETH{Syndrome: wire.SyndromeAck | 3}})
	hear(p, q, wire.Packet{Op: wire.Acknowledge, PSN: 11, AETH: wire.AETH{Syndrome: wire.SyndromeAck}})
	got := q.Recent()
	want := []Run{
		{At: p.now - 5, Out: true, Op: wire.WriteFirst, PSN: 7, Count: 1, Bytes: 256},
		{At: p.now - 5, Out: true, Op: wire.WriteMiddle, PSN: 8, Count: 8, Bytes: 8 * 256},
		{At: p.now - 5, Out: true, Op: wire.WriteLast, AckReq: true, PSN: 16, Count: 1, Bytes: 256},
		{At: p.now, Op: wire.Acknowledge, Syndrome: wire.SyndromeAck | 3, PSN: 10, Count: 1},
		{At: p.now, Op: wire.Acknowledge, Syndrome: wire.SyndromeAck, PSN: 11, Count: 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	for i := range 100 {
		hear(p, q, wire.Packet{Op: wire.Acknowledge, PSN: wire.PSN(i)})
	}
	if got = q.Recent(); len(got) != runsMax || got[0].PSN != 100-runsMax || got[runsMax-1].PSN != 99 {
		t.Errorf("%d entries, %+v", len(got), got)
	}
}

// TestOwesAck: an acknowledgement may wait if it is all that there is to send, and only for few
// packets.
func TestOwesAck(t *testing.T) {
	write := func(psn wire.PSN) wire.Packet {
		return wire.Packet{
			Op: wire.WriteOnly, PSN: psn, AckReq: true, RETH: wire.RETH{VA: pairVA, RKey: pairKey, Len: 4},
			Payload: bytesOf(4),
		}
	}
	p, s, q := lone(t, 1)
	if q.OwesAck(p.now) {
		t.Error("it owes one of nothing")
	}
	psn := wire.PSN(7)
	for ; psn < 7+ackSpan-1; psn++ {
		hear(p, q, write(psn))
		if !q.OwesAck(p.now) || !q.HasWork(p.now) {
			t.Fatalf("PSN %d: may wait: %v, has work: %v", psn, q.OwesAck(p.now), q.HasWork(p.now))
		}
	}
	hear(p, q, write(psn))
	if q.OwesAck(p.now) {
		t.Errorf("that of %d packets waits", ackSpan)
	}
	if out := say(p, q); len(out) != 1 || out[0].Op != wire.Acknowledge || out[0].PSN != psn {
		t.Fatalf("said %+v", out)
	}
	psn++
	hear(p, q, write(psn))
	if !q.OwesAck(p.now) {
		t.Error("the next may not wait")
	}
	hear(p, q, write(psn+2))
	if q.OwesAck(p.now) {
		t.Error("a NAK waits")
	}
	say(p, q)
	hear(p, q, write(psn+1))
	p.post(1, rdma.SendWR{Op: rdma.OpSend, SGL: s.sge(0, 4)})
	if q.OwesAck(p.now) {
		t.Error("it waits though a request is sent")
	}
}
