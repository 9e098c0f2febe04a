package lock

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rstored/rstored/blockstore"
)

// A snapshot is the table for the process that takes this one's place, as a gob value, to
// which fields may be added. What is held on the host is held by open file descriptions
// that the store hands over by itself: the locks of a snapshot are not asked for again.

type snapshot struct {
	Files                    []snapFile
	Conflicts, Without, Full uint64
}

type snapFile struct {
	Export uint32
	Handle []byte
	OnHost bool
	Held   []Lock
	Queue  []snapWaiter
}

type snapWaiter struct {
	Lock Lock
	Note []byte
}

// Snapshot is what is held and who waits, in order. Nobody is locking anything meanwhile.
func (t *Table) Snapshot() ([]byte, error) {
	s := snapshot{Conflicts: t.host.conflicts.Load(), Without: t.host.without.Load(), Full: t.host.full.Load()}
	t.each(func(f File, x *file) {
		y := snapFile{Export: f.Export, Handle: bytes.Clone(f.Handle.Bytes()), OnHost: x.onHost, Held: slices.Clone(x.held)}
		for _, w := range x.queue {
			y.Queue = append(y.Queue, snapWaiter{w.Lock, bytes.Clone(w.Note)})
		}
		s.Files = append(s.Files, y)
	})
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&s)
	return b.Bytes(), err
}

var errSnapshot = errors.New("the table of locks that was handed over is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errSnapshot}, args...)...)
}

// Restore fills an empty table from a snapshot. granted makes what Waiter.Granted is of one
// that waits, whose Lock and Note are there. After an error the table is of no use.
func (t *Table) Restore(data []byte, granted func(f File, w *Waiter) error) error {
	if t.count.Load() != 0 {
		return errors.New("locks can be handed over to an empty table only")
	}
	var s snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&s); err != nil {
		return damaged("%v", err)
	}
	t.host.conflicts.Store(s.Conflicts)
	t.host.without.Store(s.Without)
	t.host.full.Store(s.Full)
	for i := range s.Files {
		if err := t.restore(&s.Files[i], granted); err != nil {
			return err
		}
	}
	return nil
}

func (t *Table) restore(x *snapFile, granted func(f File, w *Waiter) error) error {
	h, ok := blockstore.MakeHandle(x.Handle)
	if !ok {
		return damaged("a handle of %d bytes", len(x.Handle))
	}
	f := File{Export: x.Export, Handle: h}
	s := t.shard(f)
	if s.files[f] != nil || len(x.Held)+len(x.Queue) == 0 {
		return damaged("a file twice, or without locks")
	}
	y := &file{onHost: x.OnHost}
	reach := uint64(0) // the last byte that is locked
	for i := range x.Held {
		l := &x.Held[i]
		if l.Start > l.End || i > 0 && l.Start < x.Held[i-1].Start {
			return damaged("a range that ends before it begins, or ranges in no order")
		}
		if i > 0 && l.Start <= reach && y.conflict(l) != nil {
			return damaged("two locks that exclude each other")
		}
		reach = max(reach, l.End)
		y.held = append(y.held, *l)
		t.add(l.Owner.Client, 1)
	}
	s.files[f] = y
	for i := range x.Queue {
		w := &Waiter{Lock: x.Queue[i].Lock, Note: x.Queue[i].Note, file: f}
		if w.Lock.Start > w.Lock.End {
			return damaged("a range that ends before it begins")
		}
		if err := granted(f, w); err != nil {
			return err
		}
		y.queue = append(y.queue, w)
		t.waiting[w.Lock.Owner] = w
		t.add(w.Lock.Owner.Client, 1)
	}
	return nil
}

// Exports are those that anything is locked of, or waited for.
func (t *Table) Exports() []uint32 {
	seen := make(map[uint32]bool)
	t.each(func(f File, _ *file) { seen[f.Export] = true })
	return slices.Sorted(maps.Keys(seen))
}
