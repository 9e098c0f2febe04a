package daemon

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/nfs"
)

// served is an export and its store.
type served struct {
	control.Export
	store *gate // nil if it could not be opened
}

// sameStore reports whether the store can stay open over a change.
func sameStore(a, b *config.Export) bool {
	return a.Type == b.Type && a.Path == b.Path && a.Pseudo == b.Pseudo && (a.Type != config.TypePosix || sameFSID(a, b))
}

// sameFSID reports whether two exports have one fsid, in whatever way it is written.
func sameFSID(a, b *config.Export) bool {
	x, _ := config.ParseFSID(a.FSID)
	y, _ := config.ParseFSID(b.FSID)
	return x == y
}

// applyExports brings what is served in line with what is desired: stores that
// are still wanted stay open, new ones are opened, and the others closed once
// the table has let go of them. An export that cannot be opened does not stop
// the others, except at the start if nothing at all can be served. Call with mu
// held.
func (d *Daemon) applyExports(atStart bool) error {
	src := d.sources()
	want := src.State().Exports
	next := make([]*served, 0, len(want))
	kept := make(map[*served]bool)
	var errs []error
	for _, w := range want {
		s := &served{Export: w}
		id, err := d.state.ExportID(&w.Export)
		if err == nil {
			err = desired.MountedAt(&w.Export, src.Mounts)
		}
		if err == nil {
			s.ID = id
			if i := slices.IndexFunc(d.exports, func(o *served) bool { return o.store != nil && sameStore(&o.Export.Export, &w.Export) }); i >= 0 {
				s.store = d.exports[i].store
				kept[d.exports[i]] = true
			} else if s.store = d.opened.store(&w.Export); s.store != nil {
				d.exporting(&w)
			} else if s.store, err = d.openGate(&w.Export, id, want); err == nil {
				d.exporting(&w)
			}
			if s.store != nil {
				s.store.setDirect(w.Direct)
			}
		}
		if err == nil {
			s.store.setAsync(s.Async)
		}
		if err != nil {
			s.Error = err.Error()
			errs = append(errs, fmt.Errorf("export %s: %w", w.Pseudo, err))
			d.log.Error("an export cannot be served", zap.String("export", w.Pseudo), zap.Error(err))
		}
		next = append(next, s)
	}
	if err := d.publish(next); err != nil {
		return err
	}
	for _, old := range d.exports {
		if old.store != nil && !kept[old] {
			d.retire(old)
			if !slices.ContainsFunc(next, func(s *served) bool { return s.ID == old.ID }) {
				d.nfs4.State().DropExport(old.ID)
				d.locks.DropExport(old.ID)
			}
		}
	}
	d.exports = next
	maps.DeleteFunc(d.filesystems, func(id uint32, _ filesystem) bool {
		return !slices.ContainsFunc(next, func(s *served) bool { return s.ID == id && s.store != nil })
	})
	names := make(map[uint32]string)
	for _, s := range next {
		if s.store != nil {
			names[s.ID] = s.Pseudo
		}
	}
	d.recorder.SetExports(names)
	if atStart && len(errs) == len(want) {
		return errors.Join(errs...)
	}
	if atStart {
		return nil
	}
	return errors.Join(errs...)
}

func (d *Daemon) exporting(e *control.Export) {
	d.log.Info("exporting", zap.String("path", e.Path), zap.String("as", e.Pseudo), zap.Strings("and_as", e.Aliases), zap.String("type", e.Type))
}

// publish makes a list of exports the one that calls are served by. Names come
// before aliases: of exports with one number the first one's rules count.
func (d *Daemon) publish(list []*served) error {
	var out []*nfs.Export
	xprtsec := d.cfg.Load().TLS.XprtSec
	for _, s := range list {
		if s.store != nil {
			x := s.toNFS(s.Pseudo, xprtsec)
			x.Place = place(s, list)
			out = append(out, x)
		}
	}
	for _, s := range list {
		if s.store != nil {
			for _, a := range s.Aliases {
				out = append(out, s.toNFS(a, xprtsec))
			}
		}
	}
	return d.table.Replace(out)
}

// openGate opens the store of an export, which is one of list.
func (d *Daemon) openGate(e *config.Export, id uint32, list []control.Export) (*gate, error) {
	fs, err := d.openStore(e, id)
	if err != nil {
		return nil, err
	}
	if err := checkLinks(e, fs, list); err != nil {
		return nil, errors.Join(err, fs.Close())
	}
	if m, ok := fs.(restorable); ok && d.from != nil {
		if err := d.from.store(e.Pseudo, m); err != nil {
			return nil, err
		}
		d.from.whenServing(settleStore(d, e.Pseudo, m))
	}
	return newGate(fs, d.recorder.Store(id)), nil
}

// retire closes a store that is no longer served, once the calls inside it have
// ended. Nobody waits for that.
func (d *Daemon) retire(s *served) {
	d.log.Info("no longer exporting", zap.String("path", s.Path), zap.String("was", s.Pseudo))
	go func() {
		if err := s.store.Close(); err != nil {
			d.log.Warn("closing a store", zap.String("path", s.Path), zap.Error(err))
		}
	}()
}

// toNFS is the export as the protocol layer knows it; xprtsec is for rules that do not say it.
func (s *served) toNFS(pseudo string, xprtsec []string) *nfs.Export {
	x := &nfs.Export{ID: s.ID, Path: s.Path, Pseudo: pseudo, ReadOnly: s.ReadOnly, Async: s.Async, FS: s.store}
	x.HostLocks = s.Type == config.TypePosix && (s.HostLocks == nil || *s.HostLocks)
	for _, p := range s.PKeys {
		k, _ := config.ParsePKey(p) // it was normalized
		x.PKeys = append(x.PKeys, k)
	}
	x.CrossMnt, x.FirstMatch, x.Limit = s.CrossMnt, s.FirstMatch, s.Limit()
	x.Ident, _ = config.ParseFSID(s.FSID)
	clients := s.Rules()
	for i := range clients {
		c := &clients[i]
		rule := c.NFS()
		if rule.Securities == 0 && len(xprtsec) < 3 {
			def := config.Client{XprtSec: xprtsec}
			if rule.Securities = def.NFS().Securities; rule.Transports == 0 {
				rule.Transports = nfs.ByTCP | nfs.ByRDMA // the setting is about TCP alone
			}
		}
		if c.Host != "" {
			rule.Name = c.Host
			x.Clients = append(x.Clients, rule)
			continue
		}
		for _, p := range c.Prefixes() {
			rule.CIDR = p
			x.Clients = append(x.Clients, rule)
		}
	}
	return x
}

// Exports implements control.Backend.
func (d *Daemon) Exports() []control.Export {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]control.Export, 0, len(d.exports))
	for _, s := range d.exports {
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

// find is the export of that name. Call with mu held.
func (d *Daemon) find(name string) (*served, error) {
	for _, s := range d.exports {
		if s.Pseudo == name {
			return s, nil
		}
	}
	for _, s := range d.exports {
		if s.Named(name) {
			return s, nil
		}
	}
	return nil, fmt.Errorf("export %q: %w", name, control.ErrNotFound)
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
	if i := slices.IndexFunc(d.exports, func(s *served) bool { return s.Pseudo == e.Pseudo && s.Error == "" }); i >= 0 {
		return control.Export{}, fmt.Errorf("export %s (of %s): %w; use 'export set' to change it", e.Pseudo, d.exports[i].Path, control.ErrConflict)
	}
	// Opening it before anything is written down: what cannot be opened now is
	// a mistake and not worth remembering.
	all := make([]control.Export, 0, len(d.exports))
	for _, s := range d.exports {
		all = append(all, s.Export)
	}
	id, err := d.state.ExportID(&e)
	if err != nil {
		return control.Export{}, err
	}
	g, err := d.openGate(&e, id, all)
	if err != nil {
		return control.Export{}, err
	}
	if err := g.Close(); err != nil {
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
	s, err := d.find(name)
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
	s, err := d.find(pseudo)
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
	s, err := d.find(name)
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
