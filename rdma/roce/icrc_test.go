package roce_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// hostLink is a link of the simulator that claims to know its host.
type hostLink struct {
	link.Link
	id       uint32
	loopback bool
	forge    *bool // sends with a wrong ICRC while it is true
}

func (l hostLink) HostID() uint32           { return l.id }
func (l hostLink) Loopback(netip.Addr) bool { return l.loopback }

// Send implements link.Link.
func (l hostLink) Send(b *wire.Batch) error {
	for i := range b.D {
		b.D[i].BadICRC = *l.forge
	}
	return l.Link.Send(b)
}

// TestICRCOmitted: two devices omit the ICRC if both of them know that they are on one host, and
// that no packet leaves it. Packets with a wrong ICRC are dropped all the same, and so are packets
// without one on connections that have no agreement.
func TestICRCOmitted(t *testing.T) {
	for _, c := range []struct {
		name     string
		id       [2]uint32
		loopback [2]bool
		icrc     int // the side whose setting keeps the ICRC; -1: none
		want     bool
	}{
		{"one host", [2]uint32{7, 7}, [2]bool{true, true}, -1, true},
		{"two hosts", [2]uint32{7, 8}, [2]bool{true, true}, -1, false},
		{"unknown hosts", [2]uint32{}, [2]bool{true, true}, -1, false},
		{"one host, over a cable", [2]uint32{7, 7}, [2]bool{}, -1, false},
		{"one host, the client cannot ask", [2]uint32{7, 7}, [2]bool{false, true}, -1, false},
		{"one host, the server cannot ask", [2]uint32{7, 7}, [2]bool{true, false}, -1, false},
		{"one host, the client keeps the ICRC", [2]uint32{7, 7}, [2]bool{true, true}, 0, false},
		{"one host, the server keeps the ICRC", [2]uint32{7, 7}, [2]bool{true, true}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{t: t, net: sim.New(sim.Config{Seed: 1}), dev: make([]*roce.Device, 2), port: 7}
			var forge bool
			for i := range w.dev {
				l, err := w.net.Open(simAddr[i])
				if err != nil {
					t.Fatal(err)
				}
				w.dev[i], err = roce.NewWithLink(hostLink{l, c.id[i], c.loopback[i], &forge}, roce.Config{
					Random: w.net.Rand().Uint32, LocalICRC: i == c.icrc, AckTimeout: 10,
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			w.connect()
			write := rdma.SendWR{
				Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: w.side[0].mr.Bytes(), LKey: w.side[0].mr.LKey()}},
				RemoteAddr: w.side[1].mr.Addr(), RKey: w.side[1].mr.RKey(),
			}
			read := write
			read.Op = rdma.OpRead
			for _, wr := range []rdma.SendWR{write, read} {
				if wc := w.post(wr); wc.Status != rdma.Success {
					t.Fatal(wc.Status)
				}
			}
			for i, d := range w.dev {
				s, q := d.Stats(), d.QPs()[0]
				if q.NoICRC != c.want || (s.ICRCOmitted >= simMemory/4096) != c.want || s.ICRCErrors != 0 || s.ICRCExact == 0 {
					t.Errorf("device %d: queue pair %v, %d omitted, %d exact, %d errors", i, q.NoICRC, s.ICRCOmitted,
						s.ICRCExact, s.ICRCErrors)
				}
			}
			forge = true
			if wc := w.post(write); wc.Status == rdma.Success || w.dev[1].Stats().ICRCErrors == 0 {
				t.Errorf("packets with a wrong ICRC: %v", wc.Status)
			}
		})
	}
}

// TestICRCOmittedBySockets: the same on sockets.
func TestICRCOmittedBySockets(t *testing.T) {
	for _, keep := range []bool{false, true} {
		server := provider(roce.Config{LocalICRC: keep})(t).(*roce.Device)
		client := provider(roce.Config{})(t).(*roce.Device)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		l, err := endpoint.Listen(server, 7471, endpoint.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		accepted := make(chan *endpoint.Conn, 1)
		go func() {
			c, _ := l.Accept(ctx) // fails with ctx
			accepted <- c
		}()
		c, err := endpoint.Dial(ctx, client, netip.AddrPortFrom(server.Addr(), 7471), endpoint.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		peer := <-accepted
		if peer == nil {
			t.Fatal("not accepted")
		}
		defer peer.Close()
		m, err := c.Register([]byte("hello"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(ctx, m, 0, 5); err != nil {
			t.Fatal(err)
		}
		if got, err := peer.Recv(ctx); err != nil || string(got.Data) != "hello" {
			t.Errorf("%q, %v", got.Data, err)
		}
		for _, d := range []*roce.Device{server, client} {
			if q := d.QPs(); len(q) != 1 || q[0].NoICRC == keep {
				t.Errorf("ICRC kept %v: %+v", keep, q)
			}
			if s := d.Stats(); s.ICRCOmitted > 0 == keep || s.ICRCErrors != 0 {
				t.Errorf("ICRC kept %v: %d omitted, %d errors", keep, s.ICRCOmitted, s.ICRCErrors)
			}
		}
	}
}
