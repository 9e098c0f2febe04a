package ports

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/udp"
)

// port is a port and its endpoints. Set.mu guards it.
type port struct {
	control.PortSpec
	origin  string
	ends    []endpoint
	waiting []*waiting // endpoints that wait for their devices or addresses
	failed  error      // why other endpoints cannot be opened
	opened  settings
}

// endpoint is an address that is served.
type endpoint struct {
	addr netip.AddrPort
	// stop closes the endpoint and releases what it uses. Calls in progress may end as long as ctx
	// lasts.
	stop func(ctx context.Context) error
	dev  *devices.Device // nil without RDMA
	want config.Listen   // with RDMA: the configured address or device
	// listener carries RPC calls: *rpcrdma.Listener or *tcp.Listener. It is nil for other
	// transports.
	listener listener
	// datagrams carries RPC calls over UDP, or is nil.
	datagrams *udp.Listener
	list      func() // enters the connections into a list for another node; nil without TCP
}

// listener is what the listeners of RPC have in common.
type listener interface {
	Pause(on bool)
	Callers() map[rpc.Peer]rpc.Caller
	Export() (data []byte, files []*os.File, err error)
	Shutdown(ctx context.Context) error
}

// onKernelDevice reports whether the kernel has the connections of an endpoint.
func (e endpoint) onKernelDevice() bool { return e.dev != nil && e.dev.Kernel != nil }

// settings are the parts of the configuration with which a port is opened. When they change, the
// port is opened anew.
type settings struct {
	provider provider.Kind
	perf     config.Perf
	certs    certs.Files
}

func settingsOf(p control.PortSpec, cfg *config.Config) (s settings) {
	if desired.OnDevice(p.Transport) {
		at, _ := desired.ParseListen(p) // with an error the port is not open
		s.provider = cmp.Or(at.Provider, provider.Kind(cfg.RDMAProvider))
	}
	switch p.Transport {
	case control.TransportPerf:
		s.perf = cfg.Perf
		s.perf.Listen = nil
	case control.TransportControl:
		s.certs = controlFiles(cfg)
	}
	return s
}

// current reports whether a port was opened with the settings of cfg.
func (p *port) current(cfg *config.Config) bool {
	return reflect.DeepEqual(p.opened, settingsOf(p.PortSpec, cfg))
}

// open reports whether the port is served, or waits for its devices or addresses.
func (p *port) open() bool { return len(p.ends)+len(p.waiting) > 0 }

// status is the port as users see it.
func (p *port) status() control.Port {
	out := control.Port{PortSpec: p.PortSpec, Origin: p.origin, Addresses: []string{}}
	for _, e := range p.ends {
		out.Addresses = append(out.Addresses, e.addr.String())
		if e.dev != nil {
			out.Devices = append(out.Devices, e.dev.Name())
		}
	}
	errs := []error{p.failed}
	for _, w := range p.waiting {
		if w.forDevice() {
			out.Waiting = append(out.Waiting, w.where())
		}
		errs = append(errs, w.err())
	}
	if err := errors.Join(errs...); err != nil {
		out.Error = err.Error()
	}
	return out
}

// take removes the endpoints that match from the port, and returns them.
func (p *port) take(match func(endpoint) bool) (taken []endpoint) {
	p.ends = slices.DeleteFunc(p.ends, func(e endpoint) bool {
		if !match(e) {
			return false
		}
		taken = append(taken, e)
		return true
	})
	return taken
}

// stop closes all endpoints at once, so that they share the time of ctx.
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

// removeTime bounds the calls in progress of a port that is closed while others stay open.
const removeTime = 5 * time.Second

// remove is stop within removeTime.
func (p *port) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	return p.stop(ctx)
}

// stopNow closes endpoints whose calls have ended or whose connections are lost.
func (p *port) stopNow() error {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	return p.stop(over)
}

// open opens the endpoints of a port. After an error some of them may be open, or wait for their
// devices or addresses. With must no endpoint waits.
func (s *Set) open(p *port, must bool) error {
	at, err := desired.ParseListen(p.PortSpec)
	p.opened = settingsOf(p.PortSpec, s.Settings())
	switch {
	case err != nil:
	case desired.OnDevice(p.Transport):
		err = s.openOnDevices(p, at, must)
	default:
		var e endpoint
		e, err = s.openIP(p.Transport, at)
		switch {
		case err == nil:
			p.ends = append(p.ends, e)
			s.listening(p, &e)
		case !must:
			s.wait(p, at, "", err)
			err = nil
		}
	}
	p.failed = err
	errs := []error{err}
	for _, w := range p.waiting {
		switch {
		case errors.Is(w.reason, errPredecessor): // expected: the old process has the port
		case w.forDevice():
			errs = append(errs, w.err())
		default:
			errs = append(errs, w.reason)
		}
	}
	return errors.Join(errs...)
}
