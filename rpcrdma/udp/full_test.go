package udp

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/rdmatest/netns"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestFullSocket: a reply for which the socket has no room is lost, and delays nothing. Replies to
// a host that does not answer ARP take the room.
func TestFullSocket(t *testing.T) {
	a, b := netns.New(t), netns.New(t)
	a.Join(t, "full-a", b, "full-b", 1500)
	a.IP(t, "addr add 10.99.0.1/24 dev full-a")
	var c *net.UDPConn
	var err error
	a.Do(func() { c, err = net.ListenUDP("udp", nil) })
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetWriteBuffer(1); err != nil { // the least that the kernel gives
		t.Fatal(err)
	}
	l, err := Config{
		Route: func(_, _, _ uint32) *rpc.Server { return nil }, Admits: func(netip.Addr) bool { return false },
	}.Serve(c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Shutdown(t.Context())
	k := &call{local: local{addr: netip.MustParseAddr("10.99.0.1")}, n: MaxMessage}
	k.Peer.Addr = netip.MustParseAddrPort("10.99.0.2:700")
	k.Res.Opaque(make([]byte, 1000))
	for range 16 {
		l.send(k)
	}
	if n := l.Counters(); n.Replies == 0 || n.WriteErrors == 0 {
		t.Errorf("counted %+v", n)
	}
}

// TestLinkLocal: the reply to a link-local address leaves by the interface on which the call
// arrived.
func TestLinkLocal(t *testing.T) {
	left, right := netns.Pair(t, 1500, []string{"fe80::a1/64"}, []string{"fe80::b2/64"})
	var r *rig
	left.Do(func() { r = serve(t, "udp", ":0", Config{}) })
	var c *Client
	var err error
	right.Do(func() { c, err = Dial(netip.MustParseAddrPort("[fe80::a1%" + netns.Right + "]:" + r.port())) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if back, err := echo(ctx, c, "near"); err != nil || back != "near" {
		t.Errorf("%q, %v, counted %+v", back, err, r.Counters())
	}
}
