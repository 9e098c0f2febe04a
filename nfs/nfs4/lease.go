package nfs4

import (
	"errors"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// What is delegated others can get at who do not come by this server: programs on its
// host. The store tells of them, if it can, and they wait for the delegation as long
// as the host lets them.

// hostAgain is how long to wait before a client is asked again for what a program on the
// host waits for.
const hostAgain = time.Second

// lease has the store tell of what others do with the current file as long as it is
// delegated. It reports false, and takes the delegation back, if somebody has it open.
// A store that cannot tell is no reason for that.
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

// wanted asks for the delegations of a file that somebody waits for who is no client,
// until there are none. It has a goroutine of its own.
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

// freed asks for the delegations of a file, unless the server stands still.
func (s *Server) freed(f lock.File) bool {
	s.acting.RLock()
	defer s.acting.RUnlock()
	return !s.paused && s.state.Free(s.cfg.Now(), f, nil, true)
}
