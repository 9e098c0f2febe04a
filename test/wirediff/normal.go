package wirediff

import (
	"fmt"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

func (p *Packet) rnr() bool {
	return p.Op == wire.Acknowledge && p.AETH.Syndrome&wire.SyndromeTypeMask == wire.SyndromeTypeRNR
}

func (p *Packet) nak() bool {
	return p.Op == wire.Acknowledge && p.AETH.Syndrome&wire.SyndromeTypeMask == wire.SyndromeTypeNAK
}

func (p *Packet) ack() bool {
	return p.Op == wire.Acknowledge && p.AETH.Syndrome&wire.SyndromeTypeMask == wire.SyndromeTypeAck
}

// normal takes out what is a matter of time alone: how often a request came before its
// receive was there, how much of a message had left when its NAK came, and
// acknowledgements that say nothing new.
func normal(in []Packet) []Packet {
	return onceNotReady(newsOnly(upToNAK(in)))
}

// upToNAK leaves out the requests behind one that was refused for good, which is the end
// of the connection.
func upToNAK(in []Packet) (out []Packet) {
	last := int32(1 << 23)
	for i := range in {
		if in[i].nak() && in[i].AETH.Syndrome != wire.NAKSequence {
			last = min(last, in[i].At)
		}
	}
	for _, p := range in {
		if p.At <= last || p.Op.Is(wire.Response) {
			out = append(out, p)
		}
	}
	return out
}

// newsOnly leaves out acknowledgements of what has been acknowledged, by whatever
// response, and those that are followed by another before the next request.
func newsOnly(in []Packet) (out []Packet) {
	known := int32(-1)
	for i, p := range in {
		next := i + 1
		switch {
		case !p.Op.Is(wire.Response):
		case p.ack() && p.At <= known:
			continue
		case p.ack() && next < len(in) && in[next].covers(&p):
			continue
		case p.rnr() || p.nak():
			known = max(known, p.At-1)
		default:
			known = max(known, p.At)
		}
		out = append(out, p)
	}
	return out
}

// covers reports whether an acknowledgement says all that another one says.
func (p *Packet) covers(ack *Packet) bool {
	return p.ack() && p.At >= ack.At || (p.rnr() || p.nak()) && p.At > ack.At
}

// onceNotReady leaves of the same requests, answered again and again by the same RNR NAK,
// the first round. The last one, with a receive, stays.
func onceNotReady(in []Packet) (out []Packet) {
	for i := 0; i < len(in); {
		out = append(out, in[i])
		if !in[i].rnr() {
			i++
			continue
		}
		nak := in[i].key()
		i++
		for {
			j := i
			for j < len(in) && in[j].Op.Is(wire.Request) {
				j++
			}
			if j == len(in) || in[j].key() != nak {
				break
			}
			i = j + 1
		}
	}
	return out
}

// key tells packets apart that differ in more than their place in the capture.
func (p *Packet) key() string {
	return fmt.Sprint(p.At, p.Op, p.AETH, p.RETH, p.Imm, len(p.Payload))
}

// silence is how long ours waits at least before it sends a request again, in
// nanoseconds: the shortest timeout, less what the clocks of sender and capture differ by.
const silence = 900_000

// withoutTimeouts leaves out requests of ours that were sent again since no answer came in
// time, as happens on a busy host, with the answers to them. Some come sooner than the
// timeout: its clock runs before the first has left. A NAK stops all that, but for as long as
// it may be on its way. Without times, of a host that is not busy, nothing is left out.
func (r *Report) withoutTimeouts(s *Session, in []Packet, ours Side) (out []Packet) {
	var last, nak *Packet // request of ours, and the answer to it
	next := int32(0)      // behind all requests
	again, answered := false, false
	for i := range in {
		p := &in[i]
		switch {
		case p.Op.Is(wire.Response):
			answered = true
			if p.rnr() || p.nak() {
				nak = p
			}
			if again && !p.nak() && count(out, p) > 0 {
				continue
			}
		case ours&s.by(p) != 0:
			silent := last != nil && last.Time != 0 &&
				(!answered || p.Time-last.Time >= silence && (nak == nil || p.Time-nak.Time < silence))
			if silent && p.At < next {
				r.Again++
				again = true
				continue
			}
			last, nak, answered, next = p, nil, false, max(next, p.At+s.span(p))
		}
		out = append(out, *p)
	}
	return out
}

// afterLoss takes out the packet that was lost, if it came as far as the capture, and what
// the loss leaves to time: how much had left before it was known, and how often was asked
// again.
func (s *Session) afterLoss(in []Packet, kernel Side) (out []Packet) {
	expected, answer := int32(0), int32(0) // next of the requests, and of the responses to a READ
	var lost *Packet
	again := false // a request was sent a second time, which is all that a loss calls for
	for i := range in {
		p := &in[i]
		if lost == nil && p.Op == s.what.Lost && s.ofClient(p) && kernel&s.by(p) != 0 {
			lost = p
			continue
		}
		switch {
		case p.Op.Is(wire.Request):
			if p.At > expected {
				continue
			}
			if p.At < expected {
				if again || slices.ContainsFunc(out, func(o Packet) bool { return o.answers(p) }) {
					continue
				}
				// Ours has short timeouts. To a kernel it sends again on purpose only
				// what the kernel's answer was lost of.
				if kernel == Server && (lost == nil || p.At != lost.At) {
					continue
				}
				again = true
			}
			answer = p.At
			expected = max(expected, p.At+s.span(p))
		case p.nak() && count(out, p) > 0:
			continue
		case p.Op.Is(wire.ClassRead):
			if p.At != answer {
				continue
			}
			answer++
		case p.Op == wire.AtomicAck && count(out, p) > 0:
			continue
		}
		out = append(out, *p)
	}
	return out
}

// ofClient reports whether a packet belongs to a request of the client.
func (s *Session) ofClient(p *Packet) bool { return p.Op.Is(wire.Request) == (p.Src == s.Client) }

// answers reports whether p completes a request packet.
func (p *Packet) answers(r *Packet) bool {
	return p.Op.Is(wire.Response) && !p.rnr() && !p.nak() && p.At >= r.At
}

// span is how many sequence numbers a request packet takes.
func (s *Session) span(p *Packet) int32 {
	if p.Op != wire.ReadRequest {
		return 1
	}
	mtu := int32(rdma.MTUFromCode(s.req.MTU))
	return max(1, (int32(p.RETH.Len)+mtu-1)/mtu)
}

// count is how often a packet is in a list.
func count(in []Packet, p *Packet) (n int) {
	for i := range in {
		if in[i].key() == p.key() {
			n++
		}
	}
	return n
}
