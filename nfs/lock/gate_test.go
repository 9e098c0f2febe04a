package lock

import (
	"testing"

	"github.com/rstored/rstored/blockstore"
)

// fakeGate is open or not, and counts the locks that are being granted.
type fakeGate struct {
	open bool
	busy int
}

func (g *fakeGate) Begin() bool {
	if g.open {
		g.busy++
	}
	return g.open
}

func (g *fakeGate) End() { g.busy-- }

// TestGate: while a gate is closed only reclaims get a lock. A request that waits gets none either,
// and has its lock after the gate has opened.
func TestGate(t *testing.T) {
	g := &fakeGate{open: true}
	h := &gatedHost{fakeHost{t: t}, g}
	table := New(0)
	table.UseHost(func(uint32) (blockstore.HostLocker, bool) { return h, true })
	table.UseGate(g)
	f := File{Export: 1}
	lock := func(owner string, start uint64) Lock {
		return Lock{Owner: Owner{Client: owner}, Start: start, End: start, Exclusive: true}
	}
	if _, ok, err := table.Lock(f, lock("a", 1)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	granted := false
	if taken, err := table.Wait(f, &Waiter{Lock: lock("b", 1), Granted: func() { granted = true }}); taken || err != nil {
		t.Fatal(taken, err)
	}
	g.open = false
	if _, ok, err := table.Lock(f, lock("a", 2)); ok || err != ErrBusy {
		t.Fatalf("a new lock: %v, %v", ok, err)
	}
	if _, ok, err := table.Ask(f, lock("a", 2)); ok || err != ErrBusy {
		t.Fatalf("a lock that is asked for: %v, %v", ok, err)
	}
	if _, ok, err := table.Reclaim(f, lock("c", 3)); !ok || err != nil {
		t.Fatalf("a reclaim: %v, %v", ok, err)
	}
	table.Unlock(f, Owner{Client: "a"}, 1, 1)
	if table.Retry(); granted {
		t.Fatal("a request that waits got its lock")
	}
	g.open = true
	if table.Retry(); !granted {
		t.Fatal("a request that waits got no lock after the period")
	}
	if g.busy != 0 {
		t.Fatalf("%d locks are being granted", g.busy)
	}
}

// gatedHost checks that locks are taken between Begin and End.
type gatedHost struct {
	fakeHost
	g *fakeGate
}

func (h *gatedHost) LockHost(f blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	if h.g.open && h.g.busy == 0 {
		h.t.Error("a lock is taken after End")
	}
	return h.fakeHost.LockHost(f, start, end, exclusive)
}
