package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rstored/rstored/cmd/internal/exports"
)

// checkMissingExports looks at what was handed over of stores that this process did not open: an
// export that cannot be served is a reason not to take over, as clients would lose what they have
// of it; of one that is not exported any more they do. The exports are there. Call with d.mu held.
func (t *predecessor) checkMissingExports(d *Daemon) error {
	if t.restoreErr != nil {
		return t.restoreErr
	}
	for _, name := range t.Left() {
		pseudo, ok := strings.CutPrefix(name, partStore)
		if !ok {
			continue
		}
		if i := slices.IndexFunc(d.exports.All(),
			func(s *exports.Export) bool { return s.Pseudo == pseudo && s.Error != "" }); i >= 0 {
			return fmt.Errorf("export %s: %w", pseudo, errors.New(d.exports.All()[i].Error))
		}
	}
	served := func(id uint32) bool {
		return slices.ContainsFunc(d.exports.All(), func(s *exports.Export) bool { return s.ID == id && s.Open() })
	}
	for _, id := range slices.Concat(d.nfs4.State().Exports(), d.locks.Exports()) {
		if !served(id) {
			d.nfs4.State().DropExport(id)
			d.locks.DropExport(id)
		}
	}
	return nil
}
