package lock

import (
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
)

// ToEnd is the End of a lock up to the end of the file, however long it becomes.
const ToEnd = 1<<64 - 1

// File is a file with locks.
type File struct {
	Export uint32
	Handle blockstore.Handle
}

// Owner is a lock-owner, such as a process of a client. When the client ends, all its locks end.
type Owner struct {
	Client string
	ID     string
}

// Lock is a lock on the bytes Start to End, inclusive.
type Lock struct {
	Owner      Owner
	Start, End uint64
	Exclusive  bool
}

// Waiter is a request that waits for other locks to end. The table owns it until it calls Granted,
// or until Cancel returns true.
type Waiter struct {
	Lock Lock
	// Granted is called once the owner has the lock. It must not block, and the call may come
	// before Wait has returned. No lock of the table is held.
	Granted func()
	// Note is what the protocol needs, beside Lock, to notify the client in a successor of this
	// process; see Table.Restore.
	Note []byte
	// Asks: the request is one of Ask. When the lock is free the table does not take it, but
	// reserves it for the owner, and sets Offered until the owner asks again. Granted and Note are
	// not used.
	Asks, Offered bool

	file  File
	since int64 // the tick of the last Ask or of the offer
}

// Errors of Wait and Ask. Lock can return ErrFull and ErrBusy, too. After ErrBusy the client asks
// again.
var (
	ErrDeadlock = errors.New("the owners would wait for each other")
	ErrFull     = errors.New("too many locks")
	ErrBusy     = errors.New("the store waits for another user of the file, or nobody gets a lock now")
)

// Table is the lock table of a server. Its methods may be called from any goroutine.
//
// The table decides between clients. With UseHost, the server also takes a lock in the host's
// kernel on each byte that any client has locked. The host decides between the clients and its own
// programs: no client can end the lock of a program.
//
// Files and clients are in shards, so that requests for different ones do not wait for each other.
// The lock order is
//
//	shard.update > shard.mu (several in the order of the shards) > Table.waits > clientShard.mu
type Table struct {
	max   int
	seed  maphash.Seed
	hosts Hosts
	host  hostCounts
	// reclaiming and fenced are the functions of ReclaimOver, or nil.
	reclaiming func() bool
	fenced     func(export uint32) bool
	gate       Gate // or nil

	shards  [shards]shard
	clients [shards]clientShard
	count   atomic.Int64 // locks and waiters

	offered func(f File, o Owner)
	asking  atomic.Int64 // requests of Ask
	ticks   atomic.Int64

	waits   sync.Mutex
	waiting map[Owner]*Waiter // the last request of each owner that waits; for waitsFor
}

const shards = 64

// shard is a part of the table of files.
type shard struct {
	// update serializes changes of the shard's files. A change calls the host, which may take long. So
	// it holds update from its beginning to its end, and mu only while it reads or writes files.
	update sync.Mutex

	mu    sync.Mutex
	files map[File]*file
}

// clientShard is a part of the table of clients.
type clientShard struct {
	mu    sync.Mutex
	count map[string]int // locks and waiters of each client
}

// file is a file with its locks. It is in the table while it has a lock or a waiter.
type file struct {
	locks  []Lock // sorted by Start
	queue  []*Waiter
	onHost bool // the host may have locks of the server on it
	later  bool // some locks are not on the host yet: RetryHost takes them
}

// New makes a table for at most limit locks and waiting requests; 0 means 2097152. Each takes about
// 600 bytes. No client may have more than half of them.
func New(limit int) *Table {
	if limit <= 0 {
		limit = 1 << 21
	}
	t := &Table{max: limit, seed: maphash.MakeSeed(), waiting: make(map[Owner]*Waiter)}
	for i := range shards {
		t.shards[i].files, t.clients[i].count = make(map[File]*file), make(map[string]int)
	}
	return t
}

func (t *Table) shard(f File) *shard { return &t.shards[maphash.Comparable(t.seed, f)%shards] }

func (t *Table) clientShard(client string) *clientShard {
	return &t.clients[maphash.String(t.seed, client)%shards]
}

// get finds a file, or makes it. Call with mu held.
func (s *shard) get(f File) *file {
	x := s.files[f]
	if x == nil {
		x = new(file)
		s.files[f] = x
	}
	return x
}

// tidy removes a file without locks and waiters. Call with mu held.
func (s *shard) tidy(f File, x *file) {
	if len(x.locks)+len(x.queue) == 0 {
		delete(s.files, f)
	}
}

func (l *Lock) overlaps(o *Lock) bool { return l.Start <= o.End && o.Start <= l.End }

func (l *Lock) conflicts(o *Lock) bool {
	// The owners come last: most locks of a file do not overlap, and comparing names is slow.
	return l.overlaps(o) && (l.Exclusive || o.Exclusive) && l.Owner != o.Owner
}

// conflict finds the first lock that conflicts with l, or a lock that is reserved for another
// owner.
func (f *file) conflict(l *Lock) *Lock {
	for i := range f.locks {
		if f.locks[i].Start > l.End {
			break
		}
		if f.locks[i].conflicts(l) {
			return &f.locks[i]
		}
	}
	for _, w := range f.queue {
		if w.Offered && w.Lock.conflicts(l) {
			return &w.Lock
		}
	}
	return nil
}

// Test finds the first lock of another owner that conflicts with l. It does not ask the host, see
// Probe.
func (t *Table) Test(f File, l Lock) (holder Lock, free bool) {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.files[f]; x != nil {
		if c := x.conflict(&l); c != nil {
			return *c, false
		}
	}
	return holder, true
}

// Lock takes a lock. Within the range it replaces the owner's older locks. If a lock of another
// owner conflicts, ok is false and holder is that lock.
func (t *Table) Lock(f File, l Lock) (holder Lock, ok bool, err error) {
	holder, ok, granted, err := t.lock(f, &l, nil, false)
	t.notify(granted)
	return holder, ok, err
}

// Wait takes a lock, or puts w into the file's queue. taken says that it took the lock at once;
// then Granted is not called. A second request of an owner for the same range and kind is a retry,
// and waits in the place of the first one.
//
// The host does not report when one of its programs unlocks a file. While a request waits in a
// table with UseHost, the caller therefore calls Retry from time to time (nlm does so once a
// second).
func (t *Table) Wait(f File, w *Waiter) (taken bool, err error) {
	_, taken, granted, err := t.lock(f, &w.Lock, w, false)
	t.notify(granted)
	return taken, err
}

// lock takes a lock. If another one conflicts, it puts w into the queue, unless w is nil. The
// caller passes granted to notify, with no lock of the table held.
func (t *Table) lock(
	f File, l *Lock, w *Waiter, reclaim bool,
) (holder Lock, ok bool, granted []*Waiter, err error) {
	if t.gate != nil && !reclaim {
		if !t.gate.Begin() {
			return holder, false, nil, ErrBusy
		}
		defer t.gate.End()
	}
	s := t.shard(f)
	s.update.Lock()
	defer s.update.Unlock()
	t.active(f, l)
	holder, ok, err = t.take(f, l)
	switch {
	case ok:
		t.satisfied(f, l)
		granted = t.grant(f) // a lock that was exclusive may have become a shared one
	case err == nil && w != nil:
		if err = t.enqueue(f, w); w.Asks && err == ErrFull {
			err = nil // no place in the queue; the client asks again all the same
		}
	}
	return holder, ok, granted, err
}

// take takes a lock if none conflicts. Call with update held.
func (t *Table) take(f File, l *Lock) (holder Lock, ok bool, err error) {
	holder, free := t.Test(f, *l)
	switch {
	case !free:
		return holder, false, nil
	case !t.room(l.Owner.Client):
		return holder, false, ErrFull
	}
	holder, host := t.takeOnHost(f, l)
	switch host {
	case hostConflict:
		return holder, false, nil
	case hostFull:
		return holder, false, ErrFull
	case hostBusy:
		return holder, false, ErrBusy
	}
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.get(f)
	x.onHost, x.later = x.onHost || host == hostTaken, x.later || host == hostLater
	t.put(x, *l)
	return holder, true, nil
}

// Unlock removes the owner's locks from start to end, and grants the requests that waited for them.
func (t *Table) Unlock(f File, o Owner, start, end uint64) {
	t.active(f, &Lock{Owner: o})
	t.remove(f, span{start, end}, func(x *file) { t.cut(x, o, start, end) })
}

// remove calls cut, which removes locks and waiters of a file within a range. Then it unlocks on
// the host the bytes that no client has locked any more, and grants the requests that waited for
// them.
func (t *Table) remove(f File, within span, cut func(x *file)) {
	t.notify(t.removeAndGrant(f, within, cut))
}

func (t *Table) removeAndGrant(f File, within span, cut func(x *file)) (granted []*Waiter) {
	s := t.shard(f)
	s.update.Lock()
	defer s.update.Unlock()
	s.mu.Lock()
	x := s.files[f]
	if x == nil {
		s.mu.Unlock()
		return nil
	}
	var gone []span
	if x.onHost {
		gone = x.spans(within)
	}
	cut(x)
	if len(x.locks)+len(x.queue) == 0 {
		gone = nil // releaseOnHost ends all of them
	}
	if len(gone) > 0 {
		gone = without(gone, x.spans(within))
	}
	s.mu.Unlock()
	if len(gone) > 0 {
		t.unlockOnHost(f, gone)
	}
	granted = t.grant(f)
	s.mu.Lock()
	release := x.onHost && len(x.locks) == 0
	x.onHost = x.onHost && !release
	s.tidy(f, x)
	s.mu.Unlock()
	if release {
		t.releaseOnHost(f)
	}
	return granted
}

// Drop ends all locks and requests of a client, and reports whether there were any.
func (t *Table) Drop(client string) bool {
	if !t.Holds(client) {
		return false
	}
	is := func(o *Owner) bool { return o.Client == client }
	t.drop(func(_ File, x *file) bool {
		return slices.ContainsFunc(x.locks, func(l Lock) bool { return is(&l.Owner) }) ||
			slices.ContainsFunc(x.queue, func(w *Waiter) bool { return is(&w.Lock.Owner) })
	}, is)
	return true
}

// DropExport ends all locks and requests of an export that is no longer served.
func (t *Table) DropExport(export uint32) {
	t.drop(func(f File, _ *file) bool { return f.Export == export }, func(*Owner) bool { return true })
}

// drop ends the locks and requests in the files that match, of the owners that match.
func (t *Table) drop(files func(File, *file) bool, owners func(*Owner) bool) {
	for _, f := range t.find(files) {
		t.remove(f, everything, func(x *file) {
			for i := len(x.queue) - 1; i >= 0; i-- {
				if owners(&x.queue[i].Lock.Owner) {
					t.dequeue(x, i)
				}
			}
			x.locks = slices.DeleteFunc(x.locks, func(l Lock) bool {
				gone := owners(&l.Owner)
				if gone {
					t.add(l.Owner.Client, -1)
				}
				return gone
			})
		})
	}
}

// Holds reports whether a client has any lock, or waits for one.
func (t *Table) Holds(client string) bool {
	s := t.clientShard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[client] > 0
}

// Owns reports whether an owner has any lock on a file.
func (t *Table) Owns(f File, o Owner) bool {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.files[f]
	return x != nil && slices.ContainsFunc(x.locks, func(l Lock) bool { return l.Owner == o })
}

// room reports whether a client may have one more lock. It checks for two, because a lock in the
// middle of an older one of the same owner cuts that one in two.
func (t *Table) room(client string) bool {
	if int(t.count.Load())+2 > t.max {
		return false
	}
	s := t.clientShard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[client]+2 <= max(t.max/2, 2)
}

// add adds n to the numbers of locks and waiters, of the table and of a client. n may be negative.
func (t *Table) add(client string, n int) {
	t.count.Add(int64(n))
	s := t.clientShard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count[client] += n; s.count[client] == 0 {
		delete(s.count, client)
	}
}
