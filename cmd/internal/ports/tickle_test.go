package ports

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/devices/devicestest"
	"github.com/rstored/rstored/cmd/internal/tickle"
	"github.com/rstored/rstored/rdma/rdmatest/netns"
)

// TestAddressComes: a node that serves before its host has the address announces the address as soon
// as it comes, with the segments to the clients of the node before. An answer of a client would
// otherwise go to that node.
func TestAddressComes(t *testing.T) {
	s := newSet(t, new(devicestest.Kernel))
	clients, node := netns.New(t), netns.New(t)
	clients.Join(t, "eth0", node, "eth0", 1500)
	clients.IP(t, "addr add 10.79.0.1/24 dev eth0")
	node.IP(t, "addr add 10.79.0.2/24 dev eth0")
	const before = "02:00:00:00:00:99"
	clients.IP(t, "neigh replace 10.79.0.10 lladdr "+before+" dev eth0 nud stale")
	server := netip.MustParseAddrPort("10.79.0.10:2049")
	left := []tickle.Conn{{Local: server, Remote: netip.MustParseAddrPort("10.79.0.1:700")}}
	knows := func() bool {
		out, err := clients.Run("ip", "neigh", "show", "10.79.0.10")
		if err != nil {
			t.Fatal(out, err)
		}
		return strings.Contains(out, "lladdr") && !strings.Contains(out, before)
	}
	// The thread of the node is busy meanwhile.
	if _, err := node.Run("sh", "-c", "(sleep 0.5; ip addr add 10.79.0.10/24 dev eth0) >/dev/null 2>&1 &"); err != nil {
		t.Fatal(err)
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		node.Do(func() { s.follow(server.Addr(), left, func() {}, end) })
	}()
	defer func() {
		close(end)
		<-ended
	}()
	time.Sleep(5 * comeEvery)
	if knows() {
		t.Error("an address was announced that the host does not have")
	}
	becomes(t, "the client knows where the address is", knows)
}
