package state

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
)

// disk is what outlives a server.
type disk struct {
	list  []string
	fails bool
	saves int
}

// Add implements Journal.
func (d *disk) Add(owner string) error {
	return d.save(func() {
		if !slices.Contains(d.list, owner) {
			d.list = append(slices.Clone(d.list), owner)
			slices.Sort(d.list)
		}
	})
}

// Remove implements Journal.
func (d *disk) Remove(owners ...string) error {
	return d.save(func() {
		d.list = slices.DeleteFunc(slices.Clone(d.list), func(o string) bool { return slices.Contains(owners, o) })
	})
}

func (d *disk) save(change func()) error {
	if d.fails {
		return errors.New("as the test wants it")
	}
	d.saves++
	change()
	return nil
}

func (d *disk) boot(n uint32, now time.Time) *Server {
	return New(Config{Boot: n, Known: d.list, GraceUntil: now.Add(90 * time.Second), Journal: d})
}

// arrive makes a client with a session that has not yet said RECLAIM_COMPLETE.
func arrive(t *testing.T, s *Server, now time.Time, owner string) *Client {
	t.Helper()
	got, st := s.ExchangeID(now, &ExchangeID{Owner: []byte(owner), Verifier: verifier(1), Principal: root})
	if st != nfs.OK {
		t.Fatal(st)
	}
	if _, st := s.CreateSession(now,
		&CreateSession{Client: got.Client, Sequence: got.Sequence, Principal: root, Fore: channel}); st != nfs.OK {
		t.Fatal(st)
	}
	c, _ := s.Client(got.Client)
	return c
}

func tryOpen(c *Client, now time.Time, reclaim bool, deny uint32) (Opened, nfs.Status) {
	return c.Open(now, &Open{Owner: []byte("p"), File: fileA, Access: Both, Deny: deny, Reclaim: reclaim})
}

func tryLock(c *Client, now time.Time, id Stateid, reclaim bool) nfs.Status {
	_, _, st := c.Lock(now, &Lock{
		ByOpen: true, ID: id, Owner: []byte("l"), File: fileA, Range: Range{0, 10},
		Exclusive: true, Reclaim: reclaim,
	})
	return st
}

// hold has a client open fileA and lock it.
func hold(t *testing.T, c *Client, now time.Time, reclaim bool) {
	t.Helper()
	got, st := tryOpen(c, now, reclaim, 0)
	if st != nfs.OK {
		t.Fatal(st)
	}
	if st := tryLock(c, now, got.ID, reclaim); st != nfs.OK {
		t.Fatal(st)
	}
}

func TestReclaim(t *testing.T) {
	var d disk
	s := d.boot(7, begin)
	for _, owner := range []string{"one", "two", "idle"} {
		c := arrive(t, s, begin, owner)
		if st := c.ReclaimComplete(); st != nfs.OK {
			t.Fatal(st)
		}
		if _, st := tryOpen(c, begin, true, 0); st != nfs.ErrNoGrace {
			t.Errorf("a reclaim where there is nothing: %v", st)
		}
		if owner == "one" {
			hold(t, c, begin, false)
		}
		if owner == "two" {
			if _, st := tryOpen(c, begin, false, 0); st != nfs.OK {
				t.Fatal(st)
			}
			if _, st := tryOpen(c, begin, false, 0); st != nfs.OK {
				t.Fatal(st)
			}
		}
	}
	if !slices.Equal(d.list, []string{"one", "two"}) || d.saves != 2 {
		t.Errorf("%q, saved %d times", d.list, d.saves)
	}

	s = d.boot(8, begin)
	one, two, other := arrive(t, s, begin, "one"), arrive(t, s, begin, "two"), arrive(t, s, begin, "other")
	if st := other.ReclaimComplete(); st != nfs.OK {
		t.Error(st)
	}
	if _, st := tryOpen(other, begin, false, 0); st != nfs.ErrGrace {
		t.Errorf("a new open: %v", st)
	}
	if _, st := tryOpen(other, begin, true, 0); st != nfs.ErrNoGrace {
		t.Errorf("a reclaim by one who had nothing: %v", st)
	}
	if st := other.IO(begin, Anonymous, fileA, true); st != nfs.ErrGrace {
		t.Errorf("WRITE without an open: %v", st)
	}
	if _, st := tryOpen(one, begin, false, 0); st != nfs.ErrGrace {
		t.Errorf("a new open before RECLAIM_COMPLETE: %v", st)
	}
	got, st := tryOpen(one, begin, true, 0)
	if st != nfs.OK {
		t.Fatal(st)
	}
	if st := tryLock(one, begin, got.ID, false); st != nfs.ErrGrace {
		t.Errorf("a new lock: %v", st)
	}
	if st := tryLock(one, begin, got.ID, true); st != nfs.OK {
		t.Errorf("the lock: %v", st)
	}
	if _, st := tryOpen(two, begin, true, Write); st != nfs.ErrReclaimConflict {
		t.Errorf("an open that cannot have been there: %v", st)
	}
	his, st := tryOpen(two, begin, true, 0)
	if st != nfs.OK {
		t.Fatal(st)
	}
	if st := tryLock(two, begin, his.ID, true); st != nfs.ErrReclaimConflict {
		t.Errorf("a lock that cannot have been there: %v", st)
	}
	if st := one.ReclaimComplete(); st != nfs.OK {
		t.Error(st)
	}
	if _, st := tryOpen(one, begin, true, 0); st != nfs.ErrNoGrace {
		t.Errorf("a reclaim after RECLAIM_COMPLETE: %v", st)
	}
	if _, st := tryOpen(one, begin, false, 0); st != nfs.ErrGrace {
		t.Errorf("a new open while others may reclaim: %v", st)
	}
	// The last one ends the grace period early.
	if st := two.ReclaimComplete(); st != nfs.OK {
		t.Error(st)
	}
	if s.Grace(begin) || s.GracePending() {
		t.Error("the grace period goes on without anybody to wait for")
	}
	if st := tryLock(two, begin, his.ID, false); st != nfs.ErrDenied {
		t.Errorf("the lock of the other: %v", st)
	}
	if _, st := tryOpen(other, begin, false, 0); st != nfs.OK {
		t.Errorf("a new open: %v", st)
	}
	if !slices.Equal(d.list, []string{"one", "other", "two"}) {
		t.Errorf("%q", d.list)
	}
	// Who leaves in order is not waited for.
	for _, c := range []*Client{one, two, other} {
		c.mu.Lock()
		for id := range c.sessions {
			delete(c.sessions, id)
		}
		for _, o := range c.opens {
			c.dropOpen(o)
		}
		c.mu.Unlock()
		if st := s.DestroyClient(c.ID, &By{Principal: root}); st != nfs.OK {
			t.Error(st)
		}
	}
	if len(d.list) != 0 || d.boot(9, begin).Grace(begin) {
		t.Errorf("%q", d.list)
	}
}
