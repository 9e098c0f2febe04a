package measure

import (
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Trouble is a call that failed for a reason that is the store's: somebody has to look at it.
type Trouble struct {
	SlowCall
	// Calls is how many failed so for this export since it was last told of, this one
	// included.
	Calls uint64
}

// troublePause is how long the same trouble of an export is not told of again.
const troublePause = time.Minute

// trouble counts what goes wrong with the store of an export, for each outcome of
// Config.Troubles.
type trouble struct {
	// due is when it is told of again, on the clock of rpc.Served.At.
	due   atomic.Int64
	calls atomic.Uint64
}

// note tells of the call, unless somebody was told a moment ago.
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
		go r.cfg.Tell(told) // who is told may wait, the call not
		return
	}
}
