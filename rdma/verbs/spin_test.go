//go:build rdmacore && linux && cgo

package verbs

import (
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestSpin: before it sleeps a loop polls if completions arrive within the time that a sleep costs.
// It does not poll if that finds none.
func TestSpin(t *testing.T) {
	const most = 50 * rdma.Microsecond
	l := &loop{dev: &Device{}, spin: spin{most: most}, now: rdma.Second}
	// round simulates a loop whose next completions arrive at the time after. If vain is set they
	// arrive only after the loop sleeps. round reports whether the loop slept.
	round := func(after rdma.Time, vain bool) (slept bool) {
		l.idle(false)
		if !vain && after < l.spin.limit {
			l.now += after
			l.idle(true)
			return false
		}
		l.now += l.spin.limit
		l.spin.sleep(l.now)
		if vain {
			l.now += after
		} else {
			l.now += after - l.spin.limit
		}
		l.idle(true)
		return true
	}
	for range 10 {
		round(most/2, false)
	}
	if l.spin.limit == 0 || round(most/2, false) {
		t.Errorf("sleeps after %v though completions come after %v", l.spin.limit, most/2)
	}
	for range 20 {
		round(100*most, false)
	}
	if l.spin.limit != 0 {
		t.Errorf("looks for %v though completions come after %v", l.spin.limit, 100*most)
	}
	spun, slept := rdma.Time(0), 0
	for range 10 * retryEvery {
		before := l.spin.limit
		if round(most/4, true) {
			slept++
		}
		spun += before
	}
	if share := spun / (10 * retryEvery); slept != 10*retryEvery || share > most/5 {
		t.Errorf("looks in vain for %v each time, and sleeps %d times of %d", share, slept, 10*retryEvery)
	}
	for range 2 * retryEvery {
		round(most/4, false)
	}
	if round(most/4, false) {
		t.Errorf("sleeps after %v though completions come after %v again", l.spin.limit, most/4)
	}
}
