package daemon

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/exports"
	"go.uber.org/zap"
)

// applyExports brings the exports in line with what is desired. At the start it is an error only if
// nothing at all can be served. Call with mu held.
func (d *Daemon) applyExports(atStart bool) error {
	src := d.sources()
	want := src.State().Exports
	failed, err := d.ExportSet.Apply(want, src.Mounts, d.opened.exports())
	if err != nil || atStart && len(failed) < len(want) {
		return err
	}
	return errors.Join(failed...)
}

// Exports implements control.Backend.
func (d *Daemon) Exports() []control.Export {
	all := d.ExportSet.All()
	out := make([]control.Export, 0, len(all))
	for _, s := range all {
		e := s.Export
		e.Aliases = slices.Clone(e.Aliases)
		e.Clients = slices.Clone(e.Clients)
		if e.Clients == nil {
			e.Clients = []config.Client{}
		}
		out = append(out, e)
	}
	return out
}

// AddExport implements control.Backend.
func (d *Daemon) AddExport(e config.Export) (control.Export, error) {
	if err := e.Normalize(); err != nil {
		return control.Export{}, err
	}
	if err := d.mayChange(); err != nil {
		return control.Export{}, err
	}
	defer d.mu.Unlock()
	if i := slices.IndexFunc(d.ExportSet.All(),
		func(s *exports.Export) bool { return s.Pseudo == e.Pseudo && s.Error == "" }); i >= 0 {
		return control.Export{}, fmt.Errorf("export %s (of %s): %w; use 'export set' to change it", e.Pseudo,
			d.ExportSet.All()[i].Path, control.ErrConflict)
	}
	// Opening it before anything is written down: what cannot be opened now is
	// a mistake and not worth remembering.
	if err := d.ExportSet.Try(&e); err != nil {
		return control.Export{}, err
	}
	return d.change(e.Pseudo, func() error { return d.state.PutExport(e) })
}

// SetExport implements control.Backend.
func (d *Daemon) SetExport(name string, p control.ExportPatch) (control.Export, error) {
	if err := d.mayChange(); err != nil {
		return control.Export{}, err
	}
	defer d.mu.Unlock()
	s, err := d.ExportSet.Find(name)
	if err != nil {
		return control.Export{}, err
	}
	e := s.Export.Export
	if p.ReadOnly != nil {
		e.ReadOnly = *p.ReadOnly
	}
	if p.Async != nil {
		e.Async = *p.Async
	}
	if p.HostLocks != nil {
		e.HostLocks = p.HostLocks
	}
	if p.Clients != nil {
		e.Clients = slices.Clone(*p.Clients)
	}
	if err := e.Normalize(); err != nil {
		return control.Export{}, err
	}
	return d.change(e.Pseudo, func() error { return d.state.PutExport(e) })
}

// change writes a change down, applies it, and returns the export it was about.
// Call with mu held.
func (d *Daemon) change(pseudo string, save func() error) (control.Export, error) {
	if err := save(); err != nil {
		return control.Export{}, err
	}
	_ = d.applyExports(false) // what could not be opened is told below, or is in the log
	s, err := d.ExportSet.Find(pseudo)
	if err != nil {
		return control.Export{}, err
	}
	if s.Error != "" {
		return control.Export{}, errors.New(s.Error)
	}
	d.tellExposures([]control.Export{s.Export})
	return s.Export, nil
}

// RemoveExport implements control.Backend.
func (d *Daemon) RemoveExport(name string) error {
	if err := d.mayChange(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	s, err := d.ExportSet.Find(name)
	if err != nil {
		return err
	}
	src := d.sources()
	if err := d.state.RemoveExport(s.Pseudo, src.HasExport(s.Pseudo)); err != nil {
		return err
	}
	_ = d.applyExports(false) // other exports' troubles are in the log and in the list
	return nil
}

// mountsChanged brings the exports that depend on mounts in line with them.
func (d *Daemon) mountsChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining.Load() || d.handedOver ||
		!slices.ContainsFunc(d.ExportSet.All(), func(s *exports.Export) bool { return s.CrossMnt || s.MountPoint != "" }) {
		return
	}
	if err := d.applyExports(false); err != nil {
		d.log.Warn("after a change of the host's mounts", zap.Error(err))
	}
}
