package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// open opens a file of the test's server.
func (s *server) open(c *Client, name string) *File {
	s.t.Helper()
	f, err := c.OpenShare(context.Background(), name, ShareBoth, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// locked checks that a file is locked by somebody else, from a byte on.
func locked(t *testing.T, f *File, off, n uint64, exclusive bool, from, length uint64) {
	t.Helper()
	err := f.TryLock(off, n, exclusive)
	var l *LockedError
	if !errors.As(err, &l) || !errors.Is(err, nfs.ErrDenied) || l.Holder.Offset != from || l.Holder.Length != length ||
		len(l.Holder.Owner) == 0 {
		t.Errorf("a lock of %d bytes at %d: %+v, %v", n, off, l, err)
	}
	if h, err := f.TestLock(off, n, exclusive); err != nil || h == nil || h.Offset != from || h.Length != length {
		t.Errorf("a test of %d bytes at %d: %+v, %v", n, off, h, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestByteRangeLocks(t *testing.T) {
	for _, v := range []Version{Version41, Version42} {
		s := newServer(t)
		s.vers = v
		one, two := s.client(), s.client()
		put(t, one, "/data/f", fill(1, 100))
		f, g, h := s.open(one, "/data/f"), s.open(two, "/data/f"), s.open(one, "/data/f")
		must(t, f.TryLock(10, 10, true))
		must(t, f.TryLock(50, 0, false))
		locked(t, g, 0, 15, false, 10, 10)
		locked(t, h, 19, 1, true, 10, 10) // another File of the same client is another owner
		locked(t, g, 1000, 5, true, 50, 0)
		must(t, g.TryLock(60, 5, false)) // shared
		must(t, g.TryLock(0, 10, true))
		locked(t, f, 0, 1, false, 0, 10)
		if h, err := f.TestLock(20, 30, true); h != nil || err != nil {
			t.Errorf("free bytes: %v, %v", h, err)
		}
		// Locks are replaced, split and joined.
		must(t, f.Unlock(13, 2))
		must(t, g.TryLock(13, 2, true))
		locked(t, g, 12, 1, true, 10, 3)
		locked(t, g, 15, 9, true, 15, 5)
		must(t, f.TryLock(15, 5, false))
		must(t, g.TryLock(15, 5, false))
		// Data may be read and written all the same.
		if _, err := g.WriteAt([]byte("x"), 11); err != nil {
			t.Error(err)
		}
		must(t, f.Close())
		must(t, h.TryLock(10, 3, true)) // released
		must(t, g.Unlock(0, 0))
		must(t, h.TryLock(0, 0, true))
		must(t, h.Close())
		must(t, g.Close())
		if n := s.four.State().Counts(); n.Locks != 0 || n.Opens != 0 {
			t.Errorf("%+v are left", n)
		}
		if err := f.TryLock(1<<63, 1<<63+1, true); !errors.Is(err, nfs.ErrInval) {
			t.Errorf("a range beyond the end: %v", err)
		}
	}
}

// TestLockWaits: a lock that somebody else has is waited for, until the context ends.
func TestLockWaits(t *testing.T) {
	s := newServer(t)
	one, two := s.client(), s.client()
	put(t, one, "/data/f", fill(1, 100))
	f, g := s.open(one, "/data/f"), s.open(two, "/data/f")
	must(t, f.TryLock(0, 10, true))
	ctx, cancel := context.WithCancel(context.Background())
	denied := make(chan error)
	go func() { denied <- g.Lock(ctx, 5, 1, false) }()
	cancel()
	if err := <-denied; !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that was given up: %v", err)
	}
	go func() { denied <- g.Lock(context.Background(), 5, 1, false) }()
	must(t, f.Unlock(0, 0))
	must(t, <-denied)
	locked(t, f, 0, 0, true, 5, 1)
	// Many wait for one another, and none is alone with what another one has.
	var wg sync.WaitGroup
	n := 0
	for range 4 {
		wg.Go(func() {
			f := s.open(two, "/data/f")
			for range 5 {
				if err := f.Lock(context.Background(), 20, 1, true); err != nil {
					t.Error(err)
				}
				n++ // the race detector looks at this too
				if err := f.Unlock(20, 1); err != nil {
					t.Error(err)
				}
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n != 20 {
		t.Errorf("%d", n)
	}
}

// TestLocksNeedVersion4: version 3 has a protocol of its own for them.
func TestLocksNeedVersion4(t *testing.T) {
	s := newServer(t)
	s.vers = Version3
	c := s.client()
	put(t, c, "/data/f", fill(1, 100))
	f, err := c.Open(context.Background(), "/data/f")
	must(t, err)
	if err := f.TryLock(0, 0, false); !errors.Is(err, nfs.ErrNotSupp) {
		t.Error(err)
	}
	must(t, f.Unlock(0, 0))
	must(t, f.Close())
}

// TestLocksOverRestarts: locks are reclaimed, each byte of them, before anybody else gets
// them.
func TestLocksOverRestarts(t *testing.T) {
	s := newServer(t)
	one, two := s.client(), s.client()
	put(t, one, "/data/f", fill(1, 100))
	f, f2, g := s.open(one, "/data/f"), s.open(one, "/data/f"), s.open(two, "/data/f")
	must(t, f.TryLock(0, 30, true))
	must(t, f.Unlock(10, 10))
	must(t, f.TryLock(25, 10, false))
	must(t, f2.TryLock(40, 0, true))
	must(t, g.TryLock(12, 3, true))
	for range 3 {
		s.restart()
		_, err := f.ReadAt(make([]byte, 10), 0)
		must(t, err)
		locked(t, g, 0, 5, true, 0, 10)
		locked(t, g, 24, 1, false, 20, 5)
		locked(t, g, 30, 1, true, 25, 10)
		locked(t, g, 90, 1, false, 40, 0)
		locked(t, f, 12, 1, false, 12, 3)
		must(t, g.TryLock(10, 2, true))
		must(t, g.TryLock(30, 1, false))
		must(t, g.Unlock(10, 2))
		must(t, g.Unlock(30, 1))
	}
	if st := one.Stats(); st.Relocked != 3*4 || st.Reclaimed != 3 {
		t.Errorf("%+v", st)
	}
	must(t, f.Close())
	must(t, g.TryLock(0, 40, true))
	locked(t, g, 45, 1, true, 40, 0)
	must(t, f2.Close())
	must(t, g.TryLock(0, 0, true))
	must(t, g.Close())
}

// TestLocksLost: a client that was silent for too long, and whose locks others have got,
// hears of it before it touches the data.
func TestLocksLost(t *testing.T) {
	s := newServer(t)
	var mu sync.Mutex
	now := time.Now()
	s.cfg.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	s.restart()
	one, two := s.client(), s.client()
	put(t, one, "/data/f", fill(1, 100))
	put(t, one, "/data/g", fill(1, 100))
	f, other, g := s.open(one, "/data/f"), s.open(one, "/data/g"), s.open(two, "/data/f")
	must(t, f.TryLock(0, 10, true))
	mu.Lock()
	now = now.Add(100 * time.Second)
	mu.Unlock()
	must(t, four(t, two).do(context.Background(), &compound4{}))
	must(t, g.TryLock(0, 10, true))
	// The next call finds the session gone, and makes another one.
	if _, err := other.ReadAt(make([]byte, 10), 0); err != nil {
		t.Error(err)
	}
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, ErrLockLost) {
		t.Errorf("a write under a lock that is lost: %v", err)
	}
	for _, err := range []error{f.TryLock(50, 1, false), f.Unlock(0, 10)} {
		if !errors.Is(err, ErrLockLost) {
			t.Errorf("of a file whose lock is lost: %v", err)
		}
	}
	must(t, f.Close())
	f = s.open(one, "/data/f")
	locked(t, f, 0, 1, true, 0, 10)
	_, err := f.WriteAt([]byte("x"), 0)
	must(t, err)
	must(t, f.Close())
}

func TestRanges(t *testing.T) {
	list := []lockRange{{0, 9, true}, {20, 29, false}, {50, toEnd, true}}
	for _, c := range []struct {
		r    lockRange
		want []lockRange
	}{
		{lockRange{10, 19, true}, list},
		{lockRange{0, toEnd, true}, nil},
		{lockRange{5, 24, true}, []lockRange{{0, 4, true}, {25, 29, false}, {50, toEnd, true}}},
		{lockRange{60, toEnd, true}, []lockRange{{0, 9, true}, {20, 29, false}, {50, 59, true}}},
		{lockRange{22, 22, true}, []lockRange{{0, 9, true}, {20, 21, false}, {23, 29, false}, {50, toEnd, true}}},
	} {
		if got := without(list, c.r); !slices.Equal(got, c.want) {
			t.Errorf("without %v: %v", c.r, got)
		}
	}
}

// TestLockHolder: how servers say that a lock is to the end.
func TestLockHolder(t *testing.T) {
	for _, c := range []struct{ off, n, want uint64 }{
		{5, 10, 10},
		{5, 1<<64 - 1, 0},
		{200, 1<<63 - 200, 0},
		{200, 1<<63 - 201, 1<<63 - 201},
		{0, 1 << 63, 0},
		{1 << 63, 5, 5},
	} {
		var e xdr.Encoder
		e.Uint64(c.off)
		e.Uint64(c.n)
		e.Uint32(2)
		e.Uint64(7)
		e.String("owner")
		var h LockHolder
		d := xdr.NewDecoder(e.B)
		decodeDenied(&h)(&d)
		if h.Offset != c.off || h.Length != c.want || !h.Exclusive || string(h.Owner) != "owner" || d.Err() != nil {
			t.Errorf("%+v: %+v", c, h)
		}
	}
}
