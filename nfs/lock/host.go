package lock

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
)

// Hosts returns the store that takes the locks of an export in the host's kernel, or nil. If take
// is false, the store takes no new locks, but older ones still have to be unlocked. Hosts is called
// from any goroutine.
type Hosts func(export uint32) (h blockstore.HostLocker, take bool)

// HostClient is the Owner.Client of a lock of a program of the host.
const HostClient = "host"

// UseHost makes the table take the locks of clients on the host too. Call it before anything else.
func (t *Table) UseHost(h Hosts) { t.hosts = h }

// OnHost reports whether locks of the host's programs count.
func (t *Table) OnHost() bool { return t.hosts != nil }

// ReclaimOver is for a failover. Another node served before, and was stopped. Its locks of the
// clients can still be in the file system that both nodes share. Without ReclaimOver they would
// conflict with the same locks when the clients reclaim them here.
//
// While reclaiming returns true, the table therefore grants a lock although the host has a
// conflicting one: that lock is taken for one of the other node. The same applies to later locks of
// the same file, until RetryHost has taken all of them on the host. It does not apply to an export
// for which fenced returns true: there the locks of the other node have ended, and a lock of the
// host belongs to somebody else.
//
// Neither function may wait, because locks of the table are held. Call ReclaimOver before anything
// else.
func (t *Table) ReclaimOver(reclaiming func() bool, fenced func(export uint32) bool) {
	t.reclaiming, t.fenced = reclaiming, fenced
}

// ofPredecessor reports whether a conflicting lock of the host is taken for one of the process that
// served before. Call with update held, and without mu.
func (t *Table) ofPredecessor(f File) bool {
	if t.reclaiming == nil || t.fenced(f.Export) {
		return false
	}
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.files[f]
	return x != nil && x.later || t.reclaiming()
}

// Rehost marks all locks of a restored table for RetryHost: this host has none of them yet, because
// another node served before.
func (t *Table) Rehost() {
	for _, f := range t.find(func(_ File, x *file) bool { return len(x.locks) > 0 }) {
		s := t.shard(f)
		s.mu.Lock()
		if x := s.files[f]; x != nil {
			x.onHost, x.later = false, true
		}
		s.mu.Unlock()
	}
}

// RetryHost takes locks on the host that could not be taken there when they were reclaimed. It
// returns on how many files it still could not.
func (t *Table) RetryHost() (left int) {
	for _, f := range t.find(func(_ File, x *file) bool { return x.later }) {
		if !t.retryHost(f) {
			left++
		}
	}
	return left
}

func (t *Table) retryHost(f File) (done bool) {
	s := t.shard(f)
	s.update.Lock()
	defer s.update.Unlock()
	s.mu.Lock()
	x := s.files[f]
	if x == nil {
		s.mu.Unlock()
		return true
	}
	list := slices.Clone(x.locks)
	s.mu.Unlock()
	h, take := t.hostOf(f)
	if h == nil || !take {
		return true
	}
	taken := false
	done = true
	for _, l := range list {
		in, err := h.LockHost(f.Handle, l.Start, l.End, l.Exclusive)
		taken = taken || in == nil && err == nil
		done = done && in == nil && !errors.Is(err, blockstore.ErrJukebox) && !errors.Is(err, blockstore.ErrWouldBlock)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x.onHost, x.later = x.onHost || taken, !done // x is still the same file, because update is held
	return done
}

type hostCounts struct{ conflicts, without, full atomic.Uint64 }

// HostCounts are totals since the start.
type HostCounts struct {
	// Conflicts are locks that were refused because of a lock of a program of the host.
	Conflicts uint64
	// Without are locks that the host could not take. Programs of the host do not see them.
	Without uint64
	// Full are locks that were refused because the store has locks on too many files of the host.
	Full uint64
}

// HostCounts returns the counters of locks on the host.
func (t *Table) HostCounts() HostCounts {
	return HostCounts{Conflicts: t.host.conflicts.Load(), Without: t.host.without.Load(), Full: t.host.full.Load()}
}

func (t *Table) hostOf(f File) (h blockstore.HostLocker, take bool) {
	if t.hosts == nil {
		return nil, false
	}
	return t.hosts(f.Export)
}

// onHost is the result of a lock on the host.
type onHost uint8

const (
	hostUnused   onHost = iota // the host does not take part: no store, or an error
	hostTaken                  // taken; to be unlocked there later
	hostConflict               // a lock of a program conflicts
	hostFull                   // the store has locks on too many files
	hostLater                  // granted without the host; RetryHost takes it there
	hostBusy                   // the store waits for another user of the file; the client asks again
)

// takeOnHost takes a lock in the host's kernel. There all clients together are one owner. The
// caller has checked that no lock of another client conflicts with l. So l may replace what this
// one owner has locked in the range. Call with update held, and without mu.
func (t *Table) takeOnHost(f File, l *Lock) (holder Lock, res onHost) {
	h, take := t.hostOf(f)
	if h == nil || !take {
		return holder, hostUnused
	}
	in, err := h.LockHost(f.Handle, l.Start, l.End, l.Exclusive)
	switch {
	case in != nil && t.ofPredecessor(f):
		return holder, hostLater
	case in != nil:
		t.host.conflicts.Add(1)
		return hostHolder(in), hostConflict
	case err == nil:
		return holder, hostTaken
	case errors.Is(err, blockstore.ErrJukebox):
		t.host.full.Add(1)
		return holder, hostFull
	case errors.Is(err, blockstore.ErrWouldBlock):
		return holder, hostBusy
	}
	t.host.without.Add(1)
	return holder, hostUnused
}

// hostHolder returns a lock of the host as a lock of the table.
func hostHolder(in *blockstore.HostLock) Lock {
	id := "a program of the server's host"
	if in.PID > 0 {
		id = fmt.Sprintf("process %d of the server's host", in.PID)
	}
	return Lock{Owner: Owner{Client: HostClient, ID: id}, Start: in.Start, End: in.End, Exclusive: in.Exclusive}
}

// Probe is Test that asks the host, too. If the host cannot answer, only the table counts.
func (t *Table) Probe(f File, l Lock) (holder Lock, free bool) {
	if holder, free = t.Test(f, l); !free {
		return holder, false
	}
	h, take := t.hostOf(f)
	if h == nil || !take {
		return holder, true
	}
	s := t.shard(f)
	s.update.Lock()
	defer s.update.Unlock()
	in, err := h.TestHost(f.Handle, l.Start, l.End, l.Exclusive)
	if err != nil || in == nil {
		return holder, true
	}
	return hostHolder(in), false
}

// unlockOnHost unlocks on the host the bytes that no client has locked any more. A byte that
// another client still has locked keeps its lock. That lock is a shared one, as every lock that two
// clients have, so its kind need not change. Call with update held.
func (t *Table) unlockOnHost(f File, gone []span) {
	h, _ := t.hostOf(f)
	if h == nil {
		return
	}
	for _, s := range gone {
		h.UnlockHost(f.Handle, s.start, s.end)
	}
}

// releaseOnHost ends all locks of the server on a file. Call with update held.
func (t *Table) releaseOnHost(f File) {
	if h, _ := t.hostOf(f); h != nil {
		h.ReleaseHost(f.Handle)
	}
}
