package daemon

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/control"
)

// Stop takes the server down: no new connections, the calls in progress end as
// long as ctx allows, then connections, devices and stores are closed. It must
// be called once.
func (d *Daemon) Stop(ctx context.Context) error {
	d.draining.Store(true)
	d.sockets.Freeze()
	if d.sockets.Keeps() {
		for _, v := range d.softDevices() {
			v.soft.Ending()
		}
	}
	d.mounts.Stop()
	d.mu.Lock()
	if d.handedOver {
		d.mu.Unlock()
		return d.stopReplaced()
	}
	ports := d.ports
	d.ports = nil
	for _, p := range ports {
		p.stopWaiting()
	}
	d.mu.Unlock()
	d.audit.Record("stop")
	// Whoever watches sees the drain.
	watching := new(port)
	ports = slices.DeleteFunc(ports, func(p *port) bool {
		if p.Transport != control.TransportOps {
			return false
		}
		watching.ends = append(watching.ends, p.ends...)
		return true
	})
	defer func() {
		d.otlp.Close(ctx)
		d.monitor.stop()
		_ = watching.remove()
		_ = d.audit.Close()
	}()

	drained := make(chan error, 1)
	go func() {
		all := new(port)
		for _, p := range ports {
			all.ends = append(all.ends, p.ends...)
		}
		err := all.stop(ctx)
		d.closing.Wait()
		d.nlm.Close()
		d.nfs4.Close()
		d.rpc.Close()
		d.callbackDialer.Close()
		d.portmap.Close()
		drained <- err
	}()
	var err error
	select {
	case err = <-drained:
	case <-ctx.Done():
		d.log.Warn("not everything ended in time; stopping all the same")
		return d.control.Close()
	}
	err = errors.Join(err, d.exports.Close(), d.control.Close(), d.state.Close())
	d.freeMemory(err)
	d.log.Info("stopped", zap.Error(err))
	return err
}

// stopReplaced is the end of a process that is told to stop, and has been let another one serve
// meanwhile: what it would close is that one's.
func (d *Daemon) stopReplaced() error {
	if !d.isReplaced() {
		return <-d.failed // the new process has failed
	}
	d.log.Warn("another process has taken over, which goes on; it has to be stopped itself")
	return d.exitReplaced()
}

// release undoes a start that failed half way.
func (d *Daemon) release() {
	d.sockets.Freeze() // whoever starts it again finds them
	defer func() { _ = d.audit.Close() }()
	d.mounts.Stop()
	if d.otlp != nil {
		d.otlp.Close(context.Background())
	}
	d.mu.Lock()
	for _, p := range d.ports {
		_ = p.remove()
	}
	d.ports = nil
	d.mu.Unlock()
	d.closing.Wait()
	if d.nlm != nil {
		d.nlm.Close()
	}
	if d.nfs4 != nil {
		d.nfs4.Close()
	}
	if d.callbackDialer != nil {
		d.callbackDialer.Close()
	}
	if d.rpc != nil {
		d.rpc.Close()
		d.portmap.Close()
	}
	if d.exports != nil {
		_ = d.exports.Close()
	}
	if d.state != nil {
		_ = d.state.Close()
	}
}
