package lock

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"slices"
)

// A snapshot is the table, as one gob value, for the successor of this process. The successor may
// be a newer build, so fields may be added and not changed. Locks on the host are not taken again:
// they belong to open file descriptions, which the store hands over.

type snapshot struct {
	Files []snapFile
	Host  HostCounts
}

type snapFile struct {
	File   File
	OnHost bool
	Locks  []Lock
	Queue  []*Waiter // gob skips Granted, which is a function
}

// Snapshot returns locks and requests, in order. The caller has stopped all requests before.
func (t *Table) Snapshot() ([]byte, error) {
	s := snapshot{Host: t.HostCounts()}
	t.each(func(f File, x *file) {
		s.Files = append(s.Files, snapFile{f, x.onHost, slices.Clone(x.locks), slices.Clone(x.queue)})
	})
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&s)
	return b.Bytes(), err
}

// errSnapshot wraps every error of a snapshot that Snapshot cannot have made.
var errSnapshot = errors.New("the table of locks that was handed over is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errSnapshot}, args...)...)
}

// Restore fills an empty table from a snapshot. granted sets Waiter.Granted of a request of Wait,
// by its Lock and Note. After an error the table must not be used.
func (t *Table) Restore(data []byte, granted func(f File, w *Waiter) error) error {
	if t.count.Load() != 0 {
		return errors.New("locks can be handed over to an empty table only")
	}
	var s snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&s); err != nil {
		return damaged("%v", err)
	}
	t.host.conflicts.Store(s.Host.Conflicts)
	t.host.without.Store(s.Host.Without)
	t.host.full.Store(s.Host.Full)
	for i := range s.Files {
		if err := t.restore(&s.Files[i], granted); err != nil {
			return err
		}
	}
	return nil
}

func (t *Table) restore(x *snapFile, granted func(f File, w *Waiter) error) error {
	s := t.shard(x.File)
	if x.File.Handle.Len == 0 || s.files[x.File] != nil || len(x.Locks)+len(x.Queue) == 0 {
		return damaged("a file without a handle, twice, or without locks")
	}
	y := &file{onHost: x.OnHost}
	s.files[x.File] = y
	reach := uint64(0) // the last byte that is locked
	for i, l := range x.Locks {
		if l.Start > l.End || i > 0 && l.Start < x.Locks[i-1].Start {
			return damaged("a range that ends before it begins, or ranges in no order")
		}
		if i > 0 && l.Start <= reach && y.conflict(&l) != nil {
			return damaged("two locks that conflict")
		}
		reach = max(reach, l.End)
		y.locks = append(y.locks, l)
		t.add(l.Owner.Client, 1)
	}
	for _, w := range x.Queue {
		if w.Lock.Start > w.Lock.End {
			return damaged("a range that ends before it begins")
		}
		w.file = x.File
		if w.Offered && !w.Asks {
			return damaged("an offer to an owner that does not ask")
		}
		if !w.Asks {
			if err := granted(x.File, w); err != nil {
				return err
			}
		}
		t.append(y, w)
	}
	return nil
}
