package tcp

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestClientIsCalled: the server calls the client on the connection of a call in flight. Without a
// function for such calls the client answers PROG_UNAVAIL.
func TestClientIsCalled(t *testing.T) {
	const there = 0x40000000
	ends := make(chan error, 10)
	srv := rpc.NewServer(rpc.ServerConfig{
		Workers: 1,
		Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
			{Name: "NULL", Serve: func(c *rpc.Call, _ bool) rpc.Status {
				done := make(chan struct{})
				c.Back.Call(&rpc.BackwardCall{
					Prog: there, Vers: 1, Proc: 3, Args: []byte{0, 0, 0, 7}, Timeout: 20 * time.Second,
					Done: func(res *xdr.Decoder, err error) {
						if err == nil && res.Uint32() != 8 {
							err = errors.New("other results")
						}
						ends <- err
						close(done)
					},
				})
				<-done
				return rpc.Done
			}},
		}}},
	})
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, srv)
	defer s.Close()
	call := func(ctx context.Context) error {
		t.Helper()
		c, err := Dial(ctx, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Call(ctx, &rpc.Request{Prog: prog, Vers: 1}); err != nil {
			t.Fatal(err)
		}
		return <-ends
	}
	answering := rpc.WithBackward(context.Background(), func(msg []byte, reply func([]byte)) {
		go reply(rpc.Answer(msg, there, 1, func(proc uint32, d *xdr.Decoder, e *xdr.Encoder) rpc.AcceptStat {
			if proc != 3 {
				return rpc.ProcUnavail
			}
			e.Uint32(d.Uint32() + 1)
			return rpc.RPCSuccess
		}))
	})
	if err := call(answering); err != nil {
		t.Error(err)
	}
	var refused *rpc.AcceptError
	if err := call(context.Background()); !errors.As(err, &refused) || refused.Stat != rpc.ProgUnavail {
		t.Errorf("without a function: %v", err)
	}
}
