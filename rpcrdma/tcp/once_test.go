package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// counted serves a procedure that must not be executed twice. Its reply is the number of the
// execution. The first execution waits for release.
func counted(t *testing.T) (s *Listener, srv *rpc.Server, addr string, runs *atomic.Uint32, release chan struct{}) {
	t.Helper()
	runs, release = new(atomic.Uint32), make(chan struct{})
	srv = rpc.NewServer(rpc.ServerConfig{
		Workers: 2,
		Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
			{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
			{Name: "ONCE", Mutates: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
				n := runs.Add(1)
				if n == 1 {
					<-release
				}
				c.Res.Uint32(n)
				return rpc.Done
			}},
		}}},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = Serve(l, srv)
	t.Cleanup(func() {
		s.Close()
		srv.Close()
	})
	return s, srv, l.Addr().String(), runs, release
}

// acknowledged waits until the hosts of the clients have acknowledged all replies. They may delay
// that for a moment.
func acknowledged(t *testing.T, s *Listener) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		n := 0
		s.mu.Lock()
		for c := range s.conns {
			if c.writing.Load() {
				n++
			}
			c.acks.Settle()
			c.acks.mu.Lock()
			n += len(c.acks.waiting)
			c.acks.mu.Unlock()
		}
		s.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d replies are not acknowledged", n)
		}
	}
}

func once(c *Client) (n uint32, err error) {
	err = c.Call(context.Background(), &rpc.Request{
		Prog: prog, Vers: 1, Proc: 1, XID: 5,
		Args: func(e *xdr.Encoder) { e.String("name") },
		Res:  func(d *xdr.Decoder) error { n = d.Uint32(); return d.Err() },
	})
	return n, err
}

// TestAnswersOfOthers: another process of the host has the same XID by chance. Its call is
// executed, whether the connection of the first process still exists or not.
func TestAnswersOfOthers(t *testing.T) {
	s, _, addr, _, release := counted(t)
	close(release)
	a := dial(t, addr)
	for want := uint32(1); want <= 4; want++ {
		n, err := once(a)
		if err != nil || n != want {
			t.Fatalf("execution %d, want %d: %v", n, want, err)
		}
		if again, err := once(a); err != nil || again != n { // a retransmission
			t.Errorf("sent again: execution %d: %v", again, err)
		}
		acknowledged(t, s)
		if want%2 == 0 {
			a.Close()
		}
		a = dial(t, addr)
	}
}

// TestOnceOverAnotherConnection: a client that has lost its connection before the reply gets the
// reply on the next one, from any port.
func TestOnceOverAnotherConnection(t *testing.T) {
	s, srv, addr, runs, release := counted(t)
	a := dial(t, addr)
	lost := make(chan error, 1)
	go func() {
		_, err := once(a)
		lost <- err
	}()
	for runs.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	a.Close()
	if err := <-lost; err == nil {
		t.Fatal("a closed connection brought an answer")
	}
	b := dial(t, addr)
	go func() {
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			for _, p := range srv.Stats().Procs {
				if p.Retransmits > 0 {
					close(release)
					return
				}
			}
		}
		t.Error("the call did not come again")
		close(release)
	}()
	if n, err := once(b); n != 1 || err != nil {
		t.Errorf("execution %d: %v", n, err)
	}
	acknowledged(t, s)
	if n, err := once(dial(t, addr)); n != 2 || err != nil {
		t.Errorf("another process got the answer of execution %d: %v", n, err)
	}
}

// brokenWrites is a connection whose writes fail, and which has a reply to read.
type brokenWrites struct {
	net.Conn
	reply []byte
	wrote chan struct{}
	ended atomic.Bool
}

func (c *brokenWrites) Write([]byte) (int, error) {
	close(c.wrote)
	return 0, errors.New("broken pipe")
}

func (c *brokenWrites) Read(b []byte) (int, error) {
	<-c.wrote
	time.Sleep(10 * time.Millisecond) // longer than the client takes to fail
	if c.ended.Load() {
		return 0, net.ErrClosed
	}
	n := copy(b, c.reply)
	if c.reply = c.reply[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (c *brokenWrites) Close() error                     { c.ended.Store(true); return nil }
func (c *brokenWrites) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *brokenWrites) SetReadDeadline(time.Time) error  { return nil }
func (c *brokenWrites) SetWriteDeadline(time.Time) error { return nil }

// TestRepliesBeforeTheEnd: after a failed write the client still takes the replies that have
// arrived. The server has the acknowledgement of this host for them.
func TestRepliesBeforeTheEnd(t *testing.T) {
	var e xdr.Encoder
	for _, w := range []uint32{1<<31 | 28, 5, rpc.MsgReply, 0, 0, 0, 0, 77} {
		e.Uint32(w)
	}
	c := NewClient(&brokenWrites{reply: e.B, wrote: make(chan struct{})})
	defer c.Close()
	if n, err := once(c); n != 77 || err != nil {
		t.Errorf("result %d: %v", n, err)
	}
}

// TestEnded: a connection has ended once the peer has closed or reset it, also with unread data.
func TestEnded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, reset := range []bool{false, true} {
		peer, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := peer.Write([]byte("a call")); err != nil {
			t.Fatal(err)
		}
		a := newAcks(c)
		if a.Ended() {
			t.Error("an open connection has ended")
		}
		if reset {
			_ = peer.(*net.TCPConn).SetLinger(0)
		}
		_ = peer.Close()
		for deadline := time.Now().Add(30 * time.Second); !a.Ended(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("reset %v: the connection has not ended", reset)
			}
		}
	}
	if c, _ := net.Pipe(); newAcks(c).Ended() {
		t.Error("a pipe says nothing")
	}
}
