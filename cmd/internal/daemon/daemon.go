package daemon

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/cmd/internal/audit"
	"github.com/rstored/rstored/cmd/internal/cluster"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/otlp"
	"github.com/rstored/rstored/cmd/internal/ports"
	"github.com/rstored/rstored/cmd/internal/postmortem"
	"github.com/rstored/rstored/cmd/internal/rados"
	"github.com/rstored/rstored/cmd/internal/reconcile"
	"github.com/rstored/rstored/cmd/internal/service"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// Daemon is a running server. It is the control interface's Backend. ownership has its locks.
type Daemon struct {
	cfg   atomic.Pointer[config.Config]
	log   *telemetry.Log
	state *state.Store
	// cluster is what this server shares with others, by rados; nil: it is alone.
	cluster *cluster.Cluster
	rados   *rados.Client
	ownership
	observers
	*service.Service
	*reconcile.Reconciler
	mounts   *desired.MountWatcher
	devices  *devices.Set
	ports    *ports.Set
	sockets  *sockets.Set
	tls      *ports.TLS
	control  *control.Server
	listener net.Listener // of the control interface
	manager  *telemetry.Notifier
	exe      string // that an upgrade starts
	times    upgrade.Times
	// failed receives an error that ends the process: of the control interface, or of an upgrade
	// after the word go.
	failed  chan error
	started time.Time
	// demoted makes this process stop and start anew as a standby. movedFrom are the addresses at
	// which it served before it has handed over to another node.
	demoted   chan struct{}
	movedFrom []net.IP
}

// observers record what the daemon and its clients do.
type observers struct {
	monitor  monitor
	traces   traces
	otlp     *otlp.Tracer
	audit    *audit.Log
	counters counters.Transports
	failures postmortem.Log
}
