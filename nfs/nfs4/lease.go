package nfs4

import (
	"errors"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// Programs of the host can open a delegated file without a call to this server. A store may have
// leases of the host (fcntl(2), F_SETLEASE). Then the host reports such an open to the store, and
// makes the program wait for at most /proc/sys/fs/lease-break-time seconds.
//
//	program            host                 server                client
//	open(2)   ------>  breaks the lease --> wanted
//	  waits                                 CB_RECALL    ------>
//	                                        DELEGRETURN  <------  writes back first
//	                   lease released  <--- release
//	continues <------
//
// A client that never answers loses its delegation after a lease of NFS. By default the host waits
// for less time (45 seconds). The program then continues, and may read data that the client has not
// written yet.

// hostAgain is the time between two recalls of a delegation that a program of the host waits for.
// So a lost CB_RECALL is repeated.
const hostAgain = time.Second

// lease pins the current file and takes the host's lease of it, for a new delegation. If a program
// of the host has the file open already, lease returns the delegation and false. If the store has
// no leases, or no more of them, the delegation is granted all the same, and the counter unleased
// counts it.
//
// Package state owns release from Leased on, and calls it once when the delegation ends. The
// delegation can end before Leased is called, as after a recall by another client. Then Leased
// calls release at once. The store may call wanted before Lease returns: wanted needs no lock of
// this goroutine, and finds the delegation, because package state has it already.
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
		_ = k.client.ReturnDelegation(id, f) // an error says that the delegation has ended already
		return false
	case err != nil:
		s.unleased.Add(1)
	case release != nil:
		k.client.Leased(id, f, release)
	}
	return true
}

// wanted recalls the delegations of a file for a program of the host, once in hostAgain, until
// there are none. The store calls it in a goroutine of its own for each lease that is broken. Close
// waits for the goroutine. The loop ends at the latest when package state revokes the delegation.
// Watch returns nil if nothing is being recalled: then only the timer or Close ends the wait.
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
// the server is paused it does nothing, because the successor will recall them. freed holds
// background for reading, and Recall locks calling inside of it: never the other way round. It must
// not wait with background held, because Pause takes background for writing and stops all callers
// behind it.
func (s *Server) freed(f lock.File) bool {
	s.background.RLock()
	defer s.background.RUnlock()
	return !s.paused && s.state.FreeLease(s.cfg.Now(), f)
}
