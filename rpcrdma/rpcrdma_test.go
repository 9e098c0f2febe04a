package rpcrdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A test program: what goes in and out is the caller's choice.
const (
	testProg = 200300
	testVers = 1

	procNull = 0
	procPut  = 1 // any number of opaques; returns a sum and length of each
	procGet  = 2 // lengths; returns a bulk item of each, patterned
	procText = 3 // a length; returns an opaque that is not bulk
	procWait = 4 // waits for the gate
	procEcho = 5 // returns its opaque argument by reference to the arguments
	procOnce = 6 // mutates: counts its executions, returns the count and a bulk item
	procFill = 7 // a number: returns so many bulk items, each as long as there is room for

	port = 20049
)

type service struct {
	gate    chan struct{}
	first   chan struct{} // if not nil, the first ONCE waits for it
	counted atomic.Uint32
	onNull  func(*rpc.Call) // set before any call
}

func pattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}

func sum(b []byte) uint32 {
	v := uint32(2166136261)
	for _, x := range b {
		v = (v ^ uint32(x)) * 16777619
	}
	return v
}

func (s *service) programs() []rpc.Program {
	put := func(c *rpc.Call, _ bool) rpc.Status {
		n := c.Args.Uint32()
		if n > 16 {
			return rpc.Garbage
		}
		for range n {
			b := c.Args.Opaque(1 << 21)
			c.Res.Uint32(sum(b))
			c.Res.Uint32(uint32(len(b)))
		}
		if c.Args.Uint32() != 0xabcd || c.Args.Err() != nil { // something behind the data
			return rpc.Garbage
		}
		return rpc.Done
	}
	get := func(c *rpc.Call, _ bool) rpc.Status {
		n := c.Args.Uint32()
		for i := range n {
			p := c.Payload(int(c.Args.Uint32()))
			if p == nil {
				return rpc.Failed
			}
			pattern(p, int(i))
			c.Res.Bulk(p)
		}
		c.Res.Uint32(0xabcd)
		return rpc.Done
	}
	return []rpc.Program{{Name: "test", Prog: testProg, Vers: testVers, Procs: []rpc.Proc{
		procNull: {Name: "NULL", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			if s.onNull != nil {
				s.onNull(c)
			}
			return rpc.Done
		}},
		procPut: {Name: "PUT", Inline: true, Serve: put},
		procGet: {Name: "GET", Serve: get},
		procText: {Name: "TEXT", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			b := make([]byte, c.Args.Uint32())
			pattern(b, 3)
			c.Res.Opaque(b)
			return rpc.Done
		}},
		procWait: {Name: "WAIT", Serve: func(*rpc.Call, bool) rpc.Status { <-s.gate; return rpc.Done }},
		procEcho: {Name: "ECHO", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			c.Res.Bulk(c.Args.Opaque(1 << 20))
			return rpc.Done
		}},
		procFill: {Name: "FILL", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			for i := range c.Args.Uint32() {
				p := make([]byte, c.NextBulk())
				pattern(p, int(i))
				c.Res.Bulk(p)
			}
			c.Res.Uint32(0xabcd)
			return rpc.Done
		}},
		procOnce: {Name: "ONCE", Mutates: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			n := s.counted.Add(1)
			if n == 1 && s.first != nil {
				<-s.first
			}
			c.Res.Uint32(n)
			p := c.Payload(5000)
			pattern(p, 9)
			c.Res.Bulk(p)
			return rpc.Done
		}},
	}}}
}

// world is a server and devices to reach it from.
type world struct {
	t   *testing.T
	net *fakeNet
	svc *service
	srv *rpc.Server
	l   *Listener
}

func newWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	return newWorldOf(t, cfg, nil)
}

// newWorldOf is newWorld with other programs, unless they are nil.
func newWorldOf(t *testing.T, cfg Config, programs []rpc.Program) *world {
	t.Helper()
	w := &world{t: t, net: newFakeNet(), svc: &service{gate: make(chan struct{})}}
	if programs == nil {
		programs = w.svc.programs()
	}
	w.srv = rpc.NewServer(rpc.ServerConfig{Programs: programs, Workers: 4})
	dev := w.net.device("192.0.2.1")
	var err error
	if w.l, err = Serve(dev, port, w.srv, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.l.Close(); err != nil {
			t.Error(err)
		}
		if n := w.l.Stats().MemoryInUse; n != 0 {
			t.Errorf("%d bytes of bulk memory never came back", n)
		}
		w.srv.Close()
		dev.Close()
		if all, _ := w.l.pd.(*fakePD).open(); all != 0 {
			t.Errorf("the server left %d regions registered", all)
		}
	})
	return w
}

// inUse waits until so many calls of the first connection are in progress.
func (w *world) inUse(n int) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		conns := w.l.Conns()
		if len(conns) > 0 && conns[0].InUse == n {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("%d calls are not in progress: %+v", n, conns)
		}
	}
}

var serverAddr = netip.MustParseAddrPort("192.0.2.1:20049")

func (w *world) dial(addr string, cfg ClientConfig) *Client {
	w.t.Helper()
	dev := w.net.device(addr)
	c, err := Dial(context.Background(), dev, serverAddr, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		c.Close()
		dev.Close()
		if all, _ := c.pd.(*fakePD).open(); all != 0 {
			w.t.Errorf("the client left %d regions registered", all)
		}
	})
	return c
}

func request(proc uint32, args func(*xdr.Encoder), res func(*xdr.Decoder) error) *rpc.Request {
	return &rpc.Request{
		Prog: testProg, Vers: testVers, Proc: proc, Args: args, Res: res,
		Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"},
	}
}

func put(c rpc.Client, lengths ...int) error {
	var data [][]byte
	for i, n := range lengths {
		b := make([]byte, n)
		pattern(b, i)
		data = append(data, b)
	}
	return c.Call(context.Background(), request(procPut, func(e *xdr.Encoder) {
		e.Uint32(uint32(len(data)))
		for _, b := range data {
			e.Bulk(b)
		}
		e.Uint32(0xabcd)
	}, func(d *xdr.Decoder) error {
		for i, b := range data {
			if s, n := d.Uint32(), int(d.Uint32()); s != sum(b) || n != len(b) {
				return fmt.Errorf("argument %d of %d bytes arrived as %d bytes, sum %#x", i, len(b), n, s)
			}
		}
		return d.Err()
	}))
}

// get asks for one item, in dst if it has room.
func get(c rpc.Client, n, room, resMax int) error {
	dst := make([]byte, room)
	want := make([]byte, n)
	pattern(want, 0)
	r := request(procGet, func(e *xdr.Encoder) {
		e.Uint32(1)
		e.Uint32(uint32(n))
	}, func(d *xdr.Decoder) error {
		b := d.Bulk(1 << 21)
		if d.Uint32() != 0xabcd || d.Err() != nil {
			return fmt.Errorf("what follows the data: %v", d.Err())
		}
		if !bytes.Equal(b, want) {
			return fmt.Errorf("wrong data, %d bytes", len(b))
		}
		if room > 4096 && n > 0 && &b[0] != &dst[0] {
			return errors.New("not in the caller's memory")
		}
		return nil
	})
	r.Dst, r.ResMax = dst, resMax
	return c.Call(context.Background(), r)
}

func text(c rpc.Client, n, resMax int) error {
	want := make([]byte, n)
	pattern(want, 3)
	r := request(procText, func(e *xdr.Encoder) { e.Uint32(uint32(n)) }, func(d *xdr.Decoder) error {
		if !bytes.Equal(d.Opaque(1<<21), want) {
			return errors.New("wrong data")
		}
		return nil
	})
	r.ResMax = resMax
	return c.Call(context.Background(), r)
}

func TestCalls(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	lengths := []int{0, 1, 2, 3, 4, 100, 1000, 3900, 3997, 4000, 4096, 5000, 65535, 65536, 1<<20 - 1, 1 << 20}
	for _, n := range lengths {
		if err := put(c, n); err != nil {
			t.Errorf("put %d: %v", n, err)
		}
		if err := get(c, n, n, 0); err != nil {
			t.Errorf("get %d: %v", n, err)
		}
		if err := text(c, n, n+4); err != nil {
			t.Errorf("text %d: %v", n, err)
		}
	}
	for _, l := range [][]int{{5, 5}, {4096, 1, 4097}, {1, 300_000, 2, 300_001, 3}, {0, 9000, 0}, {3000, 3000}} {
		if err := put(c, l...); err != nil {
			t.Errorf("put %v: %v", l, err)
		}
	}
	if err := get(c, 5000, 70_000, 0); err != nil {
		t.Errorf("a result shorter than its room: %v", err)
	}
	if err := get(c, 5000, 5000, 100_000); err != nil {
		t.Errorf("Write chunk and Reply chunk: %v", err)
	}
	if err := get(c, 50_000, 0, 100_000); err != nil {
		t.Errorf("bulk data in the Reply chunk: %v", err)
	}
	if err := text(c, 10, 1<<20); err != nil {
		t.Errorf("a short reply in spite of a Reply chunk: %v", err)
	}
	s := w.l.Stats()
	for _, k := range []string{"recv_rdma_msg", "sent_rdma_msg", "sent_rdma_nomsg", "sent_with_invalidate"} {
		if s.Messages[k] == 0 {
			t.Errorf("%s is 0", k)
		}
	}
	for k, n := range s.Errors {
		if n != 0 {
			t.Errorf("%s is %d", k, n)
		}
	}
	if i := w.l.Conns(); len(i) != 1 || i[0].Credits != firstGrant || i[0].InlineOut != 4096 || i[0].ReadDepth != 16 ||
		!i[0].RemoteInvalidation {
		t.Errorf("%+v", i)
	}
	if _, remote := w.l.pd.(*fakePD).open(); remote != 0 {
		t.Errorf("%d regions of the server can be reached from outside", remote)
	}
	if all, _ := c.pd.(*fakePD).open(); all != 1 {
		t.Errorf("%d regions of the client are open between calls", all-1)
	}
}

func TestLongCalls(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	for _, n := range []int{3900, 4001, 4002, 4003, 100_000} {
		// Not by reference, so that the call itself is too long.
		b := make([]byte, n)
		pattern(b, 0)
		more := make([]byte, n+1)
		err := c.Call(context.Background(), request(procPut, func(e *xdr.Encoder) {
			e.Uint32(2)
			e.Opaque(b)
			e.Bulk(more)
			e.Uint32(0xabcd)
		}, func(d *xdr.Decoder) error {
			if d.Uint32() != sum(b) || int(d.Uint32()) != n || d.Uint32() != sum(more) || int(d.Uint32()) != n+1 {
				return errors.New("wrong data")
			}
			return nil
		}))
		if err != nil {
			t.Errorf("%d: %v", n, err)
		}
	}
	if n := w.l.Stats().Messages["recv_rdma_nomsg"]; n != 4 {
		t.Errorf("%d long calls", n)
	}
}

func TestReplyTooLong(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	for _, err := range []error{
		text(c, 10_000, 100),
		text(c, 10_000, 5_000),
		get(c, 10_000, 5_000, 0),
	} {
		var remote *RemoteError
		if !errors.As(err, &remote) || remote.Code != CodeChunk {
			t.Errorf("%v, want ERR_CHUNK", err)
		}
	}
	if err := text(c, 10, 100); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if n := w.l.Stats().Errors["rpcrdma_reply_too_long"]; n != 3 {
		t.Errorf("counted %d", n)
	}
}

func TestArgumentsByReferenceInReply(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	for _, n := range []int{1, 100, 3900, 5000, 100_000} {
		b := make([]byte, n)
		pattern(b, 1)
		r := request(procEcho, func(e *xdr.Encoder) { e.Bulk(b) }, func(d *xdr.Decoder) error {
			if !bytes.Equal(d.Opaque(1<<20), b) {
				return errors.New("wrong data")
			}
			return nil
		})
		r.Dst = make([]byte, n)
		if err := c.Call(context.Background(), r); err != nil {
			t.Errorf("%d: %v", n, err)
		}
		r.Dst = make([]byte, max(n, 8192)) // arguments inline, result in a chunk
		if err := c.Call(context.Background(), r); err != nil {
			t.Errorf("%d: %v", n, err)
		}
	}
}

func TestManyCallers(t *testing.T) {
	for _, credits := range []int{1, 2, 16, 128, 4000} {
		t.Run(fmt.Sprint(credits), func(t *testing.T) {
			w := newWorld(t, Config{Credits: min(credits, 64), ConnMemory: 1, Memory: 1})
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			var wg sync.WaitGroup
			for k := range 2 {
				c := w.dial(fmt.Sprintf("192.0.2.%d", 10+k), ClientConfig{Credits: credits})
				for g := range 24 {
					wg.Add(1)
					go func() {
						defer wg.Done()
						rnd := rand.New(rand.NewPCG(seed, uint64(k*100+g)))
						for range 10 {
							n := rnd.IntN(1<<20) >> rnd.IntN(18)
							var err error
							switch rnd.IntN(4) {
							case 0:
								err = put(c, n)
							case 1:
								err = get(c, n, n, 0)
							case 2:
								err = text(c, n>>4, n>>4+4)
							case 3:
								err = put(c, n>>2, n>>3, 1)
							}
							if err != nil {
								t.Errorf("%d: %v", n, err)
							}
						}
					}()
				}
			}
			wg.Wait()
			for _, i := range w.l.Conns() {
				if i.Credits > 64 || i.Credits < 1 || i.Calls != 240 {
					t.Errorf("%+v", i)
				}
			}
		})
	}
}

func TestCancel(t *testing.T) {
	w := newWorld(t, Config{Credits: 2})
	c := w.dial("192.0.2.9", ClientConfig{})
	if err := put(c, 1); err != nil {
		t.Fatal(err)
	}
	w.inUse(0)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for range 5 { // two in flight, three waiting for credits
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := c.Call(ctx, request(procWait, nil, nil)); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
	}
	w.inUse(2)
	cancel()
	wg.Wait()
	again := make(chan error)
	go func() { again <- put(c, 1) }() // the credits come back with the late replies only
	select {
	case err := <-again:
		t.Fatalf("a credit was used twice: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(w.svc.gate)
	if err := <-again; err != nil {
		t.Fatal(err)
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

func TestCancelledMemoryIsClosed(t *testing.T) {
	w := newWorld(t, Config{})
	dev := w.net.device("192.0.2.9")
	defer dev.Close()
	c, err := Dial(context.Background(), dev, serverAddr, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	dst := make([]byte, 8192)
	r := request(procWait, nil, nil)
	r.Dst = dst
	failed := make(chan error)
	go func() { failed <- c.Call(ctx, r) }()
	w.inUse(1)
	if _, remote := c.pd.(*fakePD).open(); remote != 1 {
		t.Errorf("%d regions open during the call", remote)
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, remote := c.pd.(*fakePD).open(); remote != 0 {
		t.Errorf("%d regions open after it", remote)
	}
	close(w.svc.gate)
}

// TestRegisteredMemory: memory that was registered once is opened in part by each
// call, and closed after it.
func TestRegisteredMemory(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	buf := make([]byte, 1<<20)
	release, err := c.Register(buf)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		const n = 100_000
		dst, want := buf[i*n:][:n], make([]byte, n)
		pattern(want, 0)
		r := request(procGet, func(e *xdr.Encoder) {
			e.Uint32(1)
			e.Uint32(n)
		}, func(d *xdr.Decoder) error {
			if b := d.Bulk(n); len(b) != n || &b[0] != &dst[0] {
				return fmt.Errorf("%d bytes, or elsewhere", len(b))
			}
			return nil
		})
		r.Dst = dst
		if err := c.Call(context.Background(), r); err != nil || !bytes.Equal(dst, want) {
			t.Fatalf("call %d: %v, or wrong data", i, err)
		}
	}
	if err := put(c, 100_000); err != nil {
		t.Error(err)
	}
	if all, remote := c.pd.(*fakePD).open(); all != 2 || remote != 0 {
		t.Errorf("%d regions between calls, %d of them open to the server; want 2 and none", all, remote)
	}
	release()
	c.loop.Submit(func() {})
	done := make(chan struct{})
	c.loop.Submit(func() { close(done) })
	<-done
	if all, _ := c.pd.(*fakePD).open(); all != 1 {
		t.Errorf("%d regions after release", all)
	}
}

func TestServerCloses(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	failed := make(chan error)
	go func() { failed <- c.Call(context.Background(), request(procWait, nil, nil)) }()
	w.inUse(1)
	closed := make(chan error)
	go func() { closed <- w.l.Close() }()
	var lost *rpc.ConnError
	if err := <-failed; !errors.As(err, &lost) {
		t.Fatalf("%v, want a ConnError", err)
	}
	select {
	case <-closed:
		t.Fatal("closed with a call in progress")
	case <-time.After(20 * time.Millisecond):
	}
	close(w.svc.gate)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if err := put(c, 1); !errors.As(err, &lost) {
		t.Fatal(err)
	}
}

func TestShutdownFinishesCalls(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	result := make(chan error)
	go func() { result <- c.Call(context.Background(), request(procWait, nil, nil)) }()
	w.inUse(1)
	done := make(chan error)
	go func() { done <- w.l.Shutdown(context.Background()) }()
	time.Sleep(20 * time.Millisecond)
	close(w.svc.gate)
	if err := <-result; err != nil {
		t.Errorf("the call in progress: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestReplyCacheAcrossConnections(t *testing.T) {
	w := newWorld(t, Config{})
	w.svc.first = make(chan struct{})
	once := func(c *Client, room int) (n uint32, err error) {
		r := request(procOnce, nil, func(d *xdr.Decoder) error {
			n = d.Uint32()
			want := make([]byte, 5000)
			pattern(want, 9)
			if !bytes.Equal(d.Bulk(5000), want) {
				return errors.New("wrong data")
			}
			return nil
		})
		r.XID, r.Dst = 4711, make([]byte, room)
		err = c.Call(context.Background(), r)
		return n, err
	}
	until := func(what string, ok func() bool) {
		for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Error("not within 30 s: " + what)
				return
			}
		}
	}
	a := w.dial("192.0.2.9", ClientConfig{})
	lost := make(chan error, 1)
	go func() {
		_, err := once(a, 5000)
		lost <- err
	}()
	until("the execution", func() bool { return w.svc.counted.Load() == 1 })
	a.Close()
	if <-lost == nil {
		t.Fatal("a closed connection brought an answer")
	}
	b := w.dial("192.0.2.9", ClientConfig{})
	go func() {
		until("the call, sent again", func() bool { return w.srv.Stats().Procs[0].Retransmits == 1 })
		close(w.svc.first)
	}()
	// What was kept is the message; where its data goes is the new call's choice.
	if n, err := once(b, 0x4000); n != 1 || err != nil {
		t.Errorf("execution %d, %v", n, err)
	}
	until("the acknowledgment", func() bool {
		for _, c := range w.l.Conns() {
			if c.InUse > 0 {
				return false
			}
		}
		return true
	})
	if n, err := once(w.dial("192.0.2.9", ClientConfig{}), 5000); n != 2 || err != nil {
		t.Errorf("another process got the reply of the first: %d, %v", n, err)
	}
	if n, err := once(w.dial("192.0.2.10", ClientConfig{}), 5000); n != 3 || err != nil {
		t.Errorf("another client got the reply of the first: %d, %v", n, err)
	}
}

func TestDialErrors(t *testing.T) {
	n := newFakeNet()
	dev := n.device("192.0.2.9")
	defer dev.Close()
	var lost *rpc.ConnError
	if _, err := Dial(context.Background(), dev, serverAddr, ClientConfig{}); !errors.As(err, &lost) ||
		!strings.Contains(err.Error(), "192.0.2.1:20049") {
		t.Error(err)
	}
	full := newWorld(t, Config{MaxConns: 1})
	full.dial("192.0.2.9", ClientConfig{})
	dev = full.net.device("192.0.2.10")
	defer dev.Close()
	if _, err := Dial(context.Background(), dev, serverAddr, ClientConfig{}); !errors.As(err, &lost) {
		t.Error(err)
	}
	refused := func() uint64 { return full.l.Stats().Errors["rpcrdma_connection_refused"] }
	for deadline := time.Now().Add(10 * time.Second); refused() == 0 && time.Now().Before(deadline); {
		runtime.Gosched() // the client may know before it is counted
	}
	if n := refused(); n != 1 {
		t.Errorf("counted %d refused connections", n)
	}
}
