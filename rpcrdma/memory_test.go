package rpcrdma

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestReceives: as many receives as are enough for the credits, and no credit without.
func TestReceives(t *testing.T) {
	for n := receives(floorCredits); n < 5000; n++ {
		if g := creditsOf(n); receives(g) > n || receives(g+1) <= n {
			t.Fatalf("%d receives are for %d credits, which need %d, and one more %d", n, g, receives(g), receives(g+1))
		}
	}
}

// TestMemory lets connections come, grow, take bulk memory, give it back and go, at random: what
// is out never exceeds the budget, and whoever waits gets his turn, in order.
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
		var line []*allocation // who waits, as it should be
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
		// Who waits is served as the others give back, with nobody left out.
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

// TestMemoryIsShort has many clients write and read while there is no memory at all, and then more
// at once than there is memory for: all are served, within the budget.
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
	for w.l.Memory().Waiting < clients { // one call of each connection; the others wait behind it
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

// TestTurnOfAnother: a call waits for memory, which came while those before it on its connection
// could not be fetched. When these can, it still has the turn: the memory that it gets is its
// own, and without it nobody goes on.
func TestTurnOfAnother(t *testing.T) {
	const n = 50_000
	w := newWorld(t, Config{Memory: MemoryMin, ReadDepth: 1, ReadSize: 1 << 16})
	r := w.rawUp()
	// There is memory for one call.
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
	// The first is fetched from a client that stands still, the second waits for that, and the
	// third for memory.
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

// TestHeldLongCall: a long call that waits for memory when the Listener is held is counted once,
// as what it is.
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

// TestThousandConnections: what a thousand clients take of the budget, each of which does
// something. NFS-Ganesha pins 65 MiB for each, 63 GiB for all.
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
	for _, c := range clients { // every one of them still has its turn
		if err := put(c, 64<<10); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFloors: as many clients as there are floors for are let in, and get on; the next is refused
// with the reason. When others go its turn has come, and credits rise again.
func TestFloors(t *testing.T) {
	const inline = 64 << 10
	door := rpc.NewConnLimiter(rpc.ConnLimits{PerClient: 1000})
	w := newWorld(t, Config{Memory: MemoryMin, Inline: inline, Credits: 64, Limiter: door})
	dev := w.net.device("192.0.2.50")
	t.Cleanup(func() { dev.Close() })
	floors := MemoryMin / messageShare / (receives(floorCredits) * inline)
	var clients []*Client
	for {
		c, err := Dial(context.Background(), dev, serverAddr, ClientConfig{})
		if err != nil {
			break
		}
		clients = append(clients, c)
		for _, c := range clients { // so that those who have more than their share hear of it
			for range 4 {
				if err := put(c, 10); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(clients) > floors {
			t.Fatalf("%d clients, and floors for %d", len(clients), floors)
		}
	}
	if len(clients) < floors/2 {
		t.Errorf("%d clients, and floors for %d", len(clients), floors)
	}
	for _, c := range w.l.Conns() {
		if c.Credits < 1 || c.Credits > 2*floorCredits {
			t.Errorf("%d credits while memory is short", c.Credits)
		}
	}
	if st := w.l.Stats(); st.Errors["rpcrdma_connection_refused"] != 1 ||
		st.Errors["rpcrdma_credits_lowered_by_memory"] == 0 {
		t.Errorf("%+v", st.Errors)
	}
	if st := door.Stats(); st.Refused["memory"] != 1 || st.Clients != 1 {
		t.Errorf("%+v", st)
	}
	for _, c := range clients[1:] {
		c.Close()
	}
	for w.l.Memory().Connections > 1 {
		time.Sleep(time.Millisecond)
	}
	c, err := Dial(context.Background(), dev, serverAddr, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer clients[0].Close()
	// The new one begins with the floor, as more than half is taken, and has more once it uses
	// that.
	for deadline := time.Now().Add(20 * time.Second); ; {
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				if err := put(c, 10); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		n := w.l.Conns()
		if n[0].Credits >= 8 || n[1].Credits >= 8 {
			break
		}
		if t.Failed() || time.Now().After(deadline) {
			t.Fatalf("%d and %d credits with nobody else there", n[0].Credits, n[1].Credits)
		}
	}
}

// TestSlowClient: a client that takes no reply has its part of the memory for a time, no
// worker, and is disconnected with the reason; others do not notice.
func TestSlowClient(t *testing.T) {
	w := newWorld(t, Config{SlowTimeout: time.Second, ConnMemory: 1})
	other := w.dial("192.0.2.9", ClientConfig{})
	r := w.rawUp()
	r.dev.loop.do(func() { r.conn.QP().(*fakeQP).recvs = nil }) // not one receive
	m := r.region(64<<20, remoteWrite)
	for i := range uint32(32) {
		h := &Header{XID: i + 1, Credits: 32, Writes: []Chunk{{Segment{Handle: m.rkey, Length: 1 << 20, Offset: m.Addr()}}}}
		r.send(message(h, rawCall(i+1, procGet, 1, 1<<20)))
	}
	for gone := false; !gone; {
		select {
		case <-r.gone:
			gone = true
		default:
			if err := get(other, 100<<10, 1<<20, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	st := w.l.Stats()
	if st.Errors["rpcrdma_slow_client"] != 1 {
		t.Errorf("%+v", st.Errors)
	}
	// 8 MiB is the least that ConnMemory can be; the other has a block.
	if m := w.l.Memory(); m.Peak-m.Messages > 2*bulkMax+2<<20 {
		t.Errorf("it had %d bytes", m.Peak-m.Messages)
	}
}

// pacedHandler is a server with a limit that the test turns.
type pacedHandler struct {
	*rpc.Server
	wait  *atomic.Int64 // nanoseconds that each call with bulk data waits
	never *atomic.Bool
	asked *atomic.Int64
}

func (p pacedHandler) Pace(c *rpc.Call, _ xdr.Decoder, _ int, take bool) (uint32, time.Duration, bool) {
	if !take {
		return 1, 0, true
	}
	p.asked.Add(1)
	if p.never.Load() {
		return 1, time.Millisecond, false
	}
	c.Paid = true
	return 1, time.Duration(p.wait.Load()), true
}

func pacedWorld(t *testing.T, cfg Config) (*world, pacedHandler) {
	t.Helper()
	w := &world{t: t, net: newFakeNet(), svc: &service{gate: make(chan struct{})}}
	w.srv = rpc.NewServer(rpc.ServerConfig{Programs: w.svc.programs(), Workers: 1})
	h := pacedHandler{w.srv, new(atomic.Int64), new(atomic.Bool), new(atomic.Int64)}
	dev := w.net.device("192.0.2.1")
	var err error
	if w.l, err = ServeHandler(dev, port, func(p rpc.Peer, _ func()) (Handler, error) {
		if p.Addr.Addr().String() == "192.0.2.77" {
			return h, nil
		}
		return w.srv, nil
	}, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.l.Close(); err != nil {
			t.Error(err)
		}
		w.srv.Close()
		dev.Close()
	})
	return w, h
}

// keepsKeys is a raw client whose keys replies do not invalidate.
func (w *world) keepsKeys() *rawClient {
	w.t.Helper()
	r := w.raw(16, PrivateMessage{Send: 4096, Receive: 4096}.Append(nil))
	if !<-r.up {
		w.t.Fatal("rejected")
	}
	return r
}

// TestThrottle: the calls of a client over its limits take no memory and no RDMA READ, it is
// granted fewer credits, down to one, and more again when it keeps to them. A client beside it is
// served at once.
func TestThrottle(t *testing.T) {
	w, limit := pacedWorld(t, Config{Credits: 32})
	var reads atomic.Int64
	w.net.posted = func(n int) { reads.Add(int64(n)) }
	r := w.keepsKeys()
	m := r.region(1<<20, rdma.RemoteRead)
	xid := uint32(0)
	write := func() {
		xid++
		const n = 256 << 10
		head := rawCall(xid, procPut, 1, n)
		r.send(message(&Header{XID: xid, Credits: 32, Reads: []ReadSegment{{uint32(len(head)), segments(m, n)[0]}}},
			append(head, 0, 0, 0xab, 0xcd)))
	}
	limit.never.Store(true)
	const burst = 10
	for range burst {
		write()
	}
	for limit.asked.Load() < 3*burst || int(w.l.Conns()[0].InUse) < burst {
		time.Sleep(time.Millisecond)
	}
	if used, inFlight := w.l.pool.inUse(), reads.Load(); used != 0 || inFlight != 0 {
		t.Errorf("calls that wait for their time have %d bytes of memory and %d RDMA READs", used, inFlight)
	}
	// The modest one: the only worker is free, and so is the memory.
	other := w.dial("192.0.2.9", ClientConfig{})
	if err := get(other, 1<<20-64, 1<<20, 0); err != nil {
		t.Fatal(err)
	}
	limit.never.Store(false)
	var last *Header
	for range burst {
		last, _ = r.reply()
	}
	if last.Credits > 2 {
		t.Errorf("%d credits are granted to a client over its limits", last.Credits)
	}
	for range 20 {
		write()
		last, _ = r.reply()
	}
	if last.Credits < firstGrant {
		t.Errorf("%d credits for a client that keeps to its limits", last.Credits)
	}
	st := w.l.Stats()
	if st.Errors["rpcrdma_waited_for_limit"] != burst || st.Errors["rpcrdma_credits_lowered_by_limit"] == 0 {
		t.Errorf("%+v", st.Errors)
	}
	// With a wait each call goes on by itself, and with one under way no credit is lost.
	limit.wait.Store(int64(time.Millisecond))
	for range 5 {
		write()
		r.reply()
	}
}

// TestThrottledHold: calls that wait for their limits keep nobody from standing still, and wait
// on afterwards.
func TestThrottledHold(t *testing.T) {
	w, limit := pacedWorld(t, Config{})
	limit.wait.Store(int64(time.Hour))
	r := w.keepsKeys()
	m := r.region(1<<20, remoteWrite)
	const calls = 4
	for i := range uint32(calls) {
		r.send(message(&Header{XID: i + 1, Credits: 32, Writes: []Chunk{segments(m, 1000)}}, rawCall(i+1, procGet, 1, 1000)))
	}
	for w.l.Conns()[0].InUse < calls {
		time.Sleep(time.Millisecond)
	}
	for range 2 {
		w.l.Pause(true)
		for _, b := range w.l.Busy() {
			if b.Calls != 0 {
				t.Errorf("held, and %+v", b)
			}
		}
		if c := w.l.Conns()[0]; c.InUse != 0 || c.Calls != 0 {
			t.Errorf("held, and %+v", c)
		}
		w.l.Pause(false)
		if c := w.l.Conns()[0]; c.InUse != calls || c.Calls != calls {
			t.Errorf("let go, and %+v", c)
		}
	}
	w.l.Pause(true)
	limit.wait.Store(0)
	w.l.Pause(false)
	for i := range uint32(calls) {
		if h, _ := r.reply(); h.XID != i+1 {
			t.Errorf("reply %d is that of call %d", i+1, h.XID)
		}
	}
	if n := w.l.Stats().Messages["recv_rdma_msg"]; n != calls {
		t.Errorf("%d calls were counted", n)
	}
}

// TestThrottledEnd: a connection ends, or is drained, while its calls wait for their time.
func TestThrottledEnd(t *testing.T) {
	for _, drain := range []bool{false, true} {
		w, limit := pacedWorld(t, Config{})
		limit.wait.Store(int64(time.Hour))
		r := w.keepsKeys()
		m := r.region(1<<20, remoteWrite)
		for i := range uint32(4) {
			r.send(message(&Header{XID: i + 1, Credits: 32, Writes: []Chunk{segments(m, 1000)}}, rawCall(i+1, procGet, 1, 1000)))
		}
		for w.l.Conns()[0].InUse < 4 {
			time.Sleep(time.Millisecond)
		}
		if drain {
			if err := w.l.Shutdown(context.Background()); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				select {
				case <-r.replies:
				case <-time.After(time.Minute):
					t.Fatal("no reply")
				}
			}
			continue
		}
		r.dev.loop.do(func() { r.conn.Disconnect() })
		<-r.gone
	}
}

// TestPinnedMemory: what a device pins is within the limit, however many connections come and go,
// and keeps its pages.
func TestPinnedMemory(t *testing.T) {
	cfg := Config{Pinned: true}.withDefaults()
	for _, limit := range []int{MemoryMin, 64 << 20, 100 << 20} {
		m, err := NewMemory(limit, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(m.arena.Bytes()); n > limit || m.most < limit/messageShare/(512<<10) {
			t.Errorf("of %d bytes %d are mapped, for %d connections", limit, n, m.most)
		}
		var held [][]byte
		for range m.most {
			b, back := m.block(&m.recvBlocks, cfg.receiveMemory()), m.block(&m.backBlocks, backwardMemory)
			if len(b) != cfg.receiveMemory() || len(back) != backwardMemory {
				t.Fatalf("%d of %d bytes: blocks of %d and %d", len(held), m.most, len(b), len(back))
			}
			held = append(held, b)
		}
		if m.block(&m.recvBlocks, cfg.receiveMemory()) != nil || m.block(&m.backBlocks, backwardMemory) != nil {
			t.Errorf("%d bytes: there are blocks for more connections than there can be", limit)
		}
		// All bulk memory can be had in the longest blocks.
		for n := 0; n+bulkMax <= m.bulk; n += bulkMax {
			if m.alloc(bulkMax) == nil {
				t.Fatalf("%d bytes of bulk memory of %d are not there", n, m.bulk)
			}
		}
		held[0][1] = 7
		m.discard(held[0])
		if held[0][1] != 7 {
			t.Error("pinned memory was given back to the system")
		}
		m.freeBlock(&m.recvBlocks, held[0])
		if b := m.block(&m.recvBlocks, cfg.receiveMemory()); b == nil || &b[0] != &held[0][0] {
			t.Error("a block that was given back is not there")
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
