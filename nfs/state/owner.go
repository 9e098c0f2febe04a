package state

import (
	"cmp"
	"slices"
	"time"
)

// A client of version 4.0 has these tables of its owners:
//
//	openOwners   every open-owner, by name
//	idle         open-owners without an open: reap ends them after a lease
//	pending      open-owners with an unconfirmed open: reap ends the open after a lease
//	closed       by the number of the stateid that the owner has closed last
//	lockOwners   every lock-owner, by name; each has a lock stateid
//
// Memory: an owner counts as ownerCost and its name from entry to end, whether it has an open or
// not. An open-owner has at most one answer in its cache.

// idleMax bounds the open-owners without an open of each client.
const idleMax = 512

// addOpenOwner enters an open-owner without an open. The caller has checked that there is room.
// Call with mu held.
func (c *Client) addOpenOwner(o *seqOwner) {
	o.c, o.open = c, true
	c.v40.openOwners[o.Name] = o
	c.v40.idle[o] = struct{}{}
	c.charge(o.cost())
}

// addLockOwner enters a lock-owner. The caller calls lockedBy next: a lock-owner without a lock
// stateid would never end. Call with mu held.
func (c *Client) addLockOwner(o *seqOwner) {
	o.c, o.locks = c, make(map[*locks]struct{})
	c.v40.lockOwners[o.Name] = o
	c.charge(o.cost())
}

// openedBy links a new open to its open-owner. If the owner is not confirmed, the open becomes its
// trial: it ends when the owner sends another OPEN instead of OPEN_CONFIRM. Call with mu held.
func (c *Client) openedBy(o *open, by *seqOwner) {
	o.by = by
	if !by.Confirmed {
		by.trial = o
	}
	c.use(by)
}

// lockedBy links a new lock stateid to its lock-owner. Call with mu held.
func (c *Client) lockedBy(l *locks, by *seqOwner) {
	l.by = by
	by.locks[l] = struct{}{}
	c.use(by)
}

// settled moves an open-owner into the set where it belongs: idle, pending or neither. Call with mu
// held.
func (c *Client) settled(o *seqOwner) {
	delete(c.v40.idle, o)
	delete(c.v40.pending, o)
	switch {
	case o.gone:
	case o.uses == 0:
		c.v40.idle[o] = struct{}{}
	case !o.Confirmed:
		c.v40.pending[o] = struct{}{}
	}
}

// use and unuse count the states of an owner. The last unuse ends a lock-owner, because without a
// lock stateid an old request of the owner cannot do harm (RFC 7530 section 9.1.10). It makes an
// open-owner idle. Call with mu held.
func (c *Client) use(o *seqOwner) {
	o.uses++
	if o.open {
		c.settled(o)
	}
}

func (c *Client) unuse(o *seqOwner) {
	o.uses--
	switch {
	case o.open:
		c.settled(o)
	case o.uses == 0:
		o.gone = true
		delete(c.v40.lockOwners, o.Name)
		c.charge(-o.cost())
	}
}

// cancel ends the open on trial of an open-owner, if there is one. Call with mu held.
func (c *Client) cancel(o *seqOwner) {
	if o.trial != nil {
		c.dropOpen(o.trial)
	}
}

// forget ends an open-owner without an open. The next OPEN with the same name makes a new owner,
// and the client must confirm it. gone tells requests that wait for the turn to look the owner up
// again. Call with mu held.
func (c *Client) forget(o *seqOwner) {
	if !o.gone {
		c.charge(-o.cost())
	}
	o.gone = true
	delete(c.v40.openOwners, o.Name)
	delete(c.v40.closed, o.Closed)
	c.settled(o)
}

// reap ends open-owners that have had nothing open for a lease, and opens that were not confirmed
// for as long. If the client has idleMax open-owners without an open, the half of them that was
// used least recently ends too: a client that names a new owner in each OPEN does not grow without
// bound (RFC 7530 sections 9.1.10 and 16.18.5). Call with mu held.
func (c *Client) reap(now time.Time) {
	v, at := c.v40, now.UnixNano()
	if at-v.Reaped > int64(c.s.cfg.Lease)/2 {
		// reap runs for each new owner. Walking over all owners each time would cost too much, so it does
		// so twice in a lease.
		v.Reaped = at
		for o := range v.pending {
			if o.busy == 0 && at-o.Used > int64(c.s.cfg.Lease) {
				c.cancel(o)
			}
		}
		for o := range v.idle {
			if o.busy == 0 && at-o.Used > int64(c.s.cfg.Lease) {
				c.forget(o)
			}
		}
	}
	if len(v.idle) < idleMax {
		return
	}
	list := make([]*seqOwner, 0, len(v.idle))
	for o := range v.idle {
		if o.busy == 0 {
			list = append(list, o)
		}
	}
	// Half of them at once: the next idleMax/2 new owners need no sort.
	slices.SortFunc(list, func(a, b *seqOwner) int { return cmp.Compare(a.Used, b.Used) })
	for _, o := range list[:(len(list)+1)/2] {
		c.forget(o)
	}
}
