package tickle

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/rdmatest/netns"
)

func conn(local, remote string) Conn {
	return Conn{netip.MustParseAddrPort(local), netip.MustParseAddrPort(remote)}
}

// TestTable: what is in a table is found by the next process, but for a record that was half
// written.
func TestTable(t *testing.T) {
	mem := make([]byte, 3*Record)
	table, left := Open(mem)
	if len(left) != 0 {
		t.Error(left)
	}
	a, b := conn("192.0.2.1:2049", "192.0.2.9:800"), conn("[2001:db8::1]:2049", "[2001:db8::2]:801")
	c, d := conn("192.0.2.1:2049", "192.0.2.9:802"), conn("192.0.2.1:2049", "192.0.2.9:803")
	table.Set([]Conn{a, b})
	table.Set([]Conn{b, c})
	table.Set([]Conn{c, b, a, d}) // one is too many
	if _, left = Open(slices.Clone(mem)); len(left) != 3 || !slices.Contains(left, a) || !slices.Contains(left, b) ||
		!slices.Contains(left, c) {
		t.Error(left)
	}
	mem[9]++
	if _, left = Open(mem); len(left) != 2 {
		t.Error(left)
	}
	if _, left = Open(mem); len(left) != 0 {
		t.Error(left)
	}
}

// TestSend: a client waits for a reply from an address that has moved to another node. After Send
// its connection is reset.
func TestSend(t *testing.T) {
	for _, c := range []struct{ client, server, bits string }{
		{"10.78.0.1", "10.78.0.10", "24"}, {"fd78::1", "fd78::10", "64"},
	} {
		t.Run(c.server, func(t *testing.T) {
			clients, nodes := netns.New(t), [2]*netns.Space{netns.New(t), netns.New(t)}
			if _, err := clients.Run("ip", "link", "add", "br0", "type", "bridge"); err != nil {
				t.Skipf("the kernel has no bridge: %v", err)
			}
			add := func(s *netns.Space, addr, dev string) {
				nodad := ""
				if netip.MustParseAddr(addr).Is6() {
					nodad = " nodad"
				}
				s.IP(t, fmt.Sprintf("addr add %s/%s dev %s%s", addr, c.bits, dev, nodad))
			}
			add(clients, c.client, "br0")
			clients.IP(t, "link set br0 up")
			for i, n := range nodes {
				clients.Join(t, fmt.Sprint("to-", i), n, "eth0", 1500)
				clients.IP(t, fmt.Sprintf("link set to-%d master br0", i))
			}
			add(nodes[0], c.server, "eth0")
			listen := func(s *netns.Space) (l net.Listener) {
				var err error
				s.Do(func() { l, err = net.Listen("tcp", net.JoinHostPort(c.server, "2049")) })
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
				return l
			}
			old := listen(nodes[0])
			var client net.Conn
			var err error
			clients.Do(func() { client, err = net.DialTimeout("tcp", old.Addr().String(), time.Minute) })
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			served, err := old.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = served.Close() }()
			if _, err := client.Write([]byte("call")); err != nil {
				t.Fatal(err)
			}
			if _, err := served.Read(make([]byte, 4)); err != nil {
				t.Fatal(err)
			}

			nodes[0].IP(t, "link set eth0 down")
			add(nodes[1], c.server, "eth0")
			listen(nodes[1])
			clients.IP(t, "neigh flush all")
			list := []Conn{{
				netip.MustParseAddrPort(served.LocalAddr().String()), netip.MustParseAddrPort(served.RemoteAddr().String()),
			}}
			got := make(chan error, 1)
			go func() {
				_, err := client.Read(make([]byte, 1))
				got <- err
			}()
			for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
				var n int
				nodes[1].Do(func() { n, err = Send(list) })
				if n != 1 || err != nil {
					t.Fatal(n, err)
				}
				select {
				case err := <-got:
					if !errors.Is(err, syscall.ECONNRESET) {
						t.Error(err)
					}
					return
				default:
				}
				if time.Now().After(end) {
					t.Fatal("the connection is not reset")
				}
			}
		})
	}
}

// TestAnnounce: a neighbour that knows an address at one host has it at another one after that host
// has announced it.
func TestAnnounce(t *testing.T) {
	for _, c := range []struct{ client, server, bits string }{
		{"10.78.0.1", "10.78.0.10", "24"}, {"fd78::1", "fd78::10", "64"},
	} {
		t.Run(c.server, func(t *testing.T) {
			clients, node := netns.New(t), netns.New(t)
			clients.Join(t, "eth0", node, "eth0", 1500)
			nodad := ""
			server := netip.MustParseAddr(c.server)
			if server.Is6() {
				nodad = " nodad"
			}
			clients.IP(t, "addr add "+c.client+"/"+c.bits+" dev eth0"+nodad)
			node.IP(t, "addr add "+c.server+"/"+c.bits+" dev eth0"+nodad)
			const before = "02:00:00:00:00:99"
			clients.IP(t, "neigh replace "+c.server+" lladdr "+before+" dev eth0 nud stale")
			for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
				var err error
				node.Do(func() { err = Announce(server) })
				if err != nil {
					t.Fatal(err)
				}
				out, err := clients.Run("ip", "neigh", "show", c.server)
				if err != nil {
					t.Fatal(out, err)
				}
				if strings.Contains(out, "lladdr") && !strings.Contains(out, before) {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("the neighbour has %s", out)
				}
			}
		})
	}
	if err := Announce(netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("an address that the host does not have: %v", err)
	}
}
