package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// A file that is open or delegated must stay when its last name is removed, by another client or a
// program of the host. So each open and each delegation pins its file in the store:
//
//	OPEN, delegation          pin          the store counts one Pin more
//	state records it          Pinned       package state owns the pin from here on
//	CLOSE, DELEGRETURN,       Unpin        the store deletes the file if this was the last Pin
//	lease expired, revoked                 and no name is left
//
// If the Linux client itself removes a file that it has open, it renames the file instead
// (.nfsXXXX). Pins are for removals that the client does not see.

// pin pins the current file. If pinned is true, the caller owns one pin, and either passes it to
// package state or ends it by unpin. If the store cannot pin files, or no more of them, the OPEN
// succeeds all the same. The file then ends with its last name, as for clients of version 3. STALE
// means that the file is gone already.
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

// unpin ends a pin. If the export is no longer served, its store has ended all pins already.
// Package state calls unpin with its locks held (state.Config.Unpin), so it must neither wait nor
// call package state.
func (s *Server) unpin(f lock.File) {
	x := s.cfg.Exports.ByID(f.Export)
	if x == nil {
		return
	}
	if p, ok := x.FS.(blockstore.Pinner); ok {
		p.Unpin(f.Handle)
	}
}
