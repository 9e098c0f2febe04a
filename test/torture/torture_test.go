package torture

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestTorture runs plans of random seeds: some hundred, or for as long as
// RSTORED_TORTURE says (a duration). RSTORED_SEED runs one again.
func TestTorture(t *testing.T) {
	if s := os.Getenv("RSTORED_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("RSTORED_SEED: %v", err)
		}
		try(t, seed)
		return
	}
	enough := func(n int64, _ time.Duration) bool { return n >= 400 }
	if testing.Short() {
		enough = func(n int64, _ time.Duration) bool { return n >= 40 }
	}
	if s := os.Getenv("RSTORED_TORTURE"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("RSTORED_TORTURE: %v", err)
		}
		enough = func(_ int64, passed time.Duration) bool { return passed >= d }
	}
	var n atomic.Int64
	var mu sync.Mutex
	var sum Result
	begin := time.Now()
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !t.Failed() && !enough(n.Add(1)-1, time.Since(begin)) {
				r := try(t, rand.Uint64())
				mu.Lock()
				sum.add(&r)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d plans in %v: %+v", n.Load(), time.Since(begin).Round(time.Millisecond), sum)
	// A program that does next to nothing finds nothing.
	if !t.Failed() && (sum.Succeeded < sum.Requests/3 || sum.Broken == 0 || sum.Reads == 0 || sum.Messages == 0 ||
		sum.Retransmitted == 0) {
		t.Error("the plans do not do what they are for")
	}
}

// try runs the plan of a seed, and if it fails shows a smaller one that does too.
func try(t *testing.T, seed uint64) Result {
	p := Generate(seed)
	r, err := Run(p)
	if err == nil {
		return r
	}
	small := Shrink(p, func(q *Plan) bool { _, err := Run(q); return err != nil }, 600)
	_, again := Run(small)
	t.Errorf("RSTORED_SEED=%d: %v\nsmaller (of %d events): %v\n%v", seed, err, len(p.Events), again, small)
	return r
}

func (r *Result) add(o *Result) {
	r.Connections += o.Connections
	r.Broken += o.Broken
	r.Requests += o.Requests
	r.Succeeded += o.Succeeded
	r.Reads += o.Reads
	r.Messages += o.Messages
	r.Packets += o.Packets
	r.Retransmitted += o.Retransmitted
	r.Virtual += o.Virtual
}

// TestSame: a seed decides everything.
func TestSame(t *testing.T) {
	for range 20 {
		p := Generate(rand.Uint64())
		a, err := Run(p)
		if err != nil {
			t.Fatalf("RSTORED_SEED=%d: %v", p.Seed, err)
		}
		if b, _ := Run(Generate(p.Seed)); a != b {
			t.Errorf("two runs of the seed %d differ: %+v and %+v", p.Seed, a, b)
		}
	}
}
