package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/provider"
)

// The devices of the kernel come and go: a card is pulled, a driver is loaded, a soft device is
// deleted and made again. A port whose device is gone waits, and is served again when there is one.

// retryDelays are how long a port waits before its device is looked for again: twice as long each
// time. A device that is open is looked at every look.
type retryDelays struct{ first, most, look time.Duration }

var defaultDelays = retryDelays{first: 20 * time.Millisecond, most: 2 * time.Second, look: time.Second}

// waitingEndpoint is an endpoint that waits for a device of the kernel. The daemon's mu guards it.
type waitingEndpoint struct {
	want   config.Listen // one address, or one device
	since  time.Time
	reason error // the last
	delay  time.Duration
	timer  *time.Timer
}

// where is what the endpoint is for.
func (a *waitingEndpoint) where() string {
	l := a.want
	l.Provider = ""
	return l.String()
}

func (a *waitingEndpoint) err() error {
	return fmt.Errorf("%s waits for its RDMA device since %s, and is served when the kernel has it ('rstorectl "+
		"device list' shows those there are): %w",
		a.where(), a.since.Local().Format(time.DateTime), a.reason)
}

// stopWaiting has nothing of a port wait any more. Call with the daemon's mu held, or before
// anything can wait.
func (p *port) stopWaiting() {
	for _, a := range p.waiting {
		a.timer.Stop()
	}
	p.waiting = nil
}

// openOnDevices opens the endpoints of a port over RDMA. Those whose device is not there wait for
// it, unless they must be served now; what it returns is about the others.
func (d *Daemon) openOnDevices(p *port, at config.Listen, must bool) error {
	p.provider = wanted(p.PortSpec, d.cfg.Load())
	list, err := d.spread(at, p.provider)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range list {
		c, err := d.choose(l, p.provider)
		if err == nil && c.Kind == provider.Verbs && d.from != nil {
			// The process before this one has the port yet, and keeps it if this one fails.
			d.awaitDevice(p, l, errPredecessor, true)
			continue
		}
		if err == nil && c.Kind == provider.Soft && at.Any() && c.Addr.IsLoopback() && d.rdma.host.RXE() != "" {
			d.log.Info("not listening on a loopback address, as UDP port 4791 is the kernel's",
				zap.Stringer("address", c.Addr), zap.String("device", d.rdma.host.RXE()))
			continue
		}
		var e endpoint
		if err == nil {
			e, err = d.openOn(p.Transport, c, l)
		}
		switch {
		case err == nil:
			p.ends = append(p.ends, e)
			d.listening(p, &e)
		case provider.Gone(err) && !must:
			d.awaitDevice(p, l, err, false)
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// errPredecessor is why a port on a device of the kernel is opened a little later.
var errPredecessor = errors.New("the process before this one has the port")

// spread is one listener for each address that a listener is for.
func (d *Daemon) spread(at config.Listen, kind provider.Kind) ([]config.Listen, error) {
	if !at.Any() {
		return []config.Listen{at}, nil
	}
	var addrs []netip.Addr
	var err error
	if kind == provider.Verbs {
		if err := d.rdma.host.Available(); err != nil {
			return nil, err
		}
		if addrs, err = d.rdma.host.Addresses(); err == nil && len(addrs) == 0 {
			err = errors.New("the kernel has no RDMA device that is up and has an address: see 'rstorectl device list'")
		}
	} else {
		addrs, err = config.HostAddresses()
	}
	list := make([]config.Listen, 0, len(addrs))
	for _, a := range addrs {
		list = append(list, config.Listen{Addr: a, Port: at.Port, Provider: at.Provider})
	}
	return list, err
}

// choose chooses who provides the device of a listener.
func (d *Daemon) choose(l config.Listen, kind provider.Kind) (provider.Choice, error) {
	if kind == provider.Auto && d.from.hasDevice(l.Addr) {
		c, err := d.rdma.host.Choose(provider.Soft, l.Addr, "")
		c.Why = "connections go on that the process before this one had there"
		return c, err
	}
	return d.rdma.host.Choose(kind, l.Addr, l.Device)
}

// openOn opens an endpoint on a device.
func (d *Daemon) openOn(transport string, c provider.Choice, l config.Listen) (e endpoint, err error) {
	if transport == control.TransportPerf {
		e, err = d.servePerf(c, l.Port)
	} else {
		e, err = d.serveRDMA(c, l.Port)
	}
	e.want = l
	return e, err
}

// listening tells that an endpoint is served, by whom, and why.
func (d *Daemon) listening(p *port, e *endpoint) {
	c := e.dev.choice
	d.log.Info("listening", zap.String("transport", p.Transport), zap.Stringer("on", e.addr),
		zap.String("provider", string(c.Kind)),
		zap.String("device", e.dev.name()), zap.String("because", c.Why))
	if c.Warning != "" {
		d.log.Warn("the RDMA device of a port may not "+
			"do", zap.String("transport", p.Transport), zap.Stringer("on", e.addr),
			zap.String("provider", string(c.Kind)), zap.String("reason", c.Warning))
	}
}

// awaitDevice has an endpoint of a port wait for its device. after says that it is to be tried only
// when this process may serve.
func (d *Daemon) awaitDevice(p *port, l config.Listen, why error, after bool) {
	a := &waitingEndpoint{want: l, since: time.Now(), reason: why, delay: d.delays.first}
	a.timer = time.AfterFunc(a.delay, func() { d.retry(p, a) })
	if after {
		a.timer.Stop()
		d.from.whenServing(func() { a.timer.Reset(0) })
	}
	p.waiting = append(p.waiting, a)
}

// retry looks for the device of an endpoint that waits.
func (d *Daemon) retry(p *port, a *waitingEndpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(p.waiting, a) || d.draining.Load() || d.isReplaced() {
		return
	}
	// What was the kernel's stays so: in user space it would take UDP port 4791 from a device that
	// comes back.
	c, err := d.rdma.host.Choose(provider.Verbs, a.want.Addr, a.want.Device)
	var e endpoint
	if err == nil {
		e, err = d.openOn(p.Transport, c, a.want)
	}
	if err != nil {
		if a.reason.Error() != err.Error() && !errors.Is(err, syscall.EADDRINUSE) {
			d.log.Warn("a port waits for its RDMA device", zap.String("transport", p.Transport),
				zap.String("on", a.where()), zap.Error(err))
		}
		a.reason = err
		a.delay = min(2*a.delay, d.delays.most)
		a.timer.Reset(a.delay)
		p.refresh()
		return
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(o *waitingEndpoint) bool { return o == a })
	p.ends = append(p.ends, e)
	p.refresh()
	d.listening(p, &e)
}

// deviceRemoved has the ports of a device that the kernel took away wait for it.
func (d *Daemon) deviceRemoved(v *device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isReplaced() || d.draining.Load() {
		return // they are closed anyway
	}
	d.devMu.Lock()
	d.forget(v)
	d.devMu.Unlock()
	removed := new(port)
	for _, p := range d.ports {
		of := func(e endpoint) bool { return e.dev == v }
		for _, e := range p.ends {
			if of(e) {
				d.log.Error("a port has lost its RDMA device: the kernel took it away, and its clients are cut "+
					"off; it is served again when the device is back ('rstorectl device list' shows those there are)",
					zap.String("transport", p.Transport), zap.Stringer("on", e.addr), zap.String("device", v.name()))
				removed.ends = append(removed.ends, e)
				d.awaitDevice(p, e.want, fmt.Errorf("the kernel took %s away", v.kernel.Name()), false)
			}
		}
		p.ends = slices.DeleteFunc(p.ends, of)
		p.refresh()
	}
	if len(removed.ends) == 0 {
		return
	}
	d.closing.Go(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel() // its connections are gone
		if err := removed.stop(over); err != nil {
			d.log.Warn("closing what was on an RDMA device that is "+
				"gone", zap.String("device", v.name()), zap.Error(err))
		}
	})
}
