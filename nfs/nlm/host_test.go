package nlm

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// busyHost is a host on which a program has every file locked for as long as it is busy.
type busyHost struct{ busy atomic.Bool }

func (h *busyHost) LockHost(_ blockstore.Handle, start, end uint64, _ bool) (*blockstore.HostLock, error) {
	if h.busy.Load() {
		return &blockstore.HostLock{Start: start, End: end, Exclusive: true, PID: 4711}, nil
	}
	return nil, nil
}

func (h *busyHost) TestHost(x blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	return h.LockHost(x, start, end, exclusive)
}
func (h *busyHost) UnlockHost(blockstore.Handle, uint64, uint64) {}
func (h *busyHost) ReleaseHost(blockstore.Handle)                {}

// waitingHost is a store that waits for another user of every file.
type waitingHost struct{ busyHost }

func (*waitingHost) LockHost(blockstore.Handle, uint64, uint64, bool) (*blockstore.HostLock, error) {
	return nil, blockstore.ErrWouldBlock
}

// TestHostWaits: the client asks again, and gets no error, while the store waits.
func TestHostWaits(t *testing.T) {
	r := newRig(t, nil, 0)
	r.locks.UseHost(func(uint32) (blockstore.HostLocker, bool) { return new(waitingHost), true })
	for _, block := range []bool{false, true} {
		if st := r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, block: block}); st != DeniedGrace {
			t.Errorf("LOCK, waits %v: %v", block, st)
		}
	}
}

// TestHostInTheWay: a lock of the host's is like one of another client, and who waits for
// it is told when it is gone.
func TestHostInTheWay(t *testing.T) {
	r := newRig(t, nil, 0)
	h := new(busyHost)
	h.busy.Store(true)
	r.locks.UseHost(func(uint32) (blockstore.HostLocker, bool) { return h, true })
	r.s.pollEvery = time.Millisecond
	if st := r.ask(ask{
		client: alice, proc: ProcTest, pid: 1, n: 10, ex: true,
		wantHeld: "true 0 process 4711 of the server's host 0 10",
	}); st != Denied {
		t.Errorf("TEST: %v", st)
	}
	if st := r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true}); st != Denied {
		t.Errorf("LOCK: %v", st)
	}
	for range 2 { // it asks again from time to time
		if st := r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true, block: true}); st != Blocked {
			t.Errorf("LOCK that waits: %v", st)
		}
	}
	h.busy.Store(false)
	if c := <-r.calls; c.prog != Program || c.proc != ProcGranted {
		t.Errorf("called %+v", c)
	}
	if st := r.ask(ask{client: bob, proc: ProcLock, pid: 2, n: 10, ex: true}); st != Denied {
		t.Errorf("another client: %v", st)
	}
	if st := r.ask(ask{client: alice, proc: ProcUnlock, pid: 1, n: 10}); st != Granted {
		t.Errorf("UNLOCK: %v", st)
	}
}
