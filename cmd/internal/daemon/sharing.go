package daemon

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/lease"
	"github.com/rstored/rstored/cmd/internal/state"
)

// sharing is how the state directory is shared with other nodes, or nil.
func (d *Daemon) sharing(cfg *config.Config) (*state.Sharing, error) {
	if cfg.HALease == 0 {
		return nil, nil
	}
	node := cfg.HANode
	if node == "" {
		var err error
		if node, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("ha_node is not set, and the host has no name: %w", err)
		}
	}
	logged := uint64(0) // the epoch
	return &state.Sharing{
		Node: node, Term: cfg.HALease, Lost: d.leaseLost,
		Waiting: func(r lease.Record) {
			if r.Epoch != logged {
				logged = r.Epoch
				d.log.Info("another node has the lease on the state directory; waiting", zap.String("node", r.Node),
					zap.Uint64("epoch", r.Epoch), zap.Duration("at_least", cfg.HALease))
			}
			if err := d.manager.Starting("waiting for the lease of node "+r.Node, 2*cfg.HALease+startTime); err != nil {
				d.log.Debug("the service manager cannot be told", zap.Error(err))
			}
		},
	}, nil
}

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
