package nlm

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Client is a host that has locks here, or had some.
type Client struct {
	Name string     `json:"name"`
	Addr netip.Addr `json:"addr"`
	// Server is the address of this server to which the client sends its calls.
	Server netip.Addr `json:"server"`
}

func (c *Client) key() string { return c.Addr.String() + " " + c.Name }

// Caller calls a procedure of a program on another host. It gets the port from the host's portmap.
// res may be nil. It is called from several goroutines.
type Caller func(
	ctx context.Context, host netip.Addr, prog, vers, proc uint32, args func(*xdr.Encoder), res func(*xdr.Decoder) error,
) error

// Config describes a server.
type Config struct {
	Exports *nfs.Table
	Codec   *nfs.Codec
	Locks   *lock.Table
	Call    Caller
	// Known are the clients that had locks before the server was started. The server sends each of
	// them SM_NOTIFY, and they may reclaim their locks during Grace (0: 45 seconds). In that time
	// no client gets a new lock. Without known clients there is no grace period.
	Known []Client
	Grace time.Duration
	// OthersReclaim reports whether clients of another protocol may be reclaiming locks. As long as it
	// does, no client gets a new lock here either. It may be nil.
	//
	// EndExpired is called with the client of a lock that conflicts. If that client is one of another
	// protocol and its lease has run out, EndExpired ends its locks and returns true. It may be nil.
	OthersReclaim func() bool
	EndExpired    func(client string) bool
	// Delegations are those of version 4. The holder of a delegation can lock the file without a call
	// to the server, so a delegation is recalled before a lock is taken here. nil: there are none.
	Delegations nfs.Delegations
	// Groups is the server's database of groups, for rules with ManageGIDs; nil: there is none.
	Groups nfs.Groups
	// Shares has the share reservations of all protocols; nil: SHARE is refused.
	Shares nfs.Shares
	// State is the state number of the status monitor. It is larger at each start of the server, and
	// odd while the server is up.
	State int32
	// Remember writes the list of clients with locks, for the next start. It returns when the list is
	// on stable storage.
	Remember func([]Client) error
	Logger   *slog.Logger
}

// Bounds, and times for calls to clients.
const (
	graceDefault = 45 * time.Second
	// clientsMax bounds the list of clients. A client for which there is no room gets no lock.
	clientsMax = 4096
	// callLimit is how long one attempt of a call to a client may take, callTries the number of
	// attempts.
	callLimit = 5 * time.Second
	callTries = 3
	// answersMax and answersHost bound the answers to _MSGs under way: in all, and to one host. The
	// server drops further answers, and the client sends its _MSG again.
	answersMax  = 32
	answersHost = 4
	// againAfter is the time between two GRANTEDs of one lock.
	againAfter = 100 * time.Millisecond
	// pollDefault is how often the server tries again to take waiting locks on the host.
	pollDefault = time.Second
)

// Server serves NLM and the status monitor. See Programs.
type Server struct {
	cfg       Config
	log       *slog.Logger
	until     atomic.Int64 // end of the grace period, in Unix nanoseconds of clock.Now; 0: there is none
	calls     sync.WaitGroup
	polling   atomic.Bool
	pollEvery time.Duration

	mu      sync.Mutex
	ctx     context.Context // of the calls to clients
	stop    context.CancelFunc
	clients map[string]Client   // by key
	notices map[Client]struct{} // clients that have not answered SM_NOTIFY yet
	answers map[netip.Addr]int  // calls under way that answer a _MSG, by host
	grants  map[*grant]struct{} // locks whose GRANTED has no answer yet
}

// grant is a lock that a client has waited for and now has. It exists until the client has answered
// GRANTED.
type grant struct {
	waiting
	file lock.File
	have *lock.Lock
}

// New makes a server, and begins to send SM_NOTIFY to the known clients. Close ends it.
func New(cfg Config) *Server {
	if cfg.Grace == 0 {
		cfg.Grace = graceDefault
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Remember == nil {
		cfg.Remember = func([]Client) error { return nil }
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, pollEvery: pollDefault,
		clients: make(map[string]Client), notices: make(map[Client]struct{}), grants: make(map[*grant]struct{}),
		answers: make(map[netip.Addr]int),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if len(cfg.Known) > 0 {
		s.until.Store(clock.Now().Add(cfg.Grace).UnixNano())
		s.log.Info("clients may reclaim their locks", "clients", len(cfg.Known), "for", cfg.Grace.String())
	}
	for _, c := range cfg.Known {
		s.clients[c.key()] = c
		s.notices[c] = struct{}{}
		s.background(func(ctx context.Context) { s.notify(ctx, c, cfg.State) })
	}
	return s
}

// BeginReclaim begins or prolongs the grace period: clients of a server of the same cluster that is
// lost may reclaim here. Each of them gets SM_NOTIFY with a state number, which must be larger than
// any before. A client comes to the address that it used before, which may have moved here.
func (s *Server) BeginReclaim(list []Client, until time.Time, state int32) {
	if len(list) == 0 {
		return
	}
	for at := until.UnixNano(); ; {
		old := s.until.Load()
		if at <= old || s.until.CompareAndSwap(old, at) {
			break
		}
	}
	for _, c := range list[:min(len(list), clientsMax)] {
		s.mu.Lock()
		_, there := s.notices[c]
		s.notices[c] = struct{}{}
		s.mu.Unlock()
		if !there {
			s.background(func(ctx context.Context) { s.notify(ctx, c, state) })
		}
	}
}

// Close ends the calls to clients and waits for their goroutines. Locks stay as they are.
func (s *Server) Close() { s.Pause(true) }

// background runs f on a goroutine. Close and Pause cancel ctx and wait for f.
func (s *Server) background(f func(ctx context.Context)) {
	s.mu.Lock()
	ctx := s.ctx
	s.mu.Unlock()
	s.calls.Go(func() { f(ctx) })
}

func (s *Server) grace() bool { return clock.Now().UnixNano() < s.until.Load() }

// EndGrace ends the grace period. Locks that were not reclaimed are lost.
func (s *Server) EndGrace() { s.until.Store(0) }

// GraceUntil returns the end of the grace period, and whether the period lasts.
func (s *Server) GraceUntil() (time.Time, bool) { return time.Unix(0, s.until.Load()), s.grace() }

// Grace reports whether the grace period lasts. In it clients may reclaim locks, and no client gets
// a new lock.
func (s *Server) Grace() bool { return s.grace() }

// wait reports whether a call is answered DENIED_GRACE_PERIOD. A reclaim is, outside of the grace
// period. Any other call is, within the grace period of NLM or of another protocol.
func (s *Server) wait(reclaim bool) bool {
	return s.grace() != reclaim || !reclaim && s.cfg.OthersReclaim != nil && s.cfg.OthersReclaim()
}

// conflict returns the first lock that conflicts with l. test is a method of the lock table. If the
// lock belongs to a client whose lease has run out, conflict ends that client's locks and tests
// again.
func (s *Server) conflict(
	f lock.File, l lock.Lock, test func(lock.File, lock.Lock) (lock.Lock, bool),
) (holder lock.Lock, free bool) {
	for {
		holder, free = test(f, l)
		if free || s.cfg.EndExpired == nil || !s.cfg.EndExpired(holder.Owner.Client) {
			return holder, free
		}
	}
}

// Programs returns the tables of NLM and of the status monitor.
func (s *Server) Programs() []rpc.Program {
	p := make([]rpc.Proc, numProcs)
	// These procedures go through the duplicate request cache. Over UDP, datagrams overtake one
	// another and clients send calls again. A copy that is executed after the client's next call would
	// make or end a lock that the client does not expect.
	once := []int{ProcLock, ProcCancel, ProcUnlock, ProcShare, ProcUnshare, ProcNMLock}
	row := func(n int, name string, f func(*rpc.Call) rpc.Status) {
		p[n] = rpc.Proc{
			Name: name, Mutates: slices.Contains(once, n),
			Serve: func(c *rpc.Call, _ bool) rpc.Status { return f(c) },
		}
	}
	nothing := func(*rpc.Call) rpc.Status { return rpc.Done }
	reply := func(do func(*rpc.Call) (func(*xdr.Encoder), bool)) func(*rpc.Call) rpc.Status {
		return func(c *rpc.Call) rpc.Status {
			answer, ok := do(c)
			if !ok {
				return rpc.Garbage
			}
			answer(&c.Res)
			return rpc.Done
		}
	}
	row(ProcNull, "NULL", nothing)
	for _, q := range []struct {
		name string
		proc int
		do   func(*rpc.Call) (answer func(*xdr.Encoder), ok bool)
	}{
		{"TEST", ProcTest, s.test},
		{"LOCK", ProcLock, func(c *rpc.Call) (func(*xdr.Encoder), bool) { return s.lock(c, true) }},
		{"CANCEL", ProcCancel, s.cancel},
		{"UNLOCK", ProcUnlock, s.unlock},
	} {
		row(q.proc, q.name, reply(q.do))
		const msg, res = ProcTestMsg - ProcTest, ProcTestRes - ProcTest
		row(q.proc+msg, q.name+"_MSG", func(c *rpc.Call) rpc.Status {
			answer, ok := q.do(c)
			if !ok {
				return rpc.Garbage
			}
			s.answer(&c.Peer, uint32(q.proc+res), answer)
			return rpc.Done
		})
		// a _RES answers nothing, because this server sends no _MSG
		row(q.proc+res, q.name+"_RES", nothing)
	}
	row(ProcGrantedRes, "GRANTED_RES", nothing)
	row(ProcShare, "SHARE", s.share)
	row(ProcUnshare, "UNSHARE", s.unshare)
	row(ProcNMLock, "NM_LOCK", reply(func(c *rpc.Call) (func(*xdr.Encoder), bool) { return s.lock(c, false) }))
	row(ProcFreeAll, "FREE_ALL", s.freeAll)
	return []rpc.Program{
		{Name: "nlm4", Prog: Program, Vers: Version, Procs: p},
		{Name: "status", Prog: StatusProgram, Vers: StatusVersion, Procs: s.statusProcs()},
	}
}
