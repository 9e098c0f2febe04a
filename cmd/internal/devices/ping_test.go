package devices

import (
	"context"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// loop is a packet loop that runs, hangs or has ended.
type loop struct {
	rdma.Loop
	runs, ended bool
}

func (l loop) Submit(fn func()) bool {
	if l.runs {
		go fn()
	}
	return !l.ended
}

// TestPing: only a loop that runs answers.
func TestPing(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		loop loop
		ctx  context.Context
		want bool
	}{{loop{runs: true}, t.Context(), true}, {loop{}, over, false}, {loop{ended: true}, t.Context(), false}} {
		if got := ping(tc.ctx, "127.0.0.1", 3, tc.loop); got.OK != tc.want || got.Loop != 3 || got.Device != "127.0.0.1" {
			t.Errorf("%+v: %+v", tc.loop, got)
		}
	}
}
