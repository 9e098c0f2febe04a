package tcp

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// lines is a log that is written and read concurrently.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestNeverReads: a client sends calls and reads no replies. When its replies take ConnMemory, its
// connection is not read any more. Then it is disconnected, with a reason in the log. Others go on.
func TestNeverReads(t *testing.T) {
	const memory = 2 << 20
	log := new(lines)
	s, addr, _ := serve(t, Config{
		ConnMemory: memory, WriteTimeout: time.Second, // long enough to fill the memory on a busy machine
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var e xdr.Encoder
	rpc.EncodeCall(&e, 1, prog, 1, procEcho, nil)
	e.Opaque(make([]byte, 512<<10))
	mark := rpc.RecordMark(len(e.B))
	msg := append(mark[:], e.B...)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for {
			if _, err := c.Write(msg); err != nil {
				return // the server has closed the connection
			}
		}
	}()
	other := dial(t, addr)
	most := 0
	for gone := false; !gone; {
		if err := echo(other, procSlow, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		for _, i := range s.Conns() {
			most = max(most, i.Memory)
		}
		select {
		case <-sent:
			gone = true
		default:
		}
	}
	// One more call is read just below the limit, and its reply is encoded. A small payload buffer
	// has 64 KiB, a large one 1 MiB.
	if most > memory+3<<20 {
		t.Errorf("it held %d bytes", most)
	}
	for s.Counters().SlowClients == 0 {
		time.Sleep(time.Millisecond)
	}
	if n := s.Counters(); n.SlowClients != 1 || n.Paused == 0 {
		t.Errorf("%+v", n)
	}
	if out := log.String(); !strings.Contains(out, "takes no replies") || !strings.Contains(out, c.LocalAddr().String()) {
		t.Errorf("the log says %q", out)
	}
}

// TestLimitedIsNotRead: while a call is deferred by its client's limits, the socket is not read.
func TestLimitedIsNotRead(t *testing.T) {
	var served, limited atomic.Int32
	wait := func(c *rpc.Call, _ bool) rpc.Status {
		served.Add(1)
		if !c.Paid {
			c.Paid = true
			if limited.Add(1) == 1 && c.Defer(time.Second) {
				return rpc.Later
			}
		}
		return rpc.Done
	}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{
		Prog: prog, Vers: 1,
		Procs: []rpc.Proc{{Name: "WAIT", Inline: true, Serve: wait}},
	}}})
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, srv)
	defer s.Close()
	c := dial(t, l.Addr().String())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := c.Call(context.Background(), &rpc.Request{Prog: prog, Vers: 1, Proc: 0}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.Counters(); n.Paused == 0 || served.Load() != 21 {
		t.Errorf("%d served, %+v", served.Load(), n)
	}
}

// TestLimitedHurries: a connection is not read, because a call on it is deferred. ServeDeferred
// makes the connection quiescent. Afterwards it is read again.
func TestLimitedHurries(t *testing.T) {
	came := make(chan struct{}, 1)
	wait := func(c *rpc.Call, _ bool) rpc.Status {
		if !c.Paid {
			c.Paid = true
			if c.Defer(time.Hour) {
				came <- struct{}{}
				return rpc.Later
			}
		}
		return rpc.Done
	}
	srv := rpc.NewServer(rpc.ServerConfig{Workers: 1, Programs: []rpc.Program{{Prog: prog, Vers: 1, Procs: []rpc.Proc{
		{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
		{Name: "WAIT", Inline: true, Serve: wait},
	}}}})
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, srv)
	defer s.Close()
	c := dial(t, l.Addr().String())
	late := make(chan error, 1)
	go func() { late <- c.Call(context.Background(), &rpc.Request{Prog: prog, Vers: 1, Proc: 1}) }()
	<-came
	s.Pause(true)
	srv.ServeDeferred(true)
	rests(t, s)
	if err := <-late; err != nil {
		t.Error(err)
	}
	srv.ServeDeferred(false)
	s.Pause(false)
	if err := c.Call(context.Background(), &rpc.Request{Prog: prog, Vers: 1, Proc: 0}); err != nil {
		t.Error(err)
	}
}

// TestLimitedEnds: Close does not wait for the time of deferred calls.
func TestLimitedEnds(t *testing.T) {
	came := make(chan struct{})
	wait := func(c *rpc.Call, _ bool) rpc.Status {
		c.Defer(time.Hour)
		close(came)
		return rpc.Later
	}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{
		Prog: prog, Vers: 1,
		Procs: []rpc.Proc{{Name: "WAIT", Inline: true, Serve: wait}},
	}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, srv)
	c := dial(t, l.Addr().String())
	go func() { _ = c.Call(context.Background(), &rpc.Request{Prog: prog, Vers: 1, Proc: 0}) }()
	<-came
	srv.Close()
	s.Close()
}

// TestDoors: a client with too many connections is refused, and others are not.
func TestDoors(t *testing.T) {
	door := rpc.NewConnLimiter(rpc.ConnLimits{PerClient: 2, Descriptors: 3})
	s, addr, _ := serve(t, Config{Limiter: door})
	first := []*Client{dial(t, addr), dial(t, addr)}
	for _, c := range first {
		if err := echo(c, procEcho, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := echo(dial(t, addr), procEcho, nil); err == nil {
		t.Error("a third connection of one client")
	}
	elsewhere := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.2:0"))}
	for i := range 2 {
		c, err := elsewhere.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i == 1 {
			if n, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("a fourth connection is there: %d bytes", n)
			}
		}
	}
	if st := door.Stats(); st.Refused["connections_per_client"] != 1 || st.Refused["descriptors"] != 1 || st.Clients != 2 {
		t.Errorf("%+v", st)
	}
	first[0].Close()
	for door.Stats().Descriptors > 2 {
		time.Sleep(time.Millisecond)
	}
	if err := echo(dial(t, addr), procEcho, nil); err != nil {
		t.Errorf("after one has gone: %v", err)
	}
	if n := s.Counters().Refused; n != 2 {
		t.Errorf("%d refused", n)
	}
}
