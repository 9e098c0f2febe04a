package state

import (
	"errors"
	"fmt"
	"time"

	"github.com/rstored/rstored/nfs"
)

// step has something happen to both.
func (m *model) step(a *act) error {
	c := &m.clients[a.client]
	key := modelKey{a.owner, a.file}
	f := testFile(byte(a.file + 1))
	owner := []byte{byte('a' + a.owner)}
	switch a.kind {
	case "pass":
		m.now = m.now.Add(a.wait)
		return nil
	case "restart":
		if m.started && !m.now.Before(m.until) {
			// Who has not come back in time has nothing left to reclaim, as soon as
			// anybody has asked.
			if m.s.Grace(m.now) {
				return errors.New("grace without end")
			}
			for i := range m.clients {
				m.clients[i].before = nil
			}
		}
		m.boot++
		m.recalls = [modelFiles]time.Time{}
		m.until, m.started = m.now.Add(modelLease), true
		m.s = m.d.boot(m.boot, m.now)
		for i := range m.clients {
			c := &m.clients[i]
			if c.complete {
				c.before = c.opens
			}
			for _, o := range c.before {
				o.reclaimed = false
			}
			c.lost()
		}
		return nil
	case "handover":
		// Now and then the next server comes to nothing, and the one of before goes on.
		s, err := m.d.successor(m.s, m.now)
		if err != nil || !a.exclusive {
			return err
		}
		m.s = s
		for i := range m.clients {
			if c := m.clients[i].c; c != nil {
				if m.clients[i].c = m.s.clients[uint32(c.ID)]; m.clients[i].c == nil {
					return fmt.Errorf("client %#x is not there any more", c.ID)
				}
				if err := m.handedOver(&m.clients[i]); err != nil {
					return err
				}
			}
		}
		return nil
	case "join":
		return m.join(c, a.client, false)
	case "reboot":
		return m.join(c, a.client, true)
	}
	if c.c == nil {
		return nil
	}
	c.c.renew(m.now) // by its SEQUENCE
	c.seen = m.now
	if a.kind == "renew" {
		return nil
	}
	o := c.opens[key]
	grace := m.pending()
	// A server may wait for clients of which the model knows that they have nothing.
	maybeGrace := m.started && m.now.Before(m.until)
	switch a.kind {
	case "delegate":
		return m.delegate(c, a, grace, maybeGrace)
	case "return":
		return m.giveBack(c, a.file)
	case "change":
		return m.change(c, a)
	case "complete":
		st := c.c.ReclaimComplete()
		if c.complete {
			return one(st, nfs.ErrCompleteAlready)
		}
		c.complete, c.before = true, nil
		return one(st, nfs.OK)
	case "open", "reclaim":
		access, deny := a.access, a.deny
		reclaim := a.kind == "reclaim"
		was := c.before[key]
		if reclaim && !c.complete { // else it is refused
			if was == nil || was.reclaimed && o == nil {
				return nil // a client reclaims what it had, once
			}
			access, deny = was.access, was.deny
		}
		live, silent := m.standing(c, key.file, access, deny)
		got, st := c.c.Open(m.now, &Open{Owner: owner, File: f, Access: access, Deny: deny, Reclaim: reclaim})
		switch {
		case reclaim && (c.complete || !m.now.Before(m.until)):
			return one(st, nfs.ErrNoGrace)
		case reclaim && live:
			return one(st, nfs.ErrReclaimConflict)
		case !reclaim && (!c.complete || grace):
			return one(st, nfs.ErrGrace)
		case !reclaim && maybeGrace && st == nfs.ErrGrace:
			return nil
		case live:
			return one(st, nfs.ErrShareDenied)
		}
		if err := one(st, nfs.OK); err != nil {
			return err
		}
		if silent {
			if err := m.reconcile(); err != nil {
				return err
			}
			if still, there := m.standing(c, key.file, access, deny); still || there {
				return errors.New("both have it")
			}
		}
		if o == nil {
			o = &modelOpen{accessed: make(map[uint32]bool), deni: make(map[uint32]bool)}
			c.opens[key] = o
		}
		if o.access != 0 && got.ID.Seq != o.id.Seq+1 {
			return fmt.Errorf("stateid %v after %v", got.ID, o.id)
		}
		o.access, o.deny, o.id = o.access|access, o.deny|deny, got.ID
		o.accessed[access], o.deni[deny] = true, true
		if !reclaim {
			return nil
		}
		// What was locked comes with it.
		was.reclaimed = true
		for b, kind := range was.bytes {
			if kind == 0 {
				continue
			}
			id, _, st := c.c.Lock(m.now, &Lock{
				ByOpen: true, ID: got.ID, Owner: owner, File: f, Range: Range{uint64(b), 1},
				Exclusive: kind == 2, Reclaim: true,
			})
			if err := one(st, nfs.OK); err != nil {
				return fmt.Errorf("byte %d: %w", b, err)
			}
			o.bytes[b], o.lockID, o.locked = kind, id, true
		}
		return nil
	case "lock":
		if o == nil {
			return nil
		}
		live, silent := m.inTheWay(c, a)
		l := Lock{
			ByOpen: !o.locked, ID: o.id, Owner: owner, File: f, Range: Range{uint64(a.off), uint64(a.n)},
			Exclusive: a.exclusive,
		}
		if o.locked {
			l.ID = o.lockID
		}
		id, _, st := c.c.Lock(m.now, &l)
		mode := uint32(Read)
		if a.exclusive {
			mode = Write
		}
		switch {
		case !c.complete || grace:
			return one(st, nfs.ErrGrace)
		case maybeGrace && st == nfs.ErrGrace:
			return nil
		case o.access&mode == 0:
			return one(st, nfs.ErrOpenMode)
		case live:
			if err := one(st, nfs.ErrDenied); err != nil {
				return err
			}
			return m.reconcile()
		}
		if err := one(st, nfs.OK); err != nil {
			return err
		}
		if silent {
			if err := m.reconcile(); err != nil {
				return err
			}
			if still, there := m.inTheWay(c, a); still || there {
				return errors.New("both have it")
			}
		}
		if o.locked && id.Seq != o.lockID.Seq+1 {
			return fmt.Errorf("stateid %v after %v", id, o.lockID)
		}
		o.lockID, o.locked = id, true
		for b := a.off; b < a.off+a.n; b++ {
			if o.bytes[b] = 1; a.exclusive {
				o.bytes[b] = 2
			}
		}
	case "unlock":
		if o == nil || !o.locked {
			return nil
		}
		id, st := c.c.Unlock(&Lock{ID: o.lockID, File: f, Range: Range{uint64(a.off), uint64(a.n)}})
		if err := one(st, nfs.OK); err != nil {
			return err
		}
		o.lockID = id
		clear(o.bytes[a.off : a.off+a.n])
	case "test":
		live, silent := m.inTheWay(c, a)
		_, st := c.c.TestLock(m.now, &Lock{
			Owner: owner, File: f, Range: Range{uint64(a.off), uint64(a.n)},
			Exclusive: a.exclusive,
		})
		switch {
		case grace:
			return one(st, nfs.ErrGrace)
		case maybeGrace && st == nfs.ErrGrace:
			return nil
		case live:
			if err := one(st, nfs.ErrDenied); err != nil {
				return err
			}
		default:
			if err := one(st, nfs.OK); err != nil {
				return err
			}
		}
		if silent {
			return m.reconcile()
		}
	case "downgrade":
		if o == nil {
			return nil
		}
		fits := func(set map[uint32]bool, want uint32) bool {
			var u uint32
			for mode := range set {
				if mode&^want == 0 {
					u |= mode
				}
			}
			return u == want
		}
		id, st := c.c.Downgrade(o.id, f, a.access, a.deny)
		if !fits(o.accessed, a.access) || !fits(o.deni, a.deny) {
			return one(st, nfs.ErrInval)
		}
		if err := one(st, nfs.OK); err != nil {
			return err
		}
		o.id, o.access, o.deny = id, a.access, a.deny
		for mode := range uint32(4) {
			if mode&^a.access != 0 {
				delete(o.accessed, mode)
			}
			if mode&^a.deny != 0 {
				delete(o.deni, mode)
			}
		}
	case "close":
		if o == nil {
			return nil
		}
		if err := one(c.c.Close(o.id, f), nfs.OK); err != nil {
			return err
		}
		delete(c.opens, key)
	case "io":
		write := a.exclusive
		if o == nil {
			mode := uint32(Read)
			if write {
				mode = Write
			}
			live, silent := m.standing(c, a.file, mode, 0)
			st := c.c.IO(m.now, Anonymous, f, write)
			switch {
			case grace:
				return one(st, nfs.ErrGrace)
			case maybeGrace && st == nfs.ErrGrace:
				return nil
			case live:
				return one(st, nfs.ErrLocked)
			}
			if err := one(st, nfs.OK); err != nil {
				return err
			}
			if silent {
				return m.reconcile()
			}
			return nil
		}
		st := c.c.IO(m.now, o.id, f, write)
		if write && o.access&Write == 0 {
			return one(st, nfs.ErrOpenMode)
		}
		return one(st, nfs.OK)
	}
	return nil
}
