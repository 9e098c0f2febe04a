package tcp

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestShutdown: a call in progress is answered, an idle connection delays nothing, and a call that
// never ends delays Shutdown only until the context ends.
func TestShutdown(t *testing.T) {
	const prog, vers = 0x20000000, 1
	inside, release := make(chan struct{}, 2), make(chan struct{})
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{
		Name: "slow", Prog: prog, Vers: vers, Procs: []rpc.Proc{{Name: "WAIT", Serve: func(c *rpc.Call, _ bool) rpc.Status {
			inside <- struct{}{}
			<-release
			c.Res.Uint32(7)
			return rpc.Done
		}}},
	}}})
	start := func() (*Listener, *Client, chan error) {
		l, err := net.Listen("tcp", "127.0.0.9:0") // no client has this address
		if err != nil {
			t.Fatal(err)
		}
		s := Serve(l, srv)
		idle, err := Dial(t.Context(), s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { idle.Close() })
		c, err := Dial(t.Context(), s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		answered := make(chan error, 1)
		go func() {
			answered <- c.Call(t.Context(), &rpc.Request{
				Prog: prog, Vers: vers, Args: func(*xdr.Encoder) {},
				Res: func(d *xdr.Decoder) error { d.Uint32(); return d.Err() },
			})
		}()
		<-inside
		return s, c, answered
	}

	s, _, answered := start()
	time.AfterFunc(20*time.Millisecond, func() { release <- struct{}{} })
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := <-answered; err != nil {
		t.Errorf("the call in progress: %v", err)
	}
	if _, err := Dial(t.Context(), s.Addr().String()); err == nil {
		t.Error("a connection was accepted after Shutdown")
	}

	s, _, answered = start()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(ctx) }()
	if err := <-answered; err == nil {
		t.Error("a call that was cut off was answered")
	}
	close(release) // its worker still has to end
	if err := <-ended; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	srv.Close()
}
