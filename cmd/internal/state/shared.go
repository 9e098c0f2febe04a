package state

import "github.com/rstored/rstored/cmd/internal/config"

// Shared is what the servers of a cluster share in the place of a part of their state directories.
type Shared interface {
	// Secret is the key of the handles' authentication codes.
	Secret() []byte
	// Number is the number of an export, see Store.ExportID.
	Number(export string) (uint32, error)
	// Exports are those of Store.Exports.
	Exports() (added []config.Export, removed []string)
	// ChangeExports changes these on all servers. It may call change several times.
	ChangeExports(change func(added *[]config.Export, removed *[]string)) error
}

// Share makes the server one of a cluster. It is called before anything is read or changed.
func (s *Store) Share(with Shared) { s.shared = with }

// updateExports is update for changes of Exports and RemovedExports alone.
func (s *Store) updateExports(change func(*contents)) error {
	if s.shared == nil {
		return s.update(change)
	}
	return s.shared.ChangeExports(func(added *[]config.Export, removed *[]string) {
		c := contents{Exports: *added, RemovedExports: *removed}
		change(&c)
		*added, *removed = c.Exports, c.RemovedExports
	})
}
