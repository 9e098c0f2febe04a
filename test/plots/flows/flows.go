// Package flows runs bulk transfers between queue pairs over a simulated network, to
// see what rate they get and how they share it. There is no device around the engines:
// each connection is made by hand, and a host is a loop over its queue pairs.
package flows

import (
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// Config describes an experiment: Flows hosts, each of which moves messages to or from
// one more host, the hub, by a connection of its own.
type Config struct {
	Net   sim.Config
	Flows int

	// Op is rdma.OpWrite or OpSend, whose data goes to the hub, or OpRead, whose data
	// comes from there.
	Op      rdma.SendOp
	MTU     rdma.MTU
	Message int // bytes
	Depth   int // messages under way
	// Stagger is the time between the starts of two flows.
	Stagger rdma.Time

	// Port is what all data passes through; none if its rate is 0.
	Port sim.Port
	// Receiver is how the host takes in data that it comes to.
	Receiver sim.Receiver

	// Fixed is that of rc.Config.
	Fixed bool
}

// Result is the result of an experiment.
type Result struct {
	Bytes []int64 // of each flow's completed messages
	// Requester and Responder are the counters of the flows' ends.
	Requester, Responder rc.Counters
	Net                  sim.Stats
	Port                 sim.PortStats
	Time                 rdma.Time
}

// Goodput is the bytes per second of all flows together.
func (r *Result) Goodput() float64 {
	sum := int64(0)
	for _, b := range r.Bytes {
		sum += b
	}
	return float64(sum) * float64(rdma.Second) / float64(r.Time)
}

// Fairness is Jain's index of the flows' bytes: 1 if all are equal, 1/n if one flow has
// everything.
func (r *Result) Fairness() float64 {
	var sum, squares float64
	for _, b := range r.Bytes {
		sum += float64(b)
		squares += float64(b) * float64(b)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(r.Bytes)) * squares)
}

// Experiment is one that is under way.
type Experiment struct {
	cfg   Config
	net   *sim.Network
	port  *sim.Bottleneck
	hosts []*host
	flows []*flow
	req   rc.Counters
	resp  rc.Counters
	start rdma.Time
	base  []int64 // bytes of the flows at the last Result
	since rdma.Time
}

// flow is the requester's end of a connection.
type flow struct {
	end   *end
	begin rdma.Time
	under int
	bytes int64
}

// host is an address and its queue pairs.
type host struct {
	link  *sim.Link
	rx    *link.Rx
	batch *wire.Batch
	ends  []*end // by number, from firstQPN on
	next  int    // whose turn it is to send
}

type end struct {
	qp   *rc.QP
	flow *flow // of a requester
	due  rdma.Time
}

const firstQPN = 0x100

// pages is memory where everything is allowed: nobody looks at the data.
type pages []byte

// Local implements rc.Memory.
func (pages) Local(_, _ uint32, _ []byte, _ bool) rdma.Status { return rdma.Success }

// Remote implements rc.Memory.
func (p pages) Remote(_, _, _ uint32, _ uint64, n uint32, _ rdma.Access) ([]byte, rdma.Status) {
	return p[:n], rdma.Success
}

// Invalidate implements rc.Memory.
func (pages) Invalidate(_, _, _ uint32) rdma.Status { return rdma.Success }

// Bind implements rc.Memory.
func (pages) Bind(_, _ uint32, _ *rdma.SendWR) rdma.Status { return rdma.Success }

// New sets an experiment up. It panics if the configuration makes no sense.
func New(cfg Config) *Experiment {
	if cfg.Depth == 0 {
		cfg.Depth = 8
	}
	if cfg.Message == 0 {
		cfg.Message = 64 << 10
	}
	if cfg.MTU == 0 {
		cfg.MTU = 4096
	}
	if cfg.Net.QueueBytes == 0 {
		cfg.Net.QueueBytes = 1 << 30 // a host waits for its own interface and drops nothing
	}
	x := &Experiment{cfg: cfg, net: sim.New(cfg.Net), base: make([]int64, cfg.Flows)}
	x.start, x.since = x.net.Now(), x.net.Now()
	hub := x.host(netip.AddrFrom4([4]byte{10, 0, 0, 1}))
	if cfg.Port.Rate > 0 {
		x.port = x.net.NewBottleneck(cfg.Port)
		from, to := netip.Addr{}, hub.link.LocalAddr()
		if cfg.Op == rdma.OpRead {
			from, to = to, from
		}
		x.net.Via(x.port, from, to)
	}
	if cfg.Op != rdma.OpRead {
		hub.link.SetReceiver(cfg.Receiver)
	}
	mem := make(pages, max(cfg.Message, int(cfg.MTU)))
	for i := range cfg.Flows {
		h := x.host(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
		if cfg.Op == rdma.OpRead {
			h.link.SetReceiver(cfg.Receiver)
		}
		a, b := x.connect(h, hub, mem)
		f := &flow{end: a, begin: x.start + rdma.Time(i)*cfg.Stagger}
		a.flow, a.due = f, f.begin
		x.flows = append(x.flows, f)
		if cfg.Op == rdma.OpSend {
			for range 2 * cfg.Depth {
				x.receive(b)
			}
		}
	}
	return x
}

func (x *Experiment) host(addr netip.Addr) *host {
	l, err := x.net.Open(addr)
	if err != nil {
		panic(err)
	}
	h := &host{link: l, rx: link.NewRx(1, 0), batch: wire.NewBatch(256)}
	x.hosts = append(x.hosts, h)
	return h
}

// connect makes a queue pair on each of two hosts, the first for requests.
func (x *Experiment) connect(a, b *host, mem pages) (*end, *end) {
	side := func(h *host, n *rc.Counters) *end {
		e := &end{qp: rc.New(rc.Config{
			Num: uint32(firstQPN + len(h.ends)), Mem: mem, Counters: n, Fixed: x.cfg.Fixed,
			Caps: rdma.QPCaps{MaxSendWR: x.cfg.Depth, MaxRecvWR: 2 * x.cfg.Depth, MaxSendSGE: 1, MaxRecvSGE: 1},
		})}
		h.ends = append(h.ends, e)
		return e
	}
	ea, eb := side(a, &x.req), side(b, &x.resp)
	up := func(e, peer *end, here, there *host) {
		for _, at := range []rdma.QPAttr{
			{State: rdma.StateInit, Access: rdma.RemoteWrite | rdma.RemoteRead, PKey: wire.DefaultPKey},
			{
				State: rdma.StateRTR, LocalAddr: here.link.LocalAddr(), RemoteAddr: there.link.LocalAddr(), PathMTU: x.cfg.MTU,
				DestQPN: peer.qp.Num(), MaxDestRd: 16, MinRNRTimer: 12,
			},
			{State: rdma.StateRTS, MaxRdAtomic: 16, AckTimeout: 19, RetryCount: 7, RNRRetryCount: 7},
		} {
			if err := e.qp.Modify(x.net.Now(), at); err != nil {
				panic(err)
			}
		}
	}
	up(ea, eb, a, b)
	up(eb, ea, b, a)
	return ea, eb
}

// receive posts a receive.
func (x *Experiment) receive(e *end) {
	err := e.qp.PostRecv(x.net.Now(), []rdma.RecvWR{{SGL: []rdma.SGE{{Buf: make([]byte, x.cfg.Message)}}}})
	if err != nil {
		panic(err)
	}
}

// Run continues the experiment for a time.
func (x *Experiment) Run(d rdma.Time) {
	end := x.net.Now() + d
	for {
		now := x.net.Now()
		next := end
		for _, h := range x.hosts {
			if due := x.turn(h, now); due != 0 {
				next = min(next, max(due, now+1))
			}
		}
		if n := x.net.Next(); n != 0 {
			next = min(next, n)
		}
		x.net.Advance(next)
		if x.net.Now() >= end {
			return
		}
	}
}

// turn lets a host do what it can, and returns when it wants to do more; 0 for never.
func (x *Experiment) turn(h *host, now rdma.Time) (next rdma.Time) {
	for h.link.Arrived() > 0 {
		k, _ := h.link.Recv(h.rx, 0)
		for i := range k {
			x.packet(h, now, &h.rx.D[i])
		}
	}
	for _, e := range h.ends {
		if e.due != 0 && e.due <= now {
			x.visit(e, now)
		}
	}
	if at := x.send(h, now); at != 0 {
		return at
	}
	for _, e := range h.ends {
		if e.due != 0 && (next == 0 || e.due < next) {
			next = e.due
		}
	}
	return next
}

func (x *Experiment) packet(h *host, now rdma.Time, d *link.RxDatagram) {
	f := wire.Flow{Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort}
	var p wire.Packet
	if x.cfg.Net.Corrupt > 0 {
		if ok, _, _ := wire.VerifyICRC(&f, d.Data, 0); !ok {
			return
		}
	}
	if p.Parse(d.Data) != nil || p.DestQPN < firstQPN || p.DestQPN >= uint32(firstQPN+len(h.ends)) {
		return
	}
	p.Src, p.Dst, p.ECN = d.Src, d.Dst, d.TOS&3
	e := h.ends[p.DestQPN-firstQPN]
	e.qp.Receive(now, &p)
	e.due = now
}

// visit lets a queue pair do what it can.
func (x *Experiment) visit(e *end, now rdma.Time) {
	if d := e.qp.Deadline(); d != 0 && d <= now {
		e.qp.Expire(now)
	}
	var wc [64]rdma.WC
	for n := e.qp.PollSend(wc[:]); n > 0; n = e.qp.PollSend(wc[:]) {
		for i := range n {
			if wc[i].Status != rdma.Success {
				panic(fmt.Sprintf("a request completed with %v: %v", wc[i].Status, e.qp.Err()))
			}
			e.flow.under--
			e.flow.bytes += int64(x.cfg.Message)
		}
	}
	for n := e.qp.PollRecv(wc[:]); n > 0; n = e.qp.PollRecv(wc[:]) {
		for range n {
			x.receive(e)
		}
	}
	if f := e.flow; f != nil && now >= f.begin {
		for ; f.under < x.cfg.Depth; f.under++ {
			err := e.qp.PostSend(now, []rdma.SendWR{{
				Op: x.cfg.Op, Flags: rdma.Signaled,
				SGL: []rdma.SGE{{Buf: data[:x.cfg.Message]}},
			}})
			if err != nil {
				panic(err)
			}
		}
	}
	x.later(e, now)
}

// backlogMax is how far a host is ahead of its interface: the socket's send buffer.
const backlogMax = 500 * rdma.Microsecond

// send lets the queue pairs send in turn, and returns when to continue if the interface does not
// keep up.
func (x *Experiment) send(h *host, now rdma.Time) rdma.Time {
	for idle := 0; idle < len(h.ends); {
		if ahead := h.link.Backlog() - now; ahead > backlogMax {
			return now + ahead - backlogMax/2
		}
		e := h.ends[h.next]
		h.next = (h.next + 1) % len(h.ends)
		if !e.qp.HasWork(now) {
			idle++
			continue
		}
		idle = 0
		h.batch.Reset()
		e.qp.Transmit(now, h.batch)
		_ = h.link.Send(h.batch)
		x.later(e, now)
	}
	return 0
}

// later notes when the queue pair has to be looked after again.
func (x *Experiment) later(e *end, now rdma.Time) {
	e.due = 0
	if d := e.qp.Deadline(); d != 0 {
		e.due = max(d, now+1)
	}
	if f := e.flow; f != nil && now < f.begin {
		e.due = f.begin
	}
}

// data is what all flows send and where all data goes.
var data [8 << 20]byte

// Result says what has come of the experiment since the last call.
func (x *Experiment) Result() Result {
	r := Result{Requester: x.req, Responder: x.resp, Net: x.net.Stats, Time: x.net.Now() - x.since}
	if x.port != nil {
		r.Port = x.port.Stats
	}
	for i, f := range x.flows {
		r.Bytes = append(r.Bytes, f.bytes-x.base[i])
		x.base[i] = f.bytes
	}
	x.since = x.net.Now()
	return r
}

// Run runs a new experiment. It returns the result for the time d after the time settle.
func Run(cfg Config, settle, d rdma.Time) Result {
	x := New(cfg)
	x.Run(settle)
	x.Result()
	x.Run(d)
	return x.Result()
}
