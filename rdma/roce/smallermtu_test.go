package roce_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rdmatest/netns"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
)

// narrowInterface is a link whose interface has an MTU of 1500 bytes.
type narrowInterface struct{ link.Link }

// MTU implements link.Link.
func (narrowInterface) MTU() int { return 1500 }

// TestSmallerMTU: the client's interface has a larger MTU than the server's. The connection has the
// path MTU of the server's interface.
func TestSmallerMTU(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 3, Loss: 0.05}, func(side int, cfg *roce.Config) {
		wrap := cfg.Wrap
		cfg.Wrap = func(i int, l link.Link) link.Link {
			if wrap != nil {
				l = wrap(i, l)
			}
			if side == 1 {
				l = narrowLink{narrowInterface{l}, 1500, false}
			} else {
				l = narrowLink{l, 1500, false}
			}
			return l
		}
		if side == 1 {
			cfg.PathMTUMax = 1024 // the device reads the MTU before it wraps the link
		}
	})
	w.connect()
	for i, s := range w.side {
		if e := s.events[0]; e.PathMTU != 1024 {
			t.Errorf("side %d: path MTU %d", i, e.PathMTU)
		}
	}
	local, remote := w.side[0].mr, w.side[1].mr
	for _, op := range []rdma.SendOp{rdma.OpWrite, rdma.OpRead} {
		wr := rdma.SendWR{Op: op, RemoteAddr: remote.Addr(), RKey: remote.RKey()}
		wr.SGL = []rdma.SGE{{Buf: local.Bytes()[:10000], LKey: local.LKey()}}
		if wc := w.post(wr); wc.Status != rdma.Success {
			t.Errorf("%v: %v", op, wc.Status)
		}
	}
}

// TestSameHost: a program on the server's host connects to the address of the server's Ethernet
// interface. Its own device is on the loopback interface, which has a larger MTU.
func TestSameHost(t *testing.T) {
	for _, addr := range []string{"192.0.2.2", "2001:db8::2"} {
		t.Run(addr, func(t *testing.T) {
			_, host := netns.Pair(t, 1500, []string{"192.0.2.1/24", "2001:db8::1/64"},
				[]string{"192.0.2.2/24", "2001:db8::2/64"})
			open := func(cfg roce.Config) (d *roce.Device) {
				var err error
				host.Do(func() { d, err = roce.Open(cfg) })
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { d.Close() })
				return d
			}
			server := open(roce.Config{Addr: netip.MustParseAddr(addr)})
			own := roce.Config{}
			if server.Addr().Is6() {
				own.Addr = netip.IPv6Loopback()
			}
			client := open(own)
			if client.MTU() != 4096 || server.MTU() != 1024 {
				t.Fatalf("path MTU %d and %d", client.MTU(), server.MTU())
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			l, err := endpoint.Listen(server, 7471, endpoint.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				if c, err := l.Accept(ctx); err == nil {
					defer c.Close()
					_, _ = c.Recv(ctx)
				}
			}()
			begun := time.Now()
			c, err := endpoint.Dial(ctx, client, netip.AddrPortFrom(server.Addr(), 7471), endpoint.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			m, err := c.Register(make([]byte, 3000), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if err := c.Send(ctx, m, 0, 3000); err != nil {
				t.Error(err)
			}
		})
	}
}
