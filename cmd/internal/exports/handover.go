package exports

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// partStore begins the name of a store's part of the handover. The export's pseudo path follows.
const partStore = "store "

// movable is a store that can continue in another process, with its write verifier, its locks and
// leases of the host, and its open files.
type movable interface {
	Release() error
	Resume() error
	Settle() error
	Handover() (data []byte, files []*os.File, err error)
	Restore(data []byte, files []*os.File) error
}

var _ movable = (*posixfs.FS)(nil)

// movables are the stores that an upgrade hands over.
func (s *Set) movables() iter.Seq2[string, movable] {
	return func(yield func(string, movable) bool) {
		for _, e := range s.All() {
			if e.Open() {
				if m, ok := e.Store().(movable); ok && !yield(e.Pseudo, m) {
					return
				}
			}
		}
	}
}

// Freeze implements upgrade.Component.
func (s *Set) Freeze(at upgrade.Stage) (thaw func() error, err error) {
	if at != upgrade.Files {
		return nil, nil
	}
	// All are asked before the first one is released: it may lose leases by that.
	for pseudo, m := range s.movables() {
		if x, ok := m.(interface{ Releasable() error }); ok {
			if err := x.Releasable(); err != nil {
				return nil, fmt.Errorf("export %s: %w", pseudo, err)
			}
		}
	}
	var released []movable
	thaw = func() error {
		var errs []error
		for _, m := range slices.Backward(released) {
			errs = append(errs, m.Resume(), m.Settle())
		}
		return errors.Join(errs...)
	}
	for pseudo, m := range s.movables() {
		if err := m.Release(); err != nil {
			return thaw, fmt.Errorf("export %s: %w", pseudo, err)
		}
		released = append(released, m)
	}
	return thaw, nil
}

// Snapshot implements upgrade.Component.
func (s *Set) Snapshot(p *upgrade.Parts) {
	for pseudo, m := range s.movables() {
		data, files, err := m.Handover()
		p.Add(partStore+pseudo, data, files, err)
	}
}

// restore lets a store that was just opened continue with what the old process has open in it.
func (s *Set) restore(pseudo string, fs blockstore.FS) error {
	m, ok := fs.(movable)
	if !ok || !s.From.Waiting() {
		return nil
	}
	p, err := s.From.Take(partStore + pseudo)
	if p != nil {
		if err = m.Restore(p.Data, p.Files); err != nil {
			s.lost = errors.Join(s.lost, fmt.Errorf("export %s: %w", pseudo, err))
		}
		p.Close()
	}
	if err != nil {
		return err
	}
	s.From.WhenServing(func() {
		if err := m.Settle(); err != nil {
			s.Log.Error("a feature of a store is missing in this version", zap.String("export", pseudo), zap.Error(err))
		}
	})
	return nil
}

// Restored returns why this process must not take over: an export that the old process serves
// cannot be served here, and clients would lose what they have open in it. An export that is not
// desired any more is no reason.
func (s *Set) Restored() error {
	if s.lost != nil {
		return s.lost
	}
	for _, name := range s.From.Left() {
		pseudo, ok := strings.CutPrefix(name, partStore)
		for _, e := range s.All() {
			if ok && e.Pseudo == pseudo && e.Error != "" {
				return fmt.Errorf("export %s: %s", pseudo, e.Error)
			}
		}
	}
	return nil
}

// Serves reports whether the export of a number is served.
func (s *Set) Serves(id uint32) bool {
	return slices.ContainsFunc(s.All(), func(e *Export) bool { return e.ID == id && e.Open() })
}
