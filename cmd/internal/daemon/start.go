package daemon

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/audit"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/lease"
	"github.com/rstored/rstored/cmd/internal/otlp"
	"github.com/rstored/rstored/cmd/internal/ports"
	"github.com/rstored/rstored/cmd/internal/reconcile"
	"github.com/rstored/rstored/cmd/internal/service"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// start starts a server: state, programs, exports, ports, control socket. If a step fails, start
// releases what the steps before have acquired. noUmask says that the umask of the process is 0.
//
// from is the old process of an upgrade, or nil. With it this process serves after the old one has
// sent go. If start then fails, it releases nothing: the process must exit, and the old one
// continues.
func start(cfg *config.Config, load func() (*config.Config, error), log *telemetry.Log, noUmask bool,
	from *upgrade.Predecessor, opener *devices.Opener,
) (_ *Daemon, err error) {
	d := &Daemon{
		log: log, started: time.Now(),
		failed:  make(chan error, 1),
		demoted: make(chan struct{}, 1),
		manager: telemetry.NewNotifier(),
		times:   upgrade.DefaultTimes,
	}
	d.replaced = make(chan struct{})
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
	access, err := control.NewAccess(cfg.ControlGroup)
	if err != nil {
		return nil, &cli.ConfigError{Err: err}
	}
	wait, err := d.standBy(cfg, access)
	if err != nil {
		return nil, err
	}
	d.state, err = state.Restore(context.Background(), cfg.StateDir, wait.sharing(), from)
	var before lease.Record
	if err == nil && d.state.Lease() != nil {
		before = d.state.Lease().Before
	}
	other := wait.end(before)
	if err != nil {
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
	// The control socket is taken first: a second daemon finds out before it
	// has touched anything.
	sock, err := listenControl(cfg.Control, access, from)
	if err != nil {
		return nil, err
	}
	d.listener = sock
	if err := d.joinCluster(cfg); err != nil {
		_ = sock.Close()
		return nil, err
	}
	d.control = control.NewServer(d, access, log.Library("control"), d.auditAction)
	if err := d.makeComponents(load, opener, noUmask, from, other); err != nil {
		return nil, err
	}
	if err := d.applyOTLP(cfg); err != nil {
		return nil, &cli.ConfigError{Err: err}
	}
	d.mu.Lock()
	err = d.ApplyExports(true)
	d.mu.Unlock()
	if err == nil && other != nil {
		err = d.moved(other, before)
	}
	d.mu.Lock()
	if err == nil || other == nil {
		err = errors.Join(err, d.ApplyPorts(true))
	}
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
	d.followCluster()
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
	for _, p := range []*upgrade.Predecessor{from, other} {
		if p == nil {
			continue
		}
		for _, name := range p.Left() {
			log.Info("a part of the handover is unknown to this version, and ignored", zap.String("part", name))
		}
		if err := p.Done(); err != nil {
			log.Warn("the old process cannot be told", zap.Error(err))
		}
	}
	return d, nil
}

// makeComponents makes the service, the devices and the ports. They do not serve yet. other has
// handed over on another node, or is nil.
func (d *Daemon) makeComponents(load func() (*config.Config, error), opener *devices.Opener, noUmask bool,
	from, other *upgrade.Predecessor,
) (err error) {
	cfg, fds := d.cfg.Load(), posixfs.Descriptors()
	d.Service, err = service.New(service.Config{
		Settings: d.cfg.Load, State: d.state, Files: posixfs.NewFiles(fds), NoUmask: noUmask, Log: d.log,
		Audit: d.audit.Slog(), MayAct: d.mayAct, Cluster: d.cluster, From: cmp.Or(other, from), OtherNode: other != nil,
		Callers: func() map[rpc.Peer]rpc.Caller { return d.ports.Callers() }, Lost: d.leaseLost,
		DialRDMA: func(ctx context.Context, local netip.Addr, to netip.AddrPort) (rpc.Client, error) {
			dev := d.devices.Find(local)
			if dev == nil {
				return nil, rdma.ErrClosed
			}
			return rpcrdma.Dial(ctx, dev, to, rpcrdma.ClientConfig{})
		},
	})
	if err != nil {
		return err
	}
	d.monitor.newFeed(d)
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
		RPC: d.RPC, Control: d.control, Programs: d.Programs, Admits: d.Table.AdmitsHost, Ops: d.serveOps,
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
