package roce_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/rdmatest/netns"
	"github.com/rstored/rstored/rdma/roce"
)

// TestLinkLocal: hosts with IPv6 link-local addresses connect. Such an address needs the name of an
// interface, which is known to one host only: packets do not have it.
func TestLinkLocal(t *testing.T) {
	left, right := netns.Pair(t, 1500, []string{"fe80::a1/64"}, []string{"fe80::b2/64"})
	open := func(s *netns.Space, addr string) (d *roce.Device) {
		var err error
		s.Do(func() { d, err = roce.Open(roce.Config{Addr: netip.MustParseAddr(addr)}) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	server, client := open(right, "fe80::b2%"+netns.Right), open(left, "fe80::a1%"+netns.Left)
	if got := server.Addr().Zone(); got != netns.Right {
		t.Errorf("the address of the device is in zone %q", got)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := endpoint.Listen(server, 7471, endpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan string, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			got <- err.Error()
			return
		}
		defer c.Close()
		m, err := c.Recv(ctx)
		if err != nil {
			got <- err.Error()
			return
		}
		got <- string(m.Data)
	}()
	// The address with the interface of the client's host.
	c, err := endpoint.Dial(ctx, client, netip.MustParseAddrPort("[fe80::b2%"+netns.Left+"]:7471"), endpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := c.Register([]byte("hello"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := c.Send(ctx, m, 0, 5); err != nil {
		t.Error(err)
	}
	if s := <-got; s != "hello" {
		t.Errorf("got %q", s)
	}
}
