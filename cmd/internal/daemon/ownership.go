package daemon

import (
	"errors"
	"sync"
	"sync/atomic"
)

// ownership says whether this process still owns the exports, the ports and the state of clients,
// and orders their changes.
//
// Lock order: reloading, mu, acting. Below them are, in this order, ports.Set.mu, devices.Set.mu,
// and the locks of sockets.Set and state.Store. exports.Set has no lock: mu serializes its changes.
type ownership struct {
	// reloading is held during a reload or an upgrade. An upgrade does not wait for it: the request
	// fails.
	reloading sync.Mutex
	// mu serializes changes of exports and ports (reconcile.Config.Mu). It is held while stores and
	// ports are opened and closed.
	mu sync.Mutex
	// acting is held for reading by an administrator's change of clients' state (eviction, end of
	// the grace period), which may wait for stores. An upgrade holds it for writing, and fails if
	// it is not free.
	acting sync.RWMutex
	// handedOver says that the word go is or was sent: the new process owns everything. It is
	// written with mu and acting held.
	handedOver bool
	replaced   chan struct{} // closed when another process serves
	draining   atomic.Bool   // this process stops
}

// errReplaced is returned by a process after it has handed over to its successor.
var errReplaced = errors.New("another process has taken over; ask that one")

// mayChange locks mu for a change of exports or ports. It returns an error, without the lock, if a
// new process serves or this one stops.
func (o *ownership) mayChange() error {
	o.mu.Lock()
	switch {
	case o.handedOver:
		o.mu.Unlock()
		return errReplaced
	case o.draining.Load():
		o.mu.Unlock()
		return errDraining
	}
	return nil
}

// errActing is returned while an administrator evicts a client or ends the grace period: an upgrade
// must not interrupt that. The upgrade can be tried again.
var errActing = errors.New("a client is being evicted, or the grace period ended")

// mayAct prevents an upgrade until done is called. It returns errReplaced after the hand-over.
func (o *ownership) mayAct() (done func(), err error) {
	o.acting.RLock()
	if o.handedOver {
		o.acting.RUnlock()
		return nil, errReplaced
	}
	return o.acting.RUnlock, nil
}

// isReplaced reports whether a successor has taken over.
func (o *ownership) isReplaced() bool {
	select {
	case <-o.replaced:
		return true
	default:
		return false
	}
}
