package bench

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// inTurns has two sides do b.N operations by so many callers at once, turn of one before the
// other's. It reports the time of each, and as of-NAME that of the second in parts of the first's.
func inTurns(b *testing.B, first, second string, turn, callers int, do func(side, caller int) error) {
	var took [2]time.Duration
	var ops [2]int
	for done := 0; done < b.N; done += turn {
		side := done / turn % 2
		n := min(turn, b.N-done)
		var next atomic.Int64
		var wg sync.WaitGroup
		began := time.Now()
		for caller := range callers {
			wg.Go(func() {
				for next.Add(1) <= int64(n) {
					if err := do(side, caller); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		took[side] += time.Since(began)
		ops[side] += n
	}
	if ops[0] == 0 || ops[1] == 0 {
		return // of a round that is too short
	}
	each := func(side int) float64 { return float64(took[side]) / float64(ops[side]) }
	b.ReportMetric(each(1), second+"-ns/op")
	b.ReportMetric(each(0), first+"-ns/op")
	b.ReportMetric(each(1)/each(0), "of-"+first)
}
