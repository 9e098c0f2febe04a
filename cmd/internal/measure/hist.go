package measure

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// Buckets is the number of buckets of a histogram: bucket i has what took up to Bound(i), and
// the last has all that took longer than 16.8 seconds.
const Buckets = 26

// Bound is the upper bound of a bucket but the last: powers of two from a microsecond on.
func Bound(i int) time.Duration { return time.Microsecond << i }

func bucket(d time.Duration) int {
	us := (uint64(max(d, 1)) + 999) / 1000
	return min(bits.Len64(us-1), Buckets-1)
}

// cell is one shard of a histogram and of the counters beside it. It has four cache lines of
// its own.
type cell struct {
	n                      [Buckets]atomic.Uint64
	nanos, in, out, failed atomic.Uint64
	_                      [2]uint64
}

func (c *cell) add(d time.Duration) {
	c.n[bucket(d)].Add(1)
	c.nanos.Add(uint64(max(d, 0)))
}

func (c *cell) addCall(d time.Duration, in, out int, failed bool) {
	c.add(d)
	c.in.Add(uint64(in))
	c.out.Add(uint64(out))
	if failed {
		c.failed.Add(1)
	}
}

// Sums are what was recorded at a point.
type Sums struct {
	N       [Buckets]uint64 // calls by how long they took
	Took    time.Duration   // all together
	In, Out uint64          // bytes
	Failed  uint64
}

// Count is the number of calls.
func (s *Sums) Count() (n uint64) {
	for _, b := range s.N {
		n += b
	}
	return n
}

func (s *Sums) add(c *cell) {
	for i := range c.n {
		s.N[i] += c.n[i].Load()
	}
	s.Took += time.Duration(c.nanos.Load())
	s.In += c.in.Load()
	s.Out += c.out.Load()
	s.Failed += c.failed.Load()
}

// Add adds what was recorded elsewhere.
func (s *Sums) Add(o *Sums) {
	for i := range o.N {
		s.N[i] += o.N[i]
	}
	s.Took += o.Took
	s.In += o.In
	s.Out += o.Out
	s.Failed += o.Failed
}

// points are measuring points, in as many shards as there are processors: goroutines that
// record at the same time mostly do so in different cache lines.
type points [][]cell

// shards is a power of two.
var shards = func() int {
	n := 1
	for n < min(runtime.GOMAXPROCS(0), 8) {
		n *= 2
	}
	return n
}()

func newPoints(n int) points {
	p := make(points, shards)
	for i := range p {
		p[i] = make([]cell, n)
	}
	return p
}

// here is the shard of the calling goroutine, by where its stack is. Which it is decides
// nothing but who shares a cache line.
func here() int {
	var x byte
	at := uintptr(unsafe.Pointer(&x))
	return int(at>>13^at>>18) & (shards - 1)
}

// sums reads a point.
func (p points) sums(i int) (s Sums) {
	for k := range p {
		s.add(&p[k][i])
	}
	return s
}
