package roce_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// identLink changes the IPv4 identification with which each received datagram was sent.
type identLink struct {
	link.Link
	next func() uint16
}

// Recv implements link.Link.
func (l identLink) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	n, err := l.Link.Recv(rx, deadline)
	for i := range rx.D {
		d := &rx.D[i]
		f := wire.Flow{Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort}
		end := len(d.Data) - wire.ICRCLen
		icrc := f.ICRC(l.next(), d.Data[:wire.BTHLen], [][]byte{d.Data[wire.BTHLen:end]}, 0)
		binary.LittleEndian.PutUint32(d.Data[end:], icrc)
	}
	return n, err
}

// TestIdentifications: a peer may choose any IPv4 identifications. None of its packets is lost.
func TestIdentifications(t *testing.T) {
	const seed = 7
	counters := func(n int) func(*rand.Rand) func() uint16 {
		return func(rnd *rand.Rand) func() uint16 {
			c := make([]uint16, n)
			for i := range c {
				c[i] = uint16(rnd.Uint32())
			}
			return func() uint16 {
				i := rnd.IntN(n)
				c[i]++
				return c[i]
			}
		}
	}
	for _, c := range []struct {
		name string
		ids  func(*rand.Rand) func() uint16
	}{
		{"always 0", func(*rand.Rand) func() uint16 { return func() uint16 { return 0 } }},
		{"one counter", counters(1)},
		{"two counters", counters(2)},
		{"eight counters", counters(8)},
		{"a counter for each of 256 streams", counters(256)},
		{"random", func(rnd *rand.Rand) func() uint16 { return func() uint16 { return uint16(rnd.Uint32()) } }},
		{"bursts from 0", func(*rand.Rand) func() uint16 {
			n := uint16(0)
			return func() uint16 { n++; return n % 64 }
		}},
		{"one counter that jumps", func(rnd *rand.Rand) func() uint16 {
			n := uint16(0)
			return func() uint16 {
				if n++; rnd.IntN(50) == 0 {
					n = uint16(rnd.Uint32())
				}
				return n
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			w := newWorld(t, sim.Config{Seed: seed}, func(side int, cfg *roce.Config) {
				if side == 1 {
					cfg.Wrap = func(_ int, l link.Link) link.Link { return identLink{l, c.ids(rnd)} }
				}
			})
			w.connect()
			local, remote := w.side[0].mr, w.side[1].mr
			for range 20 {
				wr := rdma.SendWR{
					Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: local.Bytes(), LKey: local.LKey()}},
					RemoteAddr: remote.Addr(), RKey: remote.RKey(),
				}
				if wc := w.post(wr); wc.Status != rdma.Success {
					t.Fatal(wc.Status)
				}
			}
			a, b := w.dev[0].Stats(), w.dev[1].Stats()
			if a.RC.TxRetransmits != 0 || b.RC.RxOutOfSequence != 0 || b.ICRCErrors != 0 {
				t.Errorf("packets were lost: %d sent again, %d out of sequence, %d errors of the ICRC", a.RC.TxRetransmits,
					b.RC.RxOutOfSequence, b.ICRCErrors)
			}
			if packets := uint64(20 * simMemory / 4096); b.ICRCExact+b.ICRCResidual < packets {
				t.Errorf("%d packets verified, want at least %d", b.ICRCExact+b.ICRCResidual, packets)
			}
		})
	}
}
