package cm

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// forgedREQ makes a REQ with the forged source address src.
func forgedREQ(rnd *rand.Rand, src netip.Addr) []byte {
	r := REQ{ServiceID: ServiceID(20049), LocalID: rnd.Uint32(), GUID: rnd.Uint64(), QPN: rnd.Uint32() & 0xffffff, MTU: 3}
	r.Primary.LocalGID, r.Primary.RemoteGID = src, testAddr[1]
	h := IPHeader{Src: netip.AddrPortFrom(src, 1), Dst: testAddr[1]}
	h.Put(r.Private[:])
	return r.Encode(Header{TID: rnd.Uint64()})
}

// slowWire carries datagrams between the two machines of a network, with a delay in each direction.
type slowWire struct {
	n     *network
	delay rdma.Time
	way   []slowDatagram
}

type slowDatagram struct {
	at  rdma.Time
	to  int
	mad []byte
}

// move carries what the machines send. It loses the REJs by which the first machine answers REPs to
// forged REQs, as if that host were switched off.
func (w *slowWire) move() {
	b := wire.NewBatch(64)
	for i, m := range w.n.m {
		for more := true; more; {
			b.Reset()
			more = m.Transmit(b)
			for _, d := range b.D {
				h, _ := ParseHeader(d.Payload[0])
				if d.Flow.Dst != testAddr[1-i] || h.Attr == AttrREJ && ParseREJ(d.Payload[0]).Reason == InvalidCommID {
					continue
				}
				w.way = append(w.way, slowDatagram{w.n.now + w.delay, 1 - i, append([]byte(nil), d.Payload[0]...)})
			}
		}
	}
	for len(w.way) > 0 && w.way[0].at <= w.n.now {
		d := w.way[0]
		w.way = w.way[1:]
		w.n.m[d.to].Receive(w.n.now, testAddr[1-d.to], testAddr[d.to], d.mad)
	}
}

// TestFlood sends REQs that nobody confirms: with the address of the host that wants to connect, of
// one other host, and random ones; evenly and in bursts. The host gets its connections in spite of
// them, and the resources that the flood takes are bounded.
func TestFlood(t *testing.T) {
	own := func(*rand.Rand) netip.Addr { return testAddr[0] }
	other := func(*rand.Rand) netip.Addr { return netip.MustParseAddr("10.0.0.66") }
	random := func(r *rand.Rand) netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
	}
	for _, c := range []struct {
		name      string
		from      func(*rand.Rand) netip.Addr
		perSecond int
		burst     int // REQs at once
		limit     int // of connections that are being set up
	}{
		{"its own name", own, 1000, 1, 256},
		{"its own name, fast", own, 60_000, 1, 256},
		{"its own name, in bursts", own, 20_000, 2000, 256},
		{"another name, fast", other, 60_000, 1, 256 + 1},
		{"random names", random, 2000, 1, 512},
		{"random names, fast", random, 60_000, 1, 512},
		{"random names, in bursts", random, 20_000, 2000, 512},
	} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s/%d", c.name, seed), func(t *testing.T) {
				flood(t, seed, c.from, c.perSecond, c.burst, c.limit)
			})
		}
	}
}

func flood(t *testing.T, seed uint64, from func(*rand.Rand) netip.Addr, perSecond, burst, limit int) {
	n := newNetwork(t, seed)
	client, server := n.m[0], n.m[1]
	_ = server.Listen(20049)
	w := &slowWire{n: n, delay: 300 * rdma.Microsecond}
	const mine, connections = 0xff0000, 6 // queue pairs of the client
	var id *ID
	connected, tried := 0, 0
	qpn := uint32(1)
	var e [16]Event
	serve := func() {
		for k := server.Events(e[:]); k > 0; k = server.Events(e[:]) {
			for _, e := range e[:k] {
				switch {
				case e.Kind == ConnRequest:
					qpn++
					if err := server.Accept(n.now, e.ID, AcceptParams{QPN: qpn}); err != nil {
						t.Fatal(err)
					}
				case e.Kind == ConnEstablished && e.ID.REQ.QPN >= mine:
					connected++
					id = nil // the next one
				}
			}
		}
	}
	forged := n.now
	// An attempt to connect takes eight seconds, with six REQs.
	for start := n.now; n.now < start+8*rdma.Second && connected < connections; n.now += 100 * rdma.Microsecond {
		for ; forged <= n.now; forged += rdma.Second * rdma.Time(burst) / rdma.Time(perSecond) {
			for range burst {
				src := from(n.rnd)
				server.Receive(n.now, src, testAddr[1], forgedREQ(n.rnd, src))
				serve()
			}
		}
		if id == nil && n.now > start+400*rdma.Millisecond {
			p := params()
			p.QPN = mine + uint32(tried)
			tried++
			var err error
			if id, err = client.Connect(n.now, p); err != nil {
				t.Fatal(err)
			}
		}
		w.move()
		server.Expire(n.now)
		client.Expire(n.now)
		serve()
		for k := client.Events(e[:]); k > 0; k = client.Events(e[:]) {
			for _, e := range e[:k] {
				if e.Kind != Reply {
					t.Fatalf("the client's connection ended: %v", e.Err)
				}
				if err := client.Confirm(e.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
		if setup, _ := server.Pending(); setup > limit {
			t.Fatalf("%d connections are being set up", setup)
		}
	}
	if connected < connections/2 {
		t.Errorf("%d of %d connections came about, with %d REQs", connected, tried, client.n.TxREQ+client.n.Resent)
	}
	if server.n.HalfOpenEvicted == 0 || len(server.halfOpen) > 1024 || len(server.askers) > 512 ||
		len(server.qpns) > 512+connected || len(server.queue.reqs) > 256 {
		t.Errorf("%d half-open connections made room, %d are listed, of %d addresses, with %d queue pairs, %d wait",
			server.n.HalfOpenEvicted, len(server.halfOpen), len(server.askers), len(server.qpns), len(server.queue.reqs))
	}
}

// TestForgedREQLeavesConnection: a REQ with the address, the GUID and the queue pair of a peer does
// not end the connection of that peer. Nor does a REJ without an ID of ours.
func TestForgedREQLeavesConnection(t *testing.T) {
	l := newLone(t, Established)
	forged := l.req
	forged.LocalID++
	l.hear(forged.Encode(Header{TID: 2}))
	e := l.events()
	if len(e) != 1 || e[0].Kind != ConnRequest || l.id.State != Established {
		t.Fatalf("events %+v, state %v", e, l.id.State)
	}
	id := e[0].ID
	if err := l.m.Accept(l.now, id, AcceptParams{QPN: 0x333}); err != nil {
		t.Fatal(err)
	}
	if said, happened := l.said(), l.happened(); said != "REP" || happened != "" || l.id.State != Established {
		t.Fatalf("said %q, events %q, state %v", said, happened, l.id.State)
	}
	l.hear(forged.Encode(Header{TID: 2})) // a duplicate
	if said, happened := l.said(), l.happened(); said != "REP" || happened != "" {
		t.Errorf("to the REQ again: said %q, events %q", said, happened)
	}
	for _, known := range []uint32{l.req.LocalID, 0} {
		r := REJ{LocalID: known, Message: OfOther, Reason: Timeout, InfoLen: guidLen}
		r.Info[7], r.Info[6] = peerGUID1&0xff, peerGUID1>>8
		l.hear(r.Encode(Header{TID: 3}))
	}
	if happened := l.happened(); happened != "" || l.id.State != Established {
		t.Errorf("after a REJ: events %q, state %v", happened, l.id.State)
	}
	for l.m.Deadline() != 0 { // the REP is not answered
		l.now = l.m.Deadline()
		l.m.Expire(l.now)
		l.said()
	}
	if happened := l.happened(); happened != "unreachable" || l.id.State != Established {
		t.Errorf("after the forged attempt: events %q, state %v", happened, l.id.State)
	}
	l.hear(l.ids(AttrDREQ))
	if happened := l.happened(); happened != "disconnected" {
		t.Errorf("of the real peer: %q", happened)
	}
}

// TestPeerComesBackWithItsQueuePair: when a peer has restarted and uses its queue pair again, its
// RTU or its first message ends its old connection. Attempts that the peer gave up in between have
// no effect.
func TestPeerComesBackWithItsQueuePair(t *testing.T) {
	for _, traffic := range []bool{false, true} {
		l := newLone(t, Established)
		var ids []*ID
		for i := range uint32(3) {
			r := l.req
			r.LocalID += 1 + i
			l.hear(r.Encode(Header{TID: 2}))
			e := l.events()
			if len(e) != 1 {
				t.Fatalf("%+v", e)
			}
			if err := l.m.Accept(l.now, e[0].ID, AcceptParams{QPN: 0x333 + i}); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, e[0].ID)
		}
		if traffic {
			l.m.Traffic(ids[1])
		} else {
			d := IDs{LocalID: ids[1].Remote, RemoteID: ids[1].Local}
			l.hear(d.Encode(Header{TID: 2, Attr: AttrRTU}))
		}
		e := l.events()
		if len(e) != 2 || e[0].Kind != Disconnected || e[0].ID != l.id || e[0].Err == nil || e[1].Kind != ConnEstablished ||
			e[1].ID != ids[1] {
			t.Fatalf("%+v", e)
		}
		l.m.Forget(ids[0])
		l.m.Forget(ids[2])
		if len(l.m.qpns) != 1 || len(l.m.ids) != 1 || l.m.pending != 0 || len(l.m.askers) != 0 {
			t.Errorf("%d queue pairs, %d IDs, %d pending, %d addresses", len(l.m.qpns), len(l.m.ids), l.m.pending,
				len(l.m.askers))
		}
	}
}

// TestRepeatedGoFirst: among the REQs that wait, those that were dropped before go first. They are
// half of the queue at most.
func TestRepeatedGoFirst(t *testing.T) {
	n := newNetwork(t, 9)
	server := n.m[1]
	_ = server.Listen(20049)
	src := netip.MustParseAddr("10.0.0.66")
	mine := make([][]byte, 300)
	for i := range mine {
		mine[i] = forgedREQ(n.rnd, src)
	}
	send := func(mad []byte) {
		server.Receive(n.now, src, testAddr[1], mad)
		var e [4 * takeMax]Event
		for i := range server.Events(e[:]) {
			if e[i].Kind != ConnRequest {
				continue
			}
			if err := server.Accept(n.now, e[i].ID, AcceptParams{QPN: n.rnd.Uint32()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	flood := func() {
		for range 2000 {
			send(forgedREQ(n.rnd, src))
		}
	}
	flood()
	for _, m := range mine {
		send(m)
	}
	flood()
	waits := func(mad []byte) bool {
		r := ParseREQ(mad)
		for i := range server.queue.reqs {
			if server.queue.reqs[i].req.LocalID == r.LocalID && server.queue.reqs[i].req.GUID == r.GUID {
				return i < server.queue.repeated
			}
		}
		return false
	}
	if waits(mine[0]) {
		t.Fatal("a REQ that came once is at the front")
	}
	for _, m := range mine {
		send(m)
	}
	flood()
	if len(server.queue.reqs) != 256 || server.queue.repeated != 128 {
		t.Fatalf("%d wait, %d of them were dropped before", len(server.queue.reqs), server.queue.repeated)
	}
	there := 0
	for _, m := range mine {
		if waits(m) {
			there++
		}
	}
	if there < 120 {
		t.Errorf("%d of the repeated ones are at the front", there)
	}
	n.now += halfOpenMin
	for range 256 / takeMax {
		server.Expire(n.now)
		if setup, _ := server.Pending(); setup > 256 {
			t.Errorf("%d connections are being set up", setup)
		}
		send(mine[0]) // makes the machine accept them
		n.now += queueEvery
	}
	if len(server.queue.reqs) != 0 || server.queue.repeated != 0 {
		t.Errorf("there is room, and %d wait", len(server.queue.reqs))
	}
}

// TestReflection: a forged REQ makes the server send datagrams to a host that knows nothing of it.
// The test measures how many. docs/security.md has the numbers.
func TestReflection(t *testing.T) {
	n := newNetwork(t, 1)
	server := n.m[1]
	_ = server.Listen(20049)
	src := netip.MustParseAddr("10.0.0.66")
	server.Receive(n.now, src, testAddr[1], forgedREQ(n.rnd, src))
	if err := server.Accept(n.now, n.await(1, ConnRequest).ID, AcceptParams{QPN: 1}); err != nil {
		t.Fatal(err)
	}
	sent := map[Attr]int{}
	b := wire.NewBatch(16)
	for {
		b.Reset()
		server.Transmit(b)
		for _, d := range b.D {
			h, err := ParseHeader(d.Payload[0])
			if err != nil || d.Flow.Dst != src {
				t.Fatal(err, d.Flow)
			}
			sent[h.Attr]++
			if size := d.Size(); size != 280 {
				t.Errorf("a message of %d bytes", size)
			}
		}
		at := server.Deadline()
		if at == 0 {
			break
		}
		n.now = at
		server.Expire(at)
	}
	if len(sent) != 2 || sent[AttrREP] != 11 || sent[AttrREJ] != 1 {
		t.Errorf("messages by attribute: %v", sent)
	}
}
