package state

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// heap is the bytes in use after a collection.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what has finalizers
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// loadFile is one of many files, with a handle as long as those of posixfs.
func loadFile(i int) (f lock.File) {
	f.Export = 1
	f.Handle.Len = 28
	binary.BigEndian.PutUint64(f.Handle.B[8:], uint64(i))
	return f
}

// load is a server with many clients, which open and lock.
type load struct {
	s       *Server
	clients []*Client
	ids     []Stateid // opens
	locks   []Stateid
}

func newLoad(tb testing.TB, clients, files int) *load {
	l := &load{
		s:   New(Config{Boot: 7, Locks: lock.New(8 * files), Memory: 1 << 40, ClientMemory: 1 << 40}),
		ids: make([]Stateid, files), locks: make([]Stateid, files),
	}
	for i := range clients {
		c, _ := join(tb, l.s, begin, fmt.Sprintf("client %d of a size that is usual", i))
		l.clients = append(l.clients, c)
	}
	return l
}

func (l *load) client(i int) *Client { return l.clients[i%len(l.clients)] }

func (l *load) open(tb testing.TB, i int) {
	got, st := l.client(i).Open(begin, &Open{Owner: []byte("open id: of 24 bytes...."), File: loadFile(i), Access: Both})
	if st != nfs.OK {
		tb.Fatal(st)
	}
	l.ids[i] = got.ID
}

func (l *load) lock(tb testing.TB, i int) {
	id, _, st := l.client(i).Lock(begin, &Lock{
		ByOpen: true, ID: l.ids[i], Owner: []byte("lock id: of 24 bytes...."), File: loadFile(i),
		Range: Range{uint64(i % 100), 10}, Exclusive: true,
	})
	if st != nfs.OK {
		tb.Fatal(st)
	}
	l.locks[i] = id
}

func (l *load) unlock(tb testing.TB, i int) {
	if _, st := l.client(i).Unlock(&Lock{ID: l.locks[i], File: loadFile(i), Range: Range{0, 1 << 20}}); st != nfs.OK {
		tb.Fatal(st)
	}
}

func (l *load) close(tb testing.TB, i int) {
	if st := l.client(i).Close(Stateid{Other: l.ids[i].Other}, loadFile(i)); st != nfs.OK {
		tb.Fatal(st)
	}
}

// timed does f n times, in workers goroutines that have different clients, and returns how
// long it took in all and the longest one.
func timed(n, workers int, f func(i int)) (all, longest time.Duration) {
	var wg sync.WaitGroup
	most := make([]time.Duration, workers)
	begin := time.Now()
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				at := time.Now()
				f(i)
				most[w] = max(most[w], time.Since(at))
			}
		})
	}
	wg.Wait()
	all = time.Since(begin)
	for _, m := range most {
		longest = max(longest, m)
	}
	return all, longest
}

// TestMillion makes a million opens and a million locks, with RSTORED_LONG set, and says
// what they cost: memory, time, the longest pause, and what a second processor adds. All of
// it must be gone in the end. Without, it is ten thousand.
func TestMillion(t *testing.T) {
	n := 10_000
	if os.Getenv("RSTORED_LONG") != "" {
		n = 1_000_000
	}
	const clients = 64
	before := heap()
	s := New(Config{Boot: 7, Clients: 1 << 19, Memory: 1 << 40, ClientMemory: 1 << 40})
	for i := range min(n/10, clientsDefault/2) {
		join(t, s, begin, fmt.Sprintf("client %d of a size that is usual", i))
	}
	t.Logf("a client with its session: %d bytes", (heap()-before)/uint64(s.Counts().Clients))
	runtime.KeepAlive(s)

	l := newLoad(t, clients, n)
	base := heap()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, step := range []struct {
		name string
		do   func(testing.TB, int)
	}{{"open", l.open}, {"lock", l.lock}, {"unlock", l.unlock}, {"close", l.close}} {
		all, longest := timed(n, 1, func(i int) { step.do(t, i) })
		now := heap()
		t.Logf("%s: %v each, the longest %v; %d bytes each", step.name, all/time.Duration(n), longest,
			int64(now-base)/int64(n))
		base = now
	}
	if c := l.s.Counts(); c.Opens != 0 || c.Locks != 0 || c.Clients != clients {
		t.Errorf("%+v are left", c)
	}
	if held, _ := l.s.cfg.Locks.Count(); held != 0 {
		t.Errorf("%d locks are left", held)
	}
	for _, procs := range []int{1, 2} {
		runtime.GOMAXPROCS(procs)
		for _, step := range []struct {
			name string
			do   func(testing.TB, int)
		}{{"open", l.open}, {"lock", l.lock}, {"unlock", l.unlock}, {"close", l.close}} {
			all, longest := timed(n, 2, func(i int) { step.do(t, i) })
			t.Logf("%s by two at once, %d processors: %.0f per millisecond, the longest %v", step.name, procs,
				float64(n)/float64(all.Milliseconds()+1), longest)
		}
	}
}

// BenchmarkState is each operation among many opens and locks, by as many goroutines as
// there are processors (-cpu), each of clients of its own.
func BenchmarkState(b *testing.B) {
	const n = 1 << 16
	for name, do := range map[string]func(l *load, i int){
		"open and close":  func(l *load, i int) { l.close(b, i); l.open(b, i) },
		"lock and unlock": func(l *load, i int) { l.lock(b, i); l.unlock(b, i) },
		"IO": func(l *load, i int) {
			if st := l.client(i).IO(begin, l.ids[i], loadFile(i), true); st != nfs.OK {
				b.Error(st)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			l := newLoad(b, 64, n)
			for i := range n {
				l.open(b, i)
			}
			var mu sync.Mutex
			next := 0
			b.RunParallel(func(pb *testing.PB) {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				for i %= 32; pb.Next(); i = (i + 32) % n { // clients i and i+32
					do(l, i)
				}
			})
		})
	}
}
