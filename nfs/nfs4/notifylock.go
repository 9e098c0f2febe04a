package nfs4

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A denied LOCK of type READW or WRITEW gets a place in the queue of the file, among requests of
// all versions and of NLM (RFC 8881 section 9.6). No worker waits for the lock. When the lock is
// free the table reserves it (lock.Table.Ask), and the server calls the client if it has a
// backchannel:
//
//	client with the lock   server                 client that waits
//	                                       <----  LOCK(WRITEW)
//	                       DENIED          ---->
//	LOCKU  ------------->  reserves the lock
//	                       CB_NOTIFY_LOCK  ---->
//	                                       <----  LOCK(WRITEW)
//	                       OK              ---->
//
// A client of version 4.0 cannot be called about the lock, so it polls. A client that does not send
// LOCK again within 5 seconds loses its place, and the table serves the next request.
//
// While any request waits, one goroutine sends the callbacks and calls lock.Table.Tick each second.
// A lock can become free while locks of package state are held. So lockOffered only adds the offer
// to a list, and wakes the goroutine.

// lockTick is the time between two calls of lock.Table.Tick.
const lockTick = time.Second

// lockWaits is the state of the goroutine that sends CB_NOTIFY_LOCK.
type lockWaits struct {
	table    *lock.Table
	wake     chan struct{} // of length 1: list is not empty
	notified atomic.Uint64 // CB_NOTIFY_LOCKs sent

	mu      sync.Mutex // taken last
	running bool
	list    []lockOffer
}

// lockOffer is a lock that the table has reserved for an owner.
type lockOffer struct {
	file  lock.File
	owner lock.Owner
}

// notifying is CB_NOTIFY_LOCK (RFC 8881 section 20.11): nfs_fh4, and a lock_owner4 of client ID and
// owner<>. It refers to no call: a client that does not wait any more ignores it.
type notifying struct {
	client *state.Client
	lockOffer
}

func (n notifying) op() uint32            { return opCBNotifyLock }
func (n notifying) refers() *state.Origin { return nil }

func (n notifying) encode(s *Server, e *xdr.Encoder) {
	s.encodeFile(e, &n.file)
	e.Uint64(n.client.ID)
	e.String(n.owner.ID)
}

// answered implements request. Nothing depends on the answer: the time of the offer ends by itself.
func (n notifying) answered(*Server, bool, nfs.Status, *xdr.Decoder) {}

// lockOffered notes that a lock is reserved for an owner. It is called with locks of package state
// held.
func (s *Server) lockOffered(f lock.File, o lock.Owner) {
	w := &s.lockWaits
	w.mu.Lock()
	w.list = append(w.list, lockOffer{f, o})
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	s.watchLocks()
}

// watchLocks starts the goroutine unless it runs.
func (s *Server) watchLocks() {
	w := &s.lockWaits
	w.mu.Lock()
	begin := !w.running
	w.running = true
	w.mu.Unlock()
	if !begin {
		return
	}
	if !s.offloads.enter() {
		return // the server ends
	}
	go func() {
		defer s.offloads.wg.Done()
		t := time.NewTicker(lockTick)
		defer t.Stop()
		for {
			select {
			case <-w.wake:
			case <-t.C:
				if s.tickLocks(); s.lockWatchEnds() {
					return
				}
			case <-s.offloads.stop:
				return
			}
			s.notifyLocks()
		}
	}()
}

// tickLocks calls lock.Table.Tick, unless the server is paused.
func (s *Server) tickLocks() {
	s.background.RLock()
	defer s.background.RUnlock()
	if !s.paused {
		s.lockWaits.table.Tick()
	}
}

// lockWatchEnds ends the goroutine if no request waits. A request that began to wait before running
// was false is seen here. A later one starts a new goroutine.
func (s *Server) lockWatchEnds() bool {
	w := &s.lockWaits
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.table.Asking() > 0 || len(w.list) > 0 {
		return false
	}
	w.running = false
	return true
}

// notifyLocks sends a CB_NOTIFY_LOCK for each offer in the list. If one cannot be sent, because the
// server is paused or the client's backchannel has no free slot, the goroutine tries again each
// second until the offer ends.
func (s *Server) notifyLocks() {
	w := &s.lockWaits
	w.mu.Lock()
	list := w.list
	w.list = nil
	w.mu.Unlock()
	var later []lockOffer
	for _, o := range list {
		c := s.state.LockClient(o.owner)
		if c == nil || c.Minor0() || !w.table.IsOffered(o.file, o.owner) {
			continue
		}
		if s.notifyLock(c, o) {
			w.notified.Add(1)
		} else {
			later = append(later, o)
		}
	}
	if len(later) > 0 {
		w.mu.Lock()
		w.list = append(later, w.list...)
		w.mu.Unlock()
	}
}

// notifyLock sends a CB_NOTIFY_LOCK by the first of the client's backchannels that takes it now. It
// checks the size of the request, because the owner can be longer than BackRequestMin allows for.
func (s *Server) notifyLock(c *state.Client, o lockOffer) bool {
	return slices.ContainsFunc(c.Backchannels(), func(x *state.Session) bool {
		return x.Back.Allows(state.BackRequestMin+xdr.Padded(len(o.owner.ID))) && s.callBack(x, notifying{c, o})
	})
}

// resumeLocks notes all reserved locks again after a pause, because the old process may not have
// called the clients.
func (s *Server) resumeLocks() {
	w := &s.lockWaits
	w.table.Offers(s.lockOffered)
	if w.table.Asking() > 0 {
		s.watchLocks()
	}
}
