package rpc

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// countedBulk is a program whose procedure counts its executions. Its reply is long, and has a bulk
// result.
func countedBulk(runs *int) []Program {
	return []Program{{Name: "test", Prog: testProg, Vers: 2, Procs: []Proc{
		procOnce: {Name: "ONCE", Mutates: true, Serve: func(c *Call, _ bool) Status {
			v := c.Args.Uint32()
			c.Intend([]byte("note"))
			*runs++
			c.Res.Uint32(v)
			if v%3 == 0 {
				c.Res.Opaque(bytes.Repeat([]byte{byte(*runs)}, 700)) // too long for the journal
			}
			if v%5 == 0 {
				c.Res.Bulk(bytes.Repeat([]byte{byte(v)}, 33))
				c.Res.Uint32(uint32(*runs))
			}
			return Done
		}},
	}}}
}

// TestSnapshot: the next server gives the same replies, with and without a journal, and so does the
// one after it.
func TestSnapshot(t *testing.T) {
	for _, journaled := range []bool{false, true} {
		rnd := rand.New(rand.NewPCG(1, 2))
		var mem []byte
		if journaled {
			mem = make([]byte, 128*recordLen)
		}
		var runs int
		serve := func() *Server {
			s := NewServer(ServerConfig{Programs: countedBulk(&runs), Workers: 1, Journal: mem, ReplyCacheEntries: 60})
			t.Cleanup(s.Close)
			return s
		}
		s := serve()
		replies := make(map[uint32][]byte)
		var order []uint32
		for i := range uint32(600) {
			switch n := rnd.IntN(10); {
			case n < 6 || len(order) == 0:
				replies[i] = send(t, s, "192.0.2.1:9", call(i, testProg, 2, procOnce, i))
				if order = append(order, i); len(order) > 60 {
					order = order[1:]
				}
			case n < 9:
				at := rnd.IntN(len(order))
				x := order[at]
				order = append(slices.Delete(order, at, at+1), x) // used last
				before := runs
				if r := send(t, s, fmt.Sprintf("192.0.2.1:%d", 1+rnd.IntN(100)), call(x, testProg, 2, procOnce, x)); !bytes.Equal(r,
					replies[x]) || runs != before {
					t.Fatalf("call %d of %d: %x instead of %x", x, i, r, replies[x])
				}
			default:
				b, err := s.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				next := serve()
				if err := next.Restore(b, false); err != nil {
					t.Fatal(err)
				}
				if n := len(next.cache.journal.free) + records(&next.cache); n != len(mem)/recordLen {
					t.Fatalf("%d records of %d are accounted for", n, len(mem)/recordLen)
				}
				before, after := s.Stats(), next.Stats()
				if fmt.Sprint(before) != fmt.Sprint(after) {
					t.Fatalf("%v\n%v", before, after)
				}
				s = next
			}
		}
	}
}

// records counts the used records of a journal.
func records(r *replyCache) int {
	n := len(r.doubts)
	for _, e := range r.entries {
		for ; e != nil; e = e.same {
			if e.record >= 0 {
				n++
			}
		}
	}
	return n
}

// TestSnapshotOfBusy: there is no snapshot while a call is being executed.
func TestSnapshotOfBusy(t *testing.T) {
	svc := &testService{gate: make(chan struct{})}
	s := NewServer(ServerConfig{Programs: svc.programs(), Workers: 1})
	defer s.Close()
	done := make(chan []byte)
	go func() { done <- send(t, s, "192.0.2.1:9", call(1, testProg, 2, procOnce)) }()
	for {
		s.cache.mu.Lock()
		n := len(s.cache.entries)
		s.cache.mu.Unlock()
		if n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Snapshot(); !errors.Is(err, errBusy) {
		t.Error(err)
	}
	close(svc.gate)
	<-done
	if _, err := s.Snapshot(); err != nil {
		t.Error(err)
	}
}

// TestSnapshotOfAnother: unknown fields of a snapshot are ignored, and missing ones are zero. A
// reply without a key is of an old version, which stored less of a call.
func TestSnapshotOfAnother(t *testing.T) {
	type reply struct {
		Peer, Reply, Key []byte
		XID              uint32
		At               int64
		News             string
	}
	b := gobOf(t, struct {
		Replies []reply
		More    bool
	}{[]reply{
		{Peer: make([]byte, 16), XID: 8, Reply: []byte("x"), At: 7},
		{Key: make([]byte, 32), XID: 7, Reply: []byte("x"), At: BootTime(), News: "y"},
	}, true})
	s := NewServer(ServerConfig{Workers: 1})
	defer s.Close()
	if err := s.Restore(b, false); err != nil || s.cache.count != 1 || s.cache.entries[drcKey{xid: 7}] == nil {
		t.Errorf("%v, %d entries", err, s.cache.count)
	}
}

func gobOf(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestDamagedSnapshots(t *testing.T) {
	key, now := make([]byte, 32), BootTime()
	for name, x := range map[string][]snapReply{
		"a short key":      {{Key: key[:31], At: now}},
		"a long key":       {{Key: append(key, 0), At: now}},
		"a reply twice":    {{Key: key, At: now}, {Key: key, At: now}},
		"a ref behind":     {{Key: key, At: now, Refs: []snapRef{{At: 1}}}},
		"a ref before":     {{Key: key, At: now, Refs: []snapRef{{At: -1}}}},
		"refs in no order": {{Key: key, At: now, Reply: make([]byte, 9), Refs: []snapRef{{At: 5}, {At: 4}}}},
	} {
		s := NewServer(ServerConfig{Workers: 1})
		if err := s.Restore(gobOf(t, snapshot{Replies: x}), false); !errors.Is(err, errSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

// FuzzSnapshot: Restore refuses a snapshot, or restores it. It never panics.
func FuzzSnapshot(f *testing.F) {
	now := BootTime()
	f.Add(gobOf(f, snapshot{
		Replies: []snapReply{{
			Key: make([]byte, 32), At: now, Reply: make([]byte, 9),
			Refs: []snapRef{{At: 5, Data: []byte("x")}},
		}, {Key: make([]byte, 32), XID: 1, At: now}},
		Procs: []snapProc{{Prog: testProg, Vers: 2, Proc: 1, Calls: 3}}, Faults: []uint64{1},
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var runs int
		s := NewServer(ServerConfig{Programs: countedBulk(&runs), Workers: 1, Journal: make([]byte, 4*recordLen)})
		defer s.Close()
		if s.Restore(b, false) != nil {
			return
		}
		for _, e := range s.cache.entries {
			s.cache.replay(e, new(Call))
		}
		send(t, s, "192.0.2.1:9", call(1, testProg, 2, procOnce, 1))
	})
}
