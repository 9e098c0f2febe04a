package wirediff

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rstored/rstored/rdma/rdmatest/requests"
	"github.com/rstored/rstored/rdma/wire"
)

// Side says which sides of a session are ours.
type Side uint8

// The sides.
const (
	Client Side = 1 << iota
	Server
)

// Played is one playing of the sequence.
type Played struct {
	Client, Server netip.Addr
	Ours           Side
}

func (p Played) String() string {
	who := func(s Side, a netip.Addr) string {
		if p.Ours&s != 0 {
			return fmt.Sprintf("ours (%v)", a)
		}
		return fmt.Sprintf("the kernel (%v)", a)
	}
	return fmt.Sprintf("%s as client of %s", who(Client, p.Client), who(Server, p.Server))
}

// Difference is one in which both are right, or the kernel is not: what a packet of the
// kernel would be had it been ours.
type Difference struct {
	Name string
	Why  string
	// adjust makes a packet of the kernel what ours should be, and reports whether
	// it had to.
	adjust func(p *Packet) bool
	// omit reports that ours does not send a packet that the kernel sends behind
	// these. As how often depends on time, the kernel's packets are taken out wherever
	// they are.
	omit func(before []Packet, p *Packet) bool
}

// tooLong begins the names of connections whose SENDs are longer than the receives.
const tooLong = "too-long"

// Differences lists them. Each must be met, in a playing with our client or our server.
var Differences = []Difference{
	{
		Name: "MigReq",
		Why: "IBTA 17.2.8 has a queue pair without an alternate path migrated, and network cards send 1; rdma_rxe sends 0. " +
			"Nobody reads it without automatic path migration.",
		adjust: func(p *Packet) bool {
			was := p.MigReq
			p.MigReq = true
			return !was
		},
	},
	{
		Name: "RNR timer",
		Why: "The responder chooses (IBTA 9.7.5.2.8): the kernel's connection manager leaves it at 0, 655 ms; " +
			"ours is 0.64 ms, as a receive that is missing is posted soon.",
		adjust: func(p *Packet) bool {
			if !p.rnr() || p.AETH.Syndrome != wire.SyndromeRNR {
				return false
			}
			p.AETH.Syndrome |= ourRNRTimer
			return true
		},
	},
	{
		Name: "NAK of a SEND longer than its receive",
		Why: "An invalid request to IBTA 9.9.3 and to network cards. rdma_rxe means to say so too, but its copying returns " +
			"another error than the one it looks for, and it becomes a remote operational error.",
		adjust: func(p *Packet) bool {
			if !strings.HasPrefix(p.Session, tooLong) || p.Op != wire.Acknowledge || p.AETH.Syndrome != wire.NAKRemoteOp {
				return false
			}
			p.AETH.Syndrome = wire.NAKInvalidRequest
			return true
		},
	},
	{
		Name: "packets before that of an RNR NAK again",
		Why: "An RNR NAK acknowledges what is before its PSN (IBTA 9.7.5.2.8), and ours begins again there; " +
			"rdma_rxe begins behind the last ACK, and sends packets of the same message again that have arrived.",
		omit: func(before []Packet, p *Packet) bool {
			return p.Op.Is(wire.Request) &&
				slices.ContainsFunc(before, func(b Packet) bool { return b.rnr() && b.At > p.At }) &&
				slices.ContainsFunc(before, func(b Packet) bool { return b.Op == p.Op && b.At == p.At })
		},
	},
}

// ourRNRTimer is the code of 0.64 ms.
const ourRNRTimer = 12

// Report is what Compare has found.
type Report struct {
	Played  Played
	Packets int
	// Met counts the packets of each of Differences.
	Met []int
	// Diffs are what nobody expects: a text for each connection.
	Diffs []string
}

func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %d packets, %d connections differ\n", r.Played, r.Packets, len(r.Diffs))
	for i, d := range Differences {
		if r.Met[i] > 0 {
			fmt.Fprintf(&b, "  %d packets: %s. %s\n", r.Met[i], d.Name, d.Why)
		}
	}
	for _, d := range r.Diffs {
		b.WriteString(d)
	}
	return b.String()
}

// Names are the connections of the sequence in order.
func Names() (out []string, err error) {
	for _, part := range requests.Parts() {
		all, err := requests.Parse(part)
		if err != nil {
			return nil, err
		}
		for _, c := range all {
			out = append(out, c.Name)
		}
	}
	return out, nil
}

// Of are the sessions of a playing; all must be there, and over.
func Of(all []*Session, p Played) (out []*Session, err error) {
	names, err := Names()
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.Client != p.Client || s.Server != p.Server {
			continue
		}
		if len(out) < len(names) {
			s.name(names[len(out)])
		}
		if !s.Over {
			return nil, fmt.Errorf("%v: connection %s is not over", p, s.Name)
		}
		out = append(out, s)
	}
	if len(out) != len(names) {
		return nil, fmt.Errorf("%v: %d connections of %d", p, len(out), len(names))
	}
	return out, nil
}

// Compare holds a playing with a side of ours against one of two kernels.
func Compare(kernel, got []*Session, p Played) (*Report, error) {
	if len(kernel) != len(got) {
		return nil, fmt.Errorf("%d connections, and %d of the kernel", len(got), len(kernel))
	}
	r := &Report{Played: p, Met: make([]int, len(Differences))}
	for i := range got {
		r.Packets += len(got[i].Asked) + len(got[i].Told)
		for _, half := range []struct {
			name      string
			want, got []Packet
		}{
			{"requests of the client", kernel[i].Asked, got[i].Asked},
			{"requests of the server", kernel[i].Told, got[i].Told},
		} {
			want := r.asOurs(half.want, kernel[i], p.Ours)
			seen := omitted(half.got, func(q *Packet, _ int) bool { return p.Ours&got[i].by(q) == 0 })
			wantLines, _ := kernel[i].lines(normal(want))
			gotLines, numbers := got[i].lines(normal(seen))
			if d := diff(wantLines, gotLines, numbers); d != "" {
				r.Diffs = append(r.Diffs, fmt.Sprintf("%s, %s: - the kernel's, + of %v\n%s", got[i].Name, half.name, p, d))
			}
		}
	}
	return r, nil
}

// asOurs makes of packets of the kernel what they were had one side been ours.
func (r *Report) asOurs(in []Packet, s *Session, ours Side) []Packet {
	out := omitted(in, func(p *Packet, d int) bool {
		if ours&s.by(p) != 0 {
			r.Met[d]++
		}
		return true
	})
	for i := range out {
		if ours&s.by(&out[i]) == 0 {
			continue
		}
		for j, d := range Differences {
			if d.adjust != nil && d.adjust(&out[i]) {
				r.Met[j]++
			}
		}
	}
	return out
}

// omitted leaves out what one of Differences omits and where agrees to.
func omitted(in []Packet, where func(p *Packet, difference int) bool) (out []Packet) {
	for i := range in {
		leave := false
		for d, difference := range Differences {
			leave = leave || difference.omit != nil && difference.omit(in[:i], &in[i]) && where(&in[i], d)
		}
		if !leave {
			out = append(out, in[i])
		}
	}
	return out
}

// by is the side that has sent a packet of the session.
func (s *Session) by(p *Packet) Side {
	if p.Src == s.Client {
		return Client
	}
	return Server
}

// Unmet are the listed differences that no report has met: what the list says of them
// is not so any more.
func Unmet(reports ...*Report) (out []string) {
	for i, d := range Differences {
		met := 0
		for _, r := range reports {
			met += r.Met[i]
		}
		if met == 0 {
			out = append(out, d.Name)
		}
	}
	return out
}

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
		case p.ack() && next < len(in) && in[next].ack() && in[next].At >= p.At:
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
			if j == i || j == len(in) || in[j].key() != nak {
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

// diff is a line-by-line comparison, empty if there is none. The numbers are those of
// the packets of got.
func diff(want, got []string, numbers []int) string {
	// common[i][j] is the length of the longest common subsequence from there on.
	common := make([][]int, len(want)+1)
	for i := range common {
		common[i] = make([]int, len(got)+1)
	}
	for i, w := range slices.Backward(want) {
		for j, g := range slices.Backward(got) {
			if w == g {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var lines []string
	var changed []int // places in lines
	for i, j := 0, 0; i < len(want) || j < len(got); {
		switch {
		case i < len(want) && j < len(got) && want[i] == got[j]:
			lines = append(lines, "   "+want[i])
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && common[i+1][j] >= common[i][j+1]:
			changed = append(changed, len(lines))
			lines = append(lines, " - "+want[i])
			i++
		default:
			changed = append(changed, len(lines))
			lines = append(lines, fmt.Sprintf(" + %s  (packet %d)", got[j], numbers[j]))
			j++
		}
	}
	var b strings.Builder
	const around = 2
	shown := -1
	for _, c := range changed {
		from := max(c-around, shown+1)
		if from > shown+1 {
			b.WriteString("   ...\n")
		}
		for k := from; k <= min(c+around, len(lines)-1); k++ {
			b.WriteString(lines[k] + "\n")
			shown = k
		}
	}
	return b.String()
}

// lines are what must agree of packets of the session, and their numbers.
func (s *Session) lines(packets []Packet) (lines []string, numbers []int) {
	for i := range packets {
		lines = append(lines, s.line(&packets[i]))
		numbers = append(numbers, packets[i].Number)
	}
	return lines, numbers
}
