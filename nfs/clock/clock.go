package clock

import (
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// begin is the wall clock minus the time since boot, when the process began. It makes times of this
// clock readable, and those of two processes nearly comparable. No decision depends on it.
var begin = time.Now().UnixNano() - rpc.BootTime()

// Now is the time since boot, plus what the wall clock and the time since boot differed by when the
// process began. Only differences of such times have a meaning: setting the wall clock does not
// change them. The absolute time is wrong by as much as the wall clock was set since. Now has no
// monotonic reading of Go, because that clock stops while the host is suspended.
func Now() time.Time { return time.Unix(0, begin+rpc.BootTime()) }

// Until returns the duration until at, a time of Now.
func Until(at time.Time) time.Duration { return at.Sub(Now()) }
