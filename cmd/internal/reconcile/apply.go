package reconcile

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

// CommentMax bounds a comment of the history, in bytes.
const CommentMax = 1024

// Apply implements control.Backend. What can fail comes first: stores are opened, and ports whose
// address is free. Then the state is written. From there on the file is served, now or after a
// restart.
func (r *Reconciler) Apply(a control.Apply, by control.Peer) (control.Applied, error) {
	if len(a.Comment) > CommentMax {
		return control.Applied{}, fmt.Errorf("the comment has more than %d bytes", CommentMax)
	}
	release := a.Syntax == config.SyntaxOwn
	doc, err := r.document(&a.File)
	if err != nil {
		return control.Applied{}, err
	}
	if err := r.MayChange(); err != nil {
		return control.Applied{}, err
	}
	defer r.Mu.Unlock()
	p, next := r.plan(a.File, doc)
	done := control.Applied{Plan: p}
	switch {
	case a.State != "" && a.State != p.State:
		return done, control.ErrChanged
	case len(p.Problems) > 0:
		return done, fmt.Errorf("nothing was changed: %s", p.Problems[0])
	case len(p.Disruptions) > 0 && !a.Disrupt:
		return done, fmt.Errorf("nothing was changed: %w: %s", control.ErrDisrupts, p.Disruptions[0].Text)
	}
	if last := r.State.Applied(); last != nil && len(p.Changes) == 0 {
		if e, err := r.State.Entry(last.Entry); err == nil && e.Digest == p.File && !release {
			return done, nil
		}
	} else if last == nil && len(p.Changes) == 0 && release {
		return done, nil
	}
	ready, err := r.prepare(&next)
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
		e.Syntax = config.SyntaxYAML // the syntax of the text
	}
	before, err := r.before()
	if err != nil {
		return done, fmt.Errorf("nothing was changed: %w", err)
	}
	number, undo, err := r.State.Apply(e, before, doc, desired.Transports(doc), release)
	if err != nil {
		return done, fmt.Errorf("nothing was changed: %w", err)
	}
	// Ports come first: a port may have to be closed before another can be opened, which can fail.
	r.opened = ready
	defer func() { r.opened = nil }()
	src := r.sources()
	if err := r.Ports.Switch(src.State().Ports, ready.ports); err != nil {
		r.Log.Error("a port of an applied file cannot be opened; going back", zap.Error(err))
		err = errors.Join(fmt.Errorf("nothing was changed: %w", err), undo())
		r.opened = nil
		return done, errors.Join(err, r.ApplyPorts(false))
	}
	// The stores are open. What fails here fails in the same way after a restart, and the export has
	// the error: something is not mounted.
	if err := r.ApplyExports(false); err != nil {
		r.Log.Warn("after a file was applied", zap.Error(err))
	}
	if err := r.State.Prune(); err != nil {
		r.Log.Warn("the history cannot be cleared", zap.Error(err))
	}
	r.Log.Info("a file was applied", zap.Int("number", number), zap.String("file", a.Name), zap.String("by", by.String()),
		zap.String("comment", a.Comment), zap.Int("changes", len(p.Changes)), zap.Int("disruptions", len(p.Disruptions)))
	r.LogExposures(next.Exports)
	done.Number = number
	return done, nil
}

// before returns what is served without an applied file, for the history.
func (r *Reconciler) before() (state.Entry, error) {
	src := r.sources()
	text, err := src.Text()
	return state.Entry{
		Time: time.Now().UTC(), Name: "what was served before the first file", Syntax: config.SyntaxYAML,
		Digest: desired.Digest([]byte(text)), Text: text,
	}, err
}

// prepared has the stores and ports that were opened for a change that is not made yet.
type prepared struct {
	stores *exports.Ready
	ports  *ports.Ready
}

// prepare opens the stores and ports of a change, apart from ports whose address is in use. Call
// with Mu locked.
func (r *Reconciler) prepare(next *desired.State) (_ *prepared, err error) {
	p := new(prepared)
	defer func() {
		if err != nil {
			p.drop()
		}
	}()
	if p.stores, err = r.Service.ExportSet.Prepare(next.Exports, desired.HostMounts()); err != nil {
		return nil, err
	}
	p.ports, err = r.Ports.Prepare(next.Ports)
	return p, err
}

// drop closes the stores and ports that no export or port has taken.
func (p *prepared) drop() {
	if p.stores != nil {
		p.stores.Close()
	}
	p.ports.Close()
}

// exports returns the stores. A nil prepared has none.
func (p *prepared) exports() *exports.Ready {
	if p == nil {
		return nil
	}
	return p.stores
}

// History implements control.Backend.
func (r *Reconciler) History() ([]state.Entry, error) { return r.State.History() }

// HistoryEntry implements control.Backend.
func (r *Reconciler) HistoryEntry(number int) (e state.Entry, err error) {
	if number == 0 {
		list, err := r.State.History()
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
	e, err = r.State.Entry(number)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("entry %d of the history: %w", number, control.ErrNotFound)
	}
	if number == 0 && err == nil {
		// If the configuration still says just that, the way back is that no file is applied.
		if _, own, err := r.Settings().Own(); err == nil && string(own) == e.Text {
			e.Syntax, e.Text = config.SyntaxOwn, ""
		}
	}
	return e, err
}

// Drift implements control.Backend.
func (r *Reconciler) Drift() control.Drift {
	out := control.Drift{Against: []string{}, Changes: []control.Change{}, Problems: []string{}}
	loaded := r.sources()
	disk := loaded
	if r.Load != nil {
		if cfg, err := r.Load(); err != nil {
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
			name = "" // the applied file replaces all of it
		}
	}
	if name != "" {
		out.Against = append(out.Against, name)
	}
	r.Mu.Lock()
	now := r.Running()
	r.Mu.Unlock()
	written, read := disk.Written().State(), loaded.Written().State()
	out.Changes = desired.Diff(&written, &now)
	out.Unread = len(desired.Diff(&read, &written)) > 0
	out.RunTime = len(desired.Diff(&read, &now)) > 0
	out.Shadowed = disk.Shadowed()
	return out
}
