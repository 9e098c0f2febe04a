package perf

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestPeak compares peak with a direct computation of its definition.
func TestPeak(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		n, depth := 1+r.IntN(40), 1+r.IntN(8)
		posted, completed := make([]rdma.Time, n), make([]rdma.Time, n)
		at := rdma.Time(1)
		for p, c := 0, 0; c < n; {
			at += rdma.Time(1 + r.IntN(50))
			for k := r.IntN(depth + 1); k > 0 && c < p; k-- {
				completed[c] = at
				c++
			}
			for p < n && p-c < depth {
				posted[p] = at
				p++
			}
		}
		want := 0.0
		for i := range n {
			for j := range i + 1 {
				want = max(want, float64(i+1-j)/float64(completed[i]-posted[j]))
			}
		}
		if got := peak(posted, completed); math.Abs(got-want) > 1e-12 {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
	}
}

func TestLatencyStatistics(t *testing.T) {
	stamps := []rdma.Time{100}
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(1000) {
		stamps = append(stamps, stamps[len(stamps)-1]+rdma.Time(i+1)*2)
	}
	got := latency(slices.Clone(stamps), 2)
	want := Latency{
		Min: 1, Max: 1000, Typical: 500.5, Average: 500.5, StdDev: math.Sqrt((1000*1000 - 1) / 12.0), P99: 991,
		P999: 1000,
	}
	if math.Abs(got.StdDev-want.StdDev) > 1e-9 {
		t.Errorf("standard deviation %v, want %v", got.StdDev, want.StdDev)
	}
	got.StdDev = want.StdDev
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := latency(stamps[:1], 1); got != (Latency{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestWindow(t *testing.T) {
	for _, c := range []struct{ depth, qps, size, want int }{
		{128, 1, 65536, 128},
		{128, 1, 1 << 20, 64},
		{128, 16, 1 << 20, 4},
		{128, 16, SizeMax, 1},
		{3, 1, 2, 3},
	} {
		p := plan{depth: c.depth, qps: c.qps}
		if got := p.window(c.size); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
