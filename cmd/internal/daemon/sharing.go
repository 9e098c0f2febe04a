package daemon

import (
	"os"
	"time"

	"go.uber.org/zap"
)

// startTime is for the start of a daemon after it has the lease.
const startTime = 30 * time.Second

// logTime is the time for the log line of a daemon that ends because it has lost the lease.
const logTime = 100 * time.Millisecond

// leaseLost ends the process at once: another node may serve from the same state by now. No reply
// has been sent since the lease ended. Nothing is closed, as that could write to the storage.
func (d *Daemon) leaseLost(why error) {
	time.AfterFunc(logTime, func() { os.Exit(exitLeaseLost) }) // should the log wait for the storage
	d.log.Error("this node may not serve any more, and the daemon ends", zap.Error(why))
	os.Exit(exitLeaseLost)
}

// exitLeaseLost is the exit status then. The service manager starts the daemon again, which waits.
const exitLeaseLost = 75 // EX_TEMPFAIL
