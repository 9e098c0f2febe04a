package roce_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// stranger is a host whose connection manager is played by the test. It does not answer REPs.
type stranger struct {
	w    *world
	link *sim.Link
}

const (
	strangerQPN  = 0x51
	strangerPSN  = 0x1000 // the PSN in its REQ
	strangerComm = 0x77
)

func (w *world) stranger() *stranger {
	w.t.Helper()
	l, err := w.net.Open(netip.MustParseAddr("192.0.2.77"))
	if err != nil {
		w.t.Fatal(err)
	}
	return &stranger{w, l}
}

// ask sends a REQ with an ACK timeout.
func (s *stranger) ask(port uint16, ackTimeout uint8) {
	s.w.t.Helper()
	r := cm.REQ{
		LocalID: strangerComm, ServiceID: cm.ServiceID(port), GUID: 7, QPN: strangerQPN, PSN: strangerPSN,
		MTU:                rdma.MTU(1024).Code(),
		ResponderResources: 4, InitiatorDepth: 4, RetryCount: 7, RNRRetryCount: 7, PKey: wire.DefaultPKey,
		Primary: cm.Path{LocalGID: s.link.LocalAddr(), RemoteGID: simAddr[1], AckTimeout: ackTimeout},
	}
	h := cm.IPHeader{Src: netip.AddrPortFrom(s.link.LocalAddr(), 4000), Dst: simAddr[1]}
	h.Put(r.Private[:])
	s.manage(r.Encode(cm.Header{TID: 1}))
}

// manage sends a CM message.
func (s *stranger) manage(mad []byte) {
	s.w.t.Helper()
	m := &mallory{w: s.w, link: s.link}
	m.send(s.link.LocalAddr(), &wire.Packet{
		Op: wire.UDSendOnly, MigReq: true, PKey: wire.DefaultPKey, DestQPN: wire.QP1,
		DETH: wire.DETH{QKey: cm.QKey, SrcQPN: wire.QP1},
	}, mad)
}

// reply waits for the REP.
func (s *stranger) reply() (rep cm.REP) {
	s.w.t.Helper()
	rx := link.NewRx(16, 1<<16)
	if !s.w.run(rdma.Second, func() bool {
		n, err := s.link.Recv(rx, 0)
		if err != nil {
			s.w.t.Fatal(err)
		}
		for i := range n {
			var p wire.Packet
			if err := p.Parse(rx.D[i].Data); err != nil {
				s.w.t.Fatal(err)
			}
			if h, err := cm.ParseHeader(p.Payload); err == nil && h.Attr == cm.AttrREP {
				rep = cm.ParseREP(p.Payload)
			}
		}
		return rep.QPN != 0
	}) {
		s.w.t.Fatal("no REP")
	}
	return rep
}

// listen accepts connections as side 1.
func (w *world) listen(port uint16) {
	w.t.Helper()
	if _, err := w.dev[1].Listen(port, func(r rdma.ConnRequest) {
		cfg := w.qp(1)
		s := w.side[1]
		c, err := r.Accept(cfg, rdma.ConnParams{ResponderResources: 4, InitiatorDepth: 4}, nil,
			func(_ rdma.Conn, e rdma.ConnEvent) {
				s.events = append(s.events, e)
			})
		if err != nil {
			w.t.Error(err)
			return
		}
		s.conn = c
	}); err != nil {
		w.t.Fatal(err)
	}
	_ = w.dev[1].Turn()
}

// TestHalfOpen: a request that its queue pair accepts establishes a half-open connection. A packet
// that the queue pair drops does not: of another partition, with another PSN, or of another host.
func TestHalfOpen(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 21})
	w.listen(7)
	s, m := w.stranger(), w.mallory()
	s.ask(7, 14)
	rep := s.reply()
	side := w.side[1]
	good := wire.Packet{
		Op: wire.WriteOnly, AckReq: true, PKey: wire.DefaultPKey, DestQPN: rep.QPN, PSN: wire.PSN(rep.PSN),
		RETH: wire.RETH{VA: side.mr.Addr(), RKey: side.mr.RKey(), Len: 4},
	}
	try := func(what string, from netip.Addr, change func(*wire.Packet)) {
		t.Helper()
		p := good
		change(&p)
		payload := []byte("data")
		if !p.Op.Is(wire.ClassWrite) {
			payload = nil
		}
		m.send(from, &p, payload)
		w.run(rdma.Millisecond, func() bool { return len(side.events) > 0 })
		if len(side.events) > 0 {
			t.Errorf("%s: %+v", what, side.events)
			side.events = nil
		}
	}
	peer := s.link.LocalAddr()
	try("another partition", peer, func(p *wire.Packet) { p.PKey = 0x8001 })
	try("a later packet number", peer, func(p *wire.Packet) { p.PSN = p.PSN.Add(1) })
	try("an earlier packet number", peer, func(p *wire.Packet) { p.PSN = p.PSN.Add(-1) })
	try("a CNP", peer, func(p *wire.Packet) { p.Op = wire.CNP })
	try("an ACK of nothing", peer, func(p *wire.Packet) { p.Op, p.PSN = wire.Acknowledge, strangerPSN })
	try("an ACK of what was before", peer, func(p *wire.Packet) { p.Op, p.PSN = wire.Acknowledge, strangerPSN-1 })
	try("another host", m.link.LocalAddr(), func(*wire.Packet) {})
	if s := w.dev[1].Stats(); s.RC.DropPKey == 0 || s.RC.RxOutOfSequence == 0 || s.RC.RxDuplicate == 0 ||
		s.RC.DropPeer == 0 {
		t.Errorf("the packets did not reach the queue pair: %+v", s.RC)
	}
	m.send(peer, &good, []byte("data"))
	if !w.run(rdma.Second, func() bool { return len(side.events) > 0 }) || side.events[0].Kind != rdma.EventEstablished {
		t.Errorf("by its data: %+v", side.events)
	}
}

// TestAckTimeoutOfPeer: whatever ACK timeout a REQ names, a peer that has vanished is detected
// within two minutes. A peer that names a very short timeout has a few milliseconds.
func TestAckTimeoutOfPeer(t *testing.T) {
	for _, code := range []uint8{0, 1, 14, 31} {
		w := newWorld(t, sim.Config{Seed: 22})
		w.listen(7)
		s := w.stranger()
		s.ask(7, code)
		rep := s.reply()
		side := w.side[1]
		ids := cm.IDs{LocalID: strangerComm, RemoteID: rep.LocalID}
		s.manage(ids.Encode(cm.Header{TID: 1, Attr: cm.AttrRTU}))
		if !w.run(rdma.Second, func() bool { return len(side.events) > 0 }) || side.events[0].Kind != rdma.EventEstablished {
			t.Fatalf("code %d: %+v", code, side.events)
		}
		if err := side.conn.QP().PostSend([]rdma.SendWR{{
			Op: rdma.OpWrite, Flags: rdma.Signaled, RemoteAddr: 4096,
			RKey: 1,
		}}); err != nil {
			t.Fatal(err)
		}
		start := w.net.Now()
		if !w.run(300*rdma.Second, func() bool { return len(side.events) > 1 }) {
			t.Fatalf("code %d: a peer that is silent holds its connection", code)
		}
		took := w.net.Now() - start
		if e := side.events[1]; e.Kind != rdma.EventDisconnected || took < 5*rdma.Millisecond {
			t.Errorf("code %d: %+v after %d ms", code, e, took/rdma.Millisecond)
		}
	}
}

// TestHalfOpenFlood: thousands of forged REQs per second, with the address of a client and with
// random ones. Existing connections go on, and the client can connect. Half-open connections that
// make room have no post-mortem.
func TestHalfOpenFlood(t *testing.T) {
	for seed := range uint64(2) {
		w := &world{t: t, net: sim.New(sim.Config{Seed: 30 + seed}), dev: make([]*roce.Device, 2), port: 7}
		var records []roce.Record
		for i := range w.dev {
			l, err := w.net.Open(simAddr[i])
			if err != nil {
				t.Fatal(err)
			}
			cfg := roce.Config{
				Random: w.net.Rand().Uint32, AckTimeout: 15,
				OnFailure: func(r roce.Record) { records = append(records, r) },
			}
			if w.dev[i], err = roce.NewWithLink(l, cfg); err != nil {
				t.Fatal(err)
			}
		}
		w.connect()
		live := w.side
		const victim = 100 // the port
		params := rdma.ConnParams{ResponderResources: 4, InitiatorDepth: 4}
		open, accepted := 0, 0
		if _, err := w.dev[1].Listen(victim, func(r rdma.ConnRequest) {
			pd, _ := w.dev[1].AllocPD()
			cq, err := w.dev[1].CreateCQ(w.dev[1].Loops()[0], rdma.CQOptions{Depth: 8, OnEvent: func() {}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Accept(rdma.QPConfig{
				PD: pd, SendCQ: cq, RecvCQ: cq,
				Caps: rdma.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
			},
				params, nil, func(c rdma.Conn, e rdma.ConnEvent) {
					if e.Kind != rdma.EventEstablished {
						open--
						c.Close()
					}
				})
			if err != nil {
				t.Error(err)
				return
			}
			open++
			accepted++
		}); err != nil {
			t.Fatal(err)
		}
		m := w.mallory()
		rnd := w.net.Rand()
		nobody := netip.MustParseAddr("192.0.2.99")
		forge := func(name netip.Addr) {
			r := cm.REQ{
				LocalID: rnd.Uint32(), ServiceID: cm.ServiceID(victim), GUID: rnd.Uint64(),
				QPN: rnd.Uint32() & 0xffffff, MTU: 3, PKey: wire.DefaultPKey, RetryCount: 7,
			}
			r.Primary.LocalGID, r.Primary.RemoteGID, r.Primary.AckTimeout = name, simAddr[1], 14
			h := cm.IPHeader{Src: netip.AddrPortFrom(name, 1), Dst: simAddr[1]}
			h.Put(r.Private[:])
			m.send(name, &wire.Packet{
				Op: wire.UDSendOnly, MigReq: true, PKey: wire.DefaultPKey, DestQPN: wire.QP1,
				DETH: wire.DETH{QKey: cm.QKey, SrcQPN: wire.QP1},
			}, r.Encode(cm.Header{TID: rnd.Uint64()}))
		}
		var events []rdma.ConnEvent
		dialed := 0
		for end := w.net.Now() + 800*rdma.Millisecond; w.net.Now() < end; {
			for range 15 {
				forge(simAddr[0])
				forge(nobody)
			}
			next := w.net.Now() + rdma.Millisecond // 30,000 a second
			if d := dialed; len(events) == d && w.net.Now() > rdma.Second+300*rdma.Millisecond {
				dialed++
				if _, err := w.dev[0].Dial(w.dev[0].Loops()[0], rdma.DialParams{
					Remote: netip.AddrPortFrom(simAddr[1], victim), QP: w.qp(0), Params: params,
					On: func(_ rdma.Conn, e rdma.ConnEvent) { events = append(events, e) },
				}); err != nil {
					t.Fatal(err)
				}
				w.side = live
			}
			w.run(rdma.Millisecond, func() bool { return w.net.Now() >= next })
			w.net.Advance(next)
			if open > 512+len(events) {
				t.Fatalf("%d half-open connections", open-len(events))
			}
		}
		if len(events) < 2 || slices.ContainsFunc(events,
			func(e rdma.ConnEvent) bool { return e.Kind != rdma.EventEstablished }) {
			t.Errorf("seed %d: %d connections, %+v", seed, dialed, events)
		}
		if wc := w.post(rdma.SendWR{Op: rdma.OpWrite, SGL: []rdma.SGE{{
			Buf:  live[0].mr.Bytes()[:100],
			LKey: live[0].mr.LKey(),
		}}, RemoteAddr: live[1].mr.Addr(), RKey: live[1].mr.RKey()}); wc.Status != rdma.Success {
			t.Errorf("the connection that was there: %v", wc.Status)
		}
		unconfirmed := 0
		for i := range records {
			if records[i].Outcome == rdma.Unconfirmed {
				unconfirmed++
			}
		}
		if s := w.dev[1].Stats(); s.CM.HalfOpenEvicted == 0 || unconfirmed > 0 {
			t.Errorf("%d made room, %d of %d half-open connections have post-mortems", s.CM.HalfOpenEvicted, unconfirmed,
				accepted)
		}
	}
}
