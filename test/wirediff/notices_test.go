package wirediff_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/test/wirediff"
)

// TestNotices: each kind of mistake is found, and told of in the connection where it is.
func TestNotices(t *testing.T) {
	of := func(op wire.Opcode) func(p *wirediff.Packet) bool {
		return func(p *wirediff.Packet) bool { return p.Op == op }
	}
	syndrome := func(p *wirediff.Packet) { p.AETH.Syndrome ^= 2 }
	msn := func(p *wirediff.Packet) { p.AETH.MSN-- }
	nak := func(p *wirediff.Packet) bool { return p.Op == wire.Acknowledge && p.AETH.Syndrome >= wire.SyndromeRNR }
	for _, c := range []struct {
		name, in string
		is       func(p *wirediff.Packet) bool
		do       func(p *wirediff.Packet)
	}{
		{"opcode", "good", of(wire.SendOnlyImm), func(p *wirediff.Packet) { p.Op = wire.SendOnly }},
		{"PSN", "good", of(wire.WriteLast), func(p *wirediff.Packet) { p.At++ }},
		{"AckReq missing", "good", of(wire.WriteOnly), func(p *wirediff.Packet) { p.AckReq = false }},
		{"AckReq", "good", of(wire.WriteMiddle), func(p *wirediff.Packet) { p.AckReq = true }},
		{"Solicited", "good", of(wire.SendMiddle), func(p *wirediff.Packet) { p.Solicited = true }},
		{
			"Solicited missing", "good", func(p *wirediff.Packet) bool { return p.Solicited },
			func(p *wirediff.Packet) { p.Solicited = false },
		},
		{"MigReq", "good", of(wire.ReadRespLast), func(p *wirediff.Packet) { p.MigReq = true }},
		{"P_Key", "good", of(wire.SendOnly), func(p *wirediff.Packet) { p.PKey = 0x7fff }},
		{"pad", "good", of(wire.SendLast), func(p *wirediff.Packet) { p.Pad = 0 }},
		{"RETH length", "good", of(wire.WriteFirst), func(p *wirediff.Packet) { p.RETH.Len-- }},
		{"RETH address", "good", of(wire.ReadRequest), func(p *wirediff.Packet) { p.RETH.VA++ }},
		{"RETH key", "good", of(wire.ReadRequest), func(p *wirediff.Packet) { p.RETH.RKey ^= 1 }},
		{"syndrome of an ACK", "good", of(wire.Acknowledge), syndrome},
		{"syndrome of a READ response", "good", of(wire.ReadRespFirst), syndrome},
		{"MSN of an ACK", "good", of(wire.Acknowledge), msn},
		{"MSN of a READ response", "good", of(wire.ReadRespOnly), msn},
		{"MSN of an atomic response", "good", of(wire.AtomicAck), msn},
		{"immediate", "good", of(wire.WriteOnlyImm), func(p *wirediff.Packet) { p.Imm++ }},
		{"AtomicETH", "good", of(wire.CompareSwap), func(p *wirediff.Packet) { p.Atomic.Compare++ }},
		{"AtomicAckETH", "good", of(wire.AtomicAck), func(p *wirediff.Packet) { p.AtomicAck++ }},
		{"IETH", "good", of(wire.SendOnlyInv), func(p *wirediff.Packet) { p.InvRKey++ }},
		{"payload length", "good", of(wire.SendOnlyInv), func(p *wirediff.Packet) { p.Payload = append(p.Payload, 0) }},
		{
			"payload", "good", of(wire.ReadRespMiddle),
			func(p *wirediff.Packet) { p.Payload = bytes.Repeat([]byte{1}, len(p.Payload)) },
		},
		{"NAK invalid request", "deny-write", nak, syndrome},
		{"NAK remote access", "window", nak, syndrome},
		{"NAK remote operational", "too-long", nak, syndrome},
		{"RNR NAK", "not-ready", nak, syndrome},
		{"MSN of a NAK", "write-beyond", nak, msn},
		{"MSN of an RNR NAK", "not-ready", nak, msn},
		{"PSN of a NAK", "deny-read", nak, func(p *wirediff.Packet) { p.At-- }},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := recorded(t, kernels)
			change(t, got, c.in, c.is, c.do)
			notices(t, compare(t, recorded(t, kernels), got, wirediff.Played{}), c.in)
		})
	}
	for _, c := range []struct {
		name string
		do   func(s *wirediff.Session)
	}{
		{"a packet less", func(s *wirediff.Session) { s.Requests = slices.Delete(s.Requests, 20, 21) }},
		{"a request twice", func(s *wirediff.Session) { s.Requests = slices.Insert(s.Requests, 20, s.Requests[20]) }},
		{"no ACK at the end", func(s *wirediff.Session) { s.Requests = s.Requests[:len(s.Requests)-1] }},
		{"no hello", func(s *wirediff.Session) { s.Replies = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := recorded(t, kernels)
			c.do(got[0])
			notices(t, compare(t, recorded(t, kernels), got, wirediff.Played{}), "good")
		})
	}
	for _, c := range []struct {
		name, in string
		is       func(p *wirediff.Packet) bool
		do       func(p *wirediff.Packet)
	}{
		{"NAK sequence error", "lose-write-middle", nak, syndrome},
		{"PSN of it", "lose-send-middle", nak, func(p *wirediff.Packet) { p.At++ }},
		{"MSN of it", "lose-write-first", nak, msn},
		{
			"READ asked for again", "lose-read-response-middle",
			func(p *wirediff.Packet) bool { return p.Op == wire.ReadRequest && p.At == 1 },
			func(p *wirediff.Packet) { p.RETH.Len++ },
		},
		{
			"an atomic done twice", "lose-atomic-ack",
			func(p *wirediff.Packet) bool { return p.Op == wire.AtomicAck && p.At == 1 },
			func(p *wirediff.Packet) { p.AtomicAck += 5 },
		},
		{"a SEND received twice", "lose-ack-of-send", of(wire.ReadRespOnly), func(p *wirediff.Packet) { p.AETH.MSN++ }},
	} {
		t.Run("lost, "+c.name, func(t *testing.T) {
			got := recorded(t, oursCalls)
			change(t, got, c.in, c.is, c.do)
			notices(t, compareLosses(t, recorded(t, kernelCalls), got, kernelCalls, oursCalls), c.in)
		})
	}
}

func notices(t *testing.T, r *wirediff.Report, in string) {
	t.Helper()
	if len(r.Diffs) != 1 || !strings.HasPrefix(r.Diffs[0], in+", ") {
		t.Errorf("not noticed in %s: %v", in, r)
	}
}

// TestPassesOver: what is a matter of time is no difference.
func TestPassesOver(t *testing.T) {
	for _, c := range []struct {
		name, in string
		do       func(s *wirediff.Session)
	}{
		{"nothing", "good", func(*wirediff.Session) {}},
		{"an ACK twice", "good", func(s *wirediff.Session) { s.Requests = slices.Insert(s.Requests, 2, s.Requests[1]) }},
		{"a message cut by its NAK", "long-write-wrong-key", func(s *wirediff.Session) {
			s.Requests = slices.DeleteFunc(s.Requests, func(p wirediff.Packet) bool { return p.At > 0 })
		}},
		{"not ready twice", "not-ready", func(s *wirediff.Session) {
			i := slices.IndexFunc(s.Requests, func(p wirediff.Packet) bool { return p.AETH.Syndrome == wire.SyndromeRNR })
			s.Requests = slices.Insert(s.Requests, i+1, s.Requests[i-1], s.Requests[i])
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := recorded(t, kernels)
			for _, s := range got {
				if s.Name == c.in {
					c.do(s)
				}
			}
			if r := compare(t, recorded(t, kernels), got, wirediff.Played{}); len(r.Diffs) != 0 {
				t.Errorf("noticed: %v", r)
			}
		})
	}
}

// TestTimeout: a request of ours may come again when there was no answer for as long as a
// timeout, and not sooner; nor may one of the kernel, whose timeouts nothing here reaches.
func TestTimeout(t *testing.T) {
	for _, c := range []struct {
		name   string
		played wirediff.Played
		after  time.Duration
		rest   bool // of a long READ, not a whole one
		passes bool
	}{
		{"after a timeout", oursCalls, time.Millisecond, false, true},
		{"at once", oursCalls, 100 * time.Microsecond, false, false},
		{"of the kernel", kernelCalls, time.Millisecond, false, false},
		{"rest after a timeout", oursCalls, time.Millisecond, true, true},
		{"rest at once", oursCalls, 100 * time.Microsecond, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := recorded(t, c.played)
			s := got[0]
			first, n := wire.ReadRespOnly, 2 // the request and its answer
			if c.rest {
				first, n = wire.ReadRespFirst, 3
			}
			i := slices.IndexFunc(s.Requests, func(p wirediff.Packet) bool { return p.Op == first }) - 1
			again := slices.Clone(s.Requests[i : i+n])
			if c.rest {
				again[0].At++
				again[0].PSN++
				again[0].RETH.VA += 1024
				again[0].RETH.Len -= 1024
				again = slices.Delete(again, 1, 2)
			}
			s.Requests = slices.Insert(s.Requests, i+n, again...)
			for j := i + n; j < len(s.Requests); j++ {
				s.Requests[j].Time += int64(c.after)
			}
			s.Requests[i+n].Time = s.Requests[i].Time + int64(c.after)
			r := compare(t, recorded(t, kernels), got, c.played)
			if want := map[bool]int{true: 1}[c.passes]; r.Again != want || len(r.Diffs) == 0 != c.passes {
				t.Errorf("passes %v: %v", !c.passes, r)
			}
		})
	}
}

// TestTimeoutAtNAK: a timeout may pass while a NAK is on its way, and not behind it.
func TestTimeoutAtNAK(t *testing.T) {
	for _, c := range []struct {
		after  time.Duration
		passes bool
	}{{100 * time.Microsecond, true}, {2 * time.Millisecond, false}} {
		got := recorded(t, oursCalls)
		s := got[slices.IndexFunc(got, func(s *wirediff.Session) bool { return s.Name == "write-wrong-key" })]
		again := s.Requests[0]
		s.Requests[0].Time -= int64(time.Millisecond)
		again.Time = s.Requests[1].Time + int64(c.after)
		s.Requests = append(s.Requests, again)
		if r := compare(t, recorded(t, kernels), got, oursCalls); len(r.Diffs) == 0 != c.passes {
			t.Errorf("%v after the NAK, passes %v: %v", c.after, !c.passes, r)
		}
	}
}

// TestUnanswered: a timeout that began before its request left shows as the same request
// twice at once. A few of them pass, if the capture knows times.
func TestUnanswered(t *testing.T) {
	for _, c := range []struct {
		every  int // request of the first session
		times  bool
		passes bool
	}{{50, true, true}, {50, false, false}, {1, true, false}} {
		got := recorded(t, oursCalls)
		var out []wirediff.Packet
		n := 0
		for _, p := range got[0].Requests {
			if !c.times {
				p.Time = 0
			}
			out = append(out, p)
			if p.Op == wire.WriteOnly || p.Op == wire.SendOnly || p.Op == wire.ReadRequest {
				if n++; (n-1)%c.every == 0 {
					out = append(out, p)
				}
			}
		}
		got[0].Requests = out
		if r := compare(t, recorded(t, kernels), got, oursCalls); len(r.Diffs) == 0 != c.passes {
			t.Errorf("every %d, times %v, passes %v: %v", c.every, c.times, !c.passes, r)
		}
	}
}

// TestEverything: no opcode and no NAK of a reliable connection is left out.
func TestEverything(t *testing.T) {
	for _, p := range []wirediff.Played{kernelCalls, oursCalls} {
		ops, naks := map[wire.Opcode]bool{}, map[uint8]bool{}
		for _, s := range recorded(t, p) {
			for _, q := range slices.Concat(s.Requests, s.Replies) {
				ops[q.Op] = true
				if q.Op == wire.Acknowledge {
					naks[q.AETH.Syndrome] = true
				}
			}
		}
		for op := range wire.Opcode(0x20) {
			if op.IsRC() && !ops[op] {
				t.Errorf("%v: no %v", p, op)
			}
		}
		rnr := uint8(wire.SyndromeRNR) // the kernel's timer is 0
		if p.Ours == wirediff.Server {
			rnr |= 12
		}
		for _, nak := range []uint8{rnr, wire.NAKSequence, wire.NAKInvalidRequest, wire.NAKRemoteAccess, wire.NAKRemoteOp} {
			if !naks[nak] {
				t.Errorf("%v: no acknowledgement with syndrome %#x", p, nak)
			}
		}
	}
}
