package roce

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
)

var testHost = netip.MustParseAddr("192.0.2.7")

func TestIdentifications(t *testing.T) {
	const us, ms = rdma.Microsecond, rdma.Millisecond
	for _, c := range []struct {
		name string
		ids  func(rnd *rand.Rand, i int, last uint16) (id uint16, after rdma.Time)
		// at most so many of 100,000 are dropped
		drops int
	}{
		{"always 0", func(*rand.Rand, int, uint16) (uint16, rdma.Time) { return 0, us }, 0},
		{"bursts from 0", func(_ *rand.Rand, i int, _ uint16) (uint16, rdma.Time) { return uint16(i % 64), us }, 0},
		{"counting", func(_ *rand.Rand, _ int, last uint16) (uint16, rdma.Time) { return last + 1, us }, 0},
		{"counting, with others between", func(r *rand.Rand, _ int, last uint16) (uint16, rdma.Time) { return last + 1 + uint16(r.IntN(200)), us }, 0},
		{"counting by time", func(r *rand.Rand, _ int, last uint16) (uint16, rdma.Time) {
			gap := r.IntN(20000)
			return last + 1 + uint16(r.IntN(gap+1)), rdma.Time(gap) * ms
		}, 0},
		{"a jump now and then", func(r *rand.Rand, i int, last uint16) (uint16, rdma.Time) {
			if i%1000 == 999 {
				return last + 20000, us
			}
			return last + 1, us
		}, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, 2))
			s := &shard{now: rdma.Second}
			last, drops := uint16(60000), 0
			for i := range 100_000 {
				id, after := c.ids(rnd, i, last)
				s.now += after
				if !s.ident(testHost, id).plausible(id, s.now) {
					drops++
				}
				last = id
			}
			if drops > c.drops {
				t.Errorf("%d packets were dropped", drops)
			}
		})
	}
	// Damage gives any. Here it is one packet in twenty.
	rnd := rand.New(rand.NewPCG(1, 2))
	s := &shard{now: rdma.Second}
	const packets = 1_000_000
	damaged, taken, dropped := 0, 0, 0
	for i := range packets {
		s.now += us
		id := uint16(i)
		if rnd.IntN(20) > 0 {
			if !s.ident(testHost, id).plausible(id, s.now) {
				dropped++ // a damaged one that was taken has moved the window
			}
			continue
		}
		damaged++
		if bad := uint16(rnd.Uint32()); s.ident(testHost, bad).plausible(bad, s.now) {
			taken++
		}
	}
	if taken > damaged/100 || dropped > packets/1000 {
		t.Errorf("of %d damaged packets %d were taken, of the others %d were dropped", damaged, taken, dropped)
	}
	t.Logf("of %d damaged packets %d were taken, of the others %d were dropped", damaged, taken, dropped)
}
