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
// Changes of a file are made one after another (turns), as the host is asked in the
// middle of them, without mu.
type Table struct {
	max   int
	seed  maphash.Seed
	turns [64]sync.Mutex // by file
	hosts Hosts
	host  hostCounts

	mu      sync.Mutex
	files   map[File]*file
	held    map[string]int    // locks and waiters, by client
	waiting map[Owner]*Waiter // one of those of each owner
	count   int
}

type file struct {
	held   []Lock // by Start
	queue  []*Waiter
	onHost bool // there may be some of it on the host
}

// New makes a table for at most max locks and waiting requests; 0 means 262144. No
// client may have more than half of them.
func New(limit int) *Table {
	if limit <= 0 {
		limit = 1 << 18
	}
	return &Table{max: limit, seed: maphash.MakeSeed(), files: make(map[File]*file), held: make(map[string]int), waiting: make(map[Owner]*Waiter)}
}

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

// turn is held while a file is changed.
func (t *Table) turn(f File) *sync.Mutex {
	return &t.turns[maphash.Comparable(t.seed, f)%uint64(len(t.turns))]
}

// Test reports the first lock of a client that l would have to wait for.
func (t *Table) Test(f File, l Lock) (holder Lock, free bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.files[f]; x != nil {
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
	turn := t.turn(f)
	turn.Lock()
	defer turn.Unlock()
	holder, ok, err = t.take(f, &l)
	if ok {
		granted = t.grant(f) // what was held exclusively may be shared now
	}
	return holder, ok, err
}

// take takes a lock if nobody is in the way. Call in the file's turn.
func (t *Table) take(f File, l *Lock) (holder Lock, ok bool, err error) {
	t.mu.Lock()
	x := t.files[f]
	if x != nil {
		if c := x.conflict(l); c != nil {
			holder = *c
			t.mu.Unlock()
			return holder, false, nil
		}
	}
	if !t.room(l.Owner.Client) {
		t.mu.Unlock()
		return holder, false, ErrFull
	}
	t.mu.Unlock()
	holder, host := t.takeOnHost(f, l)
	switch host {
	case hostHeld:
		return holder, false, nil
	case hostFilled:
		return holder, false, ErrFull
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	x = t.files[f] // only Cancel can have changed it
	if x == nil {
		x = new(file)
		t.files[f] = x
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
	turn := t.turn(f)
	turn.Lock()
	defer turn.Unlock()
	_, taken, err = t.take(f, &w.Lock)
	if err != nil {
		return false, err
	}
	if taken {
		granted = t.grant(f)
		return true, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.files[f]
	if x == nil {
		x = new(file)
		t.files[f] = x
	}
	defer t.tidy(f, x)
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
// for who. A chain that is longer than anybody makes on purpose is taken for one.
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
		if w := t.waiting[h.Owner]; w != nil && t.waitsFor(t.files[w.file], &w.Lock, who, depth+1) {
			return true
		}
	}
	return false
}

// Cancel takes a request out of its file's queue. It reports whether it was there:
// if not, it was granted, or never made.
func (t *Table) Cancel(f File, l Lock) bool {
	turn := t.turn(f)
	turn.Lock()
	defer turn.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.files[f]
	if x == nil {
		return false
	}
	i := slices.IndexFunc(x.queue, func(q *Waiter) bool { return q.Lock == l })
	if i < 0 {
		return false
	}
	t.dequeue(x, i)
	t.tidy(f, x)
	return true
}

func (t *Table) dequeue(x *file, i int) {
	w := x.queue[i]
	x.queue = slices.Delete(x.queue, i, i+1)
	if t.waiting[w.Lock.Owner] == w {
		delete(t.waiting, w.Lock.Owner)
	}
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
	turn := t.turn(f)
	turn.Lock()
	t.mu.Lock()
	x := t.files[f]
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
	t.mu.Unlock()
	var granted []*Waiter
	if x != nil {
		if len(gone) > 0 {
			t.giveUpOnHost(f, gone)
		}
		granted = t.grant(f)
		t.mu.Lock()
		release := x.onHost && len(x.held) == 0
		if release {
			x.onHost = false
		}
		t.tidy(f, x)
		t.mu.Unlock()
		if release {
			t.releaseOnHost(f)
		}
	}
	turn.Unlock()
	tell(granted)
}

// Drop gives up everything that a client holds or waits for, and reports whether
// there was anything.
func (t *Table) Drop(client string) bool {
	t.mu.Lock()
	had := t.held[client] > 0
	var files []File
	if had {
		for f, x := range t.files {
			if x.has(client) {
				files = append(files, f)
			}
		}
	}
	t.mu.Unlock()
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

// DropExport gives up all locks of an export that is no longer served.
func (t *Table) DropExport(export uint32) {
	t.mu.Lock()
	var files []File
	for f := range t.files {
		if f.Export == export {
			files = append(files, f)
		}
	}
	t.mu.Unlock()
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
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held[client] > 0
}

// Owns reports whether an owner holds anything of a file.
func (t *Table) Owns(f File, o Owner) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.files[f]
	return x != nil && slices.ContainsFunc(x.held, func(l Lock) bool { return l.Owner == o })
}

// Count is the number of locks held and of requests waiting.
func (t *Table) Count() (held, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.files {
		held += len(x.held)
		waiting += len(x.queue)
	}
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
		t.mu.Lock()
		x := t.files[f]
		t.dequeue(x, slices.Index(x.queue, w))
		x.onHost = x.onHost || host == hostTaken
		t.put(x, w.Lock)
		t.mu.Unlock()
		granted = append(granted, w)
	}
	return granted
}

// next is the first in the queue whom no client is in the way of, refused ones apart.
func (t *Table) next(f File, refused []*Waiter) *Waiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.files[f]; x != nil {
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
	return t.count+2 <= t.max && t.held[client]+2 <= max(t.max/2, 2)
}

func (t *Table) add(client string, n int) {
	t.count += n
	if t.held[client] += n; t.held[client] == 0 {
		delete(t.held, client)
	}
}

func (t *Table) tidy(f File, x *file) {
	if len(x.held)+len(x.queue) == 0 {
		delete(t.files, f)
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
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Held, 0, min(t.count, limit))
	for f, x := range t.files {
		for i := range x.held {
			if len(out) == limit {
				return out
			}
			out = append(out, Held{File: f, Lock: x.held[i]})
		}
		for _, w := range x.queue {
			if len(out) == limit {
				return out
			}
			out = append(out, Held{File: f, Lock: w.Lock, Waiting: true})
		}
	}
	return out
}
