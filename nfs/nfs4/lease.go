package nfs4

import (
	"errors"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// Programs on the host can open a file that is delegated, and they do not come by this server. A
// store may have leases of the host (fcntl(2), F_SETLEASE): then it reports such an open, and the
// host makes the program wait for as long as lease-break-time says. Meanwhile the delegation is
// recalled.

// hostAgain is how long to wait before a client is asked again for what a program on the
// host waits for.
const hostAgain = time.Second

// lease takes the host's lease of the current file for a new delegation. It returns false, and
// gives the delegation back, if a program of the host has the file open already. A store that has
// no leases, or has no more of them, is no reason to refuse a delegation; such ones are counted.
func (k *compound) lease(d *state.Delegate, id state.Stateid) bool {
	if pinned, st := k.pin(); pinned && st == nfs.OK {
		k.client.Pinned(id, d.File)
	}
	x, ok := k.cur.x.FS.(blockstore.Leaser)
	if !ok {
		return true
	}
	s, f := k.s, d.File
	release, err := x.Lease(f.Handle, d.Write, func() { s.wanted(f) })
	switch {
	case errors.Is(err, blockstore.ErrJukebox):
		_ = k.client.ReturnDelegation(id, f) // or it is gone already
		return false
	case err != nil:
		s.unleased.Add(1)
	case release != nil:
		k.client.Leased(id, f, release)
	}
	return true
}

// wanted recalls the delegations of a file for a program of the host, again and again until there
// are none. The store calls it in a goroutine of its own for each lease that is broken.
func (s *Server) wanted(f lock.File) {
	if !s.offloads.enter() {
		return
	}
	defer s.offloads.wg.Done()
	s.hostOpens.Add(1)
	for !s.freed(f) {
		t := time.NewTimer(hostAgain)
		select {
		case <-s.state.Watch(f):
		case <-t.C:
		case <-s.offloads.stop:
			t.Stop()
			return
		}
		t.Stop()
	}
}

// freed recalls the delegations of a file once, and reports whether there are none any more. While
// the server is paused it does nothing, as the successor will do it.
func (s *Server) freed(f lock.File) bool {
	s.acting.RLock()
	defer s.acting.RUnlock()
	return !s.paused && s.state.Free(s.cfg.Now(), f, nil, true)
}
