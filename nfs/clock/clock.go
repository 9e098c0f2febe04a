package clock

import (
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// begin is the wall clock's time less that of boot when the process began. It makes times of this
// clock readable, and those of two processes nearly comparable; no decision depends on it.
var begin = time.Now().UnixNano() - rpc.BootTime()

// Now is the time since the host was started, counted from where the wall clock was when the
// process began. Times of Now are for differences: setting the wall clock does not change them, and
// what is shown of them is off by as much as the wall clock was set since. They have no monotonic
// reading of Go, whose clock stands while the host is suspended.
func Now() time.Time { return time.Unix(0, begin+rpc.BootTime()) }

// Until is the time to at, which is one of Now.
func Until(at time.Time) time.Duration { return at.Sub(Now()) }
