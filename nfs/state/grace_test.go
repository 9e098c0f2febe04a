package state

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
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

// TestEdgeConditions are the two of RFC 7530 section 9.6.3.4: a client that was away
// must not reclaim what somebody else had meanwhile.
func TestEdgeConditions(t *testing.T) {
	late := begin.Add(91 * time.Second)
	t.Run("lost by silence", func(t *testing.T) {
		var d disk
		s := d.boot(7, begin)
		a := arrive(t, s, begin, "a")
		_ = a.ReclaimComplete()
		hold(t, a, begin, false)
		b := arrive(t, s, late, "b")
		_ = b.ReclaimComplete()
		hold(t, b, late, false) // takes it from a
		if !slices.Equal(d.list, []string{"b"}) {
			t.Errorf("%q", d.list)
		}
		s = d.boot(8, late)
		if _, st := tryOpen(arrive(t, s, late, "a"), late, true, 0); st != nfs.ErrNoGrace {
			t.Errorf("a reclaims: %v", st)
		}
	})
	t.Run("lost by silence, and that cannot be written down", func(t *testing.T) {
		var d disk
		s := d.boot(7, begin)
		a := arrive(t, s, begin, "a")
		_ = a.ReclaimComplete()
		got, _ := tryOpen(a, begin, false, 0)
		if st := tryLock(a, begin, got.ID, false); st != nfs.OK {
			t.Fatal(st)
		}
		b := arrive(t, s, late, "b")
		_ = b.ReclaimComplete()
		if _, st := b.Open(late, &Open{Owner: []byte("p"), File: fileB, Access: Both}); st != nfs.OK {
			t.Fatal(st)
		}
		d.fails = true
		const wait = nfs.ErrJukebox
		if _, st := tryOpen(b, late, false, Both); st != wait {
			t.Errorf("OPEN: %v", st)
		}
		if st := s.Reserve(late, fileA, lock.Owner{Client: "10.0.0.1 host", ID: "x"}, netip.Addr{}, Read, Both); st != wait {
			t.Errorf("SHARE: %v", st)
		}
		mine, st := tryOpen(b, late, false, 0)
		if st != nfs.OK {
			t.Fatal(st)
		}
		if st := tryLock(b, late, mine.ID, false); st != wait {
			t.Errorf("LOCK: %v", st)
		}
		if _, st := b.TestLock(late, &Lock{
			Owner: []byte("l"), File: fileA, Range: Range{0, 1},
			Exclusive: true,
		}); st != wait {
			t.Errorf("LOCKT: %v", st)
		}
		if s.EndExpired(late, a.name) {
			t.Error("a lock of version 3 took its place")
		}
		if n := s.Counts(); n.Clients != 2 || n.Locks != 1 || !slices.Equal(d.list, []string{"a", "b"}) {
			t.Errorf("%+v, %q", n, d.list)
		}
		d.fails = false
		if st := tryLock(b, late, mine.ID, false); st != nfs.OK || !slices.Equal(d.list, []string{"b"}) {
			t.Errorf("LOCK: %v, %q", st, d.list)
		}
	})
	t.Run("lost by a grace period", func(t *testing.T) {
		var d disk
		s := d.boot(7, begin)
		a := arrive(t, s, begin, "a")
		_ = a.ReclaimComplete()
		hold(t, a, begin, false)
		s = d.boot(8, begin)
		b := arrive(t, s, late, "b") // a did not come back
		_ = b.ReclaimComplete()
		d.fails = true
		if _, st := tryOpen(b, late, false, 0); st != nfs.ErrGrace {
			t.Errorf("new state, though a could reclaim after a restart: %v", st)
		}
		d.fails = false
		hold(t, b, late, false)
		s = d.boot(9, late)
		if _, st := tryOpen(arrive(t, s, late, "a"), late, true, 0); st != nfs.ErrNoGrace {
			t.Errorf("a reclaims: %v", st)
		}
		c := arrive(t, s, late, "b")
		hold(t, c, late, true)
	})
	t.Run("reclaimed in part", func(t *testing.T) {
		for _, later := range []bool{false, true} {
			var d disk
			s := d.boot(7, begin)
			open := func(c *Client, f lock.File, now time.Time, reclaim bool, want nfs.Status) {
				t.Helper()
				if _, st := c.Open(now, &Open{
					Owner: []byte("p"), File: f, Access: Both, Deny: Both,
					Reclaim: reclaim,
				}); st != want {
					t.Fatalf("OPEN: %v, not %v", st, want)
				}
			}
			a := arrive(t, s, begin, "a")
			_ = a.ReclaimComplete()
			open(a, fileA, begin, false, nfs.OK)
			open(a, fileB, begin, false, nfs.OK)
			s = d.boot(8, begin)
			a = arrive(t, s, begin, "a")
			open(a, fileA, begin, true, nfs.OK)
			a.renew(late)
			b := arrive(t, s, late, "b")
			_ = b.ReclaimComplete()
			open(b, fileB, late, false, nfs.OK)
			if later { // it has noticed what it has lost
				d.fails = true
				if st := a.ReclaimComplete(); st != nfs.ErrJukebox {
					t.Errorf("RECLAIM_COMPLETE of what would be lost: %v", st)
				}
				d.fails = false
				if st := a.ReclaimComplete(); st != nfs.OK {
					t.Error(st)
				}
			}
			if want := map[bool][]string{false: {"b"}, true: {"a", "b"}}[later]; !slices.Equal(d.list, want) {
				t.Errorf("%q instead of %q", d.list, want)
			}
			s = d.boot(9, late)
			a = arrive(t, s, late, "a")
			if later {
				open(a, fileA, late, true, nfs.OK)
			} else {
				open(a, fileB, late, true, nfs.ErrNoGrace)
			}
		}
	})
	t.Run("killed within the grace period", func(t *testing.T) {
		var d disk
		s := d.boot(7, begin)
		for _, owner := range []string{"a", "b"} {
			c := arrive(t, s, begin, owner)
			_ = c.ReclaimComplete()
			if _, st := tryOpen(c, begin, false, 0); st != nfs.OK {
				t.Fatal(st)
			}
		}
		s = d.boot(8, begin)
		a := arrive(t, s, begin, "a")
		if _, st := tryOpen(a, begin, true, 0); st != nfs.OK {
			t.Fatal(st)
		}
		_ = a.ReclaimComplete()
		s = d.boot(9, begin) // before b came
		for _, owner := range []string{"a", "b"} {
			if _, st := tryOpen(arrive(t, s, begin, owner), begin, true, 0); st != nfs.OK {
				t.Errorf("%s: %v", owner, st)
			}
		}
	})
	t.Run("not remembered", func(t *testing.T) {
		d := disk{fails: true}
		s := d.boot(7, begin)
		a := arrive(t, s, begin, "a")
		_ = a.ReclaimComplete()
		if _, st := tryOpen(a, begin, false, 0); st != nfs.ErrJukebox {
			t.Errorf("state that would be lost: %v", st)
		}
		d.fails = false
		if _, st := tryOpen(a, begin, false, 0); st != nfs.OK || !slices.Equal(d.list, []string{"a"}) {
			t.Errorf("%v, %q", st, d.list)
		}
	})
}

// TestAnotherStartIsRemembered: the end of a client's record does not have another start of it
// forgotten, which has opened something meanwhile, and a start without an open is forgotten like
// any other.
func TestAnotherStartIsRemembered(t *testing.T) {
	var d disk
	s := d.boot(7, begin)
	before := arrive(t, s, begin, "a")
	_ = before.ReclaimComplete()
	if _, st := tryOpen(before, begin, false, 0); st != nfs.OK {
		t.Fatal(st)
	}
	s.mu.Lock() // as remove has it: gone from the tables, and from the list in a moment
	delete(s.clients, uint32(before.ID))
	delete(s.owners, before.owner)
	s.mu.Unlock()
	now := arrive(t, s, begin, "a")
	_ = now.ReclaimComplete()
	if _, st := tryOpen(now, begin, false, 0); st != nfs.OK {
		t.Fatal(st)
	}
	before.delist()
	if !slices.Equal(d.list, []string{"a"}) {
		t.Errorf("%q", d.list)
	}
	got, _ := s.ExchangeID(begin, &ExchangeID{Owner: []byte("a"), Verifier: verifier(2), Principal: root})
	if _, st := s.CreateSession(begin,
		&CreateSession{Client: got.Client, Sequence: got.Sequence, Principal: root, Fore: channel}); st != nfs.OK {
		t.Fatal(st)
	}
	if !slices.Equal(d.list, []string{"a"}) {
		t.Errorf("%q", d.list)
	}
	if s.Evict(got.Client); len(d.list) != 0 {
		t.Errorf("%q", d.list)
	}
}
