package state

import (
	"errors"

	"github.com/rstored/rstored/nfs/lock"
)

// Each function of this file restores one kind of state. gob has not written the links of a state:
// c, by, open, and the entries in the maps of client and shard. They are made here. A function
// rejects only what Snapshot cannot have written.

// enter gives a state the number that it had, and charges its memory. The number is the last part
// of the stateid: two states with one number would have one stateid, and 0 is never given out.
func (c *Client) enter(num uint32, f lock.File, what any) error {
	if num == 0 || c.states[num] != nil || f.Handle.Len == 0 {
		return damaged("state number %d twice, or without a file", num)
	}
	c.states[num] = what
	c.charge(costOf(what))
	return nil
}

// open takes over an open with its lock stateids, as gob has made them.
//
// Pinned survives only if this process can unpin. Access and deny bits beyond Both have no meaning
// and are cut off.
func (r *restorer) open(c *Client, o *open) error {
	if c.opens[o.Key] != nil {
		return damaged("an open twice")
	}
	if err := c.enter(o.Num, o.Key.File, o); err != nil {
		return err
	}
	o.c, o.Pinned = c, o.Pinned && r.s.cfg.Unpin != nil
	o.Share.Access, o.Share.Deny = o.Share.Access&Both, o.Share.Deny&Both
	if c.v40 != nil {
		by := c.v40.openOwners[o.Key.Owner]
		if by == nil || by.trial != nil { // OPEN_CONFIRM confirms one open, see seqOwner
			return damaged("an open without its owner, or a second one of an unconfirmed owner")
		}
		c.openedBy(o, by)
	}
	c.opens[o.Key] = o
	// The reservation is entered without a check for conflicts: the old process has made that check.
	sh := r.s.shardOfFile(o.Key.File)
	sh.m[o.Key.File] = append(sh.m[o.Key.File], o)
	r.s.shares.changed(0, o.Share.Deny)
	// The ranges of a lock stateid are in the lock table already. l.Any came with the snapshot.
	for _, l := range o.Locks {
		if l.Key.File != o.Key.File || c.locks[l.Key] != nil {
			return damaged("a lock stateid of another file, or twice")
		}
		if err := c.enter(l.Num, l.Key.File, l); err != nil {
			return err
		}
		l.c, l.open = c, o
		if c.v40 != nil {
			by := c.v40.lockOwners[l.Key.Owner]
			if by == nil {
				return damaged("a lock stateid without its owner")
			}
			c.lockedBy(l, by)
		}
		c.locks[l.Key] = l
	}
	return nil
}

// deleg restores a delegation. Of a revoked one only the stateid is left, which waits for
// FREE_STATEID.
//
// A CB_RECALL that was in flight in the old process is not in flight here: calling is false. back
// finds the request in a slot of the session, and it is sent again from there. In version 4.0 there
// is no such slot: the next conflicting request sends CB_RECALL again. The time until the
// revocation goes on.
//
// The lease of the host's kernel belonged to a descriptor of the old process, so it is taken again.
// If that fails the delegation stays, but programs of the host no longer cause a recall. Nobody has
// seen what programs of the host did to a directory meanwhile. So RestoreFuncs.Leased notes that
// the delegation of a directory has to be recalled.
func (r *restorer) deleg(c *Client, x savedDeleg) error {
	s := r.s
	d := &deleg{c: c, delegRecord: x.Record}
	d.Given, d.Last, d.Pinned = r.shift(d.Given), r.shift(d.Last), d.Pinned && s.cfg.Unpin != nil
	d.until.Store(r.shift(x.Until))
	if err := c.enter(d.Num, d.File, d); err != nil {
		return err
	}
	if d.Revoked {
		c.revoked++
		c.anyRevoked.Store(true)
		return nil
	}
	sh := s.shardOfFile(d.File)
	for _, o := range sh.deleg.m[d.File] {
		if o.c == c || o.Write || d.Write || o.Dir != d.Dir {
			return damaged("two delegations that exclude each other")
		}
	}
	c.addDeleg(sh, d)
	if x.Leased && r.funcs.Leased != nil {
		d.leave = r.funcs.Leased(d.File, d.Write, d.Dir)
	}
	return nil
}

// session restores a session with its reply cache. The cache must survive: a client that resends a
// request over the upgrade gets the cached reply, and a second execution of a REMOVE or RENAME
// would answer an error (RFC 8881 section 2.10.6.1). No slot is busy, see Snapshot.
//
// x.Slots has the slots that were used, from slot 0 on. Fore is what CREATE_SESSION granted, and is
// charged in full.
func (r *restorer) session(c *Client, x savedSession) error {
	s := &Session{ID: x.ID, Client: c, Minor: x.Minor, Fore: x.Fore, slots: x.Slots}
	if r.s.Session(s.ID) != nil || x.Fore.MaxSlots > savedSlotsMax || len(x.Slots) > int(x.Fore.MaxSlots) {
		return damaged("a session twice, or with %d slots", len(x.Slots))
	}
	for i := range x.Slots {
		if n := len(x.Slots[i].Reply); n > savedReplyMax {
			return damaged("a reply of %d bytes", n)
		}
	}
	if len(x.Conns) > connsMax {
		return damaged("a session of %d connections", len(x.Conns))
	}
	if c.protected != nil {
		s.conns.Store(&x.Conns)
	}
	if x.Back != nil {
		var err error
		if s.Back, err = r.back(c, x.Back); err != nil {
			return err
		}
	}
	c.sessions[s.ID] = s
	c.charge(s.Fore.cost())
	r.s.shardOf(s.ID).m[s.ID] = s
	return nil
}

// back restores a backchannel. Connections that the successor did not get are left out. If none is
// left, the client binds one again after the flag of SEQUENCE (BIND_CONN_TO_SESSION), and is not
// proven before it answers.
//
//	old process   here   request
//	free          free   none
//	busy, lost    lost   sent again with the same slot and sequence number, before any other
//	dead          dead   none: the sequence numbers of client and server differ
//
// The number of slots must be that of NewBackchannel. A build with another backSlotsMax therefore
// fails to restore sessions that have more slots, or were granted more.
func (r *restorer) back(c *Client, x *savedBack) (*Backchannel, error) {
	b := NewBackchannel(x.Attr, x.Program, x.Cred)
	if len(x.Slots) != len(b.slots) || len(x.Paths) > pathsMax {
		return nil, damaged("a backchannel of %d slots and %d connections", len(x.Slots), len(x.Paths))
	}
	if r.funcs.Connection != nil {
		for _, id := range x.Paths {
			if p := r.funcs.Connection(id); p != nil {
				b.paths = append(b.paths, p)
			}
		}
	}
	b.had, b.fault, b.proven = x.Had, x.Fault, x.Proven && len(b.paths) > 0
	for i, y := range x.Slots {
		k := &b.slots[i]
		k.seq = y.Seq
		switch {
		case y.Dead:
			k.state = backDead
		case y.Lost != nil:
			if r.funcs.Callback == nil {
				return nil, damaged("a callback that nobody can make")
			}
			// The delegation may have been returned while its CB_RECALL was in flight. The callback is
			// sent all the same, as the slot's sequence number belongs to it.
			var recall *Recall
			if d, ok := c.states[y.Lost.Recall].(*deleg); ok && !d.Revoked {
				recall = new(Recall)
				*recall = d.recall()
			}
			k.state, k.what = backLost, r.funcs.Callback(y.Lost, recall)
		}
	}
	return b, nil
}

// offload restores a copy that goes on after its reply. RestoreFuncs.Copy owns it from then on and
// calls Drop. A copy that had ended has its status again, and Copy has only CB_OFFLOAD left to
// send. Nobody else would drop the stateid, so a process that cannot continue copies refuses the
// snapshot.
func (r *restorer) offload(c *Client, x savedOffload) error {
	o := newOffload(c, x.File, x.Origin)
	o.num = x.Num
	o.copied.Store(x.Copied)
	if err := c.enter(o.num, o.File, o); err != nil {
		return err
	}
	c.addOffload(o)
	r.s.offloads.Add(1)
	if x.Done {
		o.Finish(x.Status)
	}
	if r.funcs.Copy == nil {
		return errors.New("a copy cannot go on here")
	}
	return r.funcs.Copy(o, x.What)
}

// v40 restores what a client of version 4.0 has, except its opens. They refer to its owners, and
// are restored later.
//
// The connection for callbacks is not handed over. The path gets a new one to the same address and
// keeps its state, so a client that has answered the old process is called without another CB_NULL.
// The address was checked when the client sent it (Callback.To).
//
// closed keeps the stateid whose CLOSE was the last request of its owner, so that the client can
// send the CLOSE again (RFC 7530 section 9.10.1).
func (r *restorer) v40(c *Client, x *savedV40) error {
	if x.V40 == nil {
		return damaged("a client of version 4.0 without its record")
	}
	v := x.V40
	v.init()
	v.Reaped = r.shift(v.Reaped)
	c.v40 = v
	if p := x.Path; p != nil && r.funcs.Connect != nil && p.Callback.To.IsValid() && p.State <= pathDown {
		v.path = &Path{
			Callback: p.Callback, Caller: r.funcs.Connect(&p.Callback), state: p.State, probedAt: r.shiftTime(p.ProbedAt),
		}
	}
	for _, o := range x.OpenOwners {
		if v.openOwners[o.Name] != nil {
			return damaged("an open-owner twice")
		}
		o.Used = r.shift(o.Used)
		c.addOpenOwner(o)
		if o.Closed != 0 {
			if v.closed[o.Closed] != nil {
				return damaged("two owners closed one stateid last")
			}
			v.closed[o.Closed] = o
		}
	}
	for _, o := range x.LockOwners {
		if v.lockOwners[o.Name] != nil {
			return damaged("a lock-owner twice")
		}
		o.Used = r.shift(o.Used)
		c.addLockOwner(o)
	}
	return nil
}

// lockOwnersUsed checks, once the opens are restored, that each lock-owner has a lock stateid. An
// owner ends with its last one. Without any it would never end.
func lockOwnersUsed(c *Client) error {
	if c.v40 == nil {
		return nil
	}
	for _, o := range c.v40.lockOwners {
		if o.uses == 0 {
			return damaged("a lock-owner without a lock stateid")
		}
	}
	return nil
}
