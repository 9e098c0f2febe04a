package rpc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// client is a process on a client's host, with a connection.
type client struct {
	peer Peer
	xid  uint32
}

var lastPort uint16

// process starts a process on the host.
func process(host string, by Transport) *client {
	c := &client{peer: Peer{Addr: netip.AddrPortFrom(netip.MustParseAddr(host), 0), Transport: by}}
	c.reconnect(true)
	return c
}

// reconnect has the process use a new connection, from a new port or from the one of before.
func (c *client) reconnect(port bool) {
	if port {
		lastPort++
		c.peer.Addr = netip.AddrPortFrom(c.peer.Addr.Addr(), lastPort)
	}
	c.peer.Conn = NextConn()
}

// call sends a message; ack says whether the client acknowledges the reply.
func (c *client) call(t *testing.T, s *Server, msg []byte, ack bool) (reply []byte) {
	t.Helper()
	return sendFrom(t, s, c.peer, msg, func(c *Call) {
		if ack {
			c.Delivery().Delivered()
		}
	})
}

func counting() (*testService, *Server) {
	svc := &testService{}
	return svc, NewServer(ServerConfig{Programs: svc.programs(), Workers: 1})
}

// TestRetransmissions: who gets the answer of before, and who has a call of his own.
func TestRetransmissions(t *testing.T) {
	const host, other = "192.0.2.1", "192.0.2.2"
	msg := call(5, testProg, 2, procOnce, 1)
	for _, k := range []struct {
		name string
		ack  bool // of the first reply
		from func(first *client) *client
		want bool // the second call is the first, sent again
	}{
		{"on the same connection", true, func(c *client) *client { return c }, true},
		{"on the same connection, not acknowledged", false, func(c *client) *client { return c }, true},
		{"on a new one from the same port", true, func(c *client) *client { c.reconnect(false); return c }, true},
		{"on a new one, not acknowledged", false, func(c *client) *client { c.reconnect(true); return c }, true},
		{"of another process", true, func(*client) *client { return process(host, TransportTCP) }, false},
		{"of another host", false, func(*client) *client { return process(other, TransportTCP) }, false},
		{
			"by another transport, not acknowledged", false, func(*client) *client { return process(host, TransportRDMA) },
			true,
		},
		{"by another transport, acknowledged", true, func(*client) *client { return process(host, TransportRDMA) }, false},
		{
			"by another transport from the same port", true,
			func(c *client) *client { c.peer.Transport = TransportRDMA; c.reconnect(false); return c }, false,
		},
		{"with TLS", false, func(c *client) *client { c.peer.Security = TLS; return c }, false},
		{"by another name", false, func(c *client) *client { c.peer.Name = "x"; return c }, false},
		{"on an older connection", false, func(c *client) *client {
			d := *c
			d.peer.Addr = netip.MustParseAddrPort("192.0.2.1:9999")
			d.peer.Conn--
			return &d
		}, false},
	} {
		svc, s := counting()
		c := process(host, TransportTCP)
		first := c.call(t, s, msg, k.ack)
		again := k.from(c).call(t, s, msg, true)
		if got := svc.runs == 1; got != k.want || got != bytes.Equal(first, again) {
			t.Errorf("%s: executed %d times, %x and %x", k.name, svc.runs, first, again)
		}
		s.Close()
	}
}

// TestAskedAgain: a client that has acknowledged a reply, and asks again on its connection, has
// lost it. Then it may ask on a new connection, too.
func TestAskedAgain(t *testing.T) {
	svc, s := counting()
	defer s.Close()
	msg := call(5, testProg, 2, procOnce, 1)
	c := process("192.0.2.1", TransportTCP)
	c.call(t, s, msg, true)
	c.call(t, s, msg, false)
	c.reconnect(true)
	c.call(t, s, msg, true)
	if svc.runs != 1 {
		t.Errorf("executed %d times", svc.runs)
	}
	// What it acknowledges late is the reply of before.
	var late Delivery
	d := process("192.0.2.1", TransportTCP)
	msg = call(6, testProg, 2, procOnce, 1)
	sendFrom(t, s, d.peer, msg, func(c *Call) { late = c.Delivery() })
	d.call(t, s, msg, false)
	late.Delivered()
	d.reconnect(true)
	d.call(t, s, msg, true)
	if svc.runs != 2 {
		t.Errorf("executed %d times, want 2", svc.runs)
	}
}

// settler is a connection that knows of deliveries when it is asked.
type settler struct {
	waiting []Delivery
	ended   bool
}

func (s *settler) Ended() bool { return s.ended }

func (s *settler) Settle() {
	for _, d := range s.waiting {
		d.Delivered()
	}
	s.waiting = nil
}

// TestSettler: a connection is asked before its reply is another's, and before replies are handed
// over.
func TestSettler(t *testing.T) {
	for _, handOver := range []bool{false, true} {
		svc, s := counting()
		defer s.Close()
		msg := call(5, testProg, 2, procOnce, 1)
		var via settler
		done := make(chan struct{})
		c := &Call{Peer: process("192.0.2.1", TransportTCP).peer, Settler: &via}
		c.Reply = func(c *Call, _ bool) {
			via.waiting = append(via.waiting, c.Delivery())
			close(done)
		}
		s.Dispatch(c, xdr.NewDecoder(msg), false)
		<-done
		if handOver {
			b, err := s.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			s = NewServer(ServerConfig{Programs: svc.programs(), Workers: 1})
			defer s.Close()
			if err := s.Restore(b); err != nil {
				t.Fatal(err)
			}
		}
		if process("192.0.2.1", TransportTCP).call(t, s, msg, true); svc.runs != 2 || len(via.waiting) > 0 {
			t.Errorf("executed %d times", svc.runs)
		}
	}
}

// TestOvertaken: a call that arrives after its retransmission, because the server stood still, is not
// executed. It is dropped, as its connection has ended. The call of another process, whose connection
// has not ended, is executed.
func TestOvertaken(t *testing.T) {
	for _, ack := range []bool{false, true} {
		for _, ended := range []bool{false, true} {
			svc, s := counting()
			msg := call(5, testProg, 2, procOnce, 1)
			old, c := process("192.0.2.1", TransportTCP), process("192.0.2.1", TransportTCP)
			c.call(t, s, msg, ack)
			dropped := make(chan bool, 1)
			late := &Call{Peer: old.peer, Settler: &settler{ended: ended}}
			late.Reply = func(_ *Call, drop bool) { dropped <- drop }
			s.Dispatch(late, xdr.NewDecoder(msg), false)
			if got := <-dropped; got != ended || (svc.runs == 1) != ended {
				t.Errorf("acknowledged %v, connection ended %v: dropped %v, executed %d times", ack, ended, got, svc.runs)
			}
			s.Close()
		}
	}
}

// TestStampIsNoIdentity: clients may encode the stamp of their credential anew.
func TestStampIsNoIdentity(t *testing.T) {
	svc, s := counting()
	defer s.Close()
	msg := call(5, testProg, 2, procOnce, 1)
	c := process("192.0.2.1", TransportTCP)
	c.call(t, s, msg, false)
	msg[32]++
	if c.call(t, s, msg, false); svc.runs != 1 {
		t.Errorf("executed %d times", svc.runs)
	}
}

// told is a program whose procedures answer every execution with another number.
func told(n *uint32) []Program {
	serve := func(c *Call, _ bool) Status {
		c.Intend([]byte("note"))
		*n++
		c.Res.Uint32(*n)
		return Done
	}
	var ps []Program
	for _, vers := range []uint32{2, 3} {
		ps = append(ps, Program{Name: "test", Prog: testProg, Vers: vers, Procs: []Proc{
			1: {Name: "ONE", Mutates: true, Serve: serve}, 2: {Name: "TWO", Mutates: true, Serve: serve},
		}})
	}
	return ps
}

// TestNoSharedAnswer: no two different calls ever get one answer, and none is executed twice,
// whatever XIDs, arguments, credentials, ports and transports clients have, and however often they
// lose connections and the server is killed or hands over. A client that has begun a call goes on
// until it has the reply; one that has been killed cannot be told from one that connects again.
func TestNoSharedAnswer(t *testing.T) {
	for seed := range uint64(3) {
		rnd := rand.New(rand.NewPCG(seed, 26))
		one := func(n int) bool { return rnd.IntN(n) == 0 }
		mem := make([]byte, 2048*recordLen)
		var runs uint32
		start := func() *Server {
			s := NewServer(ServerConfig{Programs: told(&runs), Workers: 1, Journal: mem})
			t.Cleanup(s.Close)
			return s
		}
		s := start()
		clients := []*client{}
		var same, resent int
		seen := make(map[string]int) // messages, by host
		for step := range 1000 {
			if len(clients) < 6 || one(12) {
				by := []Transport{TransportTCP, TransportRDMA}[rnd.IntN(2)]
				c := process([]string{"192.0.2.1", "192.0.2.2"}[rnd.IntN(2)], by)
				c.xid = uint32(rnd.IntN(3))
				if one(4) {
					c.peer.Security, c.peer.Name = MutualTLS, []string{"a", "ab"}[rnd.IntN(2)]
				}
				if clients = append(clients, c); len(clients) > 10 {
					clients = clients[1:]
				}
			}
			c := clients[rnd.IntN(len(clients))]
			if one(5) {
				c.reconnect(true)
			}
			var e xdr.Encoder
			cred := &Cred{
				Flavor: AuthSys, Machine: []string{"m", "mm"}[rnd.IntN(2)], UID: uint32(rnd.IntN(2)),
				Groups: [][]uint32{{0}, {1}}[rnd.IntN(2)],
			}
			if one(4) {
				cred = nil
			}
			EncodeCall(&e, c.xid, testProg, 2+uint32(rnd.IntN(2)), 1+uint32(rnd.IntN(2)), cred)
			if c.xid++; c.xid == 8 { // no process uses an XID twice
				clients = slices.Delete(clients, slices.Index(clients, c), slices.Index(clients, c)+1)
			}
			args := make([]byte, []int{4, 260, 4096}[rnd.IntN(3)])
			if one(2) {
				args[len(args)-1-rnd.IntN(min(len(args), 8))] = byte(rnd.IntN(2))
			}
			e.Fixed(args)
			id := c.peer.Addr.Addr().String() + c.peer.Security.String() + c.peer.Name + string(e.B)
			if seen[id]++; seen[id] > 1 {
				same++
			}
			before := runs
			var reply []byte
			for {
				last := one(2)
				r := c.call(t, s, e.B, last)
				if reply != nil && !bytes.Equal(r, reply) {
					t.Fatalf("seed %d, step %d: one call has two answers", seed, step)
				}
				reply = r
				if runs != before+1 {
					t.Fatalf("seed %d, step %d: executed %d times", seed, step, runs-before)
				}
				if last {
					break
				}
				resent++
				lost := !one(3)
				switch rnd.IntN(6) {
				case 0: // killed
					s, lost = start(), true
				case 1: // replaced
					b, err := s.Snapshot()
					if err != nil {
						t.Fatal(err)
					}
					s = start()
					if err := s.Restore(b); err != nil {
						t.Fatal(err)
					}
				case 2:
					c.peer.Transport, lost = TransportTCP+TransportRDMA-c.peer.Transport, true
				}
				if lost {
					c.reconnect(true)
				}
			}
		}
		if same < 50 || resent < 500 {
			t.Errorf("seed %d: %d calls were equal to others, %d were sent again: the test is too weak", seed, same, resent)
		}
	}
}

// TestXIDReuse is ten minutes of short-lived processes that make and remove the same few lock
// files, with XIDs from a random 32-bit number on, as libnfs and the Go client have them, on a
// virtual clock. One in ten replies is lost with its connection.
func TestXIDReuse(t *testing.T) {
	const (
		minutes   = 10
		processes = 60_000
		calls     = 10
	)
	rnd := rand.New(rand.NewPCG(26, 1))
	var r replyCache
	r.init(1<<20, 1<<30, nil, 0)
	keys := make([]drcKey, 4) // what they do
	for i := range keys {
		c := &Call{Prog: 100003, Vers: 3, Proc: 12, Peer: Peer{Addr: netip.MustParseAddrPort("192.0.2.1:1")}}
		c.Args = xdr.NewDecoder([]byte(fmt.Sprintf("lock%d....", i))[:8])
		keys[i] = c.key()
	}
	type use struct{ process, call int }
	xids := make(map[uint32]use)
	reused, conn := 0, int64(0)
	for p := range processes {
		start := int64(p) * minutes * 60e9 / processes
		xid := rnd.Uint32()
		conn++
		peer := Peer{
			Addr: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(p)), Transport: TransportTCP,
			Conn: conn,
		}
		for i := range calls {
			k := keys[i%len(keys)]
			k.xid = xid + uint32(i)
			if was, ok := xids[k.xid]; ok && was.process != p {
				reused++
			}
			xids[k.xid] = use{p, i}
			at := start + int64(i)*1e6
			c := &Call{Peer: peer, start: at}
			var verdict drcVerdict
			if c.entry, verdict = r.begin(k, c); verdict != drcNew {
				t.Fatalf("call %d of process %d has the answer of another", i, p)
			}
			c.Res.Uint32(uint32(p))
			r.finish(c, true, at)
			if rnd.IntN(10) == 0 {
				conn++
				peer.Conn, peer.Addr = conn, netip.AddrPortFrom(peer.Addr.Addr(), peer.Addr.Port()+10000)
				c = &Call{Peer: peer, start: at + 1e6}
				if _, verdict := r.begin(k, c); verdict != drcReplay || c.Res.B[3] != byte(p) {
					t.Fatalf("call %d of process %d, sent again: %v", i, p, verdict)
				}
			}
			c.Delivery().Delivered()
		}
	}
	if reused == 0 {
		t.Error("no XID was used twice")
	}
	// What is kept is what a client may ask for.
	if last := int64(minutes * 60e9); r.oldest.next.at < last-2*answeredAge {
		t.Errorf("a reply is kept for %d s", (last-r.oldest.next.at)/1e9)
	}
	t.Logf("%d calls used the XID of another process", reused)
}

// TestSeveralOfOneKey: entries of one key are found and forgotten one by one.
func TestSeveralOfOneKey(t *testing.T) {
	svc := &testService{}
	s := NewServer(ServerConfig{
		Programs: svc.programs(), Workers: 1, ReplyCacheEntries: 4,
		Journal: make([]byte, 16*recordLen),
	})
	defer s.Close()
	msg := call(5, testProg, 2, procOnce, 1)
	var list []*client
	var replies [][]byte
	for range 6 {
		c := process("192.0.2.1", TransportTCP)
		list, replies = append(list, c), append(replies, c.call(t, s, msg, true))
	}
	if svc.runs != 6 || s.cache.count != 4 {
		t.Fatalf("executed %d times, %d entries", svc.runs, s.cache.count)
	}
	for i := 2; i < 6; i++ {
		if got := list[i].call(t, s, msg, true); !slices.Equal(got, replies[i]) {
			t.Errorf("process %d got %x instead of %x", i, got, replies[i])
		}
	}
	for s.cache.count > 0 {
		s.cache.evict(s.cache.oldest.next)
	}
	if len(s.cache.entries) > 0 {
		t.Errorf("%d keys without an entry", len(s.cache.entries))
	}
}

// BenchmarkOnce is what a call costs that goes through the cache, by the length of its arguments.
func BenchmarkOnce(b *testing.B) {
	for _, n := range []int{64, 200, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			serve := func(c *Call, _ bool) Status { c.Res.B = append(c.Res.B, make([]byte, 200)...); return Done }
			s := NewServer(ServerConfig{Workers: 1, Programs: []Program{{Name: "test", Prog: testProg, Vers: 2, Procs: []Proc{
				procOnce: {Name: "ONCE", Mutates: true, Inline: true, Serve: serve},
			}}}})
			defer s.Close()
			msg := call(1, testProg, 2, procOnce, make([]uint32, n/4)...)
			c := &Call{Peer: Peer{Addr: netip.MustParseAddrPort("192.0.2.1:9")}, Reply: func(*Call, bool) {}}
			b.ReportAllocs()
			for i := range b.N {
				msg[0], msg[1], msg[2], msg[3] = byte(i>>24), byte(i>>16), byte(i>>8), byte(i)
				c.Reset()
				s.Dispatch(c, xdr.NewDecoder(msg), false)
			}
		})
	}
}
