package wirediff

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/test/rdma/requests"
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
	// adjust makes a packet of the kernel, behind these, what ours should be, and reports
	// whether it had to.
	adjust func(before []Packet, p *Packet) bool
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
		adjust: func(_ []Packet, p *Packet) bool {
			was := p.MigReq
			p.MigReq = true
			return !was
		},
	},
	{
		Name: "RNR timer",
		Why: "The responder chooses (IBTA 9.7.5.2.8): the kernel's connection manager leaves it at 0, 655 ms; " +
			"ours is 0.64 ms, as a receive that is missing is posted soon.",
		adjust: func(_ []Packet, p *Packet) bool {
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
		adjust: func(_ []Packet, p *Packet) bool {
			if !strings.HasPrefix(p.Session, tooLong) || p.Op != wire.Acknowledge || p.AETH.Syndrome != wire.NAKRemoteOp {
				return false
			}
			p.AETH.Syndrome = wire.NAKInvalidRequest
			return true
		},
	},
	{
		Name: "first response to the rest of a READ",
		Why: "A READ that is asked for again from its middle is answered from FIRST or ONLY on by network cards and ours, " +
			"as any " +
			"READ (IBTA 9.4.4); rdma_rxe goes on with MIDDLE or LAST. Requesters take both.",
		adjust: func(before []Packet, p *Packet) bool {
			if p.Op != wire.ReadRespMiddle && p.Op != wire.ReadRespLast {
				return false
			}
			i := lastWhere(before, func(b *Packet) bool { return b.Op == wire.ReadRequest })
			j := lastWhere(before, func(b *Packet) bool { return b.Op.Is(wire.HasAETH) })
			if i < 0 || j < 0 || before[i].At != p.At {
				return false
			}
			if p.Op == wire.ReadRespLast {
				p.Op = wire.ReadRespOnly
			} else {
				p.Op, p.AETH = wire.ReadRespFirst, before[j].AETH
			}
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

// Report is what Compare or CompareLosses has found.
type Report struct {
	What    string
	Packets int
	// Met counts the packets of each of Differences.
	Met []int
	// Again counts requests of ours that were sent again because no answer came in time.
	Again int
	// Diffs are what nobody expects: a text for each connection.
	Diffs []string
}

func newReport(what string) *Report { return &Report{What: what, Met: make([]int, len(Differences))} }

func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d packets, %d sent again in time of silence, %d differences\n", r.What, r.Packets, r.Again,
		len(r.Diffs))
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

// connections are those of the sequence, in order.
func connections() (out []requests.Connection, err error) {
	for _, part := range requests.Parts() {
		all, err := requests.Parse(part)
		if err != nil {
			return nil, err
		}
		out = append(out, all...)
	}
	return out, nil
}

// Of are the sessions of a playing; all must be there, and over.
func Of(all []*Session, p Played) (out []*Session, err error) {
	want, err := connections()
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.Client != p.Client || s.Server != p.Server {
			continue
		}
		if len(out) < len(want) {
			s.is(&want[len(out)])
		}
		if !s.Over {
			return nil, fmt.Errorf("%v: connection %s is not over", p, s.Name)
		}
		out = append(out, s)
	}
	if len(out) != len(want) {
		return nil, fmt.Errorf("%v: %d connections of %d", p, len(out), len(want))
	}
	return out, nil
}

// halves are the packets of a session by whose requests they belong to.
func (s *Session) halves() [2][]Packet { return [2][]Packet{s.Requests, s.Replies} }

var halfNames = [2]string{"requests of the client", "requests of the server"}

// againMax: no more than one packet of so many may have been sent again.
const againMax = 20

// Compare holds a playing with a side of ours against one of two kernels, in all
// connections of which no packet is to be lost.
func Compare(kernel, got []*Session, p Played) (*Report, error) {
	if len(kernel) != len(got) {
		return nil, fmt.Errorf("%d connections, and %d of the kernel", len(got), len(kernel))
	}
	r := newReport(p.String())
	for i, k := range kernel {
		g := got[i]
		if k.what.Loses {
			continue
		}
		r.Packets += len(g.Requests) + len(g.Replies)
		for h, name := range halfNames {
			want := r.asOurs(k.halves()[h], k, p.Ours)
			seen := omitted(g.halves()[h], func(q *Packet, _ int) bool { return p.Ours&g.by(q) == 0 })
			seen = r.withoutTimeouts(g, seen, p.Ours)
			r.diff(g.Name+", "+name, k.lines(normal(want)), g.lines(normal(seen)))
		}
	}
	if r.Again > r.Packets/againMax {
		r.Diffs = append(r.Diffs, fmt.Sprintf("%d of %d packets were sent again: no host is that busy\n", r.Again, r.Packets))
	}
	return r, nil
}

// CompareLosses holds two playings against each other in all connections of which a
// packet was lost: one of a kernel and ours, and one in which ours has the other role, so
// that what the kernel sends in the one is ours in the other.
func CompareLosses(a, b []*Session, pa, pb Played) (*Report, error) {
	if len(a) != len(b) || pa.Ours|pb.Ours != Client|Server {
		return nil, fmt.Errorf("%d connections and %d, of %v and %v", len(a), len(b), pa, pb)
	}
	r := newReport(fmt.Sprintf("with losses, %v, and the other way round", pa))
	for i := range a {
		if !a[i].what.Loses {
			continue
		}
		r.Packets += len(a[i].Requests) + len(a[i].Replies)
		for h, name := range halfNames {
			var lines [2][]line
			for k, s := range []*Session{a[i], b[i]} {
				kernel := (Client | Server) &^ []Played{pa, pb}[k].Ours
				in := r.asOurs(s.halves()[h], s, kernel)
				lines[k] = s.lines(newsOnly(s.afterLoss(in, kernel)))
			}
			r.diff(a[i].Name+", "+name, lines[0], lines[1])
		}
	}
	return r, nil
}

// diff notes how lines of ours differ from those that are wanted.
func (r *Report) diff(where string, want, got []line) {
	if d := diff(want, got); d != "" {
		r.Diffs = append(r.Diffs, fmt.Sprintf("%s: - wanted, + in %s\n%s", where, r.What, d))
	}
}

// lastWhere is the place of the last packet that is so, -1 if none is.
func lastWhere(in []Packet, is func(p *Packet) bool) int {
	for i := len(in) - 1; i >= 0; i-- {
		if is(&in[i]) {
			return i
		}
	}
	return -1
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
			if d.adjust != nil && d.adjust(out[:i], &out[i]) {
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

// diff is a line-by-line comparison, empty if there is no difference.
func diff(want, got []line) string {
	// common[i][j] is the length of the longest common subsequence from there on.
	common := make([][]int, len(want)+1)
	for i := range common {
		common[i] = make([]int, len(got)+1)
	}
	for i, w := range slices.Backward(want) {
		for j, g := range slices.Backward(got) {
			if w.text == g.text {
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
		case i < len(want) && j < len(got) && want[i].text == got[j].text:
			lines = append(lines, "   "+want[i].text)
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && common[i+1][j] >= common[i][j+1]:
			changed = append(changed, len(lines))
			lines = append(lines, fmt.Sprintf(" - %s  (packet %d)", want[i].text, want[i].number))
			i++
		default:
			changed = append(changed, len(lines))
			lines = append(lines, fmt.Sprintf(" + %s  (packet %d)", got[j].text, got[j].number))
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

// line is what must agree of a packet, and its number.
type line struct {
	text   string
	number int
}

func (s *Session) lines(packets []Packet) (out []line) {
	for i := range packets {
		out = append(out, line{s.text(&packets[i]), packets[i].Number})
	}
	return out
}
