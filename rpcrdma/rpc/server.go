package rpc

import (
	"cmp"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ServerConfig says what a Server serves and with how much.
type ServerConfig struct {
	Programs []Program
	// Workers is the number of goroutines that serve calls which may wait. 0 means 16.
	Workers int
	// ReplyCacheBytes and ReplyCacheEntries bound the duplicate request cache; 0 means 8 MiB and
	// 4096.
	ReplyCacheBytes   int
	ReplyCacheEntries int
	// Journal is memory that outlives the process, such as a shared mapping of a file, at least 512
	// bytes for each entry of the cache. From it a server recognizes retransmissions after a
	// restart. It must be zero, or as an earlier server left it. It belongs to the server until
	// Close. With nil the server does not recognize them.
	Journal []byte
	// GSS, if not nil, has the security contexts of clients: the server accepts RPCSEC_GSS. Without it
	// such calls are denied.
	GSS *gss.Server
	// MayServe, if not nil, reports whether this server may still answer clients. The server calls it
	// before it executes a call and before it sends the reply. If it is false, no reply is sent.
	MayServe func() bool
	// Unserved, if not nil, is called for each call of a program or version that is not served. It
	// must not wait, and must not retain p.
	Unserved func(p *Peer, prog, vers uint32)
	// Observer, if not nil, observes every call that was served.
	Observer Observer
	// Paced reports whether any client is under a limit that a Proc's Pace knows of. It is called
	// for each call with bulk data; nil: never.
	Paced  func() bool
	Logger *slog.Logger
}

// Server dispatches calls of any transport to program tables. It knows no transport. Its methods
// may be called from any goroutine.
//
// The work queue has at most the calls that all transports have accepted, and every transport
// bounds its calls by credits. So the queue needs no limit of its own, and adding a call never
// blocks.
//
// Lock order: deferred.mu, then mu. The cache's mutex is taken alone.
type Server struct {
	programs []Program
	stats    [][]procStats // by program, by procedure
	faults   [faultsEnd]atomic.Uint64
	cache    replyCache
	gss      *gss.Server
	observer Observer
	paced    func() bool
	mayServe func() bool // nil: always
	unserved func(p *Peer, prog, vers uint32)
	log      *slog.Logger
	epoch    time.Time // the server's start, for its clock
	date     atomic.Pointer[date]
	tracing  atomic.Bool
	rows     []int // by program: the index of its first procedure in Procedures

	mu     sync.Mutex
	ready  sync.Cond
	head   *Call
	tail   *Call
	load   Load
	busy   []working // the call of each worker
	closed bool
	done   sync.WaitGroup

	deferred deferred
}

// NewServer starts a server's workers. Close ends them.
func NewServer(cfg ServerConfig) *Server {
	cfg.Workers = cmp.Or(max(cfg.Workers, 0), 16)
	cfg.ReplyCacheBytes = cmp.Or(max(cfg.ReplyCacheBytes, 0), 8<<20)
	cfg.ReplyCacheEntries = cmp.Or(max(cfg.ReplyCacheEntries, 0), 4096)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &Server{
		programs: cfg.Programs, log: cfg.Logger, observer: cfg.Observer, paced: cfg.Paced, epoch: time.Now(),
		load: Load{Workers: cfg.Workers}, gss: cfg.GSS, mayServe: cfg.MayServe, unserved: cfg.Unserved,
	}
	s.ready.L = &s.mu
	s.busy = make([]working, cfg.Workers)
	s.deferred.calls = make(map[*Call]*time.Timer)
	s.cache.init(cfg.ReplyCacheEntries, cfg.ReplyCacheBytes, cfg.Journal, BootTime())
	n := 0
	for _, p := range s.programs {
		s.rows = append(s.rows, n)
		n += len(p.Procs)
		s.stats = append(s.stats, make([]procStats, len(p.Procs)))
	}
	s.done.Add(cfg.Workers)
	for i := range cfg.Workers {
		go s.work(i)
	}
	return s
}

// Close waits for the calls in progress and ends the workers. Queued calls are dropped without a
// reply.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.ready.Broadcast()
	s.mu.Unlock()
	s.dropDeferred()
	s.done.Wait()
}

// Pace applies the rate limits of a client to a call whose bulk argument, of bulk bytes, has not
// arrived; msg is the rest of the call. limit identifies the limit that applies, 0 for none. With
// take, Pace also counts the call, and sets c.Paid. The call may begin after wait. If ok is false
// it was not counted, and the caller calls Pace again after wait.
func (s *Server) Pace(c *Call, msg xdr.Decoder, bulk int, take bool) (limit uint32, wait time.Duration, ok bool) {
	if s.paced == nil || !s.paced() {
		return 0, 0, true
	}
	c.Args = msg
	if decodeHeader(&c.Args, c) != headerFine || c.gss.cred.Service > gss.None {
		return 0, 0, true // the bulk argument is not apart from the others
	}
	for i := range s.programs {
		p := &s.programs[i]
		if p.Prog == c.Prog && p.Vers == c.Vers && uint64(c.Proc) < uint64(len(p.Procs)) && p.Procs[c.Proc].Pace != nil {
			return p.Procs[c.Proc].Pace(c, bulk, take)
		}
	}
	return 0, 0, true
}

// run serves the call and replies. It reports false if the procedure would have to wait: then
// nothing was done.
func (s *Server) run(c *Call, mayBlock bool) bool {
	if c.stopped() {
		c.send(true)
		return true
	}
	args := c.Args
	status := s.serve(c, mayBlock)
	if c.deferred {
		c.deferred = false
		if status == Later {
			c.Args = args
			s.deferCall(c)
			return true
		}
		s.deferred.release()
	}
	switch status {
	case Again:
		if !mayBlock {
			c.Res.Truncate(c.base)
			return false
		}
		s.log.Error("a procedure asked to be called again where it may wait", "procedure", c.proc.Name)
		s.refuse(c, system, SystemErr)
	case Garbage:
		s.refuse(c, garbage, GarbageArgs)
	case Failed:
		s.refuse(c, system, SystemErr)
	case BadCred:
		s.faults[badCred].Add(1)
		c.stats.errors.Add(1)
		c.Res.Reset()
		encodeAuthError(&c.Res, c.XID, AuthTooWeak)
	case Drop:
		s.faults[dropped].Add(1)
	}
	took, out := time.Since(s.epoch)-c.came, c.Res.Len()
	c.stats.nanos.Add(uint64(took))
	c.stats.bytesOut.Add(uint64(out))
	if s.observer != nil {
		s.observer.Observe(c, Served{
			Row: c.row, Status: status, Args: c.size, Reply: out, Queued: c.moved, Took: took,
			At: c.came + took,
		})
	}
	if c.entry != nil {
		s.cache.finish(c, status == Done, c.start)
	}
	if status == Drop || mayBlock || !s.leaveSealing(c) {
		c.send(status == Drop)
	}
	return true
}

// refuse replaces the results by an error.
func (s *Server) refuse(c *Call, n fault, why AcceptStat) {
	s.faults[n].Add(1)
	c.stats.errors.Add(1)
	c.Res.Reset()
	encodeAccepted(&c.Res, c.XID, why)
}

// serve calls the procedure. A panic in it fails the call, and not the server.
func (s *Server) serve(c *Call, mayBlock bool) (status Status) {
	defer func() {
		if r := recover(); r != nil {
			s.faults[panics].Add(1)
			s.log.Error("panic while serving a call", "procedure", c.proc.Name, "peer", c.Peer.Addr.String(),
				"panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			status = Failed
		}
	}()
	return c.proc.Serve(c, mayBlock)
}

// enqueue passes a call to the workers. From here on another goroutine may have it.
func (s *Server) enqueue(c *Call) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.abandon(c)
		return
	}
	c.next = nil
	c.Detach()
	if s.tail == nil {
		s.head = c
	} else {
		s.tail.next = c
	}
	s.tail = c
	s.load.Queued++
	s.ready.Signal()
	s.mu.Unlock()
}

// work is the goroutine of worker i.
func (s *Server) work(i int) {
	defer s.done.Done()
	for served := false; ; served = true {
		s.mu.Lock()
		if served {
			s.busy[i] = working{}
			s.load.Busy--
			s.load.Done++
		}
		for s.head == nil && !s.closed {
			s.ready.Wait()
		}
		c := s.head
		if c == nil {
			s.mu.Unlock()
			return
		}
		s.head = c.next
		if s.head == nil {
			s.tail = nil
		}
		s.load.Queued--
		s.load.Busy++
		s.busy[i] = working{c.proc.Name, c.Peer.Addr, c.came}
		closed := s.closed
		c.next = nil
		s.mu.Unlock()
		if closed {
			s.abandon(c)
			continue
		}
		c.moved = max(time.Since(s.epoch)-c.came, 1)
		if !s.proceed(c) {
			s.run(c, true)
		}
	}
}

// first looks a call up in the reply cache. It reports whether the call is to be executed; if not,
// it was answered or will be.
func (s *Server) first(c *Call) bool {
	c.start = BootTime()
	entry, verdict := s.cache.begin(c.key(), c)
	switch verdict {
	case drcNew:
		c.entry, c.cache = entry, &s.cache
		return true
	case drcReplay:
		c.stats.retransmits.Add(1)
		c.send(false)
	case drcJoined:
		c.stats.retransmits.Add(1)
	case drcOvertaken:
		c.stats.retransmits.Add(1)
		c.send(true)
	}
	return false
}
