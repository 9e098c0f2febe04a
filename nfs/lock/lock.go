// Package lock is a table of byte-range locks with POSIX semantics: an owner's
// locks do not conflict with each other but replace, split and join, and
// requests that have to wait are granted in the order in which they came. Who the
// owners are and how they are told is for the protocols to say.
package lock

import (
	"cmp"
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
)

// ToEnd is the End of a range without one.
const ToEnd = 1<<64 - 1

// File is what locks are on.
type File struct {
	Export uint32
	Handle blockstore.Handle
}

// Owner is who holds a lock: something of a client, such as a process. All locks
// of a client go when the client does.
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

// Waiter is a request that waits its turn. It is its file's until Granted is
// called or Cancel returns true.
type Waiter struct {
	Lock Lock
	// Granted is called once the lock is held. It must not block, and it may
	// come before Wait has returned.
	Granted func()
	// Note is what the protocol has to know, beside Lock, to grant the request in another
	// process; see Table.Snapshot.
	Note []byte

	file File
}

// Errors of Wait.
var (
	ErrDeadlock = errors.New("the owners would wait for each other")
	ErrFull     = errors.New("too many locks")
)

// Table holds the locks of a server. Its methods may be called from any goroutine.
//
// It is the truth among clients. What they hold together is held on the host as well,
// where UseHost says so; a lock of the host is one that nobody here can give up.
//
// Who locks different files, or for different clients, does not wait for each other: both are
// in shards. Where several of their locks are held they were taken in this order: a shard's
// turn, its mu, or all of these in their order, waits, and that of a share of clients.
type Table struct {
	max     int
	seed    maphash.Seed
	hosts   Hosts
	host    hostCounts
	shards  [shards]shard
	clients [shards]share
	count   atomic.Int64 // of locks and waiters

	waits   sync.Mutex
	waiting map[Owner]*Waiter // one of those of each owner
}

const shards = 64

// shard is of some of the files.
type shard struct {
	// turn is held while a file is changed, as the host is asked in the middle of that,
	// without mu.
	turn sync.Mutex

	mu    sync.Mutex
	files map[File]*file
}

// share is of some of the clients.
type share struct {
	mu   sync.Mutex
	held map[string]int // locks and waiters of each
}

type file struct {
	held   []Lock // by Start
	queue  []*Waiter
	onHost bool // there may be some of it on the host
}

// New makes a table for at most max locks and waiting requests; 0 means 2097152, some
// 600 bytes each. No client may have more than half of them.
func New(limit int) *Table {
	if limit <= 0 {
		limit = 1 << 21
	}
	t := &Table{max: limit, seed: maphash.MakeSeed(), waiting: make(map[Owner]*Waiter)}
	for i := range shards {
		t.shards[i].files, t.clients[i].held = make(map[File]*file), make(map[string]int)
	}
	return t
}

func (t *Table) shard(f File) *shard { return &t.shards[maphash.Comparable(t.seed, f)%shards] }

func (t *Table) share(client string) *share { return &t.clients[maphash.String(t.seed, client)%shards] }

func (l *Lock) overlaps(o *Lock) bool { return l.Start <= o.End && o.Start <= l.End }

func (l *Lock) conflicts(o *Lock) bool {
	// The owners last: most locks of a file are elsewhere, and names take long to compare.
	return l.overlaps(o) && (l.Exclusive || o.Exclusive) && l.Owner != o.Owner
}

// conflict finds a lock that stands in the way of l.
func (f *file) conflict(l *Lock) *Lock {
	for i := range f.held {
		if f.held[i].Start > l.End {
			break
		}
		if f.held[i].conflicts(l) {
			return &f.held[i]
		}
	}
	return nil
}

// Test reports the first lock of a client that l would have to wait for.
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

// Lock takes a lock, in the place of what its owner held there, or reports who
// is in the way.
func (t *Table) Lock(f File, l Lock) (holder Lock, ok bool, err error) {
	var granted []*Waiter
	defer func() { tell(granted) }() // not under a lock
	s := t.shard(f)
	s.turn.Lock()
	defer s.turn.Unlock()
	holder, ok, err = t.take(f, &l)
	if ok {
		granted = t.grant(f) // what was held exclusively may be shared now
	}
	return holder, ok, err
}

// take takes a lock if nobody is in the way. Call in the file's turn.
func (t *Table) take(f File, l *Lock) (holder Lock, ok bool, err error) {
	s := t.shard(f)
	s.mu.Lock()
	x := s.files[f]
	if x != nil {
		if c := x.conflict(l); c != nil {
			holder = *c
			s.mu.Unlock()
			return holder, false, nil
		}
	}
	if !t.room(l.Owner.Client) {
		s.mu.Unlock()
		return holder, false, ErrFull
	}
	s.mu.Unlock()
	holder, host := t.takeOnHost(f, l)
	switch host {
	case hostHeld:
		return holder, false, nil
	case hostFilled:
		return holder, false, ErrFull
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x = s.files[f] // only Cancel can have changed it
	if x == nil {
		x = new(file)
		s.files[f] = x
	}
	x.onHost = x.onHost || host == hostTaken
	t.put(x, *l)
	return holder, true, nil
}

// Wait takes a lock, or enters w into the file's queue. It reports whether the
// lock was taken at once; Granted is then not called. An owner that waits for the
// same range already goes on waiting, once. Somebody has to call Retry from time to time
// as long as anybody waits, if the host has locks too: it does not say when one ends.
func (t *Table) Wait(f File, w *Waiter) (taken bool, err error) {
	var granted []*Waiter
	defer func() { tell(granted) }() // not under a lock
	s := t.shard(f)
	s.turn.Lock()
	defer s.turn.Unlock()
	_, taken, err = t.take(f, &w.Lock)
	if err != nil {
		return false, err
	}
	if taken {
		granted = t.grant(f)
		return true, nil
	}
	// Those who wait for each other may do so on any files.
	for i := range shards {
		t.shards[i].mu.Lock()
		defer t.shards[i].mu.Unlock()
	}
	t.waits.Lock()
	defer t.waits.Unlock()
	x := s.files[f]
	if x == nil {
		x = new(file)
		s.files[f] = x
	}
	defer s.tidy(f, x)
	if slices.ContainsFunc(x.queue, func(q *Waiter) bool { return q.Lock == w.Lock }) {
		return false, nil
	}
	if t.waitsFor(x, &w.Lock, w.Lock.Owner, 0) {
		return false, ErrDeadlock
	}
	if !t.room(w.Lock.Owner.Client) {
		return false, ErrFull
	}
	w.file = f
	x.queue = append(x.queue, w)
	t.waiting[w.Lock.Owner] = w
	t.add(w.Lock.Owner.Client, 1)
	return false, nil
}

// waitsFor reports whether one of those in the way of l waits, directly or not,
// for who. Call with mu of all shards and waits held. A chain that is longer than anybody makes on purpose is taken for one.
func (t *Table) waitsFor(x *file, l *Lock, who Owner, depth int) bool {
	const longest = 64
	if depth == longest {
		return true
	}
	for i := range x.held {
		h := &x.held[i]
		if !h.conflicts(l) {
			continue
		}
		if h.Owner == who && depth > 0 {
			return true
		}
		if w := t.waiting[h.Owner]; w != nil && t.waitsFor(t.shard(w.file).files[w.file], &w.Lock, who, depth+1) {
			return true
		}
	}
	return false
}

// Cancel takes a request out of its file's queue. It reports whether it was there:
// if not, it was granted, or never made.
func (t *Table) Cancel(f File, l Lock) bool {
	s := t.shard(f)
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.files[f]
	if x == nil {
		return false
	}
	i := slices.IndexFunc(x.queue, func(q *Waiter) bool { return q.Lock == l })
	if i < 0 {
		return false
	}
	t.dequeue(x, i)
	s.tidy(f, x)
	return true
}

func (t *Table) dequeue(x *file, i int) {
	w := x.queue[i]
	x.queue = slices.Delete(x.queue, i, i+1)
	t.waits.Lock()
	if t.waiting[w.Lock.Owner] == w {
		delete(t.waiting, w.Lock.Owner)
	}
	t.waits.Unlock()
	t.add(w.Lock.Owner.Client, -1)
}

// Unlock gives up what the owner holds from start to end, and grants what waited
// for that.
func (t *Table) Unlock(f File, o Owner, start, end uint64) {
	t.change(f, span{start, end}, func(x *file) { t.cut(x, o, start, end) })
}

// change takes something out of what is held of a file within a range, and grants what
// waited for that.
func (t *Table) change(f File, within span, take func(x *file)) {
	s := t.shard(f)
	s.turn.Lock()
	s.mu.Lock()
	x := s.files[f]
	var gone []span
	if x != nil {
		var before []span
		if x.onHost {
			before = x.spans(within)
		}
		take(x)
		if x.onHost && len(x.held)+len(x.queue) > 0 { // the last goes with everything
			gone = without(before, x.spans(within))
		}
	}
	s.mu.Unlock()
	var granted []*Waiter
	if x != nil {
		if len(gone) > 0 {
			t.giveUpOnHost(f, gone)
		}
		granted = t.grant(f)
		s.mu.Lock()
		release := x.onHost && len(x.held) == 0
		if release {
			x.onHost = false
		}
		s.tidy(f, x)
		s.mu.Unlock()
		if release {
			t.releaseOnHost(f)
		}
	}
	s.turn.Unlock()
	tell(granted)
}

// Drop gives up everything that a client holds or waits for, and reports whether
// there was anything.
func (t *Table) Drop(client string) bool {
	had := t.Holds(client)
	var files []File
	if had {
		t.each(func(f File, x *file) {
			if x.has(client) {
				files = append(files, f)
			}
		})
	}
	for _, f := range files {
		t.change(f, everything, func(x *file) {
			for i := len(x.queue) - 1; i >= 0; i-- {
				if x.queue[i].Lock.Owner.Client == client {
					t.dequeue(x, i)
				}
			}
			n := len(x.held)
			x.held = slices.DeleteFunc(x.held, func(l Lock) bool { return l.Owner.Client == client })
			t.add(client, len(x.held)-n)
		})
	}
	return had
}

func (f *file) has(client string) bool {
	return slices.ContainsFunc(f.held, func(l Lock) bool { return l.Owner.Client == client }) ||
		slices.ContainsFunc(f.queue, func(w *Waiter) bool { return w.Lock.Owner.Client == client })
}

// each calls fn with each file, a shard after the other.
func (t *Table) each(fn func(File, *file)) {
	for i := range shards {
		s := &t.shards[i]
		s.mu.Lock()
		for f, x := range s.files {
			fn(f, x)
		}
		s.mu.Unlock()
	}
}

// DropExport gives up all locks of an export that is no longer served.
func (t *Table) DropExport(export uint32) {
	var files []File
	t.each(func(f File, _ *file) {
		if f.Export == export {
			files = append(files, f)
		}
	})
	for _, f := range files {
		t.change(f, everything, func(x *file) {
			for len(x.queue) > 0 {
				t.dequeue(x, 0)
			}
			for _, l := range x.held {
				t.add(l.Owner.Client, -1)
			}
			x.held = nil
		})
	}
}

// Holds reports whether a client holds or waits for anything.
func (t *Table) Holds(client string) bool {
	s := t.share(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[client] > 0
}

// Owns reports whether an owner holds anything of a file.
func (t *Table) Owns(f File, o Owner) bool {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.files[f]
	return x != nil && slices.ContainsFunc(x.held, func(l Lock) bool { return l.Owner == o })
}

// Count is the number of locks held and of requests waiting.
func (t *Table) Count() (held, waiting int) {
	t.each(func(_ File, x *file) {
		held += len(x.held)
		waiting += len(x.queue)
	})
	return held, waiting
}

func tell(granted []*Waiter) {
	for _, w := range granted {
		w.Granted()
	}
}

// triesMax bounds how many waiters of a file are tried in vain on the host at a time.
const triesMax = 64

// grant takes the locks that waited and can be had now, in the order of the queue. Call
// in the file's turn.
func (t *Table) grant(f File) (granted []*Waiter) {
	var refused []*Waiter
	for len(refused) < triesMax {
		w := t.next(f, refused)
		if w == nil {
			break
		}
		_, host := t.takeOnHost(f, &w.Lock)
		if host == hostHeld || host == hostFilled {
			refused = append(refused, w)
			continue
		}
		s := t.shard(f)
		s.mu.Lock()
		x := s.files[f]
		t.dequeue(x, slices.Index(x.queue, w))
		x.onHost = x.onHost || host == hostTaken
		t.put(x, w.Lock)
		s.mu.Unlock()
		granted = append(granted, w)
	}
	return granted
}

// next is the first in the queue whom no client is in the way of, refused ones apart.
func (t *Table) next(f File, refused []*Waiter) *Waiter {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.files[f]; x != nil {
		for _, w := range x.queue {
			if x.conflict(&w.Lock) == nil && !slices.Contains(refused, w) {
				return w
			}
		}
	}
	return nil
}

// put enters a lock that nothing is in the way of, joining it with its
// neighbours of the same owner and kind.
func (t *Table) put(x *file, l Lock) {
	t.cut(x, l.Owner, l.Start, l.End)
	n := len(x.held)
	x.held = slices.DeleteFunc(x.held, func(h Lock) bool {
		if h.Owner != l.Owner || h.Exclusive != l.Exclusive {
			return false
		}
		switch {
		case h.End != ToEnd && h.End+1 == l.Start:
			l.Start = h.Start
		case l.End != ToEnd && l.End+1 == h.Start:
			l.End = h.End
		default:
			return false
		}
		return true
	})
	i, _ := slices.BinarySearchFunc(x.held, l, func(a, b Lock) int { return cmp.Compare(a.Start, b.Start) })
	x.held = slices.Insert(x.held, i, l)
	t.add(l.Owner.Client, len(x.held)-n)
}

// cut takes a range out of what an owner holds.
func (t *Table) cut(x *file, o Owner, start, end uint64) {
	n := len(x.held)
	var rest []Lock
	x.held = slices.DeleteFunc(x.held, func(h Lock) bool {
		if h.Start > end || start > h.End || h.Owner != o {
			return false
		}
		if h.Start < start {
			left := h
			left.End = start - 1
			rest = append(rest, left)
		}
		if h.End > end {
			right := h
			right.Start = end + 1
			rest = append(rest, right)
		}
		return true
	})
	for _, l := range rest {
		i, _ := slices.BinarySearchFunc(x.held, l, func(a, b Lock) int { return cmp.Compare(a.Start, b.Start) })
		x.held = slices.Insert(x.held, i, l)
	}
	t.add(o.Client, len(x.held)-n)
}

// room reports whether a client may have one more, or two, as a lock may split
// another.
func (t *Table) room(client string) bool {
	if int(t.count.Load())+2 > t.max {
		return false
	}
	s := t.share(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[client]+2 <= max(t.max/2, 2)
}

func (t *Table) add(client string, n int) {
	t.count.Add(int64(n))
	s := t.share(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[client] += n; s.held[client] == 0 {
		delete(s.held, client)
	}
}

func (s *shard) tidy(f File, x *file) {
	if len(x.held)+len(x.queue) == 0 {
		delete(s.files, f)
	}
}

// Held is an entry of the table.
type Held struct {
	File File
	Lock
	Waiting bool // it waits for others
}

// List is a copy of up to limit entries, in no order.
func (t *Table) List(limit int) []Held {
	out := make([]Held, 0, min(int(t.count.Load()), limit))
	add := func(h Held) {
		if len(out) < limit {
			out = append(out, h)
		}
	}
	t.each(func(f File, x *file) {
		for i := range x.held {
			add(Held{File: f, Lock: x.held[i]})
		}
		for _, w := range x.queue {
			add(Held{File: f, Lock: w.Lock, Waiting: true})
		}
	})
	return out
}
