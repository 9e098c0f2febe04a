package lock

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
)

const hostSize = 24

// fakeHost is a host's kernel that has one entry for each byte: 0, 'r' or 'w'.
type fakeHost struct {
	t       *testing.T
	server  [hostSize]byte
	program [hostSize]byte
	open    bool
	err     error
}

func (h *fakeHost) conflict(start, end uint64, exclusive bool) *blockstore.HostLock {
	for b := start; b <= min(end, hostSize-1); b++ {
		if p := h.program[b]; p == 'w' || p == 'r' && exclusive {
			return &blockstore.HostLock{Start: b, End: b, Exclusive: p == 'w', PID: 77}
		}
	}
	return nil
}

func (h *fakeHost) LockHost(_ blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	if h.err != nil {
		return nil, h.err
	}
	if in := h.conflict(start, end, exclusive); in != nil {
		return in, nil
	}
	h.open = true
	for b := start; b <= min(end, hostSize-1); b++ {
		h.server[b] = 'r'
		if exclusive {
			h.server[b] = 'w'
		}
	}
	return nil, nil
}

func (h *fakeHost) UnlockHost(_ blockstore.Handle, start, end uint64) {
	for b := start; b <= min(end, hostSize-1); b++ {
		if h.server[b] == 0 {
			h.t.Errorf("byte %d was given up and is not held", b)
		}
		h.server[b] = 0
	}
}

func (h *fakeHost) ReleaseHost(blockstore.Handle) { h.server, h.open = [hostSize]byte{}, false }

func (h *fakeHost) TestHost(_ blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	return h.conflict(start, end, exclusive), h.err
}

// lockByProgram has a program of the host take a lock, if nobody is in the way.
func (h *fakeHost) lockByProgram(start, end uint64, kind byte) {
	for b := start; b <= end; b++ {
		if s := h.server[b]; s == 'w' || s == 'r' && kind == 'w' {
			return
		}
	}
	for b := start; b <= end; b++ {
		h.program[b] = kind
	}
}

// union is what clients hold together, and all of them alone.
func union(tab *Table) (u [hostSize]byte, any bool) {
	for _, l := range tab.List(1 << 20) {
		if l.Waiting {
			continue
		}
		any = true
		for b := l.Start; b <= min(l.End, hostSize-1); b++ {
			switch {
			case l.Exclusive:
				u[b] = 'w'
			case u[b] == 0:
				u[b] = 'r'
			}
		}
	}
	return u, any
}

// TestHostAgainstBytes runs random programs of clients and of the host: what is held on
// the host is always what clients hold together, nothing is granted that a program of the
// host stands against, and after Retry nobody waits who could have what he wants.
func TestHostAgainstBytes(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("RSTORED_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("RSTORED_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	refused := 0
	for round := range 200 {
		h := &fakeHost{t: t}
		tab := New(0)
		tab.UseHost(func(uint32) (blockstore.HostLocker, bool) { return h, true })
		for step := range 300 {
			if rnd.IntN(100) == 0 {
				tab = handedOver(t, tab, func(uint32) (blockstore.HostLocker, bool) { return h, true },
					func(w *Waiter) { w.Granted = func() {} })
			}
			from := uint64(rnd.IntN(hostSize))
			to := from + uint64(rnd.IntN(hostSize-int(from)))
			end := to
			if to == hostSize-1 && rnd.IntN(2) == 0 {
				end = ToEnd
			}
			l := Lock{Owner: owner(rnd.IntN(4)), Start: from, End: end, Exclusive: rnd.IntN(2) == 0}
			what := rnd.IntN(12)
			switch what {
			case 0, 1, 2:
				clear, free := tab.Test(theFile, l)
				in := h.conflict(from, to, l.Exclusive)
				_, probed := tab.Probe(theFile, l)
				holder, ok, err := tab.Lock(theFile, l)
				if err != nil || ok != (free && in == nil) || probed != ok {
					t.Fatalf("round %d, step %d: lock %+v: %v %v; free among clients %v (%+v), on the host %+v, probed %v", round,
						step, l, ok, err, free, clear, in, probed)
				}
				if !ok && free {
					refused++
					if holder.Owner.Client != HostClient || !strings.Contains(holder.Owner.ID, "77") {
						t.Fatalf("the holder is %+v", holder)
					}
				}
			case 3, 4:
				if _, err := tab.Wait(theFile, &Waiter{Lock: l, Granted: func() {}}); err != nil && err != ErrDeadlock {
					t.Fatal(err)
				}
			case 5, 6:
				tab.Unlock(theFile, l.Owner, from, end)
			case 7:
				tab.Cancel(theFile, l)
			case 8:
				h.lockByProgram(from, to, "rw"[rnd.IntN(2)])
			case 9:
				h.lockByProgram(from, to, 0)
			case 10:
				if rnd.IntN(10) == 0 {
					tab.Drop(l.Owner.Client)
				}
			case 11:
				tab.Retry()
				for _, w := range tab.List(1 << 20) {
					if _, free := tab.Test(theFile, w.Lock); w.Waiting && free &&
						h.conflict(w.Start, min(w.End, hostSize-1), w.Exclusive) == nil {
						t.Fatalf("round %d, step %d: %+v still waits", round, step, w)
					}
				}
			}
			u, any := union(tab)
			if u != h.server || h.open && !any {
				t.Fatalf("round %d, step %d, case %d, %+v:\nclients %q\nhost    %q, open %v", round, step, what, l, u, h.server,
					h.open)
			}
			for b := range u {
				if s, p := h.server[b], h.program[b]; s == 'w' && p != 0 || s != 0 && p == 'w' {
					t.Fatalf("byte %d: server %q, program %q", b, s, p)
				}
			}
		}
		tab.DropExport(theFile.Export)
		if h.open || h.server != [hostSize]byte{} {
			t.Fatalf("round %d: the host keeps %q", round, h.server)
		}
	}
	if refused == 0 {
		t.Error("the host was never in the way")
	}
}

// TestHostErrors: where the host cannot, clients go on among themselves; where too much is
// locked they do not.
func TestHostErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		take bool
		err  error
		want error
		n    HostCounts
	}{
		{"unsupported", true, blockstore.ErrNotSupp, nil, HostCounts{Without: 1}},
		{"gone", true, blockstore.ErrStale, nil, HostCounts{Without: 1}},
		{"full", true, blockstore.ErrJukebox, ErrFull, HostCounts{Full: 1}},
		{"busy", true, blockstore.ErrWouldBlock, ErrBusy, HostCounts{}},
		{"switched off", false, blockstore.ErrJukebox, nil, HostCounts{}},
	} {
		h := &fakeHost{t: t, err: c.err}
		h.program[0] = 'w'
		tab := New(0)
		tab.UseHost(func(uint32) (blockstore.HostLocker, bool) { return h, c.take })
		l := Lock{Owner: owner(0), Start: 0, End: 9, Exclusive: true}
		if _, free := tab.Probe(theFile, l); !free {
			t.Errorf("%s: not free", c.name)
		}
		_, ok, err := tab.Lock(theFile, l)
		if err != c.want || ok != (c.want == nil) || tab.HostCounts() != c.n {
			t.Errorf("%s: %v, %v, %+v", c.name, ok, err, tab.HostCounts())
		}
		if _, ok, _ := tab.Lock(theFile, Lock{Owner: owner(1), Start: 5, End: 5}); ok {
			t.Errorf("%s: clients are not kept apart", c.name)
		}
		tab.Unlock(theFile, owner(0), 0, ToEnd)
		if held, _ := tab.Count(); held != 0 {
			t.Errorf("%s: %d are held", c.name, held)
		}
	}
}

func TestWithout(t *testing.T) {
	for _, c := range []struct{ a, b, want []span }{
		{[]span{{0, 9}}, nil, []span{{0, 9}}},
		{[]span{{0, 9}}, []span{{0, 9}}, nil},
		{[]span{{0, 9}}, []span{{3, 4}}, []span{{0, 2}, {5, 9}}},
		{[]span{{0, ToEnd}}, []span{{1, 1}, {3, ToEnd}}, []span{{0, 0}, {2, 2}}},
		{[]span{{2, 3}, {6, 9}}, []span{{0, 2}, {7, 7}, {12, 13}}, []span{{3, 3}, {6, 6}, {8, 9}}},
	} {
		got := without(c.a, c.b)
		if len(got) != len(c.want) {
			t.Errorf("%v without %v: %v", c.a, c.b, got)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%v without %v: %v", c.a, c.b, got)
			}
		}
	}
}

// TestBusyHost: a request that waits is not granted while the store is busy with the file.
func TestBusyHost(t *testing.T) {
	h := &fakeHost{t: t}
	table := New(0)
	table.UseHost(func(uint32) (blockstore.HostLocker, bool) { return h, true })
	granted := 0
	h.program[0] = 'w'
	w := &Waiter{Lock: Lock{Owner: owner(0), End: 3, Exclusive: true}, Granted: func() { granted++ }}
	if taken, err := table.Wait(theFile, w); taken || err != nil {
		t.Fatal(taken, err)
	}
	h.program[0] = 0
	for i, err := range []error{blockstore.ErrWouldBlock, nil} {
		h.err = err
		if table.Retry(); granted != i {
			t.Errorf("%d granted after %v", granted, err)
		}
	}
}

// TestReclaimOver: a lock that is reclaimed is valid although the process of before still has it on
// the host. It is taken there when that process is gone, and released as any other.
func TestReclaimOver(t *testing.T) {
	h := &fakeHost{t: t}
	h.program[3] = 'w'
	table, f := New(0), theFile
	reclaiming, fenced := true, true
	table.UseHost(func(uint32) (blockstore.HostLocker, bool) { return h, true })
	table.ReclaimOver(func() bool { return reclaiming }, func(uint32) bool { return fenced })
	mine := Lock{Owner: Owner{Client: "a", ID: "1"}, Start: 2, End: 4, Exclusive: true}
	if holder, ok, err := table.Lock(f, mine); ok || err != nil || holder.Owner.Client != HostClient {
		t.Fatalf("a reclaim of a fenced export: %+v, %v, %v", holder, ok, err)
	}
	fenced = false
	if _, ok, err := table.Lock(f, mine); !ok || err != nil {
		t.Fatalf("a reclaim: %v, %v", ok, err)
	}
	other := Lock{Owner: Owner{Client: "b"}, Start: 3, End: 3}
	if holder, free := table.Test(f, other); free || holder.Owner != mine.Owner {
		t.Errorf("the lock is not the client's: %+v", holder)
	}
	reclaiming = false
	if _, ok, _ := table.Lock(f, mine); !ok {
		t.Error("the owner may not lock again what it has locked")
	}
	if _, ok, _ := table.Lock(f, Lock{Owner: Owner{Client: "a", ID: "2"}, Start: 3, End: 3}); ok {
		t.Error("another lock")
	}
	if left := table.RetryHost(); left != 1 || h.open {
		t.Errorf("%d files left, while the other process has the lock", left)
	}
	for _, h.err = range []error{blockstore.ErrJukebox, blockstore.ErrWouldBlock} {
		if left := table.RetryHost(); left != 1 {
			t.Errorf("%d files left after %v", left, h.err)
		}
	}
	h.err, h.program[3] = nil, 0
	if left := table.RetryHost(); left != 0 || h.server[3] != 'w' {
		t.Errorf("%d files left, and the host has %q", left, h.server)
	}
	table.Unlock(f, mine.Owner, 0, 10)
	if h.open || h.server[3] != 0 {
		t.Error("the host still has the lock")
	}
}
