package measure

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Config says what is recorded.
type Config struct {
	// Programs are the RPC programs of the server.
	Programs []rpc.Program
	// Compound is the procedure whose calls are recorded by operation (rpc.CallMeta.Op).
	// OperationName names the operations; all numbers are below Operations.
	Compound      struct{ Prog, Vers, Proc uint32 }
	Operations    uint32
	OperationName func(op uint32) string
	// StatusName names an outcome.
	StatusName func(outcome uint32) string
	// Clients is the most clients that are recorded separately.
	Clients int
	// Troubles are outcomes that mean a failure of a store. Tell is called for them, on its own
	// goroutine, from time to time for each export and outcome.
	Troubles []uint32
	Tell     func(Trouble)
}

// Recorder records the calls of a server. It is the server's rpc.Observer; its other methods
// may be called from any goroutine.
type Recorder struct {
	cfg      Config
	rows     []row
	compound int // the row of the compounds, or -1; those of its operations begin at operations
	firstOp  int
	calls    points // by row and transport
	queue    points
	fetch    points
	outcomes []atomic.Uint64 // by row and outcome
	clients  clients
	users    users

	exports atomic.Pointer[[]*export] // by number
	mu      sync.Mutex                // of changes of exports, and of what follows
	stores  map[uint32]*Store         // by number of the export

	slow   slow
	tracer atomic.Pointer[func(*rpc.Call, rpc.Served, int)]
}

type row struct {
	program, operation string
	kind               Kind
	changes            bool // it is for changing something
}

// changing are the operations that change something when they succeed. OPEN may.
var changing = []string{
	"WRITE", "SETATTR", "CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK",
	"ALLOCATE", "DEALLOCATE", "COPY", "CLONE", "WRITE_SAME", "SETXATTR", "REMOVEXATTR",
}

func newRow(program, operation string) row {
	return row{program, operation, kindOf(operation), slices.Contains(changing, operation)}
}

// Kind is the class of an operation in the records of exports.
type Kind uint8

// Kinds.
const (
	Meta Kind = iota
	Read
	Write
	kinds
)

func (k Kind) String() string { return [...]string{"meta", "read", "write"}[k] }

func kindOf(operation string) Kind {
	switch operation {
	case "READ", "READ_PLUS":
		return Read
	case "WRITE":
		return Write
	}
	return Meta
}

// Transports by the place of their cells.
var transports = [...]rpc.Transport{rpc.TransportTCP, rpc.TransportRDMA, rpc.TransportUDP}

func transportCell(t rpc.Transport) int {
	return max(slices.Index(transports[:], t), 0)
}

// NewRecorder makes a Recorder.
func NewRecorder(cfg Config) *Recorder {
	r := &Recorder{cfg: cfg, compound: -1, queue: newPoints(1), fetch: newPoints(1), stores: make(map[uint32]*Store)}
	for i, p := range rpc.Procedures(cfg.Programs) {
		r.rows = append(r.rows, newRow(p.Program, p.Name))
		if c := cfg.Compound; c.Prog == p.Prog && c.Vers == p.Version && c.Proc == p.Proc {
			r.compound = i
		}
	}
	r.firstOp = len(r.rows)
	if r.compound >= 0 {
		for op := range cfg.Operations {
			r.rows = append(r.rows, newRow(r.rows[r.compound].program, cfg.OperationName(op)))
		}
	}
	r.calls = newPoints(len(r.rows) * len(transports))
	r.outcomes = make([]atomic.Uint64, len(r.rows)*outcomes)
	r.exports.Store(new([]*export))
	r.clients.init(cfg.Clients)
	r.users.init()
	r.slow.init()
	return r
}

// Observe implements rpc.Observer.
func (r *Recorder) Observe(c *rpc.Call, s rpc.Served) {
	notes := &c.Meta
	i := s.Row
	if i == r.compound && notes.Op != 0 && notes.Op < r.cfg.Operations {
		i = r.firstOp + int(notes.Op)
	}
	t, k := transportCell(c.Peer.Transport), here()
	took := s.Took + notes.Fetch
	failed := s.Status != rpc.Done || notes.Outcome != 0
	r.calls[k][i*len(transports)+t].addCall(took, s.Args, s.Reply, failed)
	if failed {
		r.outcomes[i*outcomes+outcome(s.Status, notes.Outcome)].Add(1)
	}
	if list := *r.exports.Load(); int64(notes.Export) < int64(len(list)) {
		if x := list[notes.Export]; x != nil {
			x.calls[k][int(r.rows[i].kind)*len(transports)+t].addCall(took, s.Args, s.Reply, failed)
			if failed {
				r.note(x, c, &s, i)
			} else {
				r.users.note(c, t, s.At, r.rows[i].changes)
			}
		}
	}
	r.clients.find(c.Peer.Addr.Addr())[k][t].addCall(took, s.Args, s.Reply, failed)
	if s.Queued > 0 {
		r.queue[k][0].add(s.Queued)
	}
	if notes.Fetch > 0 {
		r.fetch[k][0].add(notes.Fetch)
	}
	if took > time.Duration(r.slow.threshold.Load()) {
		r.slow.add(c, &s, i)
	}
	if f := r.tracer.Load(); f != nil {
		(*f)(c, s, i)
	}
}

// Indexes of outcomes: first NFS statuses below 100, then those from 10000 on, then the results of
// RPC.
const (
	outcomes     = 204
	outcomeHigh  = 100 // of 10000
	outcomeOther = 199
)

func outcome(s rpc.Status, n uint32) int {
	switch {
	case s != rpc.Done:
		return min(outcomeOther+int(s)-1, outcomes-1) // Garbage is 2
	case n < outcomeHigh:
		return int(n)
	case n >= 10000 && n < 10000+outcomeOther-outcomeHigh:
		return int(n-10000) + outcomeHigh
	}
	return outcomeOther
}

func (r *Recorder) outcomeName(i int) string {
	switch {
	case i > outcomeOther:
		return [...]string{"GARBAGE_ARGS", "SYSTEM_ERR", "DROPPED", "AUTH_ERROR"}[i-outcomeOther-1]
	case i == outcomeOther:
		return "other"
	case i >= outcomeHigh:
		return r.cfg.StatusName(uint32(i - outcomeHigh + 10000))
	}
	return r.cfg.StatusName(uint32(i))
}

// Operation has the records of an operation.
type Operation struct {
	Program, Name string
	Transport     rpc.Transport
	Sums
}

// Operations lists the operations that were called.
func (r *Recorder) Operations() []Operation {
	var out []Operation
	for i, x := range r.rows {
		for t, transport := range transports {
			if s := r.calls.sums(i*len(transports) + t); s.Count() > 0 {
				out = append(out, Operation{x.program, x.operation, transport, s})
			}
		}
	}
	return out
}

// Failure counts the calls of an operation with a status that is not OK.
type Failure struct {
	Program, Operation, Status string
	Count                      uint64
}

// Failures lists failed calls by operation and status.
func (r *Recorder) Failures() []Failure {
	var out []Failure
	for i := range r.outcomes {
		if n := r.outcomes[i].Load(); n > 0 {
			x := r.rows[i/outcomes]
			out = append(out, Failure{x.program, x.operation, r.outcomeName(i % outcomes), n})
		}
	}
	return out
}

// Queue has the times that calls waited for a worker. Fetch has the times that calls over RDMA
// waited for memory and for RDMA READs.
func (r *Recorder) Queue() Sums { return r.queue.sums(0) }

// Fetch is described at Queue.
func (r *Recorder) Fetch() Sums { return r.fetch.sums(0) }

// Trace sets a function that is called for every call, until it is replaced; nil ends the trace. f
// runs like rpc.Observer.Observe, and also gets the row that Describe needs.
func (r *Recorder) Trace(f func(c *rpc.Call, s rpc.Served, row int)) {
	if f == nil {
		r.tracer.Store(nil)
		return
	}
	r.tracer.Store(&f)
}
