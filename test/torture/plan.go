// Package torture runs random programs of verbs between RDMA devices on a simulated
// network with random faults, and holds every completion and every byte of memory
// against a model. A seed decides everything, down to the last packet: a run that
// fails can be run again, and made smaller.
package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/sim"
)

// Kind is what an Event does.
type Kind uint8

// Kinds. Those from Cut on are faults.
const (
	Connect    Kind = iota // Conn, from Host to Peer
	Post                   // Op on Conn, by its active side or, with Back, by the other
	Disconnect             // Conn, by Host
	Cut                    // nothing gets from Host to Peer, and with Back vice versa, for For
	Freeze                 // Host does nothing for For
	Jump                   // nobody does anything for For, as if all clocks jumped
	Crash                  // Host loses everything, and is back after For
	Weather                // Loss and the others are in force for For
)

var kindNames = [...]string{"connect", "post", "disconnect", "cut", "freeze", "jump", "crash", "weather"}

func (k Kind) String() string { return kindNames[k] }

// Event is one step of a Plan. It stands for itself, so that any of them can be left
// out: what refers to something that is not there does nothing.
type Event struct {
	At         rdma.Time // since the start
	Kind       Kind
	Host, Peer int
	Conn       int
	Back       bool
	For        rdma.Time

	Op     rdma.SendOp
	Offset uint32 // in the peer's memory
	Size   uint32
	Cut    uint32 // gather and scatter lists are split here
	Quiet  bool   // not signaled
	Inline bool
	Flags  rdma.SendFlags // Fence, Solicited
	Seed   uint64         // of the content

	Loss, Duplicate, Reorder, Corrupt, Truncate float64
}

func (e *Event) String() string {
	at := fmt.Sprintf("%10.6f %v", float64(e.At)/float64(rdma.Second), e.Kind)
	long := fmt.Sprintf("for %.3f s", float64(e.For)/float64(rdma.Second))
	switch e.Kind {
	case Connect:
		return fmt.Sprintf("%s %d, host %d to host %d", at, e.Conn, e.Host, e.Peer)
	case Post:
		return fmt.Sprintf("%s on %d, back %t: op %d, %d bytes at %d, cut at %d, quiet %t, inline %t, flags %d", at, e.Conn,
			e.Back, e.Op, e.Size, e.Offset, e.Cut, e.Quiet, e.Inline, e.Flags)
	case Disconnect:
		return fmt.Sprintf("%s %d, back %t", at, e.Conn, e.Back)
	case Cut:
		return fmt.Sprintf("%s host %d from host %d, both ways %t, %s", at, e.Host, e.Peer, e.Back, long)
	case Weather:
		return fmt.Sprintf("%s loss %.3f duplicates %.3f reordering %.3f corruption %.3f truncation %.3f, %s", at, e.Loss,
			e.Duplicate, e.Reorder, e.Corrupt, e.Truncate, long)
	}
	return fmt.Sprintf("%s host %d, %s", at, e.Host, long)
}

// Plan is a program with its faults.
type Plan struct {
	Seed  uint64 // of the network, and of the devices' random numbers
	Hosts int
	MTU   int // of the interfaces, in bytes
	// Shared has connections take their receives from shared receive queues.
	Shared bool
	// Port is what everything passes through; none if its rate is 0.
	Port   sim.Port
	Events []Event
}

func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %d hosts, interface MTU %d, shared receives %t, port %+v\n", p.Seed, p.Hosts, p.MTU,
		p.Shared, p.Port)
	for i := range p.Events {
		fmt.Fprintln(&b, p.Events[i].String())
	}
	return b.String()
}

// gentle reports whether no connection has a reason to end but a Disconnect.
func (p *Plan) gentle() bool {
	return !slices.ContainsFunc(p.Events, func(e Event) bool {
		switch e.Kind {
		case Cut, Freeze, Jump, Crash:
			return true
		case Weather:
			return e.Loss > 0.03 || e.Corrupt > 0.02 || e.Truncate > 0.02
		}
		return false
	})
}

// Memory of a connection's side, in bytes. Peers write to the first part and count in
// the words behind it.
const (
	memory   = 64 << 10
	words    = 8
	targets  = memory + 8*words
	sizeMax  = 40_000
	sendMax  = 12_000 // and the size of a receive
	connsMax = 6
	// inlineMax is the largest inline request.
	inlineMax = 64
)

// span of a plan, before everything heals.
const span = 4 * rdma.Second

// Generate makes the plan of a seed.
func Generate(seed uint64) *Plan {
	r := rand.New(rand.NewPCG(seed, 0x746f7274))
	p := &Plan{Seed: seed, Hosts: 2 + r.IntN(2), MTU: []int{1500, 4200, 9000, 600}[r.IntN(4)]}
	p.Shared = r.IntN(3) == 0
	if r.IntN(3) == 0 {
		p.Port = sim.Port{Rate: int64(1+r.IntN(100)) * 10e6, Queue: int64(1+r.IntN(64)) << 14}
		if r.IntN(2) == 0 {
			p.Port.Mark = p.Port.Queue / 4
		}
	}
	pick := func(min, max rdma.Time) rdma.Time { return min + rdma.Time(r.Int64N(int64(max-min))) }
	add := func(e Event) { p.Events = append(p.Events, e) }
	conns := 1 + r.IntN(connsMax)
	for c := range conns {
		host := r.IntN(p.Hosts)
		at := rdma.Time(0)
		if r.IntN(3) == 0 {
			at = pick(0, span/2)
		}
		add(Event{At: at, Kind: Connect, Conn: c, Host: host, Peer: (host + 1 + r.IntN(p.Hosts-1)) % p.Hosts})
		if r.IntN(3) == 0 { // and once more, when the first may be gone
			add(Event{At: pick(span/2, span), Kind: Connect, Conn: c, Host: host, Peer: (host + 1) % p.Hosts})
		}
		if r.IntN(4) == 0 {
			add(Event{At: pick(span/4, span), Kind: Disconnect, Conn: c, Back: r.IntN(2) == 0})
		}
	}
	ops := []rdma.SendOp{
		rdma.OpSend, rdma.OpSend, rdma.OpSendImm, rdma.OpWrite, rdma.OpWrite, rdma.OpWrite, rdma.OpWriteImm,
		rdma.OpRead, rdma.OpRead, rdma.OpCompareSwap, rdma.OpFetchAdd,
	}
	for range 10 + r.IntN(120) {
		// Requests come in bursts, so that many are under way at once.
		at := pick(0, span)
		c, back := r.IntN(conns), r.IntN(3) == 0
		for range 1 + r.IntN(8) {
			e := Event{
				At: at, Kind: Post, Conn: c, Back: back, Op: ops[r.IntN(len(ops))], Seed: r.Uint64(),
				Quiet: r.IntN(3) == 0,
			}
			most := sizeMax
			if e.Op == rdma.OpSend || e.Op == rdma.OpSendImm {
				most = sendMax
			}
			switch r.IntN(4) {
			case 0:
				e.Size = uint32(r.IntN(16))
			case 1:
				e.Size = uint32(r.IntN(2000))
			default:
				e.Size = uint32(r.IntN(most))
			}
			if e.Op == rdma.OpCompareSwap || e.Op == rdma.OpFetchAdd {
				e.Size, e.Offset = 8, memory+8*uint32(r.IntN(words))
			} else {
				e.Offset = uint32(r.IntN(memory - int(e.Size)))
				e.Cut = uint32(r.IntN(int(e.Size) + 1))
			}
			if e.Size <= inlineMax && e.Op <= rdma.OpWriteImm {
				e.Inline = r.IntN(2) == 0
			}
			e.Flags = []rdma.SendFlags{0, 0, 0, rdma.Fence, rdma.Solicited}[r.IntN(5)]
			add(e)
		}
	}
	faults := [...]int{0, 1, 3, 8}[r.IntN(4)]
	for range faults {
		host := r.IntN(p.Hosts)
		e := Event{At: pick(0, span), Host: host, Peer: (host + 1 + r.IntN(p.Hosts-1)) % p.Hosts, Back: r.IntN(2) == 0}
		// Short ones must be survived, long ones end connections.
		e.For = pick(rdma.Millisecond, 300*rdma.Millisecond)
		if r.IntN(4) == 0 {
			e.For = pick(rdma.Second, 60*rdma.Second)
		}
		switch r.IntN(7) {
		case 0:
			e.Kind = Cut
		case 1:
			e.Kind = Freeze
		case 2:
			e.Kind = Jump
		case 3:
			e.Kind = Crash
		default:
			e.Kind = Weather
			rate := func() float64 {
				return [...]float64{0, 0, 0.001, 0.01, 0.03, 0.2}[r.IntN(6)]
			}
			e.Loss, e.Duplicate, e.Reorder, e.Corrupt, e.Truncate = rate(), rate(), rate(), rate(), rate()
		}
		add(e)
	}
	slices.SortStableFunc(p.Events, func(a, b Event) int { return int(min(max(a.At-b.At, -1), 1)) })
	return p
}

// Shrink looks for a smaller plan that fails too: it leaves out runs of events, long
// ones first, as long as the rest still fails. It runs plans at most tries times.
func Shrink(p *Plan, fails func(*Plan) bool, tries int) *Plan {
	best := *p
	for size := len(best.Events) / 2; size > 0; size /= 2 {
		for at := 0; at < len(best.Events); {
			if tries == 0 {
				return &best
			}
			tries--
			next := best
			next.Events = slices.Concat(best.Events[:at], best.Events[min(at+size, len(best.Events)):])
			if fails(&next) {
				best = next
			} else {
				at += size
			}
		}
	}
	return &best
}
