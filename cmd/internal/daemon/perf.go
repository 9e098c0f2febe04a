package daemon

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/provider"
)

// measuring is the other side of 'rstorectl perf': one server with its own bounded memory
// for all perf ports, there while one of them is open.
type measuring struct {
	mu    sync.Mutex
	srv   *perf.Server
	ports int
}

// bounds is the perf section without what the list of ports says.
func bounds(cfg *config.Config) config.Perf {
	p := cfg.Perf
	p.Listen = nil
	return p
}

var errNoPerfClients = errors.New("nobody may measure: name clients in the perf section of the configuration")

// servePerf answers measurements on a port of a device, which it opens if it is the
// first on that address. Call with mu held.
func (d *Daemon) servePerf(c provider.Choice, port uint16) (_ endpoint, err error) {
	section := d.cfg.Load().Perf
	limits, err := section.Limits()
	if err != nil {
		return endpoint{}, err
	}
	if len(limits.Clients) == 0 {
		return endpoint{}, errNoPerfClients
	}
	dev, err := d.acquire(c)
	if err != nil {
		return endpoint{}, err
	}
	srv, err := d.openPerf(limits)
	if err != nil {
		return endpoint{}, errors.Join(err, dev.release())
	}
	l, err := srv.Listen(dev.Device, port)
	if err != nil {
		return endpoint{}, errors.Join(err, d.closePerf(), dev.release())
	}
	// Measurements are not waited for: nobody loses anything.
	return endpoint{addr: netip.AddrPortFrom(dev.addr, port), dev: dev, stop: func(context.Context) error {
		return errors.Join(l.Close(), d.closePerf(), dev.release())
	}}, nil
}

// openPerf is the server, for one more port. All ports of different limits have been
// closed before.
func (d *Daemon) openPerf(l perf.Limits) (*perf.Server, error) {
	m := &d.perf
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ports == 0 {
		srv, err := perf.NewServer(l, d.log.Slog("perf"))
		if err != nil {
			return nil, err
		}
		d.counters.AddPerf(srv)
		m.srv = srv
	}
	m.ports++
	return m.srv, nil
}

// closePerf is for one port less.
func (d *Daemon) closePerf() error {
	m := &d.perf
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ports--; m.ports > 0 {
		return nil
	}
	srv := m.srv
	m.srv = nil
	d.counters.DropPerf(srv)
	return srv.Close()
}
