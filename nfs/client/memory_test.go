package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// registering is a connection that counts what is registered with it.
type registering struct {
	flaky
	live map[*byte]bool
	fail error
}

func (r *registering) Register(buf []byte) (func(), error) {
	if r.fail != nil {
		return nil, r.fail
	}
	r.live[&buf[0]] = true
	return func() { delete(r.live, &buf[0]) }, nil
}

// TestMemoryFollowsTheConnection: memory is registered with the connection of the
// moment, whether it came before it or after it.
func TestMemoryFollowsTheConnection(t *testing.T) {
	server := &flakyServer{lives: 1, xids: map[uint32]int{}}
	var conns []*registering
	var fail error
	c := New(Config{GiveUp: time.Second, Dial: func(context.Context) (rpc.Client, error) {
		r := &registering{flaky: flaky{server: server, left: 1}, live: map[*byte]bool{}, fail: fail}
		conns = append(conns, r)
		return r, nil
	}})
	defer c.Close()
	early, late := make([]byte, 10), make([]byte, 10)
	a, err := c.Register(early)
	if err != nil {
		t.Fatal(err)
	}
	call := func() error { return c.RPC().Call(context.Background(), &rpc.Request{}) }
	if err := call(); err != nil {
		t.Fatal(err)
	}
	b, err := c.Register(late)
	if err != nil {
		t.Fatal(err)
	}
	if len(conns) != 1 || !conns[0].live[&early[0]] || !conns[0].live[&late[0]] {
		t.Fatalf("%d connections, %v", len(conns), conns[0].live)
	}
	if err := call(); err != nil { // the first connection is lost
		t.Fatal(err)
	}
	if len(conns) != 2 || !conns[1].live[&early[0]] || !conns[1].live[&late[0]] {
		t.Fatalf("%d connections, %v", len(conns), conns[1].live)
	}
	a.Close()
	b.Close()
	if len(conns[1].live) != 0 {
		t.Error("still registered after Close")
	}
	fail = errors.New("no more memory can be locked")
	if _, err := c.Register(early); err != nil {
		t.Fatal(err) // the present connection can
	}
	if err := call(); !errors.Is(err, fail) {
		t.Errorf("a connection without the memory was used: %v", err)
	}
}
