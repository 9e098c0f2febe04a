package measure

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

const testOps = 5

func testRecorder(clients int) *Recorder {
	cfg := Config{
		Programs: []rpc.Program{
			{Name: "nfs3", Prog: 100003, Vers: 3, Procs: []rpc.Proc{{Name: "NULL"}, {Name: "READ"}}},
			{Name: "nfs4", Prog: 100003, Vers: 4, Procs: []rpc.Proc{{Name: "NULL"}, {Name: "COMPOUND"}}},
		},
		Operations:    testOps,
		OperationName: func(op uint32) string { return [testOps]string{"", "", "", "WRITE", "GETATTR"}[op] },
		StatusName:    func(n uint32) string { return fmt.Sprint(n) },
		Clients:       clients,
	}
	cfg.Compound.Prog, cfg.Compound.Vers, cfg.Compound.Proc = 100003, 4, 1
	return NewRecorder(cfg)
}

func testCall(client string, t rpc.Transport, n rpc.CallMeta) *rpc.Call {
	return &rpc.Call{Peer: rpc.Peer{Addr: netip.AddrPortFrom(netip.MustParseAddr(client), 700), Transport: t}, Meta: n}
}

// TestBuckets: each duration is in the bucket with the lowest bound that is not below it.
func TestBuckets(t *testing.T) {
	for _, d := range []time.Duration{
		-1, 0, 1, 999, 1000, 1001, 2000, 2001, 4000, 4001, time.Millisecond, time.Second,
		16777216 * time.Microsecond, 16777216*time.Microsecond + 1, time.Hour,
	} {
		b := bucket(d)
		if b < Buckets-1 && d > Bound(b) || b > 0 && d <= Bound(b-1) {
			t.Errorf("%v is in bucket %d", d, b)
		}
	}
}

// TestObserve: a call is counted once at each point that it belongs to.
func TestObserve(t *testing.T) {
	r := testRecorder(10)
	r.SetExports(map[uint32]string{3: "/data"})
	const compoundRow = 3
	r.Observe(testCall("10.0.0.1", rpc.TransportRDMA,
		rpc.CallMeta{Op: 3, Export: 3, Fetch: 30 * time.Microsecond, Store: 5 * time.Microsecond, Outcome: 28}),
		rpc.Served{Row: compoundRow, Args: 4096, Reply: 100, Took: 70 * time.Microsecond, Queued: 9 * time.Microsecond})
	r.Observe(testCall("10.0.0.1", rpc.TransportTCP, rpc.CallMeta{Export: 9}),
		rpc.Served{Row: 1, Args: 50, Reply: 8192, Took: 3 * time.Microsecond})
	r.Observe(testCall("::ffff:10.0.0.2", rpc.TransportTCP, rpc.CallMeta{}),
		rpc.Served{Row: 1, Status: rpc.Garbage, Took: time.Microsecond})
	r.Observe(testCall("10.0.0.2", rpc.TransportTCP, rpc.CallMeta{Outcome: 10013}),
		rpc.Served{Row: compoundRow, Took: time.Microsecond})

	var got []string
	for _, x := range r.Operations() {
		got = append(got, fmt.Sprintf("%s.%s %s n=%d took=%v in=%d out=%d failed=%d", x.Program, x.Name, x.Transport,
			x.Count(), x.Took, x.In, x.Out, x.Failed))
	}
	for _, x := range r.Exports() {
		got = append(got, fmt.Sprintf("%s %s %s n=%d in=%d", x.Export, x.Kind, x.Transport, x.Count(), x.In))
	}
	for _, x := range r.Clients() {
		got = append(got, fmt.Sprintf("%s %s n=%d out=%d", x.Client, x.Transport, x.Count(), x.Out))
	}
	for _, x := range r.Failures() {
		got = append(got, fmt.Sprintf("%s.%s %s %d", x.Program, x.Operation, x.Status, x.Count))
	}
	q, f := r.Queue(), r.Fetch()
	got = append(got, fmt.Sprint(q.Count(), q.Took, f.Count(), f.Took))
	slow := r.Slow()
	got = append(got, fmt.Sprintf("%d %s %s %s %v %v %v %v", len(slow), slow[0].Operation, slow[0].Export, slow[0].Status,
		slow[0].Took, slow[0].Queue, slow[0].RDMA, slow[0].Store))
	want := []string{
		"nfs3.READ tcp n=2 took=4µs in=50 out=8192 failed=1",
		"nfs4.COMPOUND tcp n=1 took=1µs in=0 out=0 failed=1",
		"nfs4.WRITE rdma n=1 took=100µs in=4096 out=100 failed=1",
		"/data write rdma n=1 in=4096",
		"10.0.0.1 tcp n=1 out=8192", "10.0.0.2 tcp n=2 out=0", "10.0.0.1 rdma n=1 out=100",
		"nfs3.READ GARBAGE_ARGS 1", "nfs4.COMPOUND 10013 1", "nfs4.WRITE 28 1",
		"1 9µs 1 30µs",
		"4 WRITE /data 28 100µs 9µs 30µs 5µs",
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// TestClientsBounded: a thousand clients are no more series than are allowed, nothing is
// counted twice or not at all, and those who do most have a series of their own after a while.
func TestClientsBounded(t *testing.T) {
	const limit, others = 10, 1000
	r := testRecorder(limit)
	total := uint64(0)
	call := func(client string, times int) {
		c := testCall(client, rpc.TransportRDMA, rpc.CallMeta{})
		for range times {
			r.Observe(c, rpc.Served{Row: 1, Took: time.Microsecond})
			total++
		}
	}
	check := func() map[string]uint64 {
		t.Helper()
		got, sum := make(map[string]uint64), uint64(0)
		for _, x := range r.Clients() {
			got[x.Client] += x.Count()
			sum += x.Count()
		}
		if sum != total || len(got) > limit+1 {
			t.Fatalf("%d calls of %d in %d series", sum, total, len(got))
		}
		return got
	}
	for i := range others {
		call(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), 3)
	}
	if got := check(); got[OtherClients] != 3*(others-limit) {
		t.Errorf("%v", got)
	}
	r.Rotate()
	check()
	// Samples decide who is asked for; with so many calls all of these are.
	busy := []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}
	for range 2 {
		for _, b := range busy {
			call(b, 1000)
		}
		r.Rotate()
		check()
	}
	for _, b := range busy {
		call(b, 1000)
	}
	got := check()
	for _, b := range busy {
		if got[b] < 1000 {
			t.Errorf("%s is not told apart: %v", b, got)
		}
	}
	r.Rotate()
	check()
}

// TestConcurrently: nothing is lost when calls come while clients change places. Between two
// rotations lies a minute, in which every call that is being recorded ends.
func TestConcurrently(t *testing.T) {
	r := testRecorder(4)
	r.SetExports(map[uint32]string{1: "/a"})
	const goroutines, each = 8, 4000
	var recorded [goroutines]atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				c := testCall(fmt.Sprintf("10.0.0.%d", 1+(g+i%3)), rpc.TransportTCP, rpc.CallMeta{Export: 1})
				r.Observe(c, rpc.Served{Row: 1, Took: time.Duration(i)})
				recorded[g].Add(1)
			}
		})
	}
	for running := true; running; {
		var before [goroutines]int64
		for g := range before {
			before[g] = recorded[g].Load()
		}
		r.Rotate()
		r.Clients()
		r.SetExports(map[uint32]string{1: "/a", 2: "/b"})
		running = false
		for g := range before {
			for before[g] < each && recorded[g].Load() == before[g] {
				runtime.Gosched()
			}
			running = running || before[g] < each
		}
	}
	wg.Wait()
	r.Rotate()
	var n uint64
	for _, x := range r.Clients() {
		n += x.Count()
	}
	if x := r.Exports(); n != goroutines*each || len(x) != 1 || x[0].Count() != goroutines*each {
		t.Errorf("%d calls by client, %+v by export", n, x)
	}
}

// TestSlow: the slowest calls are kept, and no others.
func TestSlow(t *testing.T) {
	r := testRecorder(1)
	for i := range 1000 {
		r.Observe(testCall("10.0.0.1", rpc.TransportTCP, rpc.CallMeta{}),
			rpc.Served{Row: 1, Took: time.Duration(i*7919%1000+1) * time.Millisecond})
	}
	got := r.Slow()
	if len(got) != slowKept || got[0].Took != time.Second || got[slowKept-1].Took != (1001-slowKept)*time.Millisecond {
		t.Errorf("%d, %v to %v", len(got), got[0].Took, got[len(got)-1].Took)
	}
	for range slowWindow {
		r.Rotate()
	}
	if len(r.Slow()) != slowKept {
		t.Error("the window before is gone at once")
	}
	for range slowWindow {
		r.Rotate()
	}
	if n := len(r.Slow()); n != 0 {
		t.Errorf("%d calls of long ago", n)
	}
}

// TestStore: a store's calls are recorded and added up.
func TestStore(t *testing.T) {
	r := testRecorder(1)
	r.SetExports(map[uint32]string{1: "/a"})
	s, c := r.Store(1), new(blockstore.Cred)
	s.End(StoreCommit, c, s.Begin())
	s.End(StoreCommit, nil, s.Begin())
	(*Store)(nil).End(StoreRead, c, s.Begin())
	if got := r.Stores(); len(got) != 1 || got[0].Export != "/a" || got[0].Op.String() != "commit" ||
		got[0].Count() != 2 || c.Spent <= 0 {
		t.Errorf("%+v, %d ns", got, c.Spent)
	}
}

// TestAllocations: recording costs no memory, whether the client is told apart or not.
func TestAllocations(t *testing.T) {
	r := testRecorder(1)
	r.SetExports(map[uint32]string{1: "/a"})
	for range slowKept {
		r.Observe(testCall("10.0.0.1", rpc.TransportRDMA, rpc.CallMeta{}), rpc.Served{Row: 1, Took: time.Hour})
	}
	for _, client := range []string{"10.0.0.1", "10.0.0.2"} {
		c := testCall(client, rpc.TransportRDMA, rpc.CallMeta{Export: 1, Outcome: 2, Fetch: 1})
		if n := testing.AllocsPerRun(1000, func() {
			r.Observe(c, rpc.Served{Row: 1, Took: time.Millisecond, Queued: 1})
		}); n != 0 {
			t.Errorf("%v allocations for a call of %s", n, client)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	r := testRecorder(100)
	r.SetExports(map[uint32]string{1: "/a"})
	for range slowKept {
		r.Observe(testCall("10.0.0.1", rpc.TransportRDMA, rpc.CallMeta{}), rpc.Served{Row: 1, Took: time.Hour})
	}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		c := testCall("10.0.0.1", rpc.TransportRDMA, rpc.CallMeta{Export: 1})
		for p.Next() {
			r.Observe(c, rpc.Served{Row: 1, Args: 100, Reply: 4096, Took: 20 * time.Microsecond})
		}
	})
}

// TestTrouble: what is the store's fault is told once in a minute for each export and outcome, with
// how often it came.
func TestTrouble(t *testing.T) {
	told := make(chan Trouble, 10)
	r := NewRecorder(Config{
		Programs:   []rpc.Program{{Name: "nfs3", Prog: 100003, Vers: 3, Procs: []rpc.Proc{{Name: "NULL"}, {Name: "READ"}}}},
		StatusName: func(n uint32) string { return fmt.Sprint(n) },
		Clients:    1, Troubles: []uint32{5, 28}, Tell: func(x Trouble) { told <- x },
	})
	r.SetExports(map[uint32]string{3: "/a", 4: "/b"})
	for _, c := range []struct {
		at      time.Duration
		export  uint32
		outcome uint32
		want    string // what is told
	}{
		{at: 1, export: 3, outcome: 5, want: "/a 5 1"},
		{at: 2, export: 3, outcome: 5},
		{at: 3, export: 3, outcome: 0},
		{at: 4, export: 3, outcome: 13}, // who asked is to blame
		{at: 5, export: 9, outcome: 5},  // not an export any more
		{at: 6, export: 3, outcome: 28, want: "/a 28 1"},
		{at: 7, export: 4, outcome: 5, want: "/b 5 1"},
		{at: troublePause, export: 3, outcome: 5},
		{at: troublePause + 1, export: 3, outcome: 5, want: "/a 5 3"},
	} {
		r.Observe(testCall("10.0.0.1", rpc.TransportTCP, rpc.CallMeta{Export: c.export, Outcome: c.outcome}),
			rpc.Served{Row: 1, At: c.at})
		if c.want != "" {
			if x := <-told; fmt.Sprintf("%s %s %d", x.Export, x.Status, x.Calls) != c.want || x.Operation != "READ" {
				t.Errorf("at %v: told of %+v, want %s", c.at, x, c.want)
			}
		}
	}
	if len(told) != 0 {
		t.Errorf("told of more: %+v", <-told)
	}
}
