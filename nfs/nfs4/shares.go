package nfs4

import (
	"net/netip"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

var _ nfs.Shares = (*Server)(nil)

// Denying implements nfs.Shares.
func (s *Server) Denying() bool { return s.state.Denying() }

// Denied implements nfs.Shares.
func (s *Server) Denied(f lock.File, host netip.Addr, write, mayWait bool) bool {
	return s.state.Denying() && s.state.Denied(s.cfg.Now(), f, host, write, mayWait)
}

// Reserve implements nfs.Shares.
func (s *Server) Reserve(f lock.File, owner lock.Owner, host netip.Addr, access, deny uint32) nfs.Status {
	st := s.state.Reserve(s.cfg.Now(), f, owner, host, access, deny)
	for st == nfs.ErrJukebox && s.await(f) {
		st = s.state.Reserve(s.cfg.Now(), f, owner, host, access, deny)
	}
	return st
}

// Unreserve implements nfs.Shares.
func (s *Server) Unreserve(f lock.File, owner lock.Owner) { s.state.Unreserve(f, owner) }

// UnreserveAll implements nfs.Shares.
func (s *Server) UnreserveAll(client string) { s.state.UnreserveAll(client) }
