package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/control"
)

// hangups catches SIGHUP, which would otherwise end a process that does not serve yet: a log
// rotation cannot know that a new process is about to take over. The channel delivers the signals.
func hangups() chan os.Signal {
	sig := make(chan os.Signal, 4)
	signal.Notify(sig, unix.SIGHUP)
	return sig
}

// wait serves until it is stopped: by the first SIGTERM or SIGINT gracefully, by a second one at
// once. SIGHUP reloads. Signals come on sig, which hangups has made.
func (d *Daemon) wait(ctx context.Context, sig chan os.Signal) error {
	signal.Notify(sig, unix.SIGTERM, unix.SIGINT)
	d.notify(d.manager.Ready(d.summary()))
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	if waits := d.manager.WatchdogInterval(); waits > 0 {
		go d.feedWatchdog(running, waits)
	}
	go d.refreshStatus(running)

	for {
		select {
		case <-ctx.Done():
			return d.Stop(context.WithoutCancel(ctx))
		case <-d.replaced:
			if err := d.exitReplaced(); err != nil || d.movedFrom == nil {
				return err
			}
			if d.awaitMove(sig) {
				return nil
			}
			return again(d.log)
		case <-d.demoted:
			d.answerControl()
			if signalled, err := d.stopInTime(ctx, sig); err != nil || signalled {
				return err
			}
			return again(d.log, demotedVariable+"=1")
		case err := <-d.failed:
			if errors.Is(err, errSuccessorFailed) || errors.Is(err, errGivenUp) {
				return err
			}
			return fmt.Errorf("control interface: %w", err)
		case s := <-sig:
			if s == unix.SIGHUP {
				before := control.Snapshot(d)
				err := d.Reload()
				if err != nil {
					d.log.Error("reload", zap.Error(err))
				}
				was, is := control.Difference(before, control.Snapshot(d))
				d.audit.Record("reload", zap.String("by", "SIGHUP"), zap.Any("old", was), zap.Any("new", is), zap.Error(err))
				continue
			}
			d.log.Info("stopping", zap.Stringer("signal", s), zap.Duration("at_most", d.cfg.Load().StopTimeout))
			d.notify(d.manager.Stopping())
			_, err := d.stopInTime(ctx, sig)
			return err
		}
	}
}

// stopInTime is Stop within stop_timeout, or until a signal that ends it at once. It reports
// whether there was one.
func (d *Daemon) stopInTime(ctx context.Context, sig <-chan os.Signal) (signalled bool, err error) {
	stop, cancel := context.WithTimeout(ctx, d.cfg.Load().StopTimeout)
	defer cancel()
	var came atomic.Bool
	go func() {
		for s := range sig {
			if s != unix.SIGHUP {
				came.Store(true)
				cancel()
				return
			}
		}
	}()
	err = d.Stop(stop)
	return came.Load(), err
}

// replacedTime bounds the wait for the reply to the request that asked for the upgrade.
const replacedTime = time.Second

// exitReplaced ends a process whose successor serves. It closes nothing in a way that a client
// could notice.
func (d *Daemon) exitReplaced() error {
	d.sockets.Detach() // what the service manager keeps is the other's
	if l, ok := d.listener.(*net.UnixListener); ok {
		l.SetUnlinkOnClose(false)
	}
	d.answerControl()
	traces, cancel := context.WithTimeout(context.Background(), replacedTime)
	defer cancel()
	d.otlp.Close(traces)
	return nil
}

// answerControl ends the control interface, after the request that ends this process has its reply.
func (d *Daemon) answerControl() {
	ctx, cancel := context.WithTimeout(context.Background(), replacedTime)
	defer cancel()
	_ = d.control.Shutdown(ctx) // requests that have no reply by then get none
}

// notify logs a failed notification; the service continues.
func (d *Daemon) notify(err error) {
	if err != nil {
		d.log.Warn("the service manager cannot be notified", zap.Error(err))
	}
}

func (d *Daemon) summary() string {
	s := d.Status()
	line := fmt.Sprintf("serving %d exports on %d ports to %d connections", s.Exports, s.Ports, s.Clients)
	if len(s.Problems) > 0 {
		line += fmt.Sprintf("; %d problems, see rstorectl status", len(s.Problems))
	}
	return line
}
