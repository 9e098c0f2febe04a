package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// A file that is open or delegated stays when its last name is removed: another client, or a
// program of the host, can remove it at any time. Each open and each delegation pins its file in
// the store for this, until CLOSE or DELEGRETURN.

// pin has the current file stay. Where the store cannot do so, or has no room for more, the file
// ends with its last name, as for clients of version 3.
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

// unpin ends a pin, unless the export has ended, and its store with all of its pins.
func (s *Server) unpin(f lock.File) {
	x := s.cfg.Exports.ByID(f.Export)
	if x == nil {
		return
	}
	if p, ok := x.FS.(blockstore.Pinner); ok {
		p.Unpin(f.Handle)
	}
}
