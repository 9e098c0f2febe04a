package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// The delegations as servers of other protocols see them: Server implements nfs.Delegations.

var _ nfs.Delegations = (*Server)(nil)

// Delegating implements nfs.Delegations.
func (s *Server) Delegating() bool { return s.state.Delegating() }

// Free implements nfs.Delegations.
func (s *Server) Free(f lock.File, change, mayWait bool) bool {
	return !s.state.Delegating() || s.free(s.cfg.Now(), f, nil, change, mayWait)
}

// BeginChange implements nfs.Delegations.
func (s *Server) BeginChange(f lock.File) (begun, ok bool) {
	return s.beginChange(s.cfg.Now(), f, nil, 0)
}

// EndChange implements nfs.Delegations.
func (s *Server) EndChange(f lock.File) { s.state.EndChange(f) }

// BeginDirChange implements nfs.Delegations.
func (s *Server) BeginDirChange(dir lock.File, e nfs.DirEvent) (begun, ok bool) {
	return s.beginChange(s.cfg.Now(), dir, nil, noticesOf(&e))
}

// DirChanged implements nfs.Delegations.
func (s *Server) DirChanged(dir lock.File, e nfs.DirEvent) { s.dirChanged(dir, &e) }
