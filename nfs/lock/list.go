package lock

import (
	"maps"
	"slices"
)

// Entry is an entry of the table.
type Entry struct {
	File File
	Lock
	Waiting bool // a request that waits, not a lock
}

// List returns a copy of at most limit entries, in no order.
func (t *Table) List(limit int) []Entry {
	out := make([]Entry, 0, min(int(t.count.Load()), limit))
	t.each(func(f File, x *file) {
		for _, l := range x.locks[:min(len(x.locks), limit-len(out))] {
			out = append(out, Entry{File: f, Lock: l})
		}
		for _, w := range x.queue[:min(len(x.queue), limit-len(out))] {
			out = append(out, Entry{File: f, Lock: w.Lock, Waiting: true})
		}
	})
	return out
}

// Count returns how many locks there are, and how many requests wait.
func (t *Table) Count() (locks, waiting int) {
	t.each(func(_ File, x *file) {
		locks += len(x.locks)
		waiting += len(x.queue)
	})
	return locks, waiting
}

// Exports lists the exports that have any lock or request.
func (t *Table) Exports() []uint32 {
	set := make(map[uint32]bool)
	t.each(func(f File, _ *file) { set[f.Export] = true })
	return slices.Sorted(maps.Keys(set))
}

// find lists the files that match is. They may have changed when find returns.
func (t *Table) find(is func(File, *file) bool) (list []File) {
	t.each(func(f File, x *file) {
		if is(f, x) {
			list = append(list, f)
		}
	})
	return list
}

// each calls fn for each file, one shard after the other, with the shard's mu held.
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
