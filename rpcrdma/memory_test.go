package rpcrdma

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestReceives: creditsOf is the inverse of receives. There is no credit without a receive.
func TestReceives(t *testing.T) {
	for n := receives(floorCredits); n < 5000; n++ {
		if g := creditsOf(n); receives(g) > n || receives(g+1) <= n {
			t.Fatalf("%d receives are for %d credits, which need %d, and one more %d", n, g, receives(g), receives(g+1))
		}
	}
}

// TestMemory makes random connections that grow, allocate and free bulk memory, and end. The memory
// in use never exceeds the budget, and allocations that wait are served in order.
func TestMemory(t *testing.T) {
	const inline = 4096
	type member struct {
		credits, owned int
		held           [][]byte
		alloc          *allocation
	}
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		limit := MemoryMin + rnd.IntN(64<<20)
		m, err := NewMemory(limit, Config{})
		if err != nil {
			t.Fatal(err)
		}
		var in []*member
		var line []*allocation // the waiting allocations, in the expected order
		check := func(what string) {
			t.Helper()
			var credits, owned, held int
			for _, c := range in {
				credits += receives(c.credits)
				owned += c.owned
				for _, b := range c.held {
					held += blockSize(len(b))
				}
				if c.alloc != nil && c.alloc.have {
					held += blockSize(len(c.alloc.a)) + blockSize(len(c.alloc.b))
				}
			}
			st := m.Stats(inline)
			if credits*inline > st.Messages || owned*inline != st.Messages || held != st.Bulk ||
				st.Messages > limit/messageShare ||
				st.Messages+st.Bulk > limit || st.Peak > limit || st.Connections != len(in) {
				t.Fatalf("seed %d, %s: %d receives for credits, %d in all, %d bulk bytes: %+v", seed, what, credits, owned, held,
					st)
			}
			for len(line) > 0 && line[0].have {
				line = line[1:]
			}
			for _, w := range line {
				if w.have {
					t.Fatalf("seed %d, %s: somebody was served before those who came first", seed, what)
				}
			}
		}
		leave := func(i int) {
			c := in[i]
			in = slices.Delete(in, i, i+1)
			if c.alloc != nil {
				line = slices.DeleteFunc(line, func(w *allocation) bool { return w == c.alloc })
				m.cancel(c.alloc)
			}
			for _, b := range c.held {
				m.free(b)
			}
			m.removeConn(c.owned * inline)
		}
		refused := false
		for range 4000 {
			op := rnd.IntN(10)
			if len(in) == 0 {
				op = 0
			}
			var c *member
			if len(in) > 0 {
				c = in[rnd.IntN(len(in))]
			}
			switch op {
			case 0, 1:
				g := m.addConn(firstGrant, inline)
				if g == 0 {
					if m.messagesUsed+receives(floorCredits)*inline <= m.messages {
						t.Fatalf("seed %d: refused with %d of %d bytes taken", seed, m.messagesUsed, m.messages)
					}
					refused = true
					break
				}
				in = append(in, &member{credits: g, owned: receives(g)})
			case 2:
				if rnd.IntN(8) == 0 {
					leave(slices.Index(in, c))
				}
			case 3, 4:
				next := m.allowed(2*c.credits, inline)
				if more := receives(next) - c.owned; next > c.credits && (more <= 0 || m.grow(more*inline, next, inline)) {
					c.owned += max(more, 0)
					c.credits = next
				}
			case 5:
				if most := m.allowed(c.credits, inline); most < c.credits && c.owned > receives(most) {
					c.owned--
					c.credits = min(c.credits, creditsOf(c.owned))
					m.shrink(inline)
				}
			case 6, 7:
				switch {
				case c.alloc == nil:
					w := &allocation{n: rnd.IntN(1 << 21), m: rnd.IntN(1 << 20), wake: func() {}}
					c.alloc = w
					if m.allocBoth(w) {
						w.have = true
					} else {
						line = append(line, w)
					}
				case m.claim(c.alloc):
					c.held = append(c.held, c.alloc.a, c.alloc.b)
					c.alloc = nil
				}
			default:
				for _, b := range c.held {
					m.free(b)
				}
				c.held = nil
			}
			check(fmt.Sprint("operation ", op))
		}
		if limit < 20<<20 && !refused {
			t.Errorf("seed %d: nobody was refused", seed)
		}
		// Allocations that wait are all served when the others free their blocks.
		for _, c := range in {
			for _, b := range c.held {
				m.free(b)
			}
			c.held = nil
		}
		for progress := true; progress; {
			progress = false
			for _, c := range in {
				if c.alloc != nil && m.claim(c.alloc) {
					m.free(c.alloc.a)
					m.free(c.alloc.b)
					c.alloc, progress = nil, true
				}
			}
		}
		for _, c := range in {
			if c.alloc != nil {
				t.Fatalf("seed %d: somebody waits for ever", seed)
			}
		}
		for len(in) > 0 {
			leave(0)
		}
		check("the end")
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMemoryIsShort: many clients write and read while there is no memory at all, and then more at
// once than there is memory for. All are served, within the budget.
func TestMemoryIsShort(t *testing.T) {
	const clients = 8
	w := newWorld(t, Config{Memory: 1, ConnMemory: 1})
	var all [][]byte
	for b := w.l.pool.alloc(1 << 20); b != nil; b = w.l.pool.alloc(1 << 20) {
		all = append(all, b)
	}
	var wg sync.WaitGroup
	for k := range clients {
		c := w.dial(fmt.Sprintf("192.0.2.%d", 10+k), ClientConfig{Credits: 16})
		for range 4 {
			wg.Go(func() {
				if err := put(c, 1<<20-64); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if err := get(c, 1<<20-64, 1<<20, 0); err != nil {
					t.Error(err)
				}
			})
		}
	}
	for w.l.Memory().Waiting < clients { // one allocation waits for each connection
		time.Sleep(time.Millisecond)
	}
	for _, b := range all {
		w.l.pool.free(b)
	}
	wg.Wait()
	if m := w.l.Memory(); m.Peak > MemoryMin || m.Waiting != 0 {
		t.Errorf("%+v", m)
	}
	if n := w.l.Stats().Errors["rpcrdma_waited_for_memory"]; n < clients {
		t.Errorf("%d calls had to wait", n)
	}
}

// TestTurnOfAnother: a call waits with the allocation of its connection. The memory is free before
// the RDMA READs of earlier calls can be posted. When they can, the waiting call still goes first:
// the memory belongs to its allocation, and no other call can use it.
func TestTurnOfAnother(t *testing.T) {
	const n = 50_000
	w := newWorld(t, Config{Memory: MemoryMin, ReadDepth: 1, ReadSize: 1 << 16})
	r := w.rawUp()
	// The memory is enough for one call.
	p := w.l.pool
	var taken [][]byte
	for size := 1 << 20; size >= rdma.ArenaBlockMin; size /= 2 {
		for p.inUse()+size <= p.bulk-blockSize(n) {
			b := p.alloc(size)
			if b == nil {
				t.Fatalf("no block of %d bytes", size)
			}
			taken = append(taken, b)
		}
	}
	defer func() {
		for _, b := range taken {
			p.free(b)
		}
	}()
	put := func(xid uint32) []byte {
		m := r.region(n, rdma.RemoteRead)
		var e xdr.Encoder
		rpc.EncodeCall(&e, xid, testProg, testVers, procPut, nil)
		e.Uint32(1)
		e.Uint32(n)
		h := &Header{XID: xid, Credits: 32, Reads: []ReadSegment{{uint32(len(e.B)), segments(m, n)[0]}}}
		e.Uint32(0xabcd)
		return message(h, e.B)
	}
	get := message(&Header{XID: 3, Credits: 32, Writes: []Chunk{segments(r.region(n, remoteWrite), n)}},
		rawCall(3, procGet, 1, n))
	// The RDMA READ of the first call waits for a client that stands still. The second call waits
	// for the first, and the third for memory.
	calls := [][]byte{put(1), put(2), get}
	still, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		r.dev.loop.do(func() {
			for _, m := range calls {
				mr, _ := r.pd.Register(m, 0)
				if err := r.conn.QP().PostSend([]rdma.SendWR{{
					Op: rdma.OpSend, Flags: rdma.Signaled,
					SGL: []rdma.SGE{{Buf: m, LKey: mr.LKey()}},
				}}); err != nil {
					t.Error(err)
				}
			}
			<-still
		})
	}()
	for w.l.Memory().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	close(still)
	<-sent
	for range calls {
		r.reply()
	}
}

// TestHeldLongCall: a long call that waits for memory during a Pause is counted once, as
// RDMA_NOMSG.
func TestHeldLongCall(t *testing.T) {
	w := newWorld(t, Config{Memory: MemoryMin})
	r := w.rawUp()
	var all [][]byte
	for b := w.l.pool.alloc(1 << 20); b != nil; b = w.l.pool.alloc(1 << 20) {
		all = append(all, b)
	}
	call := rawCall(7, procNull)
	m := r.region(len(call), rdma.RemoteRead)
	copy(m.buf, call)
	r.send(message(&Header{XID: 7, Type: TypeNoMsg, Reads: []ReadSegment{{0, segments(m, len(call))[0]}}}, nil))
	for w.l.Memory().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	counted := func(what string, want uint64) {
		t.Helper()
		s := w.l.Stats().Messages
		if s["recv_rdma_nomsg"] != want || s["recv_rdma_msg"] != 0 {
			t.Errorf("%s: %v", what, s)
		}
	}
	counted("waiting", 1)
	w.l.Pause(true)
	counted("held", 0)
	for _, b := range all {
		w.l.pool.free(b)
	}
	w.l.Pause(false)
	if h, _ := r.reply(); h.XID != 7 || h.Type != TypeMsg {
		t.Errorf("%+v", h)
	}
	counted("served", 1)
}

// TestThousandConnections: the memory of a thousand connections, each of which makes calls.
// NFS-Ganesha pins 65 MiB for each, 63 GiB for all.
func TestThousandConnections(t *testing.T) {
	const many = 1000
	w := newWorld(t, Config{})
	dev := w.net.device("192.0.2.50")
	var clients []*Client
	t.Cleanup(func() {
		for _, c := range clients {
			c.Close()
		}
		dev.Close()
	})
	for range many {
		c, err := Dial(context.Background(), dev, serverAddr, ClientConfig{Credits: 4})
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
		if err := get(c, 64<<10, 1<<20, 0); err != nil {
			t.Fatal(err)
		}
	}
	m := w.l.Memory()
	if m.Connections != many || m.Messages > many*128<<10 || m.Messages > m.Limit/messageShare || m.Share < 8 {
		t.Errorf("%+v", m)
	}
	least, most := 1<<10, 0
	for _, c := range w.l.Conns() {
		least, most = min(least, c.Credits), max(most, c.Credits)
	}
	t.Logf("%d KiB a connection, credits from %d to %d", m.Messages/many>>10, least, most)
	if least < floorCredits {
		t.Errorf("a client has %d credits", least)
	}
	for _, c := range clients { // every client still makes calls
		if err := put(c, 64<<10); err != nil {
			t.Fatal(err)
		}
	}
}
