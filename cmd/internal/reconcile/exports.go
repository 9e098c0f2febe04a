package reconcile

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/exports"
)

// Exports implements control.Backend.
func (r *Reconciler) Exports() []control.Export {
	all := r.Service.ExportSet.All()
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
func (r *Reconciler) AddExport(e config.Export) (control.Export, error) {
	if err := e.Normalize(); err != nil {
		return control.Export{}, err
	}
	if err := r.MayChange(); err != nil {
		return control.Export{}, err
	}
	defer r.Mu.Unlock()
	if i := slices.IndexFunc(r.Service.ExportSet.All(),
		func(s *exports.Export) bool { return s.Pseudo == e.Pseudo && s.Error == "" }); i >= 0 {
		return control.Export{}, fmt.Errorf("export %s (of %s): %w; use 'export set' to change it", e.Pseudo,
			r.Service.ExportSet.All()[i].Path, control.ErrConflict)
	}
	// The store is opened before the export is recorded: an export that cannot be opened now is a
	// mistake.
	if err := r.Service.ExportSet.Try(&e); err != nil {
		return control.Export{}, err
	}
	return r.change(e.Pseudo, func() error { return r.State.PutExport(e) })
}

// SetExport implements control.Backend.
func (r *Reconciler) SetExport(name string, p control.ExportPatch) (control.Export, error) {
	if err := r.MayChange(); err != nil {
		return control.Export{}, err
	}
	defer r.Mu.Unlock()
	s, err := r.Service.ExportSet.Find(name)
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
	if err := e.Edit(&p.ExportEdit); err != nil {
		return control.Export{}, err
	}
	if err := r.Service.ExportSet.SetQuota(&e); err != nil {
		return control.Export{}, err
	}
	return r.change(e.Pseudo, func() error { return r.State.PutExport(e) })
}

// change records a change with save, applies it, and returns the export that it is about. Call with
// Mu locked.
func (r *Reconciler) change(pseudo string, save func() error) (control.Export, error) {
	if err := save(); err != nil {
		return control.Export{}, err
	}
	_ = r.ApplyExports(false) // an error is in the export below, or in the log
	s, err := r.Service.ExportSet.Find(pseudo)
	if err != nil {
		return control.Export{}, err
	}
	if s.Error != "" {
		return control.Export{}, errors.New(s.Error)
	}
	r.LogExposures([]control.Export{s.Export})
	return s.Export, nil
}

// RemoveExport implements control.Backend.
func (r *Reconciler) RemoveExport(name string) error {
	if err := r.MayChange(); err != nil {
		return err
	}
	defer r.Mu.Unlock()
	s, err := r.Service.ExportSet.Find(name)
	if err != nil {
		return err
	}
	src := r.sources()
	if err := r.State.RemoveExport(s.Pseudo, src.HasExport(s.Pseudo)); err != nil {
		return err
	}
	_ = r.ApplyExports(false) // errors of other exports are in the log and in the list
	return nil
}

// RevertExports implements control.Backend.
func (r *Reconciler) RevertExports(removedOnly bool) error {
	if err := r.MayChange(); err != nil {
		return err
	}
	defer r.Mu.Unlock()
	if err := r.State.RevertExports(removedOnly); err != nil {
		return err
	}
	return r.ApplyExports(false)
}
