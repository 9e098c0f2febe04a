package counters

import (
	"maps"
	"net"
	"testing"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// TestClosedStay: what a device or a listener counted stays in the sums when it is closed, and
// zeros are left out.
func TestClosedStay(t *testing.T) {
	var all Transports
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := rpc.NewServer(rpc.ServerConfig{Workers: 1})
	defer srv.Close()
	listener := tcp.Config{}.Serve(l, srv)
	all.AddTCP(listener)
	c, err := tcp.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Call(t.Context(), &rpc.Request{Prog: 7, Vers: 1}); err == nil {
		t.Error("a program that there is not")
	}
	_ = c.Close()
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	before := all.Sum()
	if before.TCPBytes == 0 {
		t.Error("the call is not counted")
	}
	all.DropTCP(listener)
	all.DropTCP(listener)
	if after := all.Sum(); after.TCPBytes != before.TCPBytes || !maps.Equal(after.Errors, before.Errors) {
		t.Errorf("%+v, before %+v", after, before)
	}
	for range 2 {
		all.AddErrors(map[string]uint64{"rdma_bad_response": 2, "rdma_local_error": 0})
	}
	if got := all.Sum().Errors; got["rdma_bad_response"] != 4 || len(got) != len(before.Errors)+1 {
		t.Errorf("errors %v", got)
	}
}
