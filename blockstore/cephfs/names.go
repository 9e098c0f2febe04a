//go:build cephfs && linux && cgo

package cephfs

import (
	"bytes"
	"cmp"
	"slices"
	"sync"

	"github.com/rstored/rstored/blockstore"
)

// A rename in libcephfs retains the entry of its old name while it waits for the MDS. If another
// rename takes that entry away meanwhile, and the name exists again, the reply of the first one
// makes libcephfs crash (16.2.15, on its thread ms_dispatch). In a kernel client VFS prevents that:
// it locks the directories. Here the changes of one name take turns, and lookups of it wait for
// them. Changes of other names of the directory go on, also while one waits for a delegation.

// nameIn is a name in a directory.
type nameIn struct {
	dir  blockstore.Handle
	name string
}

func nameOf(d *object, s string) nameIn { return nameIn{dir: d.h, name: s} }

func (n nameIn) compare(m nameIn) int {
	return cmp.Or(bytes.Compare(n.dir.B[:], m.dir.B[:]), cmp.Compare(n.name, m.name))
}

// turn is the lock of a name that somebody uses.
type turn struct {
	sync.RWMutex
	users int // guarded by names.mu
}

// names are the names in use.
type names struct {
	mu  sync.Mutex
	all map[nameIn]*turn
}

func (s *names) use(n nameIn) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[n]
	if t == nil {
		t = &turn{}
		if s.all == nil {
			s.all = make(map[nameIn]*turn)
		}
		s.all[n] = t
	}
	t.users++
	return t
}

func (s *names) leave(n nameIn, t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(s.all, n)
	}
}

// look waits until no change of a name is under way. done lets changes go on.
func (s *names) look(n nameIn) (done func()) {
	t := s.use(n)
	t.RLock()
	return func() {
		t.RUnlock()
		s.leave(n, t)
	}
}

// change waits until a name is free, or two. done lets others use them.
func (s *names) change(list ...nameIn) (done func()) {
	slices.SortFunc(list, nameIn.compare) // nobody waits for the first with the second
	list = slices.Compact(list)
	turns := make([]*turn, len(list))
	for i, n := range list {
		turns[i] = s.use(n)
		turns[i].Lock()
	}
	return func() {
		for i, n := range list {
			turns[i].Unlock()
			s.leave(n, turns[i])
		}
	}
}
