package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os/user"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/state"
)

type statePort = state.Port

// effective is the configuration with what was applied in the place of its exports and ports. It
// is what changes at run time are added to.
func (d *Daemon) effective() *config.Config { return withApplied(d.cfg.Load(), d.state) }

func withApplied(cfg *config.Config, st *state.Store) *config.Config {
	if a := st.Applied(); a != nil {
		return cfg.With(&a.Document)
	}
	return cfg
}

// commentMax bounds a comment of the history, in bytes.
const commentMax = 1024

// Apply implements control.Backend. What can fail is done before anything counts: stores are
// opened, and ports as far as nothing is in their way. Then the state is written, and from there
// on the new is served, now or after a restart.
func (d *Daemon) Apply(a control.Apply, by control.Peer) (control.Applied, error) {
	if len(a.Comment) > commentMax {
		return control.Applied{}, fmt.Errorf("the comment has more than %d bytes", commentMax)
	}
	release := a.Syntax == config.SyntaxOwn
	doc, err := d.document(&a.File)
	if err != nil {
		return control.Applied{}, err
	}
	if err := d.mayChange(); err != nil {
		return control.Applied{}, err
	}
	defer d.mu.Unlock()
	p, next := d.plan(a.File, doc)
	done := control.Applied{Plan: p}
	switch {
	case a.State != "" && a.State != p.State:
		return done, control.ErrChanged
	case len(p.Problems) > 0:
		return done, fmt.Errorf("nothing was changed: %s", p.Problems[0])
	case len(p.Hurts) > 0 && !a.Disrupt:
		return done, fmt.Errorf("nothing was changed: %w: %s", control.ErrHurts, p.Hurts[0].Text)
	}
	if last := d.state.Applied(); last != nil && len(p.Changes) == 0 {
		if e, err := d.state.Entry(last.Entry); err == nil && e.Digest == p.File && !release {
			return done, nil
		}
	} else if last == nil && len(p.Changes) == 0 && release {
		return done, nil
	}
	ready, err := d.prepare(&next)
	if err != nil {
		return done, fmt.Errorf("nothing was changed: %w", err)
	}
	defer ready.drop()
	e := state.Entry{
		Time: time.Now().UTC(), UID: by.UID, Comment: a.Comment, RollbackOf: a.RollbackOf,
		Name: a.Name, Syntax: a.Syntax, Digest: p.File, Text: a.Text,
	}
	if by.Remote != "" {
		e.User = by.String()
	} else if u, err := user.LookupId(strconv.FormatUint(uint64(by.UID), 10)); err == nil {
		e.User = u.Username
	}
	if release {
		e.Syntax = config.SyntaxYAML // as the text is
	}
	number, undo, err := d.state.Apply(e, doc, transportsOf(doc), release)
	if err != nil {
		return done, fmt.Errorf("nothing was changed: %w", err)
	}
	// Ports come first: some may have to be closed before others can be opened, and that can fail.
	d.opened = ready
	defer func() { d.opened = nil }()
	if err := d.switchPorts(); err != nil {
		d.log.Error("a port of an applied file cannot be opened; going back", zap.Error(err))
		err = errors.Join(fmt.Errorf("nothing was changed: %w", err), undo())
		d.opened = nil
		return done, errors.Join(err, d.applyPorts(false))
	}
	// The stores are open. What fails here fails in the same way after a restart, and is told by
	// each export: something is not mounted.
	if err := d.applyExports(false); err != nil {
		d.log.Warn("after a file was applied", zap.Error(err))
	}
	if err := d.state.Prune(); err != nil {
		d.log.Warn("the history cannot be cleared", zap.Error(err))
	}
	d.log.Info("a file was applied", zap.Int("number", number), zap.String("file", a.Name), zap.String("by", by.String()),
		zap.String("comment", a.Comment), zap.Int("changes", len(p.Changes)), zap.Int("hurts", len(p.Hurts)))
	d.tellExposures(next.exports)
	done.Number = number
	return done, nil
}

// prepared is what was opened for a change that is not made yet.
type prepared struct {
	exports []*served
	ports   []*port
}

// prepare opens what will be needed, but for ports that others are in the way of. Call with mu held.
func (d *Daemon) prepare(next *snapshot) (_ *prepared, err error) {
	p := new(prepared)
	defer func() {
		if err != nil {
			p.drop()
		}
	}()
	mounts := hostMounts()
	for i := range next.exports {
		e := &next.exports[i]
		if mountedAt(&e.Export, mounts) != nil ||
			slices.ContainsFunc(d.exports, func(s *served) bool { return s.store != nil && sameStore(&s.Export.Export, &e.Export) }) {
			continue
		}
		s := &served{Export: *e}
		if s.ID, err = d.state.ExportID(&e.Export); err != nil {
			return nil, err
		}
		if s.store, err = d.openGate(&e.Export, s.ID, next.exports); err != nil {
			return nil, fmt.Errorf("export %s: %w", e.Pseudo, err)
		}
		p.exports = append(p.exports, s)
	}
	for _, w := range next.ports {
		if slices.ContainsFunc(d.ports, func(o *port) bool { return o.PortSpec == w.PortSpec && o.open() }) ||
			slices.ContainsFunc(d.ports, func(o *port) bool { return samePortNumber(o.PortSpec, w.PortSpec) && !hasPort(next.ports, o.PortSpec) }) {
			continue
		}
		o := &port{Port: w}
		o.Addresses = []string{}
		if err = d.openPort(o, true); err != nil && len(o.ends) == 0 {
			return nil, fmt.Errorf("port %s %s: %w", w.Transport, w.Listen, err)
		}
		err = nil // on some addresses only, as ever
		p.ports = append(p.ports, o)
	}
	return p, nil
}

// samePortNumber reports whether two ports may be in each other's way.
func samePortNumber(a, b control.PortSpec) bool {
	x, err := parseListen(a)
	y, err2 := parseListen(b)
	return err == nil && err2 == nil && x.Port == y.Port
}

// drop closes what nobody has taken.
func (p *prepared) drop() {
	for _, s := range p.exports {
		if s.store != nil {
			_ = s.store.Close()
		}
	}
	for _, o := range p.ports {
		_ = o.remove()
	}
	p.exports, p.ports = nil, nil
}

// store takes a store that was opened, if there is one for an export. nil has none.
func (p *prepared) store(e *config.Export) *gate {
	if p == nil {
		return nil
	}
	for _, s := range p.exports {
		if s.store != nil && sameStore(&s.Export.Export, e) {
			g := s.store
			s.store = nil
			return g
		}
	}
	return nil
}

// port takes a port that was opened, if it is there.
func (p *prepared) port(s control.PortSpec) *port {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.ports, func(o *port) bool { return o.PortSpec == s })
	if i < 0 {
		return nil
	}
	o := p.ports[i]
	p.ports = slices.Delete(p.ports, i, i+1)
	return o
}

// switchPorts is applyPorts where every port that is new has to be opened. Call with mu held.
func (d *Daemon) switchPorts() error {
	was := d.running().ports
	_ = d.applyPorts(false) // each port tells its error below; that of an old one is none of this
	var errs []error
	for _, p := range d.ports {
		if len(p.ends) == 0 && !hasPort(was, p.PortSpec) {
			errs = append(errs, fmt.Errorf("port %s %s: %s", p.Transport, p.Listen, p.Error))
		}
	}
	return errors.Join(errs...)
}

// History implements control.Backend.
func (d *Daemon) History() ([]state.Entry, error) { return d.state.History() }

// HistoryEntry implements control.Backend.
func (d *Daemon) HistoryEntry(number int) (e state.Entry, err error) {
	if number == 0 {
		list, err := d.state.History()
		if err != nil {
			return e, err
		}
		const before = 1 // the last
		if len(list) <= before {
			return e, fmt.Errorf("no file was applied before the last one: %w", control.ErrNotFound)
		}
		number = list[before].Number
	}
	e, err = d.state.Entry(number)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("entry %d of the history: %w", number, control.ErrNotFound)
	}
	return e, err
}

// Drift implements control.Backend.
func (d *Daemon) Drift() control.Drift {
	out := control.Drift{Against: []string{}, Changes: []control.Change{}, Problems: []string{}}
	cfg := d.cfg.Load()
	if d.load != nil {
		disk, err := d.load()
		if err != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("the configuration cannot be read: %v", err))
		} else {
			cfg = disk
		}
	}
	name := "the configuration"
	if cfg.File != "" {
		name += " (" + cfg.File + ")"
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.state.Applied(); a != nil {
		out.Against = append(out.Against, fmt.Sprintf("the applied file %d", a.Entry))
		if a.Exports != nil && len(a.Listen) == len(config.ListenKeys) {
			name = "" // it says nothing any more
		}
	}
	if name != "" {
		out.Against = append(out.Against, name)
	}
	written, now := configuredSnapshot(withApplied(cfg, d.state)), d.running()
	out.Changes = changes(&written, &now)
	return out
}
