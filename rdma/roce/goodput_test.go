package roce_test

import (
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/sim"
)

// TestGoodput: RDMA WRITEs of 1 MiB over a link of 10 Gbit/s with a short queue, or with losses,
// get a useful share of it. The numbers in brackets are those of go-back-N with a fixed window of
// 256 packets.
func TestGoodput(t *testing.T) {
	const (
		rate  = 1250e6 // bytes a second
		total = 100
		size  = 1 << 20
	)
	for _, c := range []struct {
		name  string
		queue int64
		delay rdma.Time
		loss  float64
		least float64
	}{
		{"a queue that takes it", 4 << 20, 10 * rdma.Microsecond, 0, 0.9},   // 0.97
		{"a queue of 1 MiB", 1 << 20, 10 * rdma.Microsecond, 0, 0.9},        // 0.54
		{"a queue of 256 KiB", 256 << 10, 10 * rdma.Microsecond, 0, 0.5},    // 0.47
		{"a queue of 64 KiB", 64 << 10, 10 * rdma.Microsecond, 0, 0.15},     // 0.002
		{"a round trip of 1 ms", 256 << 10, 500 * rdma.Microsecond, 0, 0.4}, // 0.10
		{"0.01 % lost", 4 << 20, 10 * rdma.Microsecond, 0.0001, 0.9},        // 0.95
		{"0.1 % lost", 4 << 20, 10 * rdma.Microsecond, 0.001, 0.85},         // 0.80
		{"1 % lost", 4 << 20, 10 * rdma.Microsecond, 0.01, 0.3},             // 0.27
		{"5 % lost", 4 << 20, 10 * rdma.Microsecond, 0.05, 0.05},            // 0.03
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, sim.Config{Seed: 1, Bandwidth: rate, QueueBytes: c.queue, Delay: c.delay, Loss: c.loss})
			w.connect()
			s := w.side[0]
			sge := []rdma.SGE{{Buf: s.mr.Bytes()[:size], LKey: s.mr.LKey()}}
			start := w.net.Now()
			posted := 0
			for len(s.wcs) < total {
				for ; posted < total && posted-len(s.wcs) < 8; posted++ {
					if err := s.conn.QP().PostSend([]rdma.SendWR{{
						Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: sge, RemoteAddr: w.side[1].mr.Addr(), RKey: w.side[1].mr.RKey(),
					}}); err != nil {
						t.Fatal(err)
					}
				}
				k := len(s.wcs)
				if !w.run(100*rdma.Second, func() bool { return len(s.wcs) > k }) {
					t.Fatal("nothing happens any more")
				}
				if st := s.wcs[len(s.wcs)-1].Status; st != rdma.Success {
					t.Fatal(st)
				}
			}
			share := float64(total*size) / (float64(w.net.Now()-start) / float64(rdma.Second)) / rate
			a := w.dev[0].Stats().RC
			t.Logf("%.2f of the link; %d packets, %d again, %d timeouts", share, a.TxPackets, a.TxRetransmits, a.AckTimeouts)
			if share < c.least {
				t.Errorf("%.2f of the link, want %.2f", share, c.least)
			}
		})
	}
}
