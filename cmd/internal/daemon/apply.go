package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os/user"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/cmd/internal/ports"
	"github.com/rstored/rstored/cmd/internal/state"
)

// sources are everything that says what is to be served now.
func (d *Daemon) sources() desired.Sources { return desired.Read(d.cfg.Load(), d.state) }

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
	before, err := d.before()
	if err != nil {
		return done, fmt.Errorf("nothing was changed: %w", err)
	}
	number, undo, err := d.state.Apply(e, before, doc, desired.Transports(doc), release)
	if err != nil {
		return done, fmt.Errorf("nothing was changed: %w", err)
	}
	// Ports come first: some may have to be closed before others can be opened, and that can fail.
	d.opened = ready
	defer func() { d.opened = nil }()
	src := d.sources()
	if err := d.ports.Switch(src.State().Ports, ready.ports); err != nil {
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
	d.tellExposures(next.Exports)
	done.Number = number
	return done, nil
}

// before is what is served without an applied file, for the history.
func (d *Daemon) before() (state.Entry, error) {
	src := d.sources()
	text, err := src.Text()
	return state.Entry{
		Time: time.Now().UTC(), Name: "what was served before the first file", Syntax: config.SyntaxYAML,
		Digest: desired.Digest([]byte(text)), Text: text,
	}, err
}

// prepared is what was opened for a change that is not made yet.
type prepared struct {
	stores *exports.Ready
	ports  *ports.Ready
}

// prepare opens what will be needed, but for ports that others are in the way of. Call with mu
// held.
func (d *Daemon) prepare(next *desired.State) (_ *prepared, err error) {
	p := new(prepared)
	defer func() {
		if err != nil {
			p.drop()
		}
	}()
	if p.stores, err = d.ExportSet.Prepare(next.Exports, desired.HostMounts()); err != nil {
		return nil, err
	}
	p.ports, err = d.ports.Prepare(next.Ports)
	return p, err
}

// drop closes the stores and ports that no export or port has taken.
func (p *prepared) drop() {
	if p.stores != nil {
		p.stores.Close()
	}
	p.ports.Close()
}

// exports are the stores. nil has none.
func (p *prepared) exports() *exports.Ready {
	if p == nil {
		return nil
	}
	return p.stores
}

// applyPorts brings the ports in line with what is desired. Call with mu held.
func (d *Daemon) applyPorts(atStart bool) error {
	src := d.sources()
	var ready *ports.Ready
	if d.opened != nil {
		ready = d.opened.ports
	}
	return d.ports.Apply(src.State().Ports, ready, atStart)
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
		switch len(list) {
		case 0:
			return e, fmt.Errorf("no file was applied: %w", control.ErrNotFound)
		case 1: // entry 0 is what the first file replaced
		default:
			number = list[1].Number
		}
	}
	e, err = d.state.Entry(number)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("entry %d of the history: %w", number, control.ErrNotFound)
	}
	if number == 0 && err == nil {
		// If the configuration still says just that, the way back is that no file is applied.
		if _, own, err := d.cfg.Load().Own(); err == nil && string(own) == e.Text {
			e.Syntax, e.Text = config.SyntaxOwn, ""
		}
	}
	return e, err
}

// Drift implements control.Backend.
func (d *Daemon) Drift() control.Drift {
	out := control.Drift{Against: []string{}, Changes: []control.Change{}, Problems: []string{}}
	loaded := d.sources()
	disk := loaded
	if d.load != nil {
		if cfg, err := d.load(); err != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("the configuration cannot be read: %v", err))
		} else {
			disk.Config = cfg
		}
	}
	name := "the configuration"
	if f := disk.Config.File; f != "" {
		name += " (" + f + ")"
	}
	if a := disk.Applied; a != nil {
		out.Against = append(out.Against, fmt.Sprintf("the applied file %d", a.Entry))
		if a.Exports != nil && len(a.Listen) == len(config.ListenKeys) {
			name = "" // it says nothing any more
		}
	}
	if name != "" {
		out.Against = append(out.Against, name)
	}
	d.mu.Lock()
	now := d.running()
	d.mu.Unlock()
	written, read := disk.Written().State(), loaded.Written().State()
	out.Changes = desired.Diff(&written, &now)
	out.Unread = len(desired.Diff(&read, &written)) > 0
	out.RunTime = len(desired.Diff(&read, &now)) > 0
	out.Shadowed = disk.Shadowed()
	return out
}

// logShadowed logs which settings are not in force, as an applied file has others.
func (d *Daemon) logShadowed() {
	src := d.sources()
	if keys := src.Shadowed(); len(keys) > 0 {
		d.log.Warn("an applied file stands in the place of settings of the configuration; "+
			"'rstorectl apply --configuration' ends that",
			zap.Strings("not_in_force", keys), zap.Int("applied_file", src.Applied.Entry))
	}
}
