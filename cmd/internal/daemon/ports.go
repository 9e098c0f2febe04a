package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// endpoint is one address being served.
type endpoint struct {
	addr netip.AddrPort
	// stop ends it and releases what only it used. Calls in progress may end
	// as long as ctx lasts.
	stop func(ctx context.Context) error
	// dev is the RDMA device that it is on; nil for others. want is what the listener asked for.
	dev  *device
	want config.Listen
	// What carries calls, to be handed over; nil for others.
	rdma *rpcrdma.Listener
	tcp  *tcp.Listener
}

// port is a port and what it listens on.
type port struct {
	control.Port
	ends []endpoint
	// waiting are those that have to wait for their device. failed is why others cannot be served.
	waiting []*waitingEndpoint
	failed  error
	// provider is, of an RDMA or perf port, who was asked for.
	provider provider.Kind
	perf     config.Perf // of a perf port: what it was opened with
	// certs are the files of a control port.
	certs certs.Files
}

// current reports whether a port is still what the configuration says.
func (p *port) current(cfg *config.Config) bool {
	switch p.Transport {
	case control.TransportRDMA:
		return p.provider == wanted(p.PortSpec, cfg)
	case control.TransportPerf:
		return p.provider == wanted(p.PortSpec, cfg) && reflect.DeepEqual(p.perf, bounds(cfg))
	case control.TransportControl:
		return p.certs == controlFiles(cfg)
	}
	return true
}

// open reports whether the port is served, or will be when its devices are there.
func (p *port) open() bool { return len(p.ends)+len(p.waiting) > 0 }

// refresh brings what users see of the port up to date.
func (p *port) refresh() {
	p.Addresses, p.Devices, p.Waiting = []string{}, nil, nil
	for _, e := range p.ends {
		p.Addresses = append(p.Addresses, e.addr.String())
		if e.dev != nil {
			p.Devices = append(p.Devices, e.dev.name())
		}
	}
	errs := []error{p.failed}
	for _, a := range p.waiting {
		p.Waiting = append(p.Waiting, a.where())
		errs = append(errs, a.err())
	}
	p.Error = ""
	if err := errors.Join(errs...); err != nil {
		p.Error = err.Error()
	}
}

// stop ends all endpoints at once, so that they share the time they have.
func (p *port) stop(ctx context.Context) error {
	p.stopWaiting()
	ends := p.ends
	p.ends = nil
	errs := make([]error, len(ends))
	var wg sync.WaitGroup
	for i, e := range ends {
		wg.Go(func() { errs[i] = e.stop(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// removeTime is how long calls in progress may take when their port is removed.
const removeTime = 5 * time.Second

// remove is stop for a port that goes away while the others stay.
func (p *port) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	return p.stop(ctx)
}

// applyPorts brings the ports in line with what is desired. At the start a
// configured port that cannot be opened is fatal; later, and for ports that were added or applied
// at run time, it is reported and the others go on. Call with mu held.
func (d *Daemon) applyPorts(atStart bool) error {
	src := d.sources()
	want := src.State().Ports
	var errs []error
	// Closing comes first: what is desired may need an address that goes away.
	keep := d.ports[:0:0]
	for _, p := range d.ports {
		if slices.ContainsFunc(want, func(w control.Port) bool { return w.PortSpec == p.PortSpec }) && p.open() &&
			p.current(d.cfg.Load()) {
			keep = append(keep, p)
			continue
		}
		if p.open() {
			d.log.Info("no longer listening", zap.String("transport", p.Transport), zap.String("on", p.Listen))
		}
		if err := p.remove(); err != nil {
			d.log.Warn("closing a port", zap.String("transport", p.Transport), zap.String("listen", p.Listen), zap.Error(err))
		}
	}
	d.ports = make([]*port, 0, len(want))
	for _, w := range want {
		if i := slices.IndexFunc(keep, func(p *port) bool { return p.PortSpec == w.PortSpec }); i >= 0 {
			keep[i].Origin = w.Origin
			d.ports = append(d.ports, keep[i])
			continue
		}
		if p := d.opened.port(w.PortSpec); p != nil {
			p.Origin = w.Origin
			d.ports = append(d.ports, p)
			continue
		}
		p := &port{Port: w}
		p.Addresses = []string{}
		if err := d.openPort(p, atStart && p.Origin == control.OriginConfig); err != nil {
			err = fmt.Errorf("%s %s: %w", p.Transport, p.Listen, err)
			switch {
			case len(p.ends) > 0:
				d.log.Warn("a port is served on some addresses only", zap.Error(err))
			case atStart && p.Origin != control.OriginConfig:
				d.log.Error("a port cannot be served", zap.Error(err))
			default:
				errs = append(errs, err)
			}
		}
		d.ports = append(d.ports, p)
	}
	return errors.Join(errs...)
}

// wanted is who is to provide the devices of an RDMA or perf port.
func wanted(p control.PortSpec, cfg *config.Config) provider.Kind {
	at, _ := desired.ParseListen(p) // what cannot be read cannot be opened either
	return cmp.Or(at.Provider, provider.Kind(cfg.RDMAProvider))
}

// openPort opens the endpoints of a port. An error with endpoints open, or with some that wait for
// their devices, is about the others and those. must says that there is to be no waiting.
func (d *Daemon) openPort(p *port, must bool) error {
	at, err := desired.ParseListen(p.PortSpec)
	if err != nil {
		p.Error = err.Error()
		return err
	}
	p.perf, p.certs = bounds(d.cfg.Load()), controlFiles(d.cfg.Load())
	if desired.OnDevice(p.Transport) {
		p.failed = d.openOnDevices(p, at, must)
	} else {
		to := netip.AddrPortFrom(at.Addr, at.Port)
		if at.Any() {
			to = netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port) // both families
		}
		var e endpoint
		if e, p.failed = d.openEndpoint(p.Transport, to, at.Any()); p.failed == nil {
			p.ends = append(p.ends, e)
			d.log.Info("listening", zap.String("transport", p.Transport), zap.Stringer("on", e.addr))
		}
	}
	p.refresh()
	errs := []error{p.failed}
	for _, a := range p.waiting {
		if !errors.Is(a.reason, errPredecessor) { // which is as it should be
			errs = append(errs, a.err())
		}
	}
	return errors.Join(errs...)
}

func (d *Daemon) openEndpoint(transport string, at netip.AddrPort, everywhere bool) (endpoint, error) {
	switch transport {
	case control.TransportTCP, control.TransportPortmap, control.TransportOps, control.TransportControl:
		var remote control.Remote
		if transport == control.TransportControl {
			var err error
			if remote, err = d.remoteControl(); err != nil {
				return endpoint{}, err // before anybody can connect
			}
		}
		l, err := d.sockets.Listen(at, func() (net.Listener, error) { return listenTCP(at, everywhere) })
		if err != nil {
			return endpoint{}, err
		}
		switch transport {
		case control.TransportPortmap:
			return d.servePortmap(l)
		case control.TransportOps:
			return d.serveOps(l), nil
		case control.TransportControl:
			var stop func()
			d.from.whenServing(func() { stop = d.control.ServeRemote(l, remote) })
			return endpoint{addr: boundAddr(l), stop: func(context.Context) error { stop(); return nil }}, nil
		}
		return d.serveTCP(l)
	}
	return endpoint{}, fmt.Errorf("unknown transport %q: use %s, %s, %s, %s, %s or %s", transport,
		control.TransportRDMA, control.TransportTCP, control.TransportPortmap, control.TransportPerf,
		control.TransportOps, control.TransportControl)
}

// listenTCP listens on one address, or on all of both families, falling back
// to IPv4 where the host has no IPv6.
func listenTCP(at netip.AddrPort, everywhere bool) (net.Listener, error) {
	where := at.String()
	if everywhere {
		where = fmt.Sprintf(":%d", at.Port())
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", where)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("in use by another process; choose another port (%w)", syscall.EADDRINUSE)
	case errors.Is(err, syscall.EACCES):
		return nil, errors.New("ports below 1024 need CAP_NET_BIND_SERVICE")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, errors.New("this host does not have that address")
	}
	return l, err
}

// boundAddr is where a listener listens.
func boundAddr(l net.Listener) netip.AddrPort {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		ap := a.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// Ports implements control.Backend.
func (d *Daemon) Ports() []control.Port {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]control.Port, 0, len(d.ports))
	for _, p := range d.ports {
		c := p.Port
		c.Addresses, c.Devices, c.Waiting = slices.Clone(c.Addresses), slices.Clone(c.Devices), slices.Clone(c.Waiting)
		out = append(out, c)
	}
	return out
}

// canonical brings a port into the spelling that the lists use.
func canonical(p control.PortSpec) (control.PortSpec, error) {
	p.Transport = strings.ToLower(p.Transport)
	at, err := desired.ParseListen(p)
	if err != nil {
		return p, err
	}
	p.Listen = at.String()
	return p, nil
}

// AddPort implements control.Backend.
func (d *Daemon) AddPort(spec control.PortSpec) (control.Port, error) {
	spec, err := canonical(spec)
	if err != nil {
		return control.Port{}, err
	}
	if err := d.mayChange(); err != nil {
		return control.Port{}, err
	}
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.ports, func(p *port) bool { return p.PortSpec == spec })
	if i >= 0 && d.ports[i].open() {
		return control.Port{}, fmt.Errorf("port %s %s: %w", spec.Transport, spec.Listen, control.ErrConflict)
	}
	src := d.sources()
	configured := src.HasPort(spec)
	p := &port{Port: control.Port{PortSpec: spec, Origin: control.OriginRuntime, Addresses: []string{}}}
	if configured {
		p.Origin = control.OriginConfig
	}
	if err := d.openPort(p, true); err != nil && len(p.ends) == 0 {
		return control.Port{}, fmt.Errorf("%s %s: %w", spec.Transport, spec.Listen, err)
	}
	if err := d.state.PutPort(state.Port(spec), configured); err != nil {
		return control.Port{}, errors.Join(err, p.remove())
	}
	if i >= 0 {
		d.ports[i] = p
	} else {
		d.ports = append(d.ports, p)
	}
	return p.Port, nil
}

// RemovePort implements control.Backend.
func (d *Daemon) RemovePort(spec control.PortSpec) error {
	spec, err := canonical(spec)
	if err != nil {
		return err
	}
	if err := d.mayChange(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.ports, func(p *port) bool { return p.PortSpec == spec })
	if i < 0 {
		return fmt.Errorf("port %s %s: %w", spec.Transport, spec.Listen, control.ErrNotFound)
	}
	src := d.sources()
	if err := d.state.RemovePort(state.Port(spec), src.HasPort(spec)); err != nil {
		return err
	}
	p := d.ports[i]
	d.ports = slices.Delete(d.ports, i, i+1)
	d.log.Info("no longer listening", zap.String("transport", p.Transport), zap.String("on", p.Listen))
	return p.remove()
}
