package state

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

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
