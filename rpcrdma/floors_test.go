package rpcrdma

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestFloors: the memory admits as many clients as it has floors (floorCredits). The next client is
// refused with a reason. When others leave, it is admitted, and the grants grow again.
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
		for _, c := range clients { // each reply lowers the grant of clients above their share
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
	// The new client begins with the floor, because more than half of the memory is in use. It gets
	// more credits once it uses them.
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

// TestSlowClient: a client that takes no replies has its part of the memory for SlowTimeout, and no
// worker. Then it is disconnected with a reason. Others are not affected.
func TestSlowClient(t *testing.T) {
	w := newWorld(t, Config{SlowTimeout: time.Second, ConnMemory: 1})
	other := w.dial("192.0.2.9", ClientConfig{})
	r := w.rawUp()
	r.dev.loop.do(func() { r.conn.QP().(*fakeQP).recvs = nil }) // the client has no receives
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
	// 8 MiB is the least value of ConnMemory. The other client has one block.
	if m := w.l.Memory(); m.Peak-m.Messages > 2*bulkMax+2<<20 {
		t.Errorf("it had %d bytes", m.Peak-m.Messages)
	}
}

// pacedHandler is a server with a rate limit that the test changes.
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

// keepsKeys makes a raw client that does not support remote invalidation.
func (w *world) keepsKeys() *rawClient {
	w.t.Helper()
	r := w.raw(16, PrivateMessage{Send: 4096, Receive: 4096}.Append(nil))
	if !<-r.up {
		w.t.Fatal("rejected")
	}
	return r
}

// TestThrottle: the calls of a client over its limits take no memory and no RDMA READ. The client
// is granted fewer credits, down to one, and more again when it keeps to its limits. Another client
// is served at once.
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
	// The other client: the only worker and the memory are free for it.
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
	// With a short wait each call goes on by itself. One call in flight costs no credit.
	limit.wait.Store(int64(time.Millisecond))
	for range 5 {
		write()
		r.reply()
	}
}

// TestThrottledHold: calls that wait for their rate limits do not delay a Pause. They wait again
// after it.
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

// TestThrottledEnd: a connection ends, or is drained, while its calls wait for their rate limits.
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

// TestPinnedMemory: pinned memory stays within the limit while connections come and go, and keeps
// its pages.
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
		// All bulk memory can be allocated in blocks of the largest size.
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
