package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// CheckLoops reports whether every packet loop completes a turn before ctx is done. Calls that wait
// for a disk do not count: a new process would wait for the disk too.
func (d *Daemon) CheckLoops(ctx context.Context) error {
	var errs []error
	for _, l := range d.devices.Ping(ctx) {
		if !l.OK {
			errs = append(errs, fmt.Errorf("packet loop %d of RDMA device %s does not answer: "+
				"%w", l.Loop, l.Device, ctx.Err()))
		}
	}
	return errors.Join(errs...)
}

// feedWatchdog pings the watchdog of the service manager, three times in
// the time that it waits, until ctx is done.
func (d *Daemon) feedWatchdog(ctx context.Context, waits time.Duration) {
	for t := time.NewTicker(waits / 3); ; {
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		round, cancel := context.WithTimeout(ctx, waits/3)
		err := d.CheckLoops(round)
		cancel()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			d.log.Error("the watchdog is not fed", zap.Error(err))
		default:
			d.notify(d.manager.PingWatchdog())
		}
	}
}

// statusEvery is how often the line for status displays may change.
const statusEvery = 10 * time.Second

// refreshStatus keeps the line for status displays true, until ctx is done.
func (d *Daemon) refreshStatus(ctx context.Context) {
	last := d.summary()
	for t := time.NewTicker(statusEvery); ; {
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		if now := d.summary(); now != last && !d.draining.Load() {
			d.notify(d.manager.Status(now))
			last = now
		}
	}
}
