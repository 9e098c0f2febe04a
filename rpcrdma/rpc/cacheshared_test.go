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

// told is a program whose procedures return a new number for each execution.
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

// TestNoSharedAnswer: two different calls never get the same reply, and no call is executed twice.
// The clients choose any XIDs, arguments, credentials, ports and transports. They lose connections,
// and the server is killed or hands over. A client repeats a call until it has the reply: a client
// that is killed in between cannot be told from one that connects again.
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
					if err := s.Restore(b, false); err != nil {
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

// TestXIDReuse simulates ten minutes of short-lived processes on a virtual clock. They make and
// remove the same few lock files, with XIDs that count from a random number, as those of libnfs and
// of the Go client do. One reply in ten is lost with its connection.
func TestXIDReuse(t *testing.T) {
	const (
		minutes   = 10
		processes = 60_000
		calls     = 10
	)
	rnd := rand.New(rand.NewPCG(26, 1))
	var r replyCache
	r.init(1<<20, 1<<30, nil, 0)
	keys := make([]drcKey, 4) // of the four operations
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
	// The cache retains the replies of calls that a client may send again.
	if last := int64(minutes * 60e9); r.oldest.next.at < last-2*answeredAge {
		t.Errorf("a reply is kept for %d s", (last-r.oldest.next.at)/1e9)
	}
	t.Logf("%d calls used the XID of another process", reused)
}

// TestSeveralOfOneKey: entries of the same key are found and deleted separately.
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

// BenchmarkOnce measures a call that goes through the cache, by the length of its arguments.
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
