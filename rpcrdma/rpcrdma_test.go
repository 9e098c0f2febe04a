package rpcrdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A test program. The caller chooses the sizes of arguments and results.
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

// newWorldOf is newWorld with other programs, if they are not nil.
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

// inUse waits until n calls of the first connection are in progress.
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

// get requests one item. The server writes it to dst if dst has room.
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
	for _, n := range []int{3900, 5025, 5026, 5027, 100_000} {
		// The data is not added by Bulk, so that the call itself is too long.
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
