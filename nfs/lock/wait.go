package lock

import "slices"

// enqueue puts a request into its file's queue. Call with update held.
func (t *Table) enqueue(f File, w *Waiter) error {
	// A deadlock can go through any files, so all shards are locked.
	for i := range shards {
		t.shards[i].mu.Lock()
		defer t.shards[i].mu.Unlock()
	}
	t.waits.Lock()
	defer t.waits.Unlock()
	s := t.shard(f)
	x := s.get(f)
	defer s.tidy(f, x)
	if i := slices.IndexFunc(x.queue, func(q *Waiter) bool { return q.Lock == w.Lock }); i >= 0 {
		return t.again(x, i)
	}
	switch {
	case t.waitsFor(x, &w.Lock, w.Lock.Owner, 0):
		return ErrDeadlock
	case !t.room(w.Lock.Owner.Client):
		return ErrFull
	}
	w.file, w.since = f, t.ticks.Load()
	t.append(x, w)
	return nil
}

// append puts a request at the end of a queue. Call with mu of the shard and waits held.
func (t *Table) append(x *file, w *Waiter) {
	x.queue = append(x.queue, w)
	if !w.Offered {
		t.waiting[w.Lock.Owner] = w
	}
	if w.Asks {
		t.asking.Add(1)
	}
	t.add(w.Lock.Owner.Client, 1)
}

// waitsFor reports whether an owner of a lock that conflicts with l waits for who, directly or
// through other owners. Then a wait for l would be a deadlock. Call with mu of all shards and waits
// held. The recursion is bounded: a longer chain, as a hostile client can make, counts as a
// deadlock.
func (t *Table) waitsFor(x *file, l *Lock, who Owner, depth int) bool {
	const longest = 64
	if depth == longest {
		return true
	}
	for i := range x.locks {
		h := &x.locks[i]
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

// Cancel removes a request from its file's queue. It returns false if the request is not there: it
// was granted before, or never made.
func (t *Table) Cancel(f File, l Lock) bool {
	s := t.shard(f)
	s.update.Lock()
	defer s.update.Unlock()
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

// dequeue removes request i from the queue for good. Call with the shard's mu held.
func (t *Table) dequeue(x *file, i int) {
	w := x.queue[i]
	t.waits.Lock()
	defer t.waits.Unlock()
	t.leave(x, i)
	t.stopWaiting(w)
}

// leave takes request i out of the queue. Call with the shard's mu held.
func (t *Table) leave(x *file, i int) {
	w := x.queue[i]
	x.queue = slices.Delete(x.queue, i, i+1)
	if w.Asks {
		t.asking.Add(-1)
	}
	t.add(w.Lock.Owner.Client, -1)
}

// stopWaiting records that an owner does not wait for a request any more. Call with waits held.
func (t *Table) stopWaiting(w *Waiter) {
	if t.waiting[w.Lock.Owner] == w {
		delete(t.waiting, w.Lock.Owner)
	}
}

// triesMax bounds how many requests of one file grant tries on the host in one call. Locks of the
// host's programs can block a long queue.
const triesMax = 64

// grant takes the locks of waiting requests that have become free, in the order of the queue. Call
// with update held. Pass the result to notify when update is released.
func (t *Table) grant(f File) (granted []*Waiter) {
	if t.gate != nil {
		if !t.gate.Begin() {
			return nil
		}
		defer t.gate.End()
	}
	var refused []*Waiter
	for len(refused) < triesMax {
		w := t.next(f, refused)
		if w == nil {
			break
		}
		if w.Asks {
			if t.hostHolds(f, &w.Lock) {
				refused = append(refused, w)
			} else {
				t.offer(f, w)
				granted = append(granted, w)
			}
			continue
		}
		_, host := t.takeOnHost(f, &w.Lock)
		if host == hostConflict || host == hostFull || host == hostBusy {
			refused = append(refused, w)
			continue
		}
		s := t.shard(f)
		s.mu.Lock()
		x := s.files[f]
		t.dequeue(x, slices.Index(x.queue, w))
		x.onHost, x.later = x.onHost || host == hostTaken, x.later || host == hostLater
		t.put(x, w.Lock)
		s.mu.Unlock()
		granted = append(granted, w)
	}
	return granted
}

// next finds the first request in the queue that no lock of a client conflicts with, and that the
// host has not refused.
func (t *Table) next(f File, refused []*Waiter) *Waiter {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.files[f]; x != nil {
		for _, w := range x.queue {
			if !w.Offered && x.conflict(&w.Lock) == nil && !slices.Contains(refused, w) {
				return w
			}
		}
	}
	return nil
}

// notify reports requests that were granted or offered. Call without locks of the table.
func (t *Table) notify(granted []*Waiter) {
	for _, w := range granted {
		switch {
		case !w.Asks:
			w.Granted()
		case t.offered != nil:
			t.offered(w.file, w.Lock.Owner)
		}
	}
}

// Retry grants requests that only a lock of the host blocked, if that lock is gone. It returns how
// many requests still wait, for whatever reason.
func (t *Table) Retry() (waiting int) {
	for _, f := range t.find(func(_ File, x *file) bool { return len(x.queue) > 0 }) {
		t.remove(f, everything, func(*file) {})
	}
	_, waiting = t.Count()
	return waiting
}
