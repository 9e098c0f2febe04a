package roce_test

import (
	"fmt"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// TestForgedPacketsCost measures the throughput of RDMA WRITEs of 1 MiB over a link of 10 Gbit/s
// while an attacker, who does not see the packets, sends forged ones in the name of either side.
// docs/security.md has the numbers. Forged packets that hit no queue pair cost nothing. Others cost
// throughput, but neither data nor the connection.
func TestForgedPacketsCost(t *testing.T) {
	const (
		bandwidth = 1250e6 // bytes a second
		total     = 24
		size      = 1 << 20
	)
	junk := make([]byte, 256)
	for _, c := range []struct {
		name      string
		perSecond rdma.Time
		forge     func(w *world) (to int, p wire.Packet)
		least     float64 // of the link
	}{
		{"nothing", 1, nil, 0.9},
		{"CNPs to random queue pairs", 100_000, func(w *world) (int, wire.Packet) {
			return 0, wire.Packet{Op: wire.CNP, DestQPN: w.net.Rand().Uint32() & wire.PSNMask}
		}, 0.9},
		{"CNPs to the queue pair", 1000, toWriter(wire.CNP), 0.05},
		{"CNPs to the queue pair", 10_000, toWriter(wire.CNP), 0.005},
		{"CNPs to the queue pair", 100_000, toWriter(wire.CNP), 0.001},
		{"ACKs and NAKs to the queue pair", 100_000, toWriter(wire.Acknowledge), 0.8},
		{"requests to the queue pair", 1000, toReader, 0.1},
		{"requests to the queue pair", 10_000, toReader, 0.01},
		{"requests to the queue pair", 100_000, toReader, 0.001},
	} {
		t.Run(fmt.Sprintf("%s, %d a second", c.name, c.perSecond), func(t *testing.T) {
			w := newWorld(t, sim.Config{Seed: 41, Bandwidth: bandwidth, QueueBytes: 4 << 20})
			w.connect()
			m := w.mallory()
			s := w.side[0]
			sge := []rdma.SGE{{Buf: s.mr.Bytes()[:size], LKey: s.mr.LKey()}}
			start := w.net.Now()
			next, posted, sent := start, 0, 0
			for len(s.wcs) < total {
				for ; posted < total && posted-len(s.wcs) < 8; posted++ {
					if err := s.conn.QP().PostSend([]rdma.SendWR{{
						Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: sge, RemoteAddr: w.side[1].mr.Addr(), RKey: w.side[1].mr.RKey(),
					}}); err != nil {
						t.Fatal(err)
					}
				}
				k := len(s.wcs)
				if !w.run(100*rdma.Second, func() bool {
					for ; c.forge != nil && next <= w.net.Now(); next += rdma.Second / c.perSecond {
						to, p := c.forge(w)
						p.PKey = wire.DefaultPKey
						payload := junk
						switch p.Op {
						case wire.CNP:
							payload = junk[:16]
						case wire.Acknowledge:
							payload = nil
						}
						m.forge(simAddr[1-to], simAddr[to], &p, payload)
						sent++
					}
					return len(s.wcs) > k
				}) {
					t.Fatal("nothing happens any more")
				}
				if st := s.wcs[len(s.wcs)-1].Status; st != rdma.Success {
					t.Fatal(st)
				}
			}
			share := float64(total*size) / (float64(w.net.Now()-start) / float64(rdma.Second)) / bandwidth
			a, b := w.dev[0].Stats(), w.dev[1].Stats()
			t.Logf("%.3f of the link; %d forged; %d CNPs taken, %d NAKs sent, %d packets again", share, sent, a.RC.CNPHandled,
				b.RC.TxNAKSequence, a.RC.TxRetransmits)
			if share < c.least {
				t.Errorf("%.3f of the link, want %.3f", share, c.least)
			}
		})
	}
}

// toWriter forges packets of the side whose memory is written.
func toWriter(op wire.Opcode) func(w *world) (int, wire.Packet) {
	return func(w *world) (int, wire.Packet) {
		p := wire.Packet{Op: op, DestQPN: w.side[0].conn.QP().Num()}
		if op == wire.Acknowledge {
			p.PSN, p.AETH.Syndrome = wire.PSN(w.net.Rand().Uint32()&wire.PSNMask), uint8(w.net.Rand().Uint32())
		}
		return 0, p
	}
}

// toReader forges packets of the side that writes.
func toReader(w *world) (int, wire.Packet) {
	return 1, wire.Packet{
		Op: wire.WriteMiddle, AckReq: true, DestQPN: w.side[1].conn.QP().Num(),
		PSN: wire.PSN(w.net.Rand().Uint32() & wire.PSNMask),
	}
}
