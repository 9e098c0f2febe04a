package state

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Directories in the model: they are delegated, with notifications or without, and changed. It is
// written from RFC 8881 sections 10.9 and 18.39.

// modelDir is a directory that a client has delegated.
type modelDir struct {
	id       Stateid
	notices  uint32
	recalled time.Time // zero: it is not
}

func modelDirFile(n int) lock.File { return testFile(byte(100 + n)) }

// answer has the client of a new session answer a callback.
func answer(x *Session) error {
	a, ok := x.Back.Begin("probe")
	if !ok {
		return errors.New("the backchannel has no slot")
	}
	x.Back.End(&a, Executed)
	return nil
}

// handedOver gives the sessions of a client a connection again, which an upgrade has not got here.
func (m *model) handedOver(c *modelClient) error {
	for _, x := range c.c.sessions {
		m.s.Bind(x, new(path))
		if err := answer(x); err != nil {
			return err
		}
	}
	return nil
}

// delegate is GET_DIR_DELEGATION.
func (m *model) delegate(c *modelClient, a *act, grace, maybeGrace bool) error {
	notices := []uint32{0, DirNotices, NoticeAdd | 1, NoticeAdd | NoticeRemove}[a.off%4]
	got, why := c.c.DelegateDir(m.now, modelDirFile(a.file), notices, Origin{})
	at := m.recalls[a.file]
	refused := grace || c.dirs[a.file] != nil || c.revoked > 0 || !at.IsZero() && m.now.Sub(at) <= 30*time.Second
	switch {
	case refused && why == Given:
		return errors.New("the directory is delegated")
	case refused, maybeGrace && why != Given:
		return nil
	case why != Given:
		return fmt.Errorf("the directory is not delegated: %d", why)
	}
	c.dirs[a.file] = &modelDir{id: got.ID, notices: notices & DirNotices}
	return nil
}

// giveBack is DELEGRETURN.
func (m *model) giveBack(c *modelClient, file int) error {
	d := c.dirs[file]
	if d == nil {
		return nil
	}
	delete(c.dirs, file)
	return one(c.c.ReturnDelegation(d.id, modelDirFile(file)), nfs.OK)
}

// change is a change of entries, by a client or, if a.owner is 1, by another protocol.
func (m *model) change(c *modelClient, a *act) error {
	kinds := []uint32{NoticeAdd, NoticeRemove, NoticeRename}[a.off%3]
	by := c.c
	if a.owner == 1 {
		by, c = nil, nil
	}
	waits, notified := false, []Stateid{}
	gone := []*modelClient{}
	for i := range m.clients {
		x := &m.clients[i]
		d := x.dirs[a.file]
		if d == nil {
			continue
		}
		covered := d.notices&kinds != 0 && d.recalled.IsZero()
		switch {
		case x == c || covered:
		case m.expired(x):
			gone = append(gone, x)
		case !d.recalled.IsZero() && m.now.Sub(d.recalled) > modelLease:
			delete(x.dirs, a.file)
			x.revoked++
		default:
			if d.recalled.IsZero() {
				d.recalled, m.recalls[a.file] = m.now, m.now
			}
			waits = true
		}
		if covered {
			notified = append(notified, d.id)
		}
	}
	dir := modelDirFile(a.file)
	held, ok := m.s.BeginDirChange(m.now, dir, by, kinds)
	if ok == waits {
		return fmt.Errorf("the change may be made: %v", ok)
	}
	if err := m.reconcile(); err != nil {
		return err
	}
	for _, x := range gone {
		if x.c != nil {
			return errors.New("a silent client keeps others from a directory")
		}
	}
	if !ok {
		return nil
	}
	told := []Stateid{}
	for _, r := range m.s.Notified(dir, kinds) {
		told = append(told, r.ID)
	}
	by1 := func(a, b Stateid) int { return slices.Compare(a.Other[:], b.Other[:]) }
	slices.SortFunc(told, by1)
	slices.SortFunc(notified, by1)
	if !slices.Equal(told, notified) {
		return fmt.Errorf("%d clients are notified instead of %d", len(told), len(notified))
	}
	if held {
		for i := range m.clients {
			if x := m.clients[i].c; x != nil {
				if _, why := x.DelegateDir(m.now, dir, 0, Origin{}); why == Given {
					return errors.New("a directory is delegated while it changes")
				}
			}
		}
		m.s.EndChange(dir)
	}
	return nil
}
