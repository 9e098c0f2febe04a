package nfs4

import (
	"net/netip"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Share reservations (RFC 8881 section 9.7) concern two kinds of clients. An OPEN of version 4
// makes one with its open. An NLM_SHARE of version 3 makes one by nfs.Shares, below. Package state
// has both in one place, so that each kind refuses the other:
//
//	request                         is refused by
//	OPEN, NLM_SHARE                 any reservation that conflicts, of either kind
//	READ, WRITE of version 3        opens, and reservations of other hosts, that deny the mode
//	READ, WRITE, anonymous stateid  all reservations that deny the mode
//	READ, bypass stateid            none
//	READ, WRITE, stateid of an open none: its OPEN was compared with them
//
// The reservation of a client of version 4 ends with its lease, but only when somebody wants the
// file: package state then ends the whole client. A reservation of version 3 has no lease. It ends
// by NLM_UNSHARE, or when the status monitor reports a restart of the host (UnreserveAll).

var _ nfs.Shares = (*Server)(nil)

// Denying implements nfs.Shares. It reads one counter. Most servers have no reservation that denies
// anything, so READ and WRITE of version 3 pay no more than this.
func (s *Server) Denying() bool { return s.state.Denying() }

// Denied implements nfs.Shares. If mayWait is false, a transport's loop is the caller. Package
// state then ends no client, because that writes to the journal of clients: the reservation of a
// client whose lease has run out still denies.
func (s *Server) Denied(f lock.File, host netip.Addr, write, mayWait bool) bool {
	return s.state.Denying() && s.state.Denied(s.cfg.Now(), f, host, write, mayWait)
}

// Reserve implements nfs.Shares. A delegation that conflicts is recalled first: the holder opens
// the file without a call, so the server does not know what it would deny. The caller waits up to
// returnWait for each return, and is answered JUKEBOX after that. No lock is held while it waits.
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
