// Package daemon is rstored: it puts the rooms together (devices, transports,
// programs, stores), follows the configuration and the control interface while
// running, and takes everything down again in order.
package daemon

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/audit"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/cmd/internal/measure"
	"github.com/rstored/rstored/cmd/internal/otlp"
	"github.com/rstored/rstored/cmd/internal/plan"
	"github.com/rstored/rstored/cmd/internal/ports"
	"github.com/rstored/rstored/cmd/internal/postmortem"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/hosts"
	"github.com/rstored/rstored/nfs/idmap"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// Daemon is a running server. It is the control interface's Backend.
type Daemon struct {
	cfg            atomic.Pointer[config.Config]
	load           func() (*config.Config, error)
	log            *telemetry.Log
	state          *state.Store
	table          *nfs.Table
	faults         *nfs.Counters
	rpc            *rpc.Server // NFS, MOUNT, NLM and the status monitor
	nlm            *nlm.Server
	nfs4           *nfs4.Server
	callbackDialer *tcp.CallbackDialer // calls to clients of version 4.0
	locks          *lock.Table
	hosts          *hosts.Hosts
	idmap          *idmap.Map
	mounts         *desired.MountWatcher
	counters       counters.Transports
	devices        *devices.Set
	ports          *ports.Set
	monitor        monitor
	traces         traces
	// recorder measures the calls of rpc.
	recorder *measure.Recorder
	otlp     *otlp.Tracer
	audit    *audit.Log
	tls      *ports.TLS
	failures postmortem.Log
	served   []rpc.Program // for the names of procedures
	control  *control.Server
	manager  *telemetry.Notifier
	// reloading is held by the reload that is under way.
	reloading sync.Mutex
	// acting is held for reading by who changes what clients have, which may wait for stores, and
	// by an upgrade.
	acting   sync.RWMutex
	sockets  *sockets.Set
	listener net.Listener  // of the control interface
	exe      string        // that an upgrade starts
	from     *predecessor  // the process before this one; nil when this one serves
	replaced chan struct{} // closed when another process serves
	times    upgradeTimes
	// failed receives the end of the control interface, should it end early.
	failed   chan error
	started  time.Time
	draining atomic.Bool
	noUmask  bool // see posixfs.Options

	// mu serializes changes of exports and ports, and guards what follows.
	mu         sync.Mutex
	handedOver bool // another process was let serve: nothing here counts any more. It is set with acting held, too
	exports    *exports.Set
	opened     *prepared // for the change that is being made
	calls      []byte    // the journal of version 4's calls
}

// Start brings a server up: state, programs, exports, ports, control socket.
// What was acquired is released if a later step fails.
func Start(cfg *config.Config, load func() (*config.Config, error), log *telemetry.Log) (*Daemon, error) {
	return start(cfg, load, log, false, nil, devices.System())
}

// start is Start; noUmask says that the umask of the process is 0. What another process has handed
// over is from, if not nil: this one begins when that one lets it. If it cannot, nothing is
// released: the process is to end, and the other one goes on with all of it.
func start(cfg *config.Config, load func() (*config.Config, error), log *telemetry.Log, noUmask bool,
	from *predecessor, opener *devices.Opener,
) (_ *Daemon, err error) {
	d := &Daemon{
		noUmask: noUmask,
		load:    load, log: log, started: time.Now(),
		failed:  make(chan error, 1),
		manager: telemetry.NewNotifier(),
		from:    from, replaced: make(chan struct{}), times: defaultTimes,
	}
	d.cfg.Store(cfg)
	if d.exe, err = upgrade.Executable(); err != nil {
		return nil, err
	}
	if err := d.openSockets(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && from == nil {
			d.release()
		}
	}()
	if err := d.openState(); err != nil {
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
	secret, err := d.state.Secret()
	if err != nil {
		return nil, err
	}
	access, err := control.NewAccess(cfg.ControlGroup)
	if err != nil {
		return nil, &cli.ConfigError{Err: err}
	}
	// The control socket is taken first: a second daemon finds out before it
	// has touched anything.
	sock, err := d.listenControl(access)
	if err != nil {
		return nil, err
	}
	d.listener = sock
	if d.from == nil {
		d.putAside()
	}
	journal, err := d.state.Memory(journalName, journalSize)
	if err != nil {
		return nil, err
	}
	if d.calls, err = d.state.Memory(callsName, callsSize); err != nil {
		return nil, err
	}
	d.control = control.NewServer(d, access, log.Library("control"), d.auditAction)
	if err := d.wire(secret, journal, opener); err != nil {
		return nil, err
	}
	if err := d.applyOTLP(cfg); err != nil {
		return nil, &cli.ConfigError{Err: err}
	}
	d.mu.Lock()
	err = errors.Join(d.applyExports(true), d.applyPorts(true))
	d.mu.Unlock()
	if err != nil {
		if from == nil {
			_ = sock.Close()
		}
		return nil, err
	}
	if from != nil {
		d.mu.Lock()
		err := from.state(d)
		d.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if err := from.Commit(); err != nil {
			return nil, err
		}
		d.from = nil
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
		from.done(d)
	}
	return d, nil
}

// openSockets takes over the sockets that an earlier process, or the service manager, left.
func (d *Daemon) openSockets() (err error) {
	var store sockets.Store
	if d.manager.Stores() {
		store = d.manager
	}
	if d.from == nil {
		d.sockets = sockets.Inherit(store, d.log.Library("sockets"))
		return nil
	}
	d.sockets, err = d.from.sockets(store, d)
	d.from.handover().WhenServing(d.sockets.Live)
	return err
}

// openState opens the state directory, which an earlier process may still hold.
func (d *Daemon) openState() (err error) {
	dir := d.cfg.Load().StateDir
	if d.from == nil {
		d.state, err = state.Open(dir)
		return err
	}
	lock, err := d.from.lock()
	if err != nil {
		return err
	}
	if d.state, err = state.Inherit(dir, lock); err == nil {
		d.from.handover().WhenServing(d.state.Begin)
	}
	return err
}

// listenControl listens for who controls the server.
func (d *Daemon) listenControl(access control.Access) (net.Listener, error) {
	if d.from != nil {
		return d.from.control()
	}
	return control.Listen(d.cfg.Load().Control, access)
}

// logWarnings logs what is probably not meant in the exports, and what they let everybody do.
func (d *Daemon) logWarnings(cfg *config.Config, exports []control.Export) {
	for _, w := range cfg.Warnings {
		d.log.Warn("exports: " + w)
	}
	if w := cfg.ControlTLS.Warning(); w != "" {
		d.log.Warn(w)
	}
	d.tellExposures(exports)
}

func (d *Daemon) tellExposures(exports []control.Export) {
	for _, w := range plan.Exposures(exports) {
		d.log.Warn(w)
	}
}

// FlushIDMap implements control.Backend.
func (d *Daemon) FlushIDMap() {
	d.idmap.Flush()
	d.hosts.Flush()
}

// logAdvice tells the operator what may not be meant.
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

// The journal of the duplicate request cache, in the state directory.
const (
	journalName = "replies-2.journal"
	journalSize = 3 << 20 // 6144 calls; the cache keeps 4096 replies
	// oldJournalName is that of a format that has too little of a call to tell it from others.
	oldJournalName = "replies.journal"
	// Likewise of the sessions of version 4.
	callsName = "calls.journal"
	callsSize = 2 << 20 // 16384 slots
)

// putAside renames the journal of an earlier version.
func (d *Daemon) putAside() {
	old := filepath.Join(d.cfg.Load().StateDir, oldJournalName)
	aside := old + ".old"
	switch err := os.Rename(old, aside); {
	case err == nil:
		d.log.Info("the replies that an earlier version kept for retransmissions are not used: calls that clients "+
			"send again are executed",
			zap.String("journal", aside))
	case !errors.Is(err, fs.ErrNotExist):
		d.log.Warn("the journal of replies of an earlier version cannot be put aside", zap.Error(err))
	}
}

// refused writes a refused connection request to the audit log.
func (d *Daemon) refused(client, local netip.AddrPort, reason string) {
	d.audit.Event("rdma_reject", zap.Stringer("client", client), zap.Stringer("local", local),
		zap.String("reason", reason))
}

// PostMortems implements control.Backend.
func (d *Daemon) PostMortems() []control.PostMortem { return d.failures.List() }
