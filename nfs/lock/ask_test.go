package lock

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rstored/rstored/blockstore"
)

// asker is a table and the offers that it made.
type asker struct {
	t *testing.T
	*Table
	offers []Owner
}

func newAsker(t *testing.T, limit int) *asker {
	a := &asker{t: t, Table: New(limit)}
	a.UseOffers(func(_ File, o Owner) { a.offers = append(a.offers, o) })
	return a
}

// want says what an Ask, a Lock or a Wait is to come to.
func (a *asker) ask(f File, l Lock, want bool) {
	a.t.Helper()
	if holder, ok, err := a.Ask(f, l); ok != want || err != nil {
		a.t.Fatalf("Ask of %v: %v %v, holder %v", l, ok, err, holder)
	}
}

func (a *asker) lock(f File, l Lock, want bool) {
	a.t.Helper()
	if holder, ok, err := a.Table.Lock(f, l); ok != want || err != nil {
		a.t.Fatalf("Lock of %v: %v %v, holder %v", l, ok, err, holder)
	}
}

// offered checks who has been offered a lock since the last call.
func (a *asker) offered(want ...int) {
	a.t.Helper()
	var list []Owner
	for _, i := range want {
		list = append(list, owner(i))
	}
	if !slices.Equal(a.offers, list) {
		a.t.Fatalf("offered to %v instead of %v", a.offers, list)
	}
	a.offers = nil
}

func (a *asker) unlock(f File, i int) { a.Unlock(f, owner(i), 0, ToEnd) }

func whole(i int) Lock { return Lock{Owner: owner(i), End: ToEnd, Exclusive: true} }

var askFile = File{Handle: blockstore.Handle{Len: 1}}

// TestAskInOrder: requests of both kinds are served in the order in which they came.
func TestAskInOrder(t *testing.T) {
	a := newAsker(t, 0)
	a.lock(askFile, whole(0), true)
	a.ask(askFile, whole(1), false)
	granted := 0
	if taken, err := a.Wait(askFile, &Waiter{Lock: whole(2), Granted: func() { granted++ }}); taken || err != nil {
		t.Fatal(taken, err)
	}
	a.ask(askFile, whole(3), false)
	a.ask(askFile, whole(1), false) // again: it keeps its place
	a.unlock(askFile, 0)
	a.offered(1)
	// Reserved: others find it taken.
	a.lock(askFile, whole(0), false)
	a.ask(askFile, whole(3), false)
	if holder, free := a.Test(askFile, whole(4)); free || holder.Owner != owner(1) {
		t.Errorf("Test: %v %v", holder, free)
	}
	if !a.IsOffered(askFile, owner(1)) || a.IsOffered(askFile, owner(3)) {
		t.Error("IsOffered")
	}
	a.ask(askFile, whole(1), true)
	if a.IsOffered(askFile, owner(1)) || granted != 0 {
		t.Error("still offered")
	}
	a.unlock(askFile, 1)
	if granted != 1 {
		t.Fatal("the request that waits was not second")
	}
	a.unlock(askFile, 2)
	a.offered(3)
	a.ask(askFile, whole(3), true)
	a.unlock(askFile, 3)
	if locks, waiting := a.Count(); locks+waiting+a.Asking() != 0 {
		t.Errorf("%d locks, %d wait, %d ask", locks, waiting, a.Asking())
	}
}

// TestAskNoMore: an owner that stops asking keeps nobody waiting for long.
func TestAskNoMore(t *testing.T) {
	a := newAsker(t, 0)
	a.lock(askFile, whole(0), true)
	for i := 1; i < 4; i++ {
		a.ask(askFile, whole(i), false)
	}
	a.unlock(askFile, 0)
	a.offered(1)
	for range offerTicks {
		a.Tick()
	}
	a.offered()
	if a.Tick() != 2 {
		t.Errorf("%d ask", a.Asking())
	}
	a.offered(2)
	a.Drop(owner(2).Client) // and with it owner 0
	a.offered(3)
	a.ask(askFile, whole(3), true)
	a.ask(askFile, whole(1), false)
	for i := range askTicks {
		if a.Tick() != 1 {
			t.Fatalf("gone after %d ticks", i)
		}
	}
	if a.Tick() != 0 {
		t.Error("a request stays that nobody repeats")
	}
	a.unlock(askFile, 3)
	a.offered()
	a.lock(askFile, whole(4), true)
}

// TestAskDeadlock: owners that would wait for each other are told so, and one that does something
// else meanwhile is not waiting.
func TestAskDeadlock(t *testing.T) {
	a := newAsker(t, 0)
	other := File{Handle: blockstore.Handle{Len: 2}}
	a.lock(askFile, whole(1), true)
	a.lock(other, whole(2), true)
	a.ask(askFile, whole(2), false)
	if _, ok, err := a.Ask(other, whole(1)); ok || err != ErrDeadlock {
		t.Errorf("Ask: %v %v", ok, err)
	}
	if taken, err := a.Wait(other, &Waiter{Lock: whole(1)}); taken || err != ErrDeadlock {
		t.Errorf("Wait: %v %v", taken, err)
	}
	if a.Asking() != 1 {
		t.Errorf("%d ask", a.Asking())
	}
	// Owner 2 was interrupted and works on.
	a.lock(File{Handle: blockstore.Handle{Len: 3}}, whole(2), true)
	a.ask(other, whole(1), false)
	// Asking again, it waits again.
	if _, ok, err := a.Ask(askFile, whole(2)); ok || err != ErrDeadlock {
		t.Errorf("Ask again: %v %v", ok, err)
	}
}

// TestAskHost: a lock that a program of the host has is not offered.
func TestAskHost(t *testing.T) {
	a, h := newAsker(t, 0), &fakeHost{t: t}
	a.UseHost(func(uint32) (blockstore.HostLocker, bool) { return h, true })
	h.lockByProgram(0, 5, 'w')
	small := func(i int) Lock { return Lock{Owner: owner(i), End: 5, Exclusive: true} }
	a.ask(askFile, small(1), false)
	a.ask(askFile, small(2), false)
	a.Tick()
	a.offered()
	h.lockByProgram(0, 5, 0)
	a.Tick()
	a.offered(1)
	// The program was quicker than the client.
	h.lockByProgram(0, 5, 'w')
	a.ask(askFile, small(1), false)
	h.lockByProgram(0, 5, 0)
	a.Tick()
	a.offered(1)
	a.ask(askFile, small(1), true)
}

// TestAskFull: where there is no room for a request it is denied without a place.
func TestAskFull(t *testing.T) {
	a := newAsker(t, 4)
	a.lock(askFile, whole(0), true)
	for i := 1; i < 8; i++ {
		a.ask(askFile, whole(i), false)
	}
	if n := a.Asking(); n < 1 || n > 3 {
		t.Errorf("%d ask", n)
	}
}

// TestAskHandedOver: places and offers outlive the process.
func TestAskHandedOver(t *testing.T) {
	a := newAsker(t, 0)
	a.lock(askFile, whole(0), true)
	a.lock(askFile, Lock{Owner: owner(9), Start: 0, End: 0}, false)
	for i := 1; i < 4; i++ {
		a.ask(askFile, whole(i), false)
	}
	a.unlock(askFile, 0)
	a.offered(1)
	b := &asker{t: t, Table: handedOver(t, a.Table, nil, func(*Waiter) { t.Error("granted") })}
	b.UseOffers(func(_ File, o Owner) { b.offers = append(b.offers, o) })
	b.Offers(func(f File, o Owner) {
		if f != askFile || o != owner(1) {
			t.Errorf("%v is offered to %v", f, o)
		}
	})
	for range offerTicks + 1 {
		b.Tick()
	}
	b.offered(2)
	b.ask(askFile, whole(2), true)
	b.unlock(askFile, 2)
	b.offered(3)
}

// TestAskRandom: at every moment no lock or offer conflicts with another, and no request waits for
// which the way is free.
func TestAskRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	a := newAsker(t, 40)
	const owners, bytes = 6, 12
	for range 20000 {
		l := Lock{Owner: owner(r.IntN(owners)), Start: uint64(r.IntN(bytes)), Exclusive: r.IntN(2) == 0}
		l.End = l.Start + uint64(r.IntN(bytes))
		switch n := r.IntN(20); {
		case n < 9:
			holder, ok, err := a.Ask(askFile, l)
			if !ok && err == nil && holder.Owner == l.Owner {
				t.Fatalf("%v is in its own way", l)
			}
		case n < 11:
			_, _, _ = a.Table.Lock(askFile, l)
		case n < 12:
			_, _ = a.Wait(askFile, &Waiter{Lock: l, Granted: func() {}})
		case n < 18:
			a.Unlock(askFile, l.Owner, l.Start, l.End)
		case n < 19:
			a.Tick()
		default:
			a.Drop(l.Owner.Client)
		}
		a.check()
	}
}

// check looks at the invariants of one file.
func (a *asker) check() {
	a.t.Helper()
	s := a.shard(askFile)
	x := s.files[askFile]
	if x == nil {
		return
	}
	taken := slices.Clone(x.locks)
	asking := 0
	for _, w := range x.queue {
		if w.Asks {
			asking++
		}
		if w.Offered {
			taken = append(taken, w.Lock)
		} else if x.conflict(&w.Lock) == nil {
			a.t.Fatalf("%v waits for nothing", w.Lock)
		}
	}
	for i := range taken {
		for j := range i {
			if taken[i].conflicts(&taken[j]) {
				a.t.Fatalf("%v conflicts with %v", taken[i], taken[j])
			}
		}
	}
	if asking != a.Asking() {
		a.t.Fatalf("%d ask, counted as %d", asking, a.Asking())
	}
	if n := int(a.count.Load()); n != len(x.locks)+len(x.queue) {
		a.t.Fatalf("%d and %d counted as %d", len(x.locks), len(x.queue), n)
	}
}
