package perf

import (
	"math"
	"slices"
	"time"

	"github.com/rstored/rstored/rdma"
)

// epoch is the zero of now.
var epoch = time.Now()

// now is the current time. Loop.Now is the time of the beginning of the turn.
func now() rdma.Time { return rdma.Time(time.Since(epoch)) }

// samplesMax bounds the messages of a test with a peak, as in perftest.
const samplesMax = 20000

// gauge counts and times the messages of a test that one side posts.
type gauge struct {
	size         int
	count        uint64 // completed
	began, ended rdma.Time
	posted       []rdma.Time // of each message while there is room
	completed    []rdma.Time
}

// begin is called before the first of count messages; 0 means that their number is unknown.
func (g *gauge) begin(size int, count uint64) {
	g.size, g.count, g.began, g.ended = size, 0, 0, 0
	n := 0
	if count <= samplesMax {
		n = int(count)
	}
	if n > cap(g.posted) {
		g.posted, g.completed = make([]rdma.Time, 0, n), make([]rdma.Time, 0, n)
	}
	g.posted, g.completed = g.posted[:0:n], g.completed[:0:n]
}

// post notes that n messages are posted at a time.
func (g *gauge) post(at rdma.Time, n int) {
	if g.began == 0 {
		g.began = at
	}
	g.posted = note(g.posted, at, n)
}

// complete notes that n messages completed by a time.
func (g *gauge) complete(at rdma.Time, n int) {
	g.count += uint64(n)
	g.ended = at
	g.completed = note(g.completed, at, n)
}

func note(s []rdma.Time, at rdma.Time, n int) []rdma.Time {
	for range min(n, cap(s)-len(s)) {
		s = append(s, at)
	}
	return s
}

// direction returns the measurement.
func (g *gauge) direction() Direction {
	d := Direction{Iterations: g.count, Bytes: g.count * uint64(g.size), Elapsed: time.Duration(g.ended - g.began)}
	if g.count > 0 && g.count == uint64(len(g.completed)) {
		d.Peak = peak(g.posted, g.completed) * 1e9 * float64(g.size)
	}
	return d
}

// peak is the largest rate, in messages per nanosecond, from the post of one message to
// the completion of it or a later one. Both lists are in the order of time and have one
// element for each message.
//
// The rate is the slope from (posted[j], j) to (completed[i], i+1). The best j for
// an i is where a tangent from that point touches the lower hull of the points up to i,
// which a binary search finds.
func peak(posted, completed []rdma.Time) float64 {
	hull := make([]int, 0, len(posted))
	slope := func(j, i int) float64 { // from the post of j to the completion of i
		return float64(i+1-j) / float64(max(1, completed[i]-posted[j]))
	}
	best := 0.0
	for i := range completed {
		for len(hull) > 1 {
			a, b := hull[len(hull)-2], hull[len(hull)-1]
			if rdma.Time(b-a)*(posted[i]-posted[a]) < rdma.Time(i-a)*(posted[b]-posted[a]) {
				break // b is below the line from a to i
			}
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, i)
		lo, hi := 0, len(hull)-1
		for lo < hi {
			if m := (lo + hi) / 2; slope(hull[m], i) < slope(hull[m+1], i) {
				lo = m + 1
			} else {
				hi = m
			}
		}
		best = max(best, slope(hull[lo], i))
	}
	return best
}

// Direction is the measurement of the messages that one side posted.
type Direction struct {
	Iterations uint64        // messages that completed
	Bytes      uint64        // of these messages
	Elapsed    time.Duration // from the first post to the last completion
	Peak       float64       // bytes per second; 0 if it was not calculated
}

// Rate is the average in messages per second.
func (d *Direction) Rate() float64 {
	if d.Elapsed <= 0 {
		return 0
	}
	return float64(d.Iterations) / d.Elapsed.Seconds()
}

// Bandwidth is the average in bytes per second.
func (d *Direction) Bandwidth() float64 {
	if d.Elapsed <= 0 {
		return 0
	}
	return float64(d.Bytes) / d.Elapsed.Seconds()
}

// Latency is the distribution of the times of the messages, in nanoseconds. A test for a duration
// has only the average, as in perftest.
type Latency struct {
	Min, Max, Typical, Average, StdDev, P99, P999 float64
}

// latency is the distribution of the times between stamps, divided by factor. It
// overwrites stamps.
func latency(stamps []rdma.Time, factor float64) Latency {
	n := len(stamps) - 1
	if n < 1 {
		return Latency{}
	}
	for i := range n {
		stamps[i] = stamps[i+1] - stamps[i]
	}
	d := stamps[:n]
	slices.Sort(d)
	sum := 0.0
	for _, x := range d {
		sum += float64(x)
	}
	mean, variance := sum/float64(n), 0.0
	for _, x := range d {
		variance += (float64(x) - mean) * (float64(x) - mean)
	}
	percentile := func(p float64) float64 { return float64(d[min(n-1, int(math.Ceil(float64(n)*p)))]) / factor }
	middle := float64(d[n/2])
	if n%2 == 0 {
		middle = (middle + float64(d[n/2-1])) / 2
	}
	return Latency{
		Min: float64(d[0]) / factor, Max: float64(d[n-1]) / factor, Typical: middle / factor, Average: mean / factor,
		StdDev: math.Sqrt(variance/float64(n)) / factor, P99: percentile(0.99), P999: percentile(0.999),
	}
}
