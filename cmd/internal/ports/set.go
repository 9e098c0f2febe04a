package ports

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/audit"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Config is what a Set works with.
type Config struct {
	Settings func() *config.Config
	State    *state.Store
	Sockets  *sockets.Set
	Devices  *devices.Set
	Limiter  *rpc.ConnLimiter
	Counters *counters.Transports
	TLS      *TLS
	Audit    *audit.Log
	Log      *telemetry.Log
	// From is the old process of an upgrade, whose connections continue here, or nil.
	From *upgrade.Predecessor
	// RPC serves the file programs. Control serves control ports.
	RPC     *rpc.Server
	Control *control.Server
	// Programs are the file programs that the port mapper lists.
	Programs []rpc.Program
	// Admits reports whether a host may call by UDP.
	Admits func(netip.Addr) bool
	// Ops serves metrics and health checks on a listener until stop is called.
	Ops func(net.Listener) (stop func(context.Context) error)
}

// Set is the set of ports.
type Set struct {
	Config
	// Portmap serves queries of the port mapper.
	Portmap *rpc.Server

	perf    perfServer
	mapped  atomic.Pointer[[]portmap.Service] // what the port mapper lists
	closing sync.WaitGroup                    // endpoints whose device was removed are being closed

	mu     sync.Mutex // guards what follows, and the ports
	list   []*port
	frozen bool
	// memory is what the RDMA ports share. Ports on devices of the kernel share pinned memory,
	// ports on devices in user space share other memory. It is made for the first such port.
	memory map[bool]*rpcrdma.Memory // by rpcrdma.Config.Pinned
}

// New makes a set without ports.
func New(cfg Config) *Set {
	s := &Set{Config: cfg, memory: make(map[bool]*rpcrdma.Memory)}
	s.Portmap = rpc.NewServer(rpc.ServerConfig{
		Programs: s.portmapPrograms(), Workers: portmapWorkers, Logger: s.Log.Slog("portmap"),
	})
	s.Devices.OnRemoval = s.deviceRemoved
	return s
}

// Apply opens and closes ports until they are those of want. It takes ports from ready instead of
// opening them. A port that cannot be opened does not stop the others: it has its error in the
// list, and Apply tries it again until it opens. The error of Apply is about the ports that could
// not be opened. At the start there is no such error if at least one port of NFS is served, or if
// nodes share the state. In a successor each configured port must open.
func (s *Set) Apply(want []control.Port, ready *Ready, atStart bool) error {
	defer s.change()()
	return s.apply(want, ready, atStart)
}

func (s *Set) apply(want []control.Port, ready *Ready, atStart bool) error {
	var errs, vain []error // vain: errors of ports without which the start continues
	// Ports are closed first: a new port may need the address of an old one.
	stay := make(map[control.PortSpec]*port)
	var over []*port
	for _, p := range s.list {
		if p.open() && p.current(s.Settings()) &&
			slices.ContainsFunc(want, func(w control.Port) bool { return w.PortSpec == p.PortSpec }) {
			stay[p.PortSpec] = p
			continue
		}
		over = append(over, p)
	}
	s.list = slices.Collect(maps.Values(stay))
	s.publish()
	for _, p := range over {
		if p.open() {
			s.Log.Info("no longer listening", zap.String("transport", p.Transport), zap.String("on", p.Listen))
		}
		if err := p.remove(); err != nil {
			s.Log.Warn("closing a port", zap.String("transport", p.Transport), zap.String("listen", p.Listen), zap.Error(err))
		}
	}
	s.list = make([]*port, 0, len(want))
	for _, w := range want {
		p := stay[w.PortSpec]
		if p == nil {
			p = ready.take(w.PortSpec)
		}
		if p == nil {
			p = &port{PortSpec: w.PortSpec}
			configured := w.Origin == control.OriginConfig
			must := atStart && configured && s.From != nil
			if err := s.open(p, must); err != nil {
				err = fmt.Errorf("%s %s: %w", p.Transport, p.Listen, err)
				switch {
				case len(p.ends) > 0:
					s.Log.Warn("a port is served on some addresses only", zap.Error(err))
				case atStart && !must:
					s.Log.Error("a port cannot be served", zap.Error(err))
					vain = append(vain, err)
				default:
					errs = append(errs, err)
				}
			}
		}
		p.origin = w.Origin
		s.list = append(s.list, p)
	}
	// An address that moves between nodes may come later.
	if s.From == nil && s.Settings().HALease == 0 &&
		!slices.ContainsFunc(s.list, func(p *port) bool { return ofNFS(p) && len(p.ends) > 0 }) &&
		slices.ContainsFunc(s.list, ofNFS) {
		errs = append(errs, vain...)
	}
	return errors.Join(errs...)
}

// ofNFS reports whether a port serves files to clients.
func ofNFS(p *port) bool {
	return p.Transport == control.TransportRDMA || p.Transport == control.TransportTCP
}

// Switch is Apply for a change that is undone unless every new port can be opened. It returns only
// the errors of the new ports.
func (s *Set) Switch(want []control.Port, ready *Ready) error {
	defer s.change()()
	before := s.list
	_ = s.apply(want, ready, false)
	var errs []error
	for _, p := range s.list {
		if len(p.ends) == 0 && find(before, p.PortSpec) < 0 {
			errs = append(errs, fmt.Errorf("port %s %s: %s", p.Transport, p.Listen, p.status().Error))
		}
	}
	return errors.Join(errs...)
}

// Ready has open ports that are not in the set yet. A nil Ready has none.
type Ready struct{ ports map[control.PortSpec]*port }

// Prepare opens the ports of want that are not in the set. It leaves out a port if Apply must first
// close another port with the same number.
func (s *Set) Prepare(want []control.Port) (_ *Ready, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &Ready{make(map[control.PortSpec]*port)}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	wanted := func(o *port) bool {
		return slices.ContainsFunc(want, func(w control.Port) bool { return w.PortSpec == o.PortSpec })
	}
	for _, w := range want {
		if slices.ContainsFunc(s.list, func(o *port) bool {
			return o.PortSpec == w.PortSpec && o.open() || sameNumber(o.PortSpec, w.PortSpec) && !wanted(o)
		}) {
			continue
		}
		p := &port{PortSpec: w.PortSpec}
		if err := s.open(p, true); err != nil && len(p.ends) == 0 {
			return nil, fmt.Errorf("port %s %s: %w", w.Transport, w.Listen, err)
		}
		r.ports[w.PortSpec] = p
	}
	return r, nil
}

// sameNumber reports whether two ports have the same number. Such ports may need the same address.
func sameNumber(a, b control.PortSpec) bool {
	x, err := desired.ParseListen(a)
	y, err2 := desired.ParseListen(b)
	return err == nil && err2 == nil && x.Port == y.Port
}

// Close closes the ports that the set has not taken.
func (r *Ready) Close() {
	if r == nil {
		return
	}
	for _, p := range r.ports {
		_ = p.remove()
	}
	clear(r.ports)
}

// take removes a port and returns it; nil if there is none.
func (r *Ready) take(spec control.PortSpec) *port {
	if r == nil {
		return nil
	}
	p := r.ports[spec]
	delete(r.ports, spec)
	return p
}

// find returns the index of a port in a list, or -1.
func find(list []*port, spec control.PortSpec) int {
	return slices.IndexFunc(list, func(p *port) bool { return p.PortSpec == spec })
}

// canonical brings a port into the spelling that the lists use.
func canonical(spec control.PortSpec) (control.PortSpec, error) {
	spec.Transport = strings.ToLower(spec.Transport)
	at, err := desired.ParseListen(spec)
	if err != nil {
		return spec, err
	}
	spec.Listen = at.String()
	return spec, nil
}

// Add opens a port at run time, and records it in the state directory.
func (s *Set) Add(spec control.PortSpec) (control.Port, error) {
	spec, err := canonical(spec)
	if err != nil {
		return control.Port{}, err
	}
	defer s.change()()
	i := find(s.list, spec)
	if i >= 0 && s.list[i].open() {
		return control.Port{}, fmt.Errorf("port %s %s: %w", spec.Transport, spec.Listen, control.ErrConflict)
	}
	p := &port{PortSpec: spec, origin: control.OriginRuntime}
	configured := s.configured(spec)
	if configured {
		p.origin = control.OriginConfig
	}
	if err := s.open(p, true); err != nil && len(p.ends) == 0 {
		return control.Port{}, fmt.Errorf("%s %s: %w", spec.Transport, spec.Listen, err)
	}
	if err := s.State.PutPort(state.Port(spec), configured); err != nil {
		return control.Port{}, errors.Join(err, p.remove())
	}
	if i >= 0 {
		s.list[i] = p
	} else {
		s.list = append(s.list, p)
	}
	return p.status(), nil
}

// Remove closes a port at run time, and records that in the state directory.
func (s *Set) Remove(spec control.PortSpec) error {
	spec, err := canonical(spec)
	if err != nil {
		return err
	}
	defer s.change()()
	i := find(s.list, spec)
	if i < 0 {
		return fmt.Errorf("port %s %s: %w", spec.Transport, spec.Listen, control.ErrNotFound)
	}
	if err := s.State.RemovePort(state.Port(spec), s.configured(spec)); err != nil {
		return err
	}
	p := s.list[i]
	s.list = slices.Delete(s.list, i, i+1)
	s.publish()
	s.Log.Info("no longer listening", zap.String("transport", p.Transport), zap.String("on", p.Listen))
	return p.remove()
}

// configured reports whether the configuration or the applied file has a port.
func (s *Set) configured(spec control.PortSpec) bool {
	src := desired.Read(s.Settings(), s.State)
	return src.HasPort(spec)
}

// List returns the ports for the control interface.
func (s *Set) List() []control.Port {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]control.Port, 0, len(s.list))
	for _, p := range s.list {
		out = append(out, p.status())
	}
	return out
}

// Started says that all ports of the start are open, and that this process serves. It opens the
// ports on devices of the kernel that the old process had.
func (s *Set) Started() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Devices.Started()
	for _, p := range s.list {
		for _, w := range p.waiting {
			w.timer.Reset(0)
		}
	}
}

// Detach empties the set, for good. serving closes its endpoints, except those of ops ports; calls
// in progress may end while the context lasts. ops closes the ops ports, so that monitoring can see
// the rest of the stop.
func (s *Set) Detach() (serving func(context.Context) error, ops func() error) {
	defer s.change()()
	s.frozen = true
	var others, ofOps port
	for _, p := range s.list {
		p.stopWaiting()
		to := &others
		if p.Transport == control.TransportOps {
			to = &ofOps
		}
		to.ends = append(to.ends, p.ends...)
	}
	s.list = nil
	return func(ctx context.Context) error {
		err := others.stop(ctx)
		s.closing.Wait()
		return err
	}, ofOps.remove
}

// Close closes all ports of a start that failed.
func (s *Set) Close() error {
	serving, ops := s.Detach()
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	err := errors.Join(serving(ctx), ops())
	s.Portmap.Close()
	return err
}
