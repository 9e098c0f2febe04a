package state

import (
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
)

// TestLists: clients and sessions are listed with what they have, and an evicted client
// is gone with all of it.
func TestLists(t *testing.T) {
	s := New(Config{Boot: 7, Lease: time.Minute})
	now := time.Unix(1000, 0)
	c, sess := join(t, s, now, "alice")
	if _, st := c.Open(now, &Open{Owner: []byte("o"), File: testFile(1), Access: Both}); st != nfs.OK {
		t.Fatal(st)
	}
	list := s.Clients(now.Add(30 * time.Second))
	if len(list) != 1 || list[0].Owner != "alice" || !list[0].Confirmed || list[0].Expired || list[0].Opens != 1 ||
		list[0].Sessions != 1 || !list[0].Renewed.Equal(now) {
		t.Errorf("%+v", list)
	}
	if list = s.Clients(now.Add(2 * time.Minute)); !list[0].Expired {
		t.Errorf("%+v", list)
	}
	if all := s.Sessions(); len(all) != 1 || all[0].Client != c.ID || all[0].Minor != sess.Minor || all[0].Busy != 0 {
		t.Errorf("%+v", all)
	}
	if s.Evict(c.ID + 1) {
		t.Error("a client that was never there was evicted")
	}
	if !s.Evict(c.ID) || s.Evict(c.ID) {
		t.Error("a client is evicted once")
	}
	if n := s.Counts(); n != (Counts{}) || len(s.Clients(now)) != 0 || len(s.Sessions()) != 0 {
		t.Errorf("%+v are left", n)
	}
	other, _ := join(t, s, now, "bob")
	if _, st := other.Open(now, &Open{Owner: []byte("o"), File: testFile(1), Access: Both, Deny: Both}); st != nfs.OK {
		t.Errorf("the evicted client's open stands in the way: %v", st)
	}
}

// TestEndGrace: the period ends at once, and who has not come back cannot reclaim after
// another restart.
func TestEndGrace(t *testing.T) {
	now := time.Unix(1000, 0)
	d := &disk{list: []string{"alice", "bob"}}
	s := New(Config{Boot: 7, Known: d.list, GraceUntil: now.Add(time.Minute), Journal: d})
	if g := s.GraceState(now); !g.On || len(g.Waiting) != 2 || g.Waiting[0] != "alice" ||
		!g.Until.Equal(now.Add(time.Minute)) {
		t.Errorf("%+v", g)
	}
	d.fails = true
	if err := s.EndGrace(now); err == nil || !s.Grace(now) {
		t.Errorf("the period ended without a list: %v", err)
	}
	d.fails = false
	if err := s.EndGrace(now); err != nil || s.Grace(now) || len(d.list) != 0 {
		t.Errorf("%v, %q remembered", err, d.list)
	}
	if g := s.GraceState(now); g.On || len(g.Waiting) != 0 {
		t.Errorf("%+v", g)
	}
}
