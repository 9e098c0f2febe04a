package daemon

import (
	"context"
	"errors"
	"net"

	"go.uber.org/zap"
)

// Stop takes the server down: no new connections, the calls in progress end as
// long as ctx allows, then connections, devices and stores are closed. It must
// be called once.
func (d *Daemon) Stop(ctx context.Context) error {
	d.draining.Store(true)
	d.sockets.Detach()
	if d.sockets.Keeps() {
		d.devices.Ending()
	}
	d.mounts.Stop()
	d.mu.Lock()
	if d.handedOver {
		d.mu.Unlock()
		return d.stopReplaced()
	}
	if d.addressesGone() {
		defer d.mu.Unlock()
		return d.leave()
	}
	stopServing, stopOps := d.ports.Detach()
	d.mu.Unlock()
	d.audit.Record("stop")
	defer func() {
		d.otlp.Close(ctx)
		d.monitor.stop()
		_ = stopOps()
		_ = d.audit.Close()
	}()

	drained := make(chan error, 1)
	go func() {
		err := stopServing(ctx)
		d.Service.Close()
		d.ports.Portmap.Close()
		drained <- err
	}()
	var err error
	select {
	case err = <-drained:
	case <-ctx.Done():
		d.log.Warn("not everything ended in time; stopping all the same")
		return d.closeControl()
	}
	err = errors.Join(err, d.closeExports(ctx), d.closeControl(), d.state.Close())
	if err == nil {
		d.ports.FreeMemory()
	}
	d.log.Info("stopped", zap.Error(err))
	return err
}

// stopReplaced handles a stop after the hand-over. It closes nothing, because everything belongs to
// the new process.
func (d *Daemon) stopReplaced() error {
	if !d.isReplaced() {
		return <-d.failed // the new process has failed
	}
	d.log.Warn("another process has taken over, which goes on; it has to be stopped itself")
	return d.exitReplaced()
}

// release undoes a start that failed half way.
func (d *Daemon) release() {
	d.sockets.Detach() // the next start finds them in the store
	defer func() { _ = d.audit.Close() }()
	d.mounts.Stop()
	if d.otlp != nil {
		d.otlp.Close(context.Background())
	}
	if d.ports != nil {
		_ = d.ports.Close()
	}
	if d.Service != nil {
		d.Service.Close()
		_ = d.ExportSet.Close()
	}
	if d.cluster != nil {
		d.cluster.Close()
	}
	if d.state != nil {
		_ = d.state.Close()
	}
}

// closeControl ends the control interface. It closes the listener itself, too: the goroutine that
// serves it may not have begun, and a daemon that starts next would find the socket answering.
func (d *Daemon) closeControl() error {
	err := d.control.Close()
	if e := d.listener.Close(); !errors.Is(e, net.ErrClosed) {
		err = errors.Join(err, e)
	}
	return err
}
