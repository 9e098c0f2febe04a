package lock

import "slices"

// Some protocols cannot give a client a lock later: the client has to ask again (RFC 8881 section
// 9.6). Such a request has a place in the queue of its file. When the lock is free for the request
// that is first in the queue, the table reserves it and calls the function of UseOffers. Until the
// owner asks again the lock is as good as taken for all others:
//
//	Ask, conflict --> queued --lock is free--> offered --Ask--> taken
//	                    |                         |
//	                    | askTicks without an Ask | offerTicks without an Ask
//	                    v                         v
//	                   gone                      gone, and the next request is served
//
// A client that has stopped waiting does not say so. While its request is offered, the lock is free
// and nobody else gets it, but no longer than offerTicks. The table has no clock: it counts calls
// of Tick.
//
// A reserved lock is not taken on the host, so a program of the host may take it meanwhile.

const (
	// offerTicks is how long a lock is reserved, in calls of Tick. A client that gets a callback asks
	// again within a round trip. A client that polls may come too late and loses its place.
	offerTicks = 5
	// askTicks is how long a request stays in the queue, in calls of Tick. The Linux client asks again
	// at least every 30 seconds.
	askTicks = 90
)

// UseOffers sets the function that is called when a lock is reserved for an owner that has asked
// for it. It must not block, and no lock of the table is held. Call UseOffers before anything else.
func (t *Table) UseOffers(offered func(f File, o Owner)) { t.offered = offered }

// Ask is Lock for an owner that asks again until it has the lock. If another lock conflicts, the
// request gets a place in the queue of the file, or keeps the one that it has: owner, range and
// kind tell requests apart. The error is ErrDeadlock if the owners would wait for each other; the
// request then has no place. While Asking is not zero, the caller calls Tick once a second.
func (t *Table) Ask(f File, l Lock) (holder Lock, ok bool, err error) {
	holder, ok, granted, err := t.lock(f, &l, &Waiter{Lock: l, Asks: true}, false)
	t.notify(granted)
	return holder, ok, err
}

// Asking returns how many requests of Ask wait.
func (t *Table) Asking() int { return int(t.asking.Load()) }

// again handles a request that is in the queue already. Call with mu of all shards and waits held.
func (t *Table) again(x *file, i int) error {
	w := x.queue[i]
	if !w.Asks {
		return nil
	}
	if t.waitsFor(x, &w.Lock, w.Lock.Owner, 0) {
		t.leave(x, i)
		t.stopWaiting(w)
		return ErrDeadlock
	}
	w.since, w.Offered = t.ticks.Load(), false
	t.waiting[w.Lock.Owner] = w
	return nil
}

// active records that an owner has made another request: it is not blocked by the lock that it
// waits for. So it cannot be part of a deadlock now. Its places in queues stay.
func (t *Table) active(f File, l *Lock) {
	if t.asking.Load() == 0 {
		return
	}
	t.waits.Lock()
	defer t.waits.Unlock()
	if w := t.waiting[l.Owner]; w != nil && w.Asks && (w.file != f || w.Lock != *l) {
		t.stopWaiting(w)
	}
}

// satisfied ends the requests of Ask that l, which was just taken, satisfies. Call with update
// held.
func (t *Table) satisfied(f File, l *Lock) {
	if t.asking.Load() == 0 {
		return
	}
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.files[f]
	for i := len(x.queue) - 1; i >= 0; i-- {
		if w := x.queue[i]; w.Asks && w.Lock.Owner == l.Owner && w.Lock.overlaps(l) {
			t.dequeue(x, i)
		}
	}
}

// offer reserves the lock of a request. Call with update held.
func (t *Table) offer(f File, w *Waiter) {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Offered, w.since = true, t.ticks.Load()
	t.waits.Lock()
	defer t.waits.Unlock()
	t.stopWaiting(w)
}

// hostHolds reports whether a lock of a program of the host conflicts. Call with update held.
func (t *Table) hostHolds(f File, l *Lock) bool {
	h, take := t.hostOf(f)
	if h == nil || !take {
		return false
	}
	in, err := h.TestHost(f.Handle, l.Start, l.End, l.Exclusive)
	return err == nil && in != nil
}

// Tick ends the requests of Ask whose owners have not asked again in time. It then grants or offers
// what has become free by that, or on the host. The caller calls Tick once a second while there are
// requests of Ask. It returns how many are left.
func (t *Table) Tick() int {
	now := t.ticks.Add(1)
	over := func(w *Waiter) bool {
		limit := int64(askTicks)
		if w.Offered {
			limit = offerTicks
		}
		return w.Asks && now-w.since > limit
	}
	asks := func(_ File, x *file) bool {
		return slices.ContainsFunc(x.queue, func(w *Waiter) bool { return w.Asks })
	}
	for _, f := range t.find(asks) {
		t.remove(f, everything, func(x *file) {
			for i := len(x.queue) - 1; i >= 0; i-- {
				if over(x.queue[i]) {
					t.dequeue(x, i)
				}
			}
		})
	}
	return t.Asking()
}

// Offers calls fn for each lock that is reserved, without locks of the table.
func (t *Table) Offers(fn func(f File, o Owner)) {
	var list []*Waiter
	t.each(func(_ File, x *file) {
		for _, w := range x.queue {
			if w.Offered {
				list = append(list, w)
			}
		}
	})
	for _, w := range list {
		fn(w.file, w.Lock.Owner)
	}
}

// IsOffered reports whether a lock on the file is reserved for an owner.
func (t *Table) IsOffered(f File, o Owner) bool {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.files[f]
	return x != nil && slices.ContainsFunc(x.queue, func(w *Waiter) bool { return w.Offered && w.Lock.Owner == o })
}
