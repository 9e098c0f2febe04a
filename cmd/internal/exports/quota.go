package exports

import (
	"fmt"

	"github.com/rstored/rstored/cmd/internal/config"
)

// SetQuota sets the quota of an export whose store is open, before the change is recorded that has
// it.
func (s *Set) SetQuota(e *config.Export) error {
	if old := s.Same(e); old != nil {
		return setQuota(old, e)
	}
	return nil
}

// setQuota gives the store of an export the quota of another one.
func setQuota(old *Export, e *config.Export) error {
	if old.QuotaBytes() == e.QuotaBytes() {
		return nil
	}
	return old.store.setQuota(e.QuotaBytes())
}

// setQuota bounds what the files of the export take; 0 is no bound.
func (g *gate) setQuota(bytes uint64) error {
	x, err := optional[interface{ SetProjectQuota(bytes uint64) error }](g)
	if err != nil {
		return err
	}
	defer g.leave()
	if err := x.SetProjectQuota(bytes); err != nil {
		return fmt.Errorf("quota: %w", err)
	}
	return nil
}
