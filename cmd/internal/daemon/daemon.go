// Package daemon is rstored: it puts the rooms together (devices, transports,
// programs, stores), follows the configuration and the control interface while
// running, and takes everything down again in order.
package daemon

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/audit"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/otlp"
	"github.com/rstored/rstored/cmd/internal/ports"
	"github.com/rstored/rstored/cmd/internal/postmortem"
	"github.com/rstored/rstored/cmd/internal/reconcile"
	"github.com/rstored/rstored/cmd/internal/service"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Daemon is a running server. It is the control interface's Backend.
type Daemon struct {
	cfg   atomic.Pointer[config.Config]
	log   *telemetry.Log
	state *state.Store
	*service.Service
	*reconcile.Reconciler
	mounts   *desired.MountWatcher
	counters counters.Transports
	devices  *devices.Set
	ports    *ports.Set
	monitor  monitor
	traces   traces
	otlp     *otlp.Tracer
	audit    *audit.Log
	tls      *ports.TLS
	failures postmortem.Log
	control  *control.Server
	manager  *telemetry.Notifier
	// Lock order: reloading, mu, acting. Below them are, in this order, ports.Set.mu,
	// devices.Set.mu, and the locks of sockets.Set and state.Store. exports.Set has no lock: mu
	// serializes its changes.
	//
	// reloading is held during a reload or an upgrade. An upgrade does not wait for it: the request
	// fails.
	reloading sync.Mutex
	// acting is held for reading by an administrator's change of clients' state (eviction, end of
	// the grace period), which may wait for stores. An upgrade holds it for writing, and fails if
	// it is not free.
	acting   sync.RWMutex
	sockets  *sockets.Set
	listener net.Listener  // of the control interface
	exe      string        // that an upgrade starts
	replaced chan struct{} // closed when another process serves
	times    upgrade.Times
	// failed receives an error that ends the process: of the control interface, or of an upgrade
	// after the word go.
	failed   chan error
	started  time.Time
	draining atomic.Bool

	// mu serializes changes of exports and ports (reconcile.Config.Mu), and guards what follows. It
	// is held while stores and ports are opened and closed.
	mu         sync.Mutex
	handedOver bool // go is or was sent: the new process owns everything. Written with mu and acting
}

// Start brings a server up: state, programs, exports, ports, control socket.
// What was acquired is released if a later step fails.
func Start(cfg *config.Config, load func() (*config.Config, error), log *telemetry.Log) (*Daemon, error) {
	return start(cfg, load, log, false, nil, devices.System())
}

// start is Start. noUmask says that the umask of the process is 0. from is the old process of an
// upgrade, or nil; with it this process serves after the old one has sent go. If start then fails,
// it releases nothing: the process must exit, and the old one continues.
func start(cfg *config.Config, load func() (*config.Config, error), log *telemetry.Log, noUmask bool,
	from *upgrade.Predecessor, opener *devices.Opener,
) (_ *Daemon, err error) {
	d := &Daemon{
		log: log, started: time.Now(),
		failed:   make(chan error, 1),
		manager:  telemetry.NewNotifier(),
		replaced: make(chan struct{}), times: upgrade.DefaultTimes,
	}
	d.cfg.Store(cfg)
	if d.exe, err = upgrade.Executable(); err != nil {
		return nil, err
	}
	var store sockets.Store
	if d.manager.Stores() {
		store = d.manager
	}
	if d.sockets, err = sockets.Inherit(store, log.Library("sockets"), from); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && from == nil {
			d.release()
		}
	}()
	if d.state, err = state.Restore(cfg.StateDir, from); err != nil {
		return nil, err
	}
	if d.audit, err = audit.Open(cfg.Audit, log.Always); err != nil {
		return nil, &cli.ConfigError{Err: err}
	}
	d.monitor.pprof.Store(cfg.OpsPprof)
	d.tls = &ports.TLS{Audit: d.audit, Counters: &d.counters, Log: log}
	if err := d.tls.Apply(cfg); err != nil {
		return nil, &cli.ConfigError{Err: err}
	}
	access, err := control.NewAccess(cfg.ControlGroup)
	if err != nil {
		return nil, &cli.ConfigError{Err: err}
	}
	// The control socket is taken first: a second daemon finds out before it
	// has touched anything.
	sock, err := listenControl(cfg.Control, access, from)
	if err != nil {
		return nil, err
	}
	d.listener = sock
	d.control = control.NewServer(d, access, log.Library("control"), d.auditAction)
	if err := d.makeRooms(load, opener, noUmask, from); err != nil {
		return nil, err
	}
	if err := d.applyOTLP(cfg); err != nil {
		return nil, &cli.ConfigError{Err: err}
	}
	d.mu.Lock()
	err = errors.Join(d.ApplyExports(true), d.ApplyPorts(true))
	d.mu.Unlock()
	if err != nil {
		if from == nil {
			_ = sock.Close()
		}
		return nil, err
	}
	if from != nil {
		d.mu.Lock()
		err := d.Restore()
		d.mu.Unlock()
		if err == nil {
			err = from.Commit()
		}
		if err != nil {
			return nil, err
		}
	}
	d.ports.Started()
	d.mu.Lock()
	d.mounts = desired.WatchMounts(d.mountsChanged)
	d.mu.Unlock()
	d.devices.LogProviders()
	for _, s := range d.sockets.Sweep() {
		d.log.Info("an inherited socket that no port asks for is closed", zap.String("socket", s))
	}
	go func() {
		if err := d.control.Serve(sock); err != nil {
			d.failed <- err
		}
	}()
	d.log.Info("rstored is running", zap.String("version", cli.ReadBuild().String()),
		zap.String("control", cfg.Control), zap.String("state_dir", cfg.StateDir), zap.String("config", cfg.File))
	d.audit.Record("start", zap.String("version", cli.ReadBuild().String()), zap.Int("pid", os.Getpid()))
	d.monitor.start(d)
	d.logAdvice()
	d.logWarnings(cfg, d.Exports())
	if from != nil {
		for _, name := range from.Left() {
			log.Info("a part of the handover is unknown to this version, and ignored", zap.String("part", name))
		}
		if err := from.Done(); err != nil {
			log.Warn("the old process cannot be told", zap.Error(err))
		}
	}
	return d, nil
}

// makeRooms makes the service, the devices and the ports. They do not serve yet.
func (d *Daemon) makeRooms(load func() (*config.Config, error), opener *devices.Opener, noUmask bool,
	from *upgrade.Predecessor,
) (err error) {
	cfg, fds := d.cfg.Load(), posixfs.Descriptors()
	d.Service, err = service.New(service.Config{
		Settings: d.cfg.Load, State: d.state, Files: posixfs.NewFiles(fds), NoUmask: noUmask, Log: d.log,
		Audit: d.audit.Slog(), MayAct: d.mayAct, From: from,
		Callers: func() map[rpc.Peer]rpc.Caller { return d.ports.Callers() },
	})
	if err != nil {
		return err
	}
	d.failures.Programs, d.failures.Refused = d.Programs, d.refused
	d.otlp = otlp.New(otlp.Config{Recorder: d.Recorder, Version: cli.ReadBuild().Version, Log: d.log.Library("otlp")})
	d.devices = devices.New(devices.Config{
		Opener: opener, Settings: d.cfg.Load, State: d.state, Sockets: d.sockets, Failures: &d.failures,
		Counters: &d.counters, Log: d.log, From: from,
	})
	d.ports = ports.New(ports.Config{
		Settings: d.cfg.Load, State: d.state, Sockets: d.sockets, Devices: d.devices, Counters: &d.counters,
		Limiter: rpc.NewConnLimiter(rpc.ConnLimits{
			Clients: cfg.MaxClients, PerClient: cfg.MaxClientConnections, Descriptors: fds / connectionShare,
		}),
		TLS: d.tls, Audit: d.audit, Log: d.log, From: from,
		RPC: d.RPC, Control: d.control, Programs: d.Programs, Ops: d.serveOps,
	})
	d.Reconciler = reconcile.New(reconcile.Config{
		Settings: d.cfg.Load, Load: load, State: d.state, Service: d.Service, Ports: d.ports, Log: d.log,
		Clients: d.Clients, Mu: &d.mu, MayChange: d.mayChange,
	})
	return nil
}

// connectionShare is the part of the file descriptors that is for connections: 1/connectionShare.
// posixfs.Files takes less than three quarters.
const connectionShare = 4

// logWarnings logs probable mistakes in the exports, and what the exports allow to every host.
func (d *Daemon) logWarnings(cfg *config.Config, exports []control.Export) {
	for _, w := range cfg.Warnings {
		d.log.Warn("exports: " + w)
	}
	if w := cfg.ControlTLS.Warning(); w != "" {
		d.log.Warn(w)
	}
	d.LogExposures(exports)
}

// logAdvice logs what the operator probably did not intend.
func (d *Daemon) logAdvice() {
	exports := d.Exports()
	if len(exports) == 0 {
		d.log.Warn("nothing is exported; add something with 'rstorectl export add DIR'")
	}
	for _, e := range exports {
		if len(e.Clients) == 0 && e.Origin != control.OriginMount {
			d.log.Info("an export names no clients: it is for this host alone; 'rstorectl export "+
				"set "+e.Pseudo+" --client CIDR' names others",
				zap.String("export", e.Pseudo))
		}
	}
}

// refused writes a refused connection request to the audit log.
func (d *Daemon) refused(client, local netip.AddrPort, reason string) {
	d.audit.Event("rdma_reject", zap.Stringer("client", client), zap.Stringer("local", local),
		zap.String("reason", reason))
}

// PostMortems implements control.Backend.
func (d *Daemon) PostMortems() []control.PostMortem { return d.failures.List() }
