package udp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/rdmatest/netns"
)

// TestHost: two links of a namespace know that they are on one host, and links of two namespaces
// that they are not. A link knows between which addresses the kernel itself delivers.
func TestHost(t *testing.T) {
	a, b := opened(t, Config{}), opened(t, Config{})
	if a.HostID() == 0 || a.HostID() != b.HostID() {
		t.Errorf("links of one namespace: %#x and %#x", a.HostID(), b.HostID())
	}
	if !a.Loopback(b.LocalAddr()) || !b.Loopback(netip.MustParseAddr("::ffff:127.0.0.1")) {
		t.Error("packets between loopback addresses leave the host")
	}
	left, right := netns.Pair(t, 1500, []string{"10.9.0.1/24", "10.9.0.11/24", "fd09::1/64", "fe80::1/64"},
		[]string{"10.9.0.2/24", "fd09::2/64", "fe80::2/64"})
	open := func(s *netns.Space, addr string) (l *Link) {
		var err error
		s.Do(func() { l, err = Open(Config{Addr: netip.MustParseAddr(addr)}) })
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l, r := open(left, "10.9.0.1"), open(right, "10.9.0.2")
	if l.HostID() == r.HostID() || l.HostID() == a.HostID() || l.HostID() == 0 {
		t.Errorf("links of three namespaces: %#x, %#x, %#x", a.HostID(), l.HostID(), r.HostID())
	}
	l.Close()
	r.Close()
	check := func(addr, peer string, want bool) {
		t.Helper()
		l, p := open(left, addr), netip.MustParseAddr(peer)
		defer l.Close()
		var got bool
		left.Do(func() { got = l.Loopback(p) })
		if got != want {
			t.Errorf("from %s to %s: %v", addr, peer, got)
		}
		if want && l.Loopback(p) {
			t.Errorf("from %s to %s: the tables of another namespace answered", addr, peer)
		}
	}
	check("10.9.0.11", "10.9.0.1", true)
	check("127.0.0.9", "10.9.0.11", true) // a secondary address
	check("::1", "fd09::1", true)
	check("fe80::1%"+netns.Left, "fe80::1", true)
	check("10.9.0.11", "10.9.0.2", false)
	check("fd09::1", "fd09::2", false)
	check("fe80::1%"+netns.Left, "fe80::2", false)
	check("10.9.0.11", "10.9.0.99", false)
	// Rules that send packets between two addresses of the host over a cable, in one direction.
	left.IP(t, "rule add pref 100 lookup local")
	left.IP(t, "rule del pref 0")
	left.IP(t, "rule add pref 50 from 10.9.0.11 to 10.9.0.1 lookup 77")
	left.IP(t, "route add 10.9.0.1/32 dev "+netns.Left+" table 77")
	check("10.9.0.11", "10.9.0.1", false)
	check("10.9.0.1", "10.9.0.11", false)
}

// TestForeignSource: the kernel drops IPv4 packets with a source address of this host that come
// from a network. It does not drop IPv6 packets: so a local source address says nothing about where
// a packet comes from.
func TestForeignSource(t *testing.T) {
	for _, c := range []struct {
		network, to, from, local string
		comes                    bool
	}{
		{"udp4", "10.9.0.1", "10.9.0.3", "10.9.0.2", false},
		{"udp6", "fd09::1", "fd09::3", "fd09::2", true},
	} {
		prefix := "/24"
		if c.comes {
			prefix = "/64"
		}
		// The sender also has the second address of the receiver.
		left, right := netns.Pair(t, 1500, []string{c.from + prefix, c.local + prefix},
			[]string{c.to + prefix, c.local + prefix})
		var in net.PacketConn
		var err error
		right.Do(func() { in, err = net.ListenPacket(c.network, net.JoinHostPort(c.to, "4791")) })
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		send := func(from string) {
			left.Do(func() {
				var out net.PacketConn
				if out, err = net.ListenPacket(c.network, net.JoinHostPort(from, "0")); err == nil {
					_, err = out.WriteTo([]byte(from), &net.UDPAddr{IP: net.ParseIP(c.to), Port: 4791})
					out.Close()
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		send(c.from) // resolves the receiver's hardware address
		send(c.local)
		send(c.from)
		var came []string
		b := make([]byte, 100)
		_ = in.SetReadDeadline(time.Now().Add(10 * time.Second))
		for len(came) == 0 || len(came) < 2 || came[len(came)-1] != c.from {
			n, _, err := in.ReadFrom(b)
			if err != nil {
				t.Fatal(came, err)
			}
			came = append(came, string(b[:n]))
		}
		if (len(came) == 3) != c.comes {
			t.Errorf("%s: datagrams of %v came", c.network, came)
		}
	}
}
