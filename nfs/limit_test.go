package nfs

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// TestBucket sends random traffic of more than the rate through a bucket: what passes within
// any span is the rate, what the bucket holds, and one request.
func TestBucket(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		rate := 1 + r.Uint64N(1<<30)
		most := 1 + r.Uint64N(2<<20)
		var b Bucket
		type event struct {
			at int64
			n  uint64
		}
		var passed []event
		now := int64(1e18)
		for range 2000 {
			// From as much as the rate to four times that, with pauses.
			n := 1 + r.Uint64N(most)
			now += int64(float64(n) / float64(rate) * 1e9 * (0.25 + 0.75*r.Float64()))
			if r.IntN(500) == 0 {
				now += int64(time.Minute)
			}
			wait := b.Reserve(now, rate, n)
			if wait < 0 {
				t.Fatalf("seed %d: waits %v", seed, wait)
			}
			if r.IntN(10) == 0 {
				b.Refund(rate, n)
				continue
			}
			passed = append(passed, event{now + int64(wait), n})
		}
		for range 500 {
			i := r.IntN(len(passed))
			j := i + r.IntN(len(passed)-i)
			var sum uint64
			for _, e := range passed[i : j+1] {
				sum += e.n
			}
			span := float64(passed[j].at-passed[i].at) / 1e9
			if limit := float64(rate)*(span+1.0/burst) + float64(most) + float64(j-i+1)*float64(rate)/1e9; float64(sum) > limit {
				t.Fatalf("seed %d: %d units in %.3f s at %d a second", seed, sum, span, rate)
			}
		}
	}
}

// TestBucketIsUsed asks for more than the rate for a while: nothing is left unused.
func TestBucketIsUsed(t *testing.T) {
	const rate, n = 1 << 20, 64 << 10
	var b Bucket
	now, last := int64(1e18), int64(0)
	for range 1600 { // 100 seconds of the rate
		last = now + int64(b.Reserve(now, rate, n))
		now = last
	}
	if got := float64(last-1e18) / 1e9; got < 99.7 || got > 100 {
		t.Errorf("100 seconds' worth took %.2f", got)
	}
	if w := b.Reserve(now, 0, 1); w < 0 {
		t.Errorf("no rate at all waits %v", w)
	}
	if c := cost(1, 1<<62); c != int64(time.Hour) {
		t.Errorf("a request of 2^62 costs %d", c)
	}
}

func TestMeter(t *testing.T) {
	var m meter
	now := time.Unix(1e9, 0)
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	each := Limit{Bytes: 1 << 20}
	spend := func(c netip.Addr, all Limit) (waits int) {
		for range 16 {
			if w, ok := m.reserve(now, c, each, all, 1<<20); ok && w > 0 {
				waits++
			}
		}
		return waits
	}
	if n := spend(a, Limit{}); n != 15 {
		t.Errorf("%d of 16 wait", n)
	}
	if w, ok := m.reserve(now, b, each, Limit{}, 1<<20); w > 0 || !ok {
		t.Errorf("another client waits %v", w)
	}
	if _, ok := m.reserve(now, a, each, Limit{}, 1<<20); ok {
		t.Error("a wait without end")
	}
	// What was turned away does not count, and time passes.
	now = now.Add(time.Minute)
	if w, ok := m.reserve(now, a, each, Limit{}, 1<<20); w > 0 || !ok {
		t.Errorf("a minute later waits %v", w)
	}
	// One bucket for all.
	all := Limit{Ops: 10}
	var waits int
	for i := range 20 {
		if w, ok := m.reserve(now, []netip.Addr{a, b}[i%2], Limit{}, all, 0); ok && w > 0 {
			waits++
		}
	}
	if waits != 18 { // an eighth of a second's operations are there, and one in advance
		t.Errorf("%d of 20 operations wait", waits)
	}
	for i := range 3 * meterClients {
		m.reserve(now, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), each, Limit{}, 1<<20)
	}
	if n := len(m.clients); n > meterClients {
		t.Errorf("%d clients kept", n)
	}
}
