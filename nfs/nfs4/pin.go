package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// A file that is open or delegated stays when its last name is removed: another client, or a
// program of the host, can remove it at any time. Each open and each delegation pins its file in
// the store for this.
//
//	OPEN, delegation          pin          the store counts one Pin more
//	state records it          Pinned       package state owns the pin from here on
//	CLOSE, DELEGRETURN,       Unpin        the store deletes the file if this was the last Pin
//	lease expired, revoked                 and no name is left
//
// The Linux client renames a file that it has open itself when it removes the file (.nfsXXXX).
// Pins are for the removals that the client cannot see.

// pin retains the current file. If it reports true, the caller owns one pin. The caller passes the
// pin on to package state, or ends it by unpin. Where the store cannot retain files, or has no room
// for more, the file ends with its last name, as for clients of version 3: an OPEN is not refused
// for this. STALE means that the file is gone already.
func (k *compound) pin() (pinned bool, st nfs.Status) {
	x, ok := k.cur.x.FS.(blockstore.Pinner)
	if !ok {
		return false, nfs.OK
	}
	switch err := x.Pin(k.cur.h); {
	case err == nil:
		return true, nfs.OK
	case errors.Is(err, blockstore.ErrStale):
		return false, nfs.ErrStale
	}
	k.s.unpinned.Add(1)
	return false, nfs.OK
}

// unpin ends a pin. If the export has ended, its store has ended all pins already. Package state
// calls unpin with its locks held (state.Config.Unpin), so it must neither wait nor call package
// state.
func (s *Server) unpin(f lock.File) {
	x := s.cfg.Exports.ByID(f.Export)
	if x == nil {
		return
	}
	if p, ok := x.FS.(blockstore.Pinner); ok {
		p.Unpin(f.Handle)
	}
}
