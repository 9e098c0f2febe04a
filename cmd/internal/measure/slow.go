package measure

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

const (
	slowKept   = 64 // of each window
	slowWindow = 5  // rotations, which are minutes
)

// SlowCall is a call that took long, and where its time went. What is left of Took was spent
// in the server itself.
type SlowCall struct {
	Ended     time.Time
	Client    netip.AddrPort
	Transport rpc.Transport
	Program   string
	Operation string
	Export    string
	XID       uint32
	Status    string
	In, Out   int // bytes
	Took      time.Duration
	// Queue: it waited for a worker. RDMA: it waited for memory and for its data by RDMA
	// READ. Store: in the store.
	Queue, RDMA, Store time.Duration

	row    int
	export uint32
	status rpc.Status
	code   uint32
}

// slow keeps the slowest calls of a window of time. Calls that are faster than the fastest of
// those pass by threshold alone.
type slow struct {
	threshold atomic.Int64 // nanoseconds

	mu    sync.Mutex
	now   []SlowCall // the fastest first
	past  []SlowCall
	turns int
}

func (w *slow) init() { w.now = make([]SlowCall, 0, slowKept) }

func (w *slow) add(c *rpc.Call, s *rpc.Served, row int) {
	took := s.Took + c.Meta.Fetch
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.now) == slowKept {
		if took <= w.now[0].Took {
			return
		}
		copy(w.now, w.now[1:])
		w.now = w.now[:slowKept-1]
	}
	i, _ := slices.BinarySearchFunc(w.now, took, func(x SlowCall, d time.Duration) int { return cmp.Compare(x.Took, d) })
	w.now = slices.Insert(w.now, i, slowCall(c, s, row, time.Now()))
	if len(w.now) == slowKept {
		w.threshold.Store(int64(w.now[0].Took))
	}
}

func slowCall(c *rpc.Call, s *rpc.Served, row int, ended time.Time) SlowCall {
	return SlowCall{
		Ended: ended, Client: c.Peer.Addr, Transport: c.Peer.Transport, XID: c.XID, In: s.Args, Out: s.Reply,
		Took:  s.Took + c.Meta.Fetch,
		Queue: s.Queued, RDMA: c.Meta.Fetch, Store: c.Meta.Store, row: row, export: c.Meta.Export, status: s.Status,
		code: c.Meta.Outcome,
	}
}

// Describe is a call as the list of slow calls would have it.
func (r *Recorder) Describe(c *rpc.Call, s *rpc.Served, row int, ended time.Time) SlowCall {
	x := slowCall(c, s, row, ended)
	r.name(&x)
	return x
}

// name puts words for numbers.
func (r *Recorder) name(x *SlowCall) {
	x.Program, x.Operation, x.Export = r.rows[x.row].program, r.rows[x.row].operation, r.exportName(x.export)
	if x.Status = "OK"; x.status != rpc.Done || x.code != 0 {
		x.Status = r.outcomeName(outcome(x.status, x.code))
	}
}

func (w *slow) rotate() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.turns++; w.turns%slowWindow != 0 {
		return
	}
	w.past, w.now = w.now, make([]SlowCall, 0, slowKept)
	w.threshold.Store(0)
}

// Slow lists the slowest calls of the last five to ten minutes, the slowest first.
func (r *Recorder) Slow() []SlowCall {
	r.slow.mu.Lock()
	out := slices.Concat(r.slow.now, r.slow.past)
	r.slow.mu.Unlock()
	for i := range out {
		r.name(&out[i])
	}
	slices.SortStableFunc(out, func(a, b SlowCall) int { return cmp.Compare(b.Took, a.Took) })
	return out
}
