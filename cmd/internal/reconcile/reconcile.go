package reconcile

import (
	"errors"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/plan"
	"github.com/rstored/rstored/cmd/internal/ports"
	"github.com/rstored/rstored/cmd/internal/service"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// Config is what a Reconciler works with.
type Config struct {
	Settings func() *config.Config          // in force now
	Load     func() (*config.Config, error) // reads the configuration again; nil without a file
	State    *state.Store
	Service  *service.Service
	Ports    *ports.Set
	Log      *telemetry.Log
	// Clients lists the connections.
	Clients func() []control.Client
	// Mu serialises changes of exports and ports. MayChange locks it, or returns why there can be no
	// change any more.
	Mu        *sync.Mutex
	MayChange func() error
}

// Reconciler changes what is served into what is desired. It implements parts of control.Backend.
type Reconciler struct {
	Config
	opened *prepared // for the change that is being made
}

// New makes a Reconciler. Nothing is served yet.
func New(c Config) *Reconciler { return &Reconciler{Config: c} }

// sources are everything that says what is to be served now.
func (r *Reconciler) sources() desired.Sources { return desired.Read(r.Settings(), r.State) }

// ApplyExports brings the exports in line with what is desired. An export that cannot be served is
// no error at the start: it has its error in the list, and is tried again. For a successor it is
// one if no export at all can be served. Call with Mu locked.
func (r *Reconciler) ApplyExports(atStart bool) error {
	src := r.sources()
	next := src.State()
	want := next.Exports
	failed, err := r.Service.ExportSet.Apply(want, src.Mounts, r.opened.exports())
	if root := next.RootPath(); err == nil && root != "" && src.Config.Root == "" {
		err = r.State.SetRoot(root)
	}
	if err != nil || atStart && (r.Service.From == nil || len(failed) < len(want)) {
		return err
	}
	return errors.Join(failed...)
}

// SnapshotsChanged reports whether the host has other snapshots of exports than are served. It
// needs no lock.
func (r *Reconciler) SnapshotsChanged() bool {
	var served, there []string
	for _, e := range r.Service.ExportSet.All() {
		if e.Origin == control.OriginSnapshot {
			served = append(served, e.Pseudo)
		}
	}
	src := r.sources()
	for _, e := range src.State().Exports {
		if e.Origin == control.OriginSnapshot {
			there = append(there, e.Pseudo)
		}
	}
	return !slices.Equal(served, there)
}

// ApplyPorts brings the ports in line with what is desired. Call with Mu locked.
func (r *Reconciler) ApplyPorts(atStart bool) error {
	src := r.sources()
	var ready *ports.Ready
	if r.opened != nil {
		ready = r.opened.ports
	}
	return r.Ports.Apply(src.State().Ports, ready, atStart)
}

// Running is what is served now. Call with Mu locked.
func (r *Reconciler) Running() desired.State {
	var p desired.State
	for _, s := range r.Service.ExportSet.All() {
		p.Exports = append(p.Exports, s.Export)
	}
	p.Ports = r.Ports.List()
	return p
}

// LogExposures logs what exports let everybody do.
func (r *Reconciler) LogExposures(exports []control.Export) {
	for _, w := range plan.Exposures(exports) {
		r.Log.Warn(w)
	}
}

// LogShadowed logs which settings are not in force, because an applied file has others, or because
// no export has the name in the setting root.
func (r *Reconciler) LogShadowed() {
	src := r.sources()
	now := src.State()
	if root := src.Config.Root; root != "" && now.RootPath() == "" {
		r.Log.Warn("nothing is exported by the name in the setting root, so clients of version 3 find nothing at /",
			zap.String("root", root))
	}
	if keys := src.Shadowed(); len(keys) > 0 {
		r.Log.Warn("an applied file stands in the place of settings of the configuration; "+
			"'rstorectl apply --configuration' ends that",
			zap.Strings("not_in_force", keys), zap.Int("applied_file", src.Applied.Entry))
	}
}
