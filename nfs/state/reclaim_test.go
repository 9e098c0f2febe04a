package state

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
)

// TestManyReclaim: many clients of versions 4.1 and 4.0 come back after a restart. Those that had
// opens are remembered, and each gets all of them back, in whatever order they come. Those that had
// none are not: they are refused no reclaim that they could have asked for, may do what changes no
// state, and open files as soon as everybody is done.
func TestManyReclaim(t *testing.T) {
	for _, n := range []int{100, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { manyReclaim(t, n, false) })
		t.Run(fmt.Sprint(n, " and of version 4.0"), func(t *testing.T) { manyReclaim(t, n, true) })
	}
}

// manyReclaim has a third of n clients without an open; of the others each has files of its own,
// and one that all share. Every other one is of version 4.0, if there are any.
func manyReclaim(t *testing.T, n int, with40 bool) {
	now := begin
	var d disk
	s := d.boot(7, now)
	owner := func(i int) string { return fmt.Sprintf("client %04d", i) }
	is40 := func(i int) bool { return with40 && i%2 == 1 }
	has := func(i int) bool { return i%3 != 0 }
	come := func(i int) *Client {
		if !is40(i) {
			return arrive(t, s, now, owner(i))
		}
		set, st := s.SetClientID(now, &SetClientID{Owner: []byte(owner(i)), Verifier: verifier(1), Principal: root})
		if st != nfs.OK {
			t.Fatal(st)
		}
		c, _, st := s.ConfirmClientID(now, set.Client, set.Confirm, root)
		if st != nfs.OK {
			t.Fatal(st)
		}
		return c
	}
	complete := func(i int, c *Client) {
		if is40(i) {
			return
		}
		if st := c.ReclaimComplete(); st != nfs.OK {
			t.Fatalf("%s: RECLAIM_COMPLETE: %v", owner(i), st)
		}
	}
	open := func(c *Client, i, file int, reclaim bool) (Stateid, nfs.Status) {
		f := fileA
		if file > 0 {
			f.Handle.B[1], f.Handle.B[2], f.Handle.B[3] = byte(i>>8), byte(i), byte(file)
		}
		got, st := c.Open(now, &Open{Owner: []byte("p"), File: f, Access: Both, Reclaim: reclaim})
		return got.ID, st
	}
	for i := range n {
		c := come(i)
		complete(i, c)
		for file := range 3 {
			if !has(i) {
				continue
			}
			if _, st := open(c, i, file, false); st != nfs.OK {
				t.Fatal(owner(i), st)
			}
		}
	}
	var want []string
	for i := range n {
		if has(i) {
			want = append(want, owner(i))
		}
	}
	if !slices.Equal(d.list, want) {
		t.Fatalf("%d clients are remembered of %d that had something", len(d.list), len(want))
	}

	s = d.boot(8, now)
	clients := make([]*Client, n)
	for j := range n {
		i := j * 7 % n // in another order
		c := come(i)
		clients[i] = c
		if _, st := open(c, i, 1, false); st != nfs.ErrGrace {
			t.Fatalf("%s opens something new: %v", owner(i), st)
		}
		if !has(i) {
			if _, st := open(c, i, 1, true); st != nfs.ErrNoGrace {
				t.Fatalf("%s reclaims what it did not have: %v", owner(i), st)
			}
			complete(i, c)
			continue
		}
		for file := range 3 { // as the operations of one compound
			if _, st := open(c, i, file, true); st != nfs.OK {
				t.Fatalf("%s reclaims: %v", owner(i), st)
			}
		}
	}
	for i, c := range clients {
		if has(i) {
			if !s.Grace(now) {
				t.Fatalf("the grace period is over before %s is done", owner(i))
			}
			complete(i, c)
		}
	}
	if s.Grace(now) != with40 { // a client of version 4.0 does not say that it is done
		t.Errorf("the grace period: %v", !with40)
	}
	if with40 {
		now = now.Add(90 * time.Second)
	}
	for i, c := range clients {
		c.renew(now) // a SEQUENCE, or a RENEW
		if _, st := open(c, i, 9, false); st != nfs.OK {
			t.Fatalf("%s opens something new after the grace period: %v", owner(i), st)
		}
		if !is40(i) {
			if _, st := open(c, i, 1, true); st != nfs.ErrNoGrace {
				t.Fatalf("%s reclaims after the grace period: %v", owner(i), st)
			}
		}
	}
	opens := n
	for i := range n {
		if has(i) {
			opens += 3
		}
	}
	if got := s.Counts(); got.Clients != n || got.Opens != opens {
		t.Errorf("%+v, not %d opens", got, opens)
	}
	if len(d.list) != n {
		t.Errorf("%d clients are remembered of %d", len(d.list), n)
	}
}
