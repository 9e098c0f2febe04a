package state

import (
	"slices"

	"github.com/rstored/rstored/cmd/internal/config"
)

// Exports returns the exports added at run time and the pseudo paths of those
// removed. The slices are the caller's.
func (s *Store) Exports() (added []config.Export, removed []string) {
	if s.shared != nil {
		return s.shared.Exports()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.cur.Exports), slices.Clone(s.cur.RemovedExports)
}

// PutExport remembers an export added or changed at run time. It replaces one
// with the same pseudo path and forgets that it was ever removed.
func (s *Store) PutExport(e config.Export) error {
	return s.updateExports(func(c *contents) {
		c.RemovedExports = slices.DeleteFunc(c.RemovedExports, func(p string) bool { return p == e.Pseudo })
		for i := range c.Exports {
			if c.Exports[i].Pseudo == e.Pseudo {
				c.Exports[i] = e
				return
			}
		}
		c.Exports = append(c.Exports, e)
	})
}

// RemoveExport forgets a run-time export, and remembers the removal if the
// configuration has one there too.
func (s *Store) RemoveExport(pseudo string, configured bool) error {
	return s.updateExports(func(c *contents) {
		c.Exports = slices.DeleteFunc(c.Exports, func(e config.Export) bool { return e.Pseudo == pseudo })
		if configured && !slices.Contains(c.RemovedExports, pseudo) {
			c.RemovedExports = append(c.RemovedExports, pseudo)
		}
	})
}

// RevertExports forgets which exports were removed at run time, and unless removedOnly is set also
// those that were added and changed.
func (s *Store) RevertExports(removedOnly bool) error {
	return s.updateExports(func(c *contents) {
		c.RemovedExports = nil
		if !removedOnly {
			c.Exports = nil
		}
	})
}

// Root returns the pseudo path of the export that is at "/", as SetRoot has recorded it.
func (s *Store) Root() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur.Root
}

// SetRoot records which export is at "/". It writes only what is new.
func (s *Store) SetRoot(pseudo string) error {
	if s.Root() == pseudo {
		return nil
	}
	return s.update(func(c *contents) { c.Root = pseudo })
}

// Ports returns the ports added and removed at run time. The slices are the
// caller's.
func (s *Store) Ports() (added, removed []Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.cur.Ports), slices.Clone(s.cur.RemovedPorts)
}

// PutPort records a port that was added at run time. For a port that the configuration has it only
// deletes the record of the removal.
func (s *Store) PutPort(p Port, configured bool) error {
	return s.update(func(c *contents) {
		move(&c.RemovedPorts, &c.Ports, p, !configured)
	})
}

// RemovePort forgets a run-time port, and remembers the removal if the
// configuration has it too.
func (s *Store) RemovePort(p Port, configured bool) error {
	return s.update(func(c *contents) {
		move(&c.Ports, &c.RemovedPorts, p, configured)
	})
}

// PKeys returns the partition keys added and removed at run time. The slices are the
// caller's.
func (s *Store) PKeys() (added, removed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.cur.PKeys), slices.Clone(s.cur.RemovedPKeys)
}

// PutPKey records a partition key that was added at run time. For a key that the configuration has
// it only deletes the record of the removal.
func (s *Store) PutPKey(key string, configured bool) error {
	return s.update(func(c *contents) {
		move(&c.RemovedPKeys, &c.PKeys, key, !configured)
	})
}

// RemovePKey forgets a run-time partition key, and remembers the removal if the
// configuration has it too.
func (s *Store) RemovePKey(key string, configured bool) error {
	return s.update(func(c *contents) {
		move(&c.PKeys, &c.RemovedPKeys, key, configured)
	})
}

// move removes x from one list. If keep is true, it adds x to the other one, unless x is there.
func move[T comparable](from, to *[]T, x T, keep bool) {
	*from = slices.DeleteFunc(*from, func(o T) bool { return o == x })
	if keep && !slices.Contains(*to, x) {
		*to = append(*to, x)
	}
}
