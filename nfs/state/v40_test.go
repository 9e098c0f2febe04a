package state

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// client40 makes a confirmed client of version 4.0.
func client40(t testing.TB, s *Server, now time.Time, owner string) *Client {
	t.Helper()
	p := root
	got, st := s.SetClientID(now, &SetClientID{Owner: []byte(owner), Verifier: Verifier{1}, Principal: p})
	if st != nfs.OK {
		t.Fatal(st)
	}
	c, news, st := s.ConfirmClientID(now, got.Client, got.Confirm, p)
	if st != nfs.OK || !news {
		t.Fatal(st, news)
	}
	return c
}

// opens40 is an OPEN in a turn of its own.
func opens40(t testing.TB, c *Client, now time.Time, owner string, seq uint32, f lock.File) Opened {
	t.Helper()
	turn, r, st := c.BeginOpen(now, []byte(owner), seq, uint64(seq)+1, false)
	if st != nfs.OK || r != nil {
		t.Fatal(st, r)
	}
	o, st := c.Open(now, &Open{Owner: []byte(owner), File: f, Access: Read, Turn: turn})
	turn.End(&Answer{Status: st})
	if st != nfs.OK {
		t.Fatal(st)
	}
	return o
}

// in executes something in a turn of a stateid's owner.
func in(t testing.TB, c *Client, now time.Time, id Stateid, kind Kind, seq uint32, do func(turn *Turn) nfs.Status) {
	t.Helper()
	turn, r, st := c.BeginState(now, id, kind, seq, uint64(seq)+1)
	if st != nfs.OK || r != nil {
		t.Fatal(st, r)
	}
	st = do(turn)
	turn.End(&Answer{Status: st})
	if st != nfs.OK {
		t.Fatal(st)
	}
}

// TestOwnersForgotten: open-owners without an open are kept for a while, and not too many;
// what was not confirmed goes with the lease; lock-owners go with their last stateid.
func TestOwnersForgotten(t *testing.T) {
	s := New(Config{Boot: 7})
	now := begin
	c := client40(t, s, now, "x")
	var id Stateid
	confirm := func(turn *Turn) (st nfs.Status) {
		id, st = c.ConfirmOpen(id, testFile(1))
		return st
	}
	closes := func(turn *Turn) (st nfs.Status) {
		_, st = c.Close40(turn, id, testFile(1))
		return st
	}
	for i := range 3 * idleMax {
		owner := fmt.Sprint(i)
		id = opens40(t, c, now, owner, 1, testFile(1)).ID
		in(t, c, now, id, OfUnconfirmed, 2, confirm)
		in(t, c, now, id, OfOpen, 3, closes)
		now = now.Add(time.Millisecond)
	}
	v := c.v40
	if n := len(v.openOwners); n > idleMax || n < idleMax/2 || len(v.idle) != n || len(v.closed) != n ||
		len(c.states) != 0 {
		t.Errorf("%d open-owners, %d idle, %d closed, %d states", n, len(v.idle), len(v.closed), len(c.states))
	}
	// The last ones are those that are there, and are known: the next number is theirs.
	if _, _, st := c.BeginOpen(now, fmt.Append(nil, 3*idleMax-1), 5, 9, false); st != nfs.ErrBadSeqID {
		t.Error(st)
	}
	if _, r, st := c.BeginState(now, id, OfOpen, 3, 4); st != nfs.OK || r == nil {
		t.Error("a CLOSE sent again:", st)
	}
	// An owner with an open stays.
	kept := opens40(t, c, now, "kept", 1, testFile(2)).ID
	in(t, c, now, kept, OfUnconfirmed, 2, func(*Turn) (st nfs.Status) {
		kept, st = c.ConfirmOpen(kept, testFile(2))
		return st
	})
	for i := range 100 {
		opens40(t, c, now, fmt.Sprint("trial", i), 1, testFile(3))
	}
	if err := recount(s); err != nil {
		t.Error(err)
	}
	if len(v.pending) != 100 || len(c.opens) != 101 {
		t.Errorf("%d to be confirmed, %d opens", len(v.pending), len(c.opens))
	}
	now = now.Add(s.Lease() + time.Second)
	opens40(t, c, now, "new", 1, testFile(4))
	if len(v.openOwners) != 2 || len(v.pending) != 1 || len(v.idle) != 0 || len(c.opens) != 2 || len(v.closed) != 0 {
		t.Errorf("%d open-owners, %d to be confirmed, %d idle, %d opens, %d closed", len(v.openOwners), len(v.pending),
			len(v.idle), len(c.opens), len(v.closed))
	}
	// Lock-owners.
	seq := uint32(2)
	for i := range 100 {
		seq++
		in(t, c, now, kept, OfOpen, seq, func(turn *Turn) nfs.Status {
			owner := fmt.Append(nil, "l", i)
			if st := turn.Locker(owner, 1); st != nfs.OK {
				return st
			}
			_, _, st := c.Lock(now, &Lock{
				ByOpen: true, ID: kept, Owner: owner, File: testFile(2), Range: Range{uint64(i), 1},
				Turn: turn,
			})
			return st
		})
	}
	if len(v.lockOwners) != 100 || len(c.locks) != 100 {
		t.Errorf("%d lock-owners, %d stateids", len(v.lockOwners), len(c.locks))
	}
	in(t, c, now, kept, OfOpen, seq+1, func(turn *Turn) nfs.Status {
		_, st := c.Close40(turn, kept, testFile(2))
		return st
	})
	if held, _ := s.cfg.Locks.Count(); len(v.lockOwners) != 0 || held != 0 {
		t.Errorf("%d lock-owners, %d locks", len(v.lockOwners), held)
	}
	// All of it goes with the client, also what has a turn.
	turn, _, _ := c.BeginOpen(now, []byte("last"), 1, 1, false)
	s.Evict(c.ID)
	turn.End(&Answer{})
	if len(v.openOwners)+len(v.pending)+len(v.idle)+len(v.closed) != 0 {
		t.Error("something is left")
	}
	if _, _, st := c.BeginOpen(now, []byte("last"), 2, 2, false); st != nfs.ErrExpired {
		t.Error(st)
	}
	if _, _, st := c.BeginState(now, kept, OfOpen, 2, 2); st != nfs.ErrExpired {
		t.Error(st)
	}
}

// TestTurns: however requests of the same owners meet, each number is executed once, and
// what is sent again gets the answer of before.
func TestTurns(t *testing.T) {
	s := New(Config{Boot: 7})
	c := client40(t, s, begin, "x")
	o := opens40(t, c, begin, "o", 1, testFile(1)).ID
	in(t, c, begin, o, OfUnconfirmed, 2, func(*Turn) (st nfs.Status) {
		o, st = c.ConfirmOpen(o, testFile(1))
		return st
	})
	const last = 300
	var mu sync.Mutex
	executed := make(map[uint32]int)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for seq := uint32(3); seq <= last; {
				turn, again, st := c.BeginOpen(begin, []byte("o"), seq, uint64(seq), false)
				switch {
				case st == nfs.ErrBadSeqID:
					seq++ // another one is further
					continue
				case st != nfs.OK:
					t.Error(st)
					return
				case again != nil:
					if again.Status != nfs.ErrNoEnt || len(again.Result) != 1 || again.Result[0] != byte(seq) {
						t.Errorf("%d: %+v", seq, again)
					}
				default:
					mu.Lock()
					executed[seq]++
					mu.Unlock()
					turn.End(&Answer{Status: nfs.ErrNoEnt, Result: []byte{byte(seq)}})
				}
				if r.IntN(2) == 0 {
					seq++
				}
			}
		})
	}
	wg.Wait()
	for seq := uint32(3); seq <= last; seq++ {
		if executed[seq] != 1 {
			t.Errorf("number %d was executed %d times", seq, executed[seq])
		}
	}
}

// TestClients40: the number of clients has a bound, and so has what is remembered of those
// that are gone.
func TestClients40(t *testing.T) {
	s := New(Config{Boot: 7, Clients: expiredMax + 100})
	now := begin
	for i := range expiredMax + 100 {
		opens40(t, client40(t, s, now, fmt.Sprint(i)), now, "o", 1, testFile(byte(i)))
	}
	if _, st := s.SetClientID(now, &SetClientID{Owner: []byte("more")}); st != nfs.ErrResource {
		t.Error(st)
	}
	now = now.Add(s.Lease() + time.Second)
	if _, st := s.SetClientID(now, &SetClientID{Owner: []byte("more")}); st != nfs.OK {
		t.Error(st)
	}
	if len(s.expired) != expiredMax || len(s.clients) != 1 || len(s.owners) != 1 {
		t.Errorf("%d expired, %d clients, %d owners", len(s.expired), len(s.clients), len(s.owners))
	}
	if _, st := s.Client40(now, uint64(7)<<32|uint64(s.expired[0]), &From{}); st != nfs.ErrExpired {
		t.Error(st)
	}
	// One that is not confirmed goes with the lease.
	now = now.Add(s.Lease() + time.Second)
	client40(t, s, now, "other")
	if len(s.clients) != 1 || len(s.expired) != expiredMax {
		t.Errorf("%d clients", len(s.clients))
	}
	list := s.Clients(now)
	if len(list) != 1 || list[0].Version != "4.0" || list[0].Live || list[0].Answers || !list[0].Confirmed ||
		list[0].Reclaims {
		t.Errorf("%+v", list)
	}
}

// TestNumbersWrap: after the largest number an owner goes on with 1, or with 0.
func TestNumbersWrap(t *testing.T) {
	s := New(Config{Boot: 7})
	c := client40(t, s, begin, "x")
	for first, name := range []string{"zero", "one"} {
		o := opens40(t, c, begin, name, 1<<32-2, testFile(1)).ID
		in(t, c, begin, o, OfUnconfirmed, 1<<32-1, func(*Turn) (st nfs.Status) {
			o, st = c.ConfirmOpen(o, testFile(1))
			return st
		})
		for _, seq := range []uint32{1<<32 - 2, 2, 3} {
			if _, _, st := c.BeginState(begin, o, OfOpen, seq, 99); st != nfs.ErrBadSeqID {
				t.Errorf("%d: %v", seq, st)
			}
		}
		in(t, c, begin, o, OfOpen, uint32(first), func(turn *Turn) nfs.Status {
			_, st := c.Close40(turn, o, testFile(1))
			return st
		})
	}
}
