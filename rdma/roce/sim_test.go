package roce_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// world is two devices on a simulated network, in one goroutine.
type world struct {
	t    *testing.T
	net  *sim.Network
	dev  []*roce.Device
	side [2]*simSide
	psn  wire.PSN // of side 0's last request
	port uint16   // of the next listener
	dscp uint8    // of the next connection
}

// psnLink records the PSN of each request that is sent.
type psnLink struct {
	link.Link
	w *world
}

// Send implements link.Link.
func (l psnLink) Send(b *wire.Batch) error {
	for i := range b.D {
		if op := wire.Opcode(b.D[i].Hdr[0]); op.Is(wire.Request) && op.IsRC() {
			l.w.psn = wire.PSN(binary.BigEndian.Uint32(b.D[i].Hdr[8:]) & wire.PSNMask)
		}
	}
	return l.Link.Send(b)
}

// simSide is one end of a connection.
type simSide struct {
	pd     rdma.PD
	mr     rdma.MR
	cq     rdma.CQ
	conn   rdma.Conn
	events []rdma.ConnEvent
	wcs    []rdma.WC
	fallen func()        // if set, called when the connection is over
	done   func(rdma.WC) // if set, called for each completion
}

var simAddr = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}

// simAddr6 are the addresses for runs with flipped bits. Over IPv4 a socket does not see the
// identification, which the ICRC covers, so one flip in some ten thousand looks like another
// identification.
var simAddr6 = [2]netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}

const simMemory = 1 << 20

func newWorld(t *testing.T, cfg sim.Config, with ...func(side int, cfg *roce.Config)) *world {
	w := &world{t: t, net: sim.New(cfg), dev: make([]*roce.Device, 2), port: 7}
	addr := simAddr
	if cfg.Corrupt > 0 {
		addr = simAddr6
	}
	for i := range w.dev {
		l, err := w.net.Open(addr[i])
		if err != nil {
			t.Fatal(err)
		}
		cfg := roce.Config{Random: w.net.Rand().Uint32, AckTimeout: 15}
		if i == 0 {
			cfg.Wrap = func(_ int, l link.Link) link.Link { return psnLink{l, w} }
		}
		for _, fn := range with {
			fn(i, &cfg)
		}
		w.dev[i], err = roce.NewWithLink(l, cfg)
		if err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// run runs the world until done returns true, and reports whether it did within limit.
func (w *world) run(limit rdma.Time, done func() bool) bool {
	w.t.Helper()
	limit += w.net.Now()
	for !done() {
		next := w.net.Next()
		for _, d := range w.dev {
			if err := d.Turn(); err != nil {
				w.t.Fatal(err)
			}
			at := d.Deadline()
			if at < 0 {
				at = w.net.Now() + rdma.Microsecond
			}
			if at != 0 && (next == 0 || at < next) {
				next = at
			}
		}
		if n := w.net.Next(); n != 0 && (next == 0 || n < next) {
			next = n
		}
		if next == 0 || next > limit {
			return done()
		}
		w.net.Advance(next)
	}
	return true
}

func (w *world) qp(i int) rdma.QPConfig {
	s := &simSide{}
	w.side[i] = s
	d := w.dev[i]
	s.pd, _ = d.AllocPD()
	var err error
	if s.mr, err = s.pd.Register(make([]byte, simMemory), rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead); err != nil {
		w.t.Fatal(err)
	}
	s.cq, err = d.CreateCQ(d.Loops()[0], rdma.CQOptions{Depth: 256, OnEvent: func() {
		var wc [16]rdma.WC
		for n := s.cq.Poll(wc[:]); n > 0; n = s.cq.Poll(wc[:]) {
			s.wcs = append(s.wcs, wc[:n]...)
			for i := range wc[:n] {
				if s.done != nil {
					s.done(wc[i])
				}
			}
		}
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	return rdma.QPConfig{
		PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq,
		Caps: rdma.QPCaps{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
}

func (w *world) connect() {
	w.t.Helper()
	params := rdma.ConnParams{ResponderResources: 4, InitiatorDepth: 4}
	w.side = [2]*simSide{}
	on := func(i int) func(rdma.Conn, rdma.ConnEvent) {
		var s *simSide // of this connection
		return func(_ rdma.Conn, e rdma.ConnEvent) {
			if s == nil {
				s = w.side[i]
			}
			s.events = append(s.events, e)
			if e.Kind == rdma.EventDisconnected && s.fallen != nil {
				s.fallen()
			}
		}
	}
	port := w.port // each connection has a listener of its own
	w.port++
	if _, err := w.dev[1].Listen(port, func(r rdma.ConnRequest) {
		c, err := r.Accept(w.qp(1), params, nil, on(1))
		if err != nil {
			w.t.Error(err)
			return
		}
		w.side[1].conn = c
	}); err != nil {
		w.t.Fatal(err)
	}
	_ = w.dev[1].Turn()
	c, err := w.dev[0].Dial(w.dev[0].Loops()[0], rdma.DialParams{
		Remote: netip.AddrPortFrom(w.dev[1].Addr(), port), QP: w.qp(0), Params: params, DSCP: w.dscp, On: on(0),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.side[0].conn = c
	if !w.run(20*rdma.Second, func() bool {
		return len(w.side[0].events) > 0 && w.side[1] != nil && len(w.side[1].events) > 0
	}) {
		w.t.Fatal("no connection")
	}
	for i, s := range w.side {
		if s.events[0].Kind != rdma.EventEstablished {
			w.t.Fatalf("side %d: %+v", i, s.events[0])
		}
	}
}

// post posts a request of side 0 and waits for its completion.
func (w *world) post(wr rdma.SendWR) rdma.WC {
	w.t.Helper()
	s := w.side[0]
	s.wcs = s.wcs[:0]
	wr.Flags |= rdma.Signaled
	if err := s.conn.QP().PostSend([]rdma.SendWR{wr}); err != nil {
		w.t.Fatal(err)
	}
	if !w.run(60*rdma.Second, func() bool { return len(s.wcs) > 0 }) {
		w.t.Fatal("no completion")
	}
	return s.wcs[0]
}

// TestFaultyNetwork moves random bytes over a network with every fault. It runs twice: with one
// seed both runs must be equal.
func TestFaultyNetwork(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var runs [2]string
	for i := range runs {
		runs[i] = faultyRun(t, seed)
	}
	if runs[0] != runs[1] {
		t.Errorf("the same seed gave two runs:\n%s\n%s", runs[0], runs[1])
	}
}
