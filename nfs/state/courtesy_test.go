package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// TestCourtesy: a silent client keeps what it has until somebody wants it.
func TestCourtesy(t *testing.T) {
	s := testServer()
	late := begin.Add(91 * time.Second)
	c, x := join(t, s, begin, "silent")
	got, _ := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Both, Deny: Write})
	if _, _, st := c.Lock(begin, &Lock{
		ByOpen: true, ID: got.ID, Owner: []byte("l"), File: fileA, Range: Range{0, 1},
		Exclusive: true,
	}); st != nfs.OK {
		t.Fatal(st)
	}
	kept, _ := c.Open(begin, &Open{Owner: []byte("p"), File: fileB, Access: Both})
	if _, _, st := c.Lock(begin, &Lock{
		ByOpen: true, ID: kept.ID, Owner: []byte("l"), File: fileB, Range: Range{0, 1},
		Exclusive: true,
	}); st != nfs.OK {
		t.Fatal(st)
	}
	d, y := join(t, s, late, "other")
	if _, st := d.Open(late, &Open{Owner: []byte("p"), File: fileA, Access: Read}); st != nfs.OK {
		t.Errorf("an open that is not in the way: %v", st)
	}
	if st := c.IO(late, got.ID, fileA, true); st != nfs.OK {
		t.Errorf("silent, and nobody wants what it has: %v", st)
	}
	if n := s.Counts(); n.Clients != 2 || n.Opens != 3 || n.Locks != 2 {
		t.Errorf("%+v", n)
	}
	if _, st := d.Open(late, &Open{Owner: []byte("p"), File: fileA, Access: Write}); st != nfs.OK {
		t.Errorf("an open that is in the way: %v", st)
	}
	if st := c.IO(late, kept.ID, fileB, true); st != nfs.ErrExpired {
		t.Errorf("afterwards: %v", st)
	}
	if s.Session(x.ID) != nil {
		t.Error("the session is still there")
	}
	o, _ := d.Open(late, &Open{Owner: []byte("p"), File: fileB, Access: Write})
	if _, holder, st := d.Lock(late,
		&Lock{ByOpen: true, ID: o.ID, Owner: []byte("l"), File: fileB, Range: Range{0, 1}, Exclusive: true}); st != nfs.OK {
		t.Errorf("the lock: %+v %v", holder, st)
	}
	// A call renews the lease.
	later := late.Add(80 * time.Second)
	u, _, st := s.Sequence(later, &Request{Session: y.ID, Sequence: 1, Digest: 1, Ops: 1, Minor: 1})
	if st != nfs.OK {
		t.Fatal(st)
	}
	u.Finish(nil)
	e, _ := join(t, s, later.Add(80*time.Second), "third")
	if _, st := e.Open(later.Add(80*time.Second),
		&Open{Owner: []byte("p"), File: fileB, Access: Read, Deny: Write}); st != nfs.ErrShareDenied {
		t.Errorf("against a client that was heard of: %v", st)
	}
	if holder, st := e.TestLock(later.Add(91*time.Second),
		&Lock{Owner: []byte("l"), File: fileB, Range: Range{0, 1}}); st != nfs.OK {
		t.Errorf("against a silent one: %+v %v", holder, st)
	}
}

// TestOtherProtocols: their locks are in the same table.
func TestOtherProtocols(t *testing.T) {
	reclaiming := true
	table := lock.New(0)
	s := New(Config{Boot: 7, Locks: table, OthersReclaim: func() bool { return reclaiming }})
	c, _ := join(t, s, begin, "one")
	got, _ := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Both})
	ask := func() nfs.Status {
		_, _, st := c.Lock(begin, &Lock{
			ByOpen: true, ID: got.ID, Owner: []byte("l"), File: fileA, Range: Range{0, 1},
			Exclusive: true,
		})
		return st
	}
	test := Lock{Owner: []byte("l"), File: fileA, Range: Range{0, 1}, Exclusive: true}
	if st := ask(); st != nfs.ErrGrace {
		t.Errorf("while others reclaim: %v", st)
	}
	if _, st := c.TestLock(begin, &test); st != nfs.ErrGrace {
		t.Errorf("LOCKT while others reclaim: %v", st)
	}
	reclaiming = false
	if _, st := c.TestLock(begin, &test); st != nfs.OK {
		t.Errorf("LOCKT: %v", st)
	}
	if st := ask(); st != nfs.OK {
		t.Error(st)
	}
	other := lock.Lock{Owner: lock.Owner{Client: "10.0.0.1 host", ID: "x"}, Exclusive: true}
	holder, free := table.Test(fileA, other)
	if free || s.EndExpired(begin, holder.Owner.Client) {
		t.Error("a client that is there gave way")
	}
	if s.EndExpired(begin.Add(91*time.Second), other.Owner.Client) {
		t.Error("a client of another protocol was taken for one of this")
	}
	if !s.EndExpired(begin.Add(91*time.Second), holder.Owner.Client) {
		t.Error("a silent client did not give way")
	}
	if _, free := table.Test(fileA, other); !free {
		t.Error("its lock is still there")
	}
}

// TestDropExport: what was open of an export goes with it, and nothing else.
func TestDropExport(t *testing.T) {
	table := lock.New(0)
	s := New(Config{Boot: 7, Locks: table})
	c, _ := join(t, s, begin, "one")
	other := fileA
	other.Export = 2
	for _, f := range []lock.File{fileA, fileB, other} {
		got, _ := c.Open(begin, &Open{Owner: []byte("p"), File: f, Access: Both})
		if _, _, st := c.Lock(begin, &Lock{
			ByOpen: true, ID: got.ID, Owner: []byte("l"), File: f, Range: Range{0, 1},
			Exclusive: true,
		}); st != nfs.OK {
			t.Fatal(st)
		}
	}
	s.DropExport(1)
	if n := s.Counts(); n.Opens != 1 || n.Locks != 1 {
		t.Errorf("left: %+v", n)
	}
	if held, _ := table.Count(); held != 1 {
		t.Errorf("%d locks are left", held)
	}
}

// BenchmarkOpens opens many files by one client, and tells the memory of one.
func BenchmarkOpens(b *testing.B) {
	const files = 200_000
	for b.Loop() {
		s := testServer()
		c, _ := join(b, s, begin, "o")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := time.Now()
		for i := range files {
			f := testFile(1)
			f.Handle.Len = 16
			binary.BigEndian.PutUint64(f.Handle.B[8:], uint64(i))
			if _, st := c.Open(begin, &Open{Owner: []byte("open id: of 24 bytes...."), File: f, Access: Both}); st != nfs.OK {
				b.Fatal(st)
			}
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/files, "ns/open")
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/files, "B/open")
		runtime.KeepAlive(s)
	}
}

// BenchmarkSequence is SEQUENCE by several clients at once, each with its session.
func BenchmarkSequence(b *testing.B) {
	s := testServer()
	var n atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		_, x := join(b, s, begin, fmt.Sprint(n.Add(1)))
		reply := make([]byte, 150)
		for seq := uint32(1); pb.Next(); seq++ {
			u, v, st := s.Sequence(begin, &Request{Session: x.ID, Sequence: seq, Digest: 1, Ops: 3, Size: 200, Minor: 1})
			if v != Execute || st != nfs.OK {
				b.Error(v, st)
				return
			}
			u.Finish(reply)
		}
	})
}

func TestReclaimComplete(t *testing.T) {
	s := testServer()
	got, _ := s.ExchangeID(begin, &ExchangeID{Owner: []byte("o"), Verifier: verifier(1), Principal: root})
	if _, st := s.Client(got.Client); st != nfs.ErrStaleClientID {
		t.Errorf("not confirmed: %v", st)
	}
	_, _ = s.CreateSession(begin, &CreateSession{
		Client: got.Client, Sequence: got.Sequence, Principal: root,
		Fore: channel,
	})
	c, _ := s.Client(got.Client)
	ask := func() nfs.Status {
		_, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read})
		return st
	}
	if st := ask(); st != nfs.ErrGrace {
		t.Errorf("before: %v", st)
	}
	if st := errors.Join(c.ReclaimComplete().Err(), ask().Err()); st != nil {
		t.Error(st)
	}
	if st := c.ReclaimComplete(); st != nfs.ErrCompleteAlready {
		t.Errorf("twice: %v", st)
	}
}

// TestBounds: tables do not grow beyond their limits, and make room where they can.
func TestBounds(t *testing.T) {
	s := New(Config{Boot: 7, Clients: 3, Sessions: 2, States: 2})
	var list []*Client
	for i := range 3 {
		c, _ := join(t, s, begin, fmt.Sprint(i))
		list = append(list, c)
	}
	ask := func(now time.Time) nfs.Status {
		_, st := s.ExchangeID(now, &ExchangeID{Owner: []byte("one more"), Principal: root})
		return st
	}
	if st := ask(begin); st != nfs.ErrJukebox {
		t.Errorf("a fourth client: %v", st)
	}
	c := list[0]
	for i, want := range []nfs.Status{nfs.OK, nfs.OK, nfs.ErrJukebox} {
		if _, st := c.Open(begin, &Open{Owner: []byte("p"), File: testFile(byte(i)), Access: Read}); st != want {
			t.Errorf("open %d: %v", i, st)
		}
	}
	for i, want := range []nfs.Status{nfs.OK, nfs.ErrJukebox} {
		if _, st := s.CreateSession(begin,
			&CreateSession{Client: c.ID, Sequence: uint32(2 + i), Principal: root, Fore: channel}); st != want {
			t.Errorf("session %d: %v", i+2, st)
		}
	}
	if st := ask(begin.Add(time.Hour)); st != nfs.OK {
		t.Errorf("after the others went silent: %v", st)
	}
	if n := s.Counts(); n.Opens != 0 || n.Clients != 1 {
		t.Errorf("%+v", n)
	}
}

// TestRandomClients has clients do random things at once, some of them silent, and
// looks whether everything is given up in the end.
func TestRandomClients(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	table := lock.New(0)
	s := New(Config{Boot: 7, Locks: table})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(g)))
			now := begin
			var c *Client
			var ids []Stateid
			for i := range 3000 {
				if c == nil || rnd.IntN(200) == 0 {
					got, st := s.ExchangeID(now, &ExchangeID{
						Owner: []byte(fmt.Sprint(g)), Verifier: verifier(byte(i)),
						Principal: root,
					})
					if st != nfs.OK {
						t.Errorf("EXCHANGE_ID: %v", st)
						return
					}
					if _, st := s.CreateSession(now,
						&CreateSession{
							Client: got.Client, Sequence: got.Sequence, Principal: root,
							Fore: channel,
						}); st == nfs.ErrStaleClientID {
						continue // their clocks differ: another one took it for silent
					} else if st != nfs.OK {
						t.Errorf("CREATE_SESSION: %v", st)
						return
					}
					c, _ = s.Client(got.Client)
					if c == nil {
						continue
					}
					_ = c.ReclaimComplete()
					ids = nil
				}
				now = now.Add(time.Duration(rnd.IntN(3)) * time.Second)
				c.renew(now)
				f := testFile(byte(rnd.IntN(3)))
				switch rnd.IntN(5) {
				case 0, 1:
					got, st := c.Open(now, &Open{
						Owner: []byte{byte(rnd.IntN(2))}, File: f, Access: uint32(1 + rnd.IntN(3)),
						Deny: uint32(rnd.IntN(8) / 5),
					})
					if st == nfs.OK {
						ids = append(ids, got.ID)
					}
				case 2:
					if len(ids) > 0 {
						_ = c.Close(Stateid{Other: ids[rnd.IntN(len(ids))].Other}, f)
					}
				case 3:
					if len(ids) > 0 {
						_, _, _ = c.Lock(now, &Lock{
							ByOpen: true, ID: Stateid{Other: ids[rnd.IntN(len(ids))].Other},
							Owner: []byte{byte(rnd.IntN(2))}, File: f, Range: Range{uint64(rnd.IntN(10)), 5}, Exclusive: rnd.IntN(2) == 0,
						})
					}
				case 4:
					_ = c.IO(now, Anonymous, f, true)
				}
			}
		})
	}
	wg.Wait()
	s.mu.RLock()
	var all []*Client
	for _, c := range s.clients {
		all = append(all, c)
	}
	s.mu.RUnlock()
	for _, c := range all {
		s.remove(c)
	}
	if n := s.Counts(); n != (Counts{}) {
		t.Errorf("left: %+v", n)
	}
	for i := range s.files {
		if len(s.files[i].m) > 0 || len(s.sessions[i].m) > 0 {
			t.Errorf("shard %d: %d files, %d sessions", i, len(s.files[i].m), len(s.sessions[i].m))
		}
	}
	if held, _ := table.Count(); held != 0 {
		t.Errorf("%d locks are left", held)
	}
	if len(s.owners) != 0 {
		t.Errorf("%d owners are left", len(s.owners))
	}
	if n := s.Memory().Bytes; n != 0 || len(s.mem.hosts) != 0 {
		t.Errorf("%d bytes of %d hosts are left", n, len(s.mem.hosts))
	}
}
