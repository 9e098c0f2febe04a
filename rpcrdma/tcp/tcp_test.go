package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

const (
	prog     = 200200
	procEcho = 1 // opaque in, opaque out, by reference
	procWait = 2 // returns once released
	procSlow = 3 // like echo, on a worker
)

func serve(t *testing.T, cfg Config) (*Listener, string, chan struct{}) {
	t.Helper()
	release := make(chan struct{})
	echo := func(c *rpc.Call, _ bool) rpc.Status {
		b := c.Args.Opaque(1 << 20)
		if c.Args.Err() != nil {
			return rpc.Garbage
		}
		p := c.Payload(len(b))
		copy(p, b)
		c.Res.Bulk(p)
		c.Res.Uint32(uint32(len(b)))
		return rpc.Done
	}
	srv := rpc.NewServer(rpc.ServerConfig{
		Workers: 4,
		Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
			{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
			procEcho: {Name: "ECHO", Inline: true, Serve: echo},
			procWait: {Name: "WAIT", Serve: func(*rpc.Call, bool) rpc.Status { <-release; return rpc.Done }},
			procSlow: {Name: "SLOW", Serve: echo},
		}}},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := cfg.Serve(l, srv)
	t.Cleanup(func() {
		select {
		case <-release:
		default: // after a failure, so that Close does not wait for ever
			close(release)
		}
		s.Close()
		srv.Close()
	})
	return s, l.Addr().String(), release
}

func dial(t *testing.T, addr string) *Client {
	t.Helper()
	c, err := Dial(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func echo(c *Client, proc uint32, data []byte) error {
	return c.Call(context.Background(), &rpc.Request{
		Prog: prog, Vers: 1, Proc: proc,
		Args: func(e *xdr.Encoder) { e.Bulk(data) },
		Res: func(d *xdr.Decoder) error {
			got := d.Opaque(1 << 20)
			if n := d.Uint32(); d.Err() == nil && int(n) != len(data) {
				return errors.New("wrong length behind the data")
			}
			if d.Err() == nil && !bytes.Equal(got, data) {
				return errors.New("wrong data")
			}
			return d.Err()
		},
	})
}

func TestManyCallsInFlight(t *testing.T) {
	s, addr, _ := serve(t, Config{MaxCalls: 8})
	c := dial(t, addr)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, g))
			for range 40 {
				b := make([]byte, rnd.IntN(200_000)>>rnd.IntN(16))
				for i := range b {
					b[i] = byte(rnd.Uint32())
				}
				if err := echo(c, procEcho+2*rnd.Uint32N(2), b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := echo(c, procEcho, make([]byte, 1<<20)); err != nil {
		t.Error(err)
	}
	// The reader may see a reply before the writer has counted it.
	n := s.Counters()
	for n.Replies < 321 {
		runtime.Gosched()
		n = s.Counters()
	}
	if n.Calls != 321 || n.Replies != 321 || n.BytesOut <= 1<<20 {
		t.Errorf("%+v", n)
	}
	if i := s.Conns(); len(i) != 1 || i[0].Calls != 321 {
		t.Errorf("%+v", i)
	}
}

func TestRefusals(t *testing.T) {
	_, addr, _ := serve(t, Config{})
	c := dial(t, addr)
	for _, k := range []struct {
		prog, vers, proc uint32
		want             rpc.AcceptStat
	}{
		{prog + 1, 1, 0, rpc.ProgUnavail},
		{prog, 2, 0, rpc.ProgMismatch},
		{prog, 1, 99, rpc.ProcUnavail},
		{prog, 1, procEcho, rpc.GarbageArgs},
	} {
		err := c.Call(context.Background(), &rpc.Request{Prog: k.prog, Vers: k.vers, Proc: k.proc})
		var a *rpc.AcceptError
		if !errors.As(err, &a) || a.Stat != k.want {
			t.Errorf("%+v: %v", k, err)
		}
	}
}

func TestCancelAndClose(t *testing.T) {
	_, addr, release := serve(t, Config{})
	c := dial(t, addr)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := c.Call(ctx, &rpc.Request{Prog: prog, Vers: 1, Proc: procWait}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if err := echo(c, procEcho, []byte("still there")); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() { failed <- c.Call(context.Background(), &rpc.Request{Prog: prog, Vers: 1, Proc: procWait}) }()
	time.Sleep(20 * time.Millisecond)
	c.Close()
	var lost *rpc.ConnError
	if err := <-failed; !errors.As(err, &lost) || !errors.Is(err, rpc.ErrClosed) {
		t.Fatal(err)
	}
	if err := echo(c, procEcho, nil); !errors.As(err, &lost) {
		t.Fatal(err)
	}
	close(release)
}

func TestFragmentsAndForward(t *testing.T) {
	_, addr, _ := serve(t, Config{})
	var e xdr.Encoder
	rpc.EncodeCall(&e, 77, prog, 1, procEcho, nil)
	e.Opaque([]byte("hello"))
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for i, b := range e.B { // a fragment for each byte
		mark := uint32(1)
		if i == len(e.B)-1 {
			mark |= 1 << 31
		}
		nc.Write(append(binary.BigEndian.AppendUint32(nil, mark), b))
	}
	one, err := rpc.ReadRecord(nc, nil, 1000)
	if err != nil {
		t.Fatal(err)
	}
	two, err := forward(dial(t, addr), e.B)
	if err != nil || !bytes.Equal(one, two) {
		t.Fatalf("%x\n%x %v", one, two, err)
	}
}

func TestBadRecordsEndTheConnection(t *testing.T) {
	s, addr, _ := serve(t, Config{MaxRecord: 1000})
	for _, b := range [][]byte{
		{0xff, 0xff, 0xff, 0xff},
		{0, 0, 3, 0xe9},
		make([]byte, 4*1025),
	} {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		nc.Write(b)
		nc.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := nc.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%x: %d, %v", b[:4], n, err)
		}
		nc.Close()
	}
	for i := 0; s.Counters().BadRecords != 3; i++ {
		if time.Sleep(10 * time.Millisecond); i == 6000 {
			t.Fatalf("%+v", s.Counters())
		}
	}
}

func TestPeerThatDoesNotRead(t *testing.T) {
	s, addr, _ := serve(t, Config{MaxCalls: 4, WriteTimeout: 100 * time.Millisecond})
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var e xdr.Encoder
	rpc.EncodeCall(&e, 1, prog, 1, procEcho, nil)
	e.Opaque(make([]byte, 1<<20))
	rec := append(binary.BigEndian.AppendUint32(nil, uint32(len(e.B))|1<<31), e.B...)
	for range 200 {
		if _, err = nc.Write(rec); err != nil {
			break
		}
	}
	if err == nil {
		t.Fatal("the server took 200 MiB of calls whose replies nobody reads")
	}
	if err := echo(dial(t, addr), procEcho, []byte("others go on")); err != nil {
		t.Fatal(err)
	}
	if s.Counters().WriteErrors != 1 {
		t.Errorf("%+v", s.Counters())
	}
}

func TestMaxConns(t *testing.T) {
	s, addr, _ := serve(t, Config{MaxConns: 1})
	if err := echo(dial(t, addr), procEcho, nil); err != nil {
		t.Fatal(err)
	}
	if err := echo(dial(t, addr), procEcho, nil); err == nil {
		t.Fatal("a second connection was served")
	}
	if n := s.Counters(); n.Refused != 1 {
		t.Errorf("%+v", n)
	}
}

// forward sends a call message unchanged, and returns the reply message.
func forward(c *Client, msg []byte) ([]byte, error) {
	xid := binary.BigEndian.Uint32(msg)
	p := &pending{call: xdr.Encoder{B: msg}, done: make(chan struct{}, 1)}
	c.mu.Lock()
	c.pending[xid] = p
	c.mu.Unlock()
	if err := c.exchange(context.Background(), xid, p); err != nil {
		return nil, err
	}
	return p.reply, nil
}
