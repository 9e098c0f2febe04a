package measure

import (
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Trouble is a call that failed because of the store: an administrator has to look at it.
type Trouble struct {
	SlowCall
	// Calls is the number of such failures of this export since the last report, including this
	// one.
	Calls uint64
}

// troublePause is the time between two log lines about the same failure of an export.
const troublePause = time.Minute

// trouble counts what goes wrong with the store of an export, for each outcome of
// Config.Troubles.
type trouble struct {
	// due is the time of the next report, on the clock of rpc.Served.At.
	due   atomic.Int64
	calls atomic.Uint64
}

// note reports the call, unless the same failure was reported within troublePause.
func (r *Recorder) note(x *export, c *rpc.Call, s *rpc.Served, row int) {
	for i, outcome := range r.cfg.Troubles {
		if c.Meta.Outcome != outcome {
			continue
		}
		t := &x.troubles[i]
		t.calls.Add(1)
		due := t.due.Load()
		if int64(s.At) < due || !t.due.CompareAndSwap(due, int64(s.At+troublePause)) {
			return
		}
		told := Trouble{slowCall(c, s, row, time.Now()), t.calls.Swap(0)}
		r.name(&told.SlowCall)
		go r.cfg.Tell(told) // Tell may wait; the call must not
		return
	}
}
