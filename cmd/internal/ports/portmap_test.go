package ports

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/devices/devicestest"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma/udp"
)

// TestQueryDuringChange: the port mapper answers while a port is being closed, which may wait for
// that very answer. It lists the ports that there are.
func TestQueryDuringChange(t *testing.T) {
	s := newSet(t, devicestest.NewKernel())
	s.Admits = func(netip.Addr) bool { return true }
	listen := fmt.Sprintf("127.%d.%d.%d:20111", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	add := func(transport string) control.Port {
		t.Helper()
		p, err := s.Add(control.PortSpec{Transport: transport, Listen: listen})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	at := netip.MustParseAddrPort(add(control.TransportUDP).Addresses[0])
	c, err := udp.Dial(at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	query := func(proto uint32) (uint16, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return client.Port(ctx, c, portmap.Program, portmap.Version2, proto)
	}
	s.mu.Lock()
	port, err := query(portmap.ProtoUDP)
	s.mu.Unlock()
	if err != nil || port != at.Port() {
		t.Errorf("during a change: port %d, %v", port, err)
	}
	if port, err := query(portmap.ProtoTCP); err == nil {
		t.Errorf("by TCP at port %d before there is one", port)
	}
	p := add(control.TransportPortmap)
	port, err = query(portmap.ProtoTCP)
	if err != nil || port != netip.MustParseAddrPort(p.Addresses[0]).Port() {
		t.Errorf("by TCP at port %d, %v; the port is at %v", port, err, p.Addresses)
	}
	if err := s.Remove(p.PortSpec); err != nil {
		t.Fatal(err)
	}
	if port, err := query(portmap.ProtoTCP); err == nil {
		t.Errorf("by TCP at port %d after it was removed", port)
	}
}
