package torture

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
)

const (
	port      = 7
	depth     = 64 // send requests and receives of a queue pair
	reads     = 4  // RDMA READs and atomics at once, each way
	settleMax = 300 * rdma.Second
)

// world is a plan being carried out.
type world struct {
	plan  *Plan
	net   *sim.Network
	rnd   *rand.Rand // of what the plan does not say
	hosts []*host
	conns map[int]*connection // by number, the latest
	all   []*connection
	start rdma.Time
	err   error

	weather      Event
	weatherUntil rdma.Time
	digest       uint64
}

// host is a device, and what the plan does to it.
type host struct {
	w      *world
	n      int
	addr   netip.Addr
	dev    *roce.Device
	link   *sim.Link
	lives  int       // how often it came up
	frozen rdma.Time // until then
	back   rdma.Time // when it comes up again; 0 while it is up
	cut    []rdma.Time
}

// faultyLink is a host's link: what comes in may be cut off, or short.
type faultyLink struct {
	*sim.Link
	h *host
}

// Recv implements link.Link.
func (l faultyLink) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	_, err := l.Link.Recv(rx, deadline)
	w := l.h.w
	kept := rx.D[:0]
	for _, d := range rx.D {
		if from := w.host(d.Src); from != nil && w.net.Now() < l.h.cut[from.n] {
			continue
		}
		if w.net.Now() < w.weatherUntil && w.rnd.Float64() < w.weather.Truncate {
			d.Data = d.Data[:w.rnd.IntN(len(d.Data))]
		}
		kept = append(kept, d)
	}
	rx.D = kept
	return len(kept), err
}

// Result is what a run was like.
type Result struct {
	Digest                     uint64 // of everything that happened: the same each time
	Connections, Broken        int
	Requests, Succeeded, Reads int // Reads: of those that succeeded, READs and atomics
	Messages                   int // received
	Packets, Retransmitted     uint64
	Virtual                    rdma.Time
}

// Run carries a plan out, and returns the first thing that was not as it must be.
func Run(p *Plan) (result Result, err error) {
	w := &world{plan: p, rnd: rand.New(rand.NewPCG(p.Seed, 1)), conns: make(map[int]*connection)}
	w.net = sim.New(sim.Config{Seed: p.Seed, MTU: p.MTU})
	if p.Port.Rate > 0 {
		w.net.Via(w.net.NewBottleneck(p.Port), netip.Addr{}, netip.Addr{})
	}
	w.start = w.net.Now()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	for i := range p.Hosts {
		h := &host{
			w: w, n: i, addr: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(1 + i)}),
			cut: make([]rdma.Time, p.Hosts),
		}
		w.hosts = append(w.hosts, h)
		if err := h.up(); err != nil {
			return result, err
		}
	}
	for _, e := range p.Events {
		w.until(w.start+e.At, func() bool { return w.err != nil })
		w.do(e)
	}
	w.finish()
	return w.result(), w.err
}

func (w *world) result() Result {
	r := Result{Digest: w.digest, Connections: len(w.all), Packets: w.net.Stats.Sent, Virtual: w.net.Now() - w.start}
	for _, h := range w.hosts {
		r.Retransmitted += h.dev.Stats().RC.TxRetransmits
	}
	for _, c := range w.all {
		for _, s := range c.side {
			if s == nil {
				continue
			}
			r.Messages += s.gotten
			r.Requests += len(s.ops)
			if s.failed {
				r.Broken++
			}
			for _, o := range s.ops {
				if o.success {
					r.Succeeded++
					if o.sink != nil {
						r.Reads++
					}
				}
			}
		}
	}
	return r
}

func (w *world) host(a netip.Addr) *host {
	for _, h := range w.hosts {
		if h.addr == a {
			return h
		}
	}
	return nil
}

// failf notes the first thing that is wrong.
func (w *world) failf(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("after %.6f s: %w", float64(w.net.Now()-w.start)/float64(rdma.Second), fmt.Errorf(format, args...))
	}
}

func (w *world) note(v ...uint64) {
	for _, x := range v {
		w.digest = (w.digest ^ x) * 0x100000001b3
	}
}

// up starts a host's device.
func (h *host) up() error {
	l, err := h.w.net.Open(h.addr)
	if err != nil {
		return err
	}
	h.link = l
	h.lives++
	random := rand.New(rand.NewPCG(h.w.plan.Seed, uint64(100*h.lives+h.n)))
	h.dev, err = roce.NewWithLink(l, roce.Config{
		Random: random.Uint32, AckTimeout: 14, // 67 ms, so that the retries of a dead peer are over in a second
		Wrap: func(_ int, l link.Link) link.Link { return faultyLink{l.(*sim.Link), h} },
	})
	if err != nil {
		return err
	}
	_, err = h.dev.Listen(port, h.accept)
	h.back = 0
	return err
}

// crash loses the host with all that is on it, and says goodbye to nobody.
func (h *host) crash(back rdma.Time) error {
	for _, c := range h.w.all {
		for _, s := range c.side {
			if s != nil && s.host == h {
				s.crashed = true
			}
		}
	}
	h.back = back
	return h.link.Close()
}

// until turns everything until the time has come or done says so.
func (w *world) until(end rdma.Time, done func() bool) {
	for w.err == nil && !done() {
		now := w.net.Now()
		if now < w.weatherUntil {
			e := &w.weather
			w.net.Set(sim.Config{Loss: e.Loss, Duplicate: e.Duplicate, Reorder: e.Reorder, Corrupt: e.Corrupt})
		} else {
			w.net.Set(sim.Config{})
		}
		next := end
		sooner := func(at rdma.Time) {
			if at != 0 && at < next {
				next = max(at, now)
			}
		}
		sooner(w.net.Next())
		if now < w.weatherUntil {
			sooner(w.weatherUntil)
		}
		for _, h := range w.hosts {
			switch {
			case h.back != 0 && now >= h.back:
				if err := h.up(); err != nil {
					w.failf("host %d does not come up: %w", h.n, err)
				}
				next = now
				continue
			case h.back != 0:
				sooner(h.back)
				continue
			case now < h.frozen:
				sooner(h.frozen)
				continue
			}
			if err := h.dev.Turn(); err != nil {
				w.failf("host %d: %w", h.n, err)
				return
			}
			switch at := h.dev.Deadline(); {
			case at < 0:
				sooner(now + rdma.Microsecond)
			case at > 0:
				sooner(max(at, now+1))
			}
		}
		sooner(w.net.Next())
		if now >= end {
			return
		}
		w.net.Advance(next)
	}
}

// do carries out an event.
func (w *world) do(e Event) {
	if w.err != nil {
		return
	}
	now := w.net.Now()
	h := w.hosts[e.Host]
	switch e.Kind {
	case Connect:
		if c := w.conns[e.Conn]; c == nil || c.over() {
			w.connect(e)
		}
	case Post:
		if c := w.conns[e.Conn]; c != nil {
			if s := c.of(e.Back); s.usable() {
				s.post(e)
			}
		}
	case Disconnect:
		if c := w.conns[e.Conn]; c != nil {
			if s := c.of(e.Back); s.usable() {
				c.ended = true
				s.submit(s.conn.Disconnect)
			}
		}
	case Cut:
		w.hosts[e.Peer].cut[e.Host] = now + e.For
		if e.Back {
			h.cut[e.Peer] = now + e.For
		}
	case Freeze:
		h.frozen = max(h.frozen, now+e.For)
	case Jump:
		for _, h := range w.hosts {
			h.frozen = max(h.frozen, now+e.For)
		}
	case Crash:
		if h.back == 0 {
			if err := h.crash(now + e.For); err != nil {
				w.failf("%w", err)
			}
		}
	case Weather:
		w.weather, w.weatherUntil = e, now+e.For
	}
}

// finish lets everything heal and looks at what is left.
func (w *world) finish() {
	w.weatherUntil = 0
	heal := w.net.Now()
	for _, h := range w.hosts {
		heal = max(heal, h.frozen, h.back)
		clear(h.cut)
	}
	w.until(heal, func() bool { return false })
	// Whatever is up is used once more: what is not really up finds out.
	for _, c := range w.all {
		for _, s := range c.side {
			if s.usable() {
				s.post(Event{Kind: Post, Op: rdma.OpWrite, Size: 8, Cut: 3, Seed: 1})
			}
		}
	}
	settled := func() bool {
		for _, c := range w.all {
			for _, s := range c.side {
				if s != nil && !s.settled() {
					return false
				}
			}
		}
		return true
	}
	w.until(w.net.Now()+settleMax, settled)
	for _, c := range w.all {
		c.check()
	}
	if w.err != nil {
		return
	}
	for _, h := range w.hosts {
		for _, c := range w.all {
			for _, s := range c.side {
				if s != nil && s.host == h && !s.crashed {
					s.close()
				}
			}
		}
	}
	w.until(w.net.Now()+20*rdma.Second, func() bool { return false })
	for _, h := range w.hosts {
		st := h.dev.Stats()
		if st.QPs != 0 || st.Regions != 0 {
			w.failf("host %d keeps %d queue pairs and %d regions", h.n, st.QPs, st.Regions)
		}
		w.note(st.RC.TxPackets, st.RC.RxPackets, st.RC.TxRetransmits)
	}
	w.note(w.net.Stats.Sent, w.net.Stats.Delivered, uint64(w.net.Now()))
}
