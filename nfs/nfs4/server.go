package nfs4

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Config describes a Server.
type Config struct {
	nfs.Config
	// Identity identifies this server, over restarts and at all its addresses (server_owner4,
	// server_scope). It may be any bytes; clients see a hash. Clients take two servers with the same
	// Identity for one server. So two machines must have different ones: otherwise a client could use
	// sessions and client IDs of one machine at the other (trunking, RFC 8881 section 2.10.5).
	Identity []byte
	// Scope is in the place of Identity in server_scope: servers of one cluster, with the same file
	// handles, have the same. nil: Identity.
	Scope []byte
	// Boot is different for each start of the server: it is a part of client IDs, session IDs and
	// stateids, and tells a client that the server has restarted. Locks is the table of byte-range
	// locks, which NLM of version 3 may share. See state.Config.
	Boot  uint32
	Locks *lock.Table
	// Lease is how long a client may be silent; 0 means 90 seconds. The client reads it as the
	// attribute lease_time, in whole seconds. Grace is how long clients may reclaim; 0 means a
	// lease. It must not be shorter than the lease before the restart: a client that notices the
	// restart only when it renews its lease would come too late (RFC 8881 section 8.4.2.1).
	//
	//	           in the grace period    after it
	//	reclaim    OK                     NO_GRACE
	//	new state  GRACE                  OK
	Lease, Grace time.Duration
	// Known are the clients that had state before the server was started, by their owner strings:
	// they may reclaim it during Grace, in which nobody gets anything new. Without Known there is
	// no grace period. Journal records the list for the next start; see state.Config.
	Known   []string
	Journal state.Journal
	// Cluster is the grace period of several servers; nil: this one is alone. See state.Config.
	Cluster state.Cluster
	// OthersReclaim reports whether clients of another protocol may be reclaiming locks
	// of the same table; nil means never.
	OthersReclaim func() bool
	// Calls is memory for the journal of calls (once.go). It outlives the process, as a shared mapping
	// of a file does. A call that is sent again after a kill is then not executed again. nil: it is.
	// The memory belongs to the caller, and must stay mapped until the last call has ended.
	Calls []byte
	// Limits are the bounds of state.Config. New overwrites its other fields. Zero bounds have
	// defaults.
	Limits state.Config
	// Minors are the minor versions to serve, of 0 to 2; nil means all.
	Minors []uint32
	// UTF8 refuses names of files that are not UTF-8; otherwise they are bytes. The Linux client
	// sends the bytes of its programs unchanged, so UTF8 makes old names in Latin-1 unreachable.
	UTF8 bool
	// Names translates users and groups to names; nil: to numbers.
	Names nfs.Names
	// CallBack makes the Caller for a client of version 4.0. The server calls such a client on a
	// connection of its own, to an address from which the client's calls come. CallBack must not wait,
	// and must not change cb. nil: no client of version 4.0 is called, and none gets a delegation.
	CallBack func(cb *state.Callback) rpc.Caller
	// CopyPartners are the servers that take part in copies between servers; nil: there are none.
	CopyPartners CopyPartners
	// Now is the clock of leases, recalls and limits; nil means clock.Now, which does not jump with
	// the host's clock. Wall is the clock of times in attributes, hence the host's. nil means Now
	// if that is set, else time.Now.
	Now, Wall func() time.Time
}

const leaseDefault = 90 * time.Second

// Server serves NFS version 4. See Programs. Its methods may be called from any goroutine, except
// Restore. Close ends its goroutines; clients and sessions need not be closed.
type Server struct {
	cfg      Config // with the defaults of New filled in
	denials  denials
	state    *state.Server
	identity string // server_owner4
	scope    string // server_scope
	tree     treeCache
	pool     sync.Pool // of *compound

	// Background work locks background for reading. Inside of it, each callback locks calling for
	// reading. Pause locks both for writing and sets paused, so one of the two is enough to read
	// paused. A goroutine with one of these locks must not wait for a client: Pause, and so an
	// upgrade, would wait for the client too.
	calling, background sync.RWMutex
	paused              bool

	ops                      [numOps]atomic.Uint64 // executed
	illegal                  atomic.Uint64
	replays                  atomic.Uint64 // answered from the reply cache
	retriesWaited            atomic.Uint64 // retries that waited for the request that they repeat
	callbacks, callbacksLost atomic.Uint64
	waiters                  atomic.Int32 // workers that wait for a client, of waitersMax
	offloads                 offloads
	copies                   copies
	lockWaits                lockWaits
	dirs                     dirNotices
	journal                  journal
	getattrs                 atomic.Uint64 // CB_GETATTRs
	recallAnys               atomic.Uint64 // CB_RECALL_ANYs
	unleased                 atomic.Uint64 // delegations of files for which the store has no lease of the host
	unpinned                 atomic.Uint64 // opens without a pin, because no descriptor was free
	hostOpens                atomic.Uint64 // delegations that were recalled for programs of the host
	deniedCalls              atomic.Uint64 // calls that name a session or client of somebody else
	fullNoted                atomic.Int64  // when noteFull last logged
	refusedNoted             atomic.Uint64 // refusals for want of room, up to then
	deniedNoted              atomic.Int64  // when a denied call was last written to the audit log
	toWorkers                atomic.Uint64 // compounds begun on a transport's loop that went to a worker

	// observe is called with every operation and its status, in tests; otherwise it is nil.
	observe func(minor, op uint32, st nfs.Status)
}

// New makes a server. The grace period begins here. Clients that can connect only later have less
// time to reclaim, so the transports should accept connections soon afterwards. Calls is read
// before New returns.
func New(cfg Config) *Server {
	cfg.SetDefaults()
	if cfg.Names == nil {
		cfg.Names = byNumber{}
	}
	if cfg.Wall == nil {
		cfg.Wall = cfg.Now
	}
	if cfg.Now == nil {
		cfg.Now = clock.Now
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.Lease <= 0 {
		cfg.Lease = leaseDefault
	}
	if cfg.Grace <= 0 {
		cfg.Grace = cfg.Lease
	}
	if cfg.Scope == nil {
		cfg.Scope = cfg.Identity
	}
	s := &Server{cfg: cfg, identity: identify(cfg.Identity), scope: identify(cfg.Scope)}
	if len(cfg.Known) > 0 {
		cfg.Logger.Info("clients of version 4 may reclaim what they had", "clients", len(cfg.Known), "for",
			cfg.Grace.String())
	}
	limits := cfg.Limits
	limits.Boot, limits.Lease, limits.Locks = cfg.Boot, cfg.Lease, cfg.Locks
	limits.Known, limits.GraceUntil, limits.Journal = cfg.Known, cfg.Now().Add(cfg.Grace), cfg.Journal
	limits.OthersReclaim, limits.Cluster = cfg.OthersReclaim, cfg.Cluster
	limits.Recall, limits.Unpin, limits.Changed, limits.Denied = s.recall, s.unpin, s.changed, s.denied
	s.lockWaits.wake = make(chan struct{}, 1)
	if limits.Locks == nil {
		limits.Locks = lock.New(0)
	}
	s.lockWaits.table = limits.Locks
	limits.Locks.UseOffers(s.lockOffered)
	s.state = state.New(limits)
	if len(cfg.Calls) >= callRecord {
		s.journal.load(cfg.Calls, cfg.Now())
	}
	s.offloads.init()
	s.pool.New = func() any { return &compound{s: s} }
	return s
}

// identify is what clients see of an identity.
func identify(b []byte) string {
	sum := sha256.Sum256(append([]byte("rstored NFSv4 server identity\x00"), b...))
	return "rstored-" + hex.EncodeToString(sum[:16])
}

// servesMinor reports whether a minor version is served. For others the Linux client gets
// MINOR_VERS_MISMATCH, and mount(8) tries the next lower version.
func (s *Server) servesMinor(m uint32) bool {
	return m <= minorMax && (s.cfg.Minors == nil || slices.Contains(s.cfg.Minors, m))
}

// State is the table of clients and their state. Its locks are taken after background and calling,
// and before journal.mu and offloads.mu.
func (s *Server) State() *state.Server { return s.state }

// Programs returns the table of NFS version 4: procedure NULL and COMPOUND (RFC 8881 section 16).
// Inline says that a transport's loop may call Serve, with mayBlock false. Once chooses the
// compounds for the duplicate request cache, which version 4.0 needs. pace applies rate limits
// before a call has memory.
func (s *Server) Programs() []rpc.Program {
	return []rpc.Program{{Name: "nfs4", Prog: Program, Vers: Version, Procs: []rpc.Proc{
		ProcNull:     {Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
		ProcCompound: {Name: "COMPOUND", Inline: true, Serve: s.compound, Once: Once, Pace: s.pace},
	}}}
}

// Memory is the memory that clients' state takes in package state: clients, sessions with their
// reply caches, owners, opens, locks, delegations.
func (s *Server) Memory() state.MemoryInfo { return s.state.Memory() }

// Ops returns the counts of operations by name, without zeros. It also counts operations that admit
// refused. An operation that the compound's minor version does not have counts in Faults.
func (s *Server) Ops() map[string]uint64 {
	out := make(map[string]uint64)
	for i := range s.ops {
		if n := s.ops[i].Load(); n > 0 {
			out[table[i].name] = n
		}
	}
	return out
}

// Names of those Faults that are normal events: they also rise if all clients and the server behave
// well. Alerts should use the other names.
const (
	CountReplays       = "nfs4_replays"
	CountRetriesWaited = "nfs4_retries_waited"
	CountToWorkers     = "nfs4_compounds_to_workers"

	CountCallbacks   = "nfs4_callbacks"
	CountDelegations = "nfs4_delegations"
	CountRecalls     = "nfs4_recalls"
	CountRecallWaits = "nfs4_recall_waits"

	CountGetattrs  = "nfs4_callback_getattrs"
	CountUnpinned  = "nfs4_opens_unpinned"
	CountUnleased  = "nfs4_delegations_unleased"
	CountHostOpens = "nfs4_delegations_broken_by_host"
	CountRecallAny = "nfs4_recalls_of_any"
	CountNotified  = "nfs4_locks_notified"
	CountOffloads  = "nfs4_offloads"
	// CountDirNotified counts CB_NOTIFYs. Each has one change of a directory or more.
	CountDirNotified = "nfs4_directories_notified"
	CountCancelled   = "nfs4_offloads_cancelled"
	// CountCopyNotified counts the copy stateids that COPY_NOTIFY has granted, CountPulled the copies
	// from other servers.
	CountCopyNotified = "nfs4_copies_notified"
	CountPulled       = "nfs4_copies_from_servers"
)

// Faults returns the counts of events, by name, without zeros. Events with a Count constant are
// normal. The others are out of the ordinary, such as operations that no version has, callbacks
// without an answer, revoked delegations and refusals. nfs.Counters counts statuses.
func (s *Server) Faults() map[string]uint64 {
	out := make(map[string]uint64)
	n := s.state.Delegations()
	for name, n := range map[string]uint64{
		"nfs4_memory_refused": s.state.Memory().Refused,
		CountDelegations:      n.Given, CountRecalls: n.Recalls, CountRecallWaits: n.Waits,
		"nfs4_delegations_revoked": n.Revoked,
	} {
		if n > 0 {
			out[name] = n
		}
	}
	for name, n := range map[string]*atomic.Uint64{
		CountGetattrs: &s.getattrs, CountUnpinned: &s.unpinned, CountUnleased: &s.unleased, CountHostOpens: &s.hostOpens,
		CountRecallAny: &s.recallAnys, CountOffloads: &s.offloads.begun, CountCancelled: &s.offloads.cancelled,
		CountNotified: &s.lockWaits.notified, CountDirNotified: &s.dirs.sent,
		CountCopyNotified: &s.copies.notified, CountPulled: &s.copies.pulled,
		"nfs4_copies_denied": &s.copies.denied, "nfs4_copies_failed": &s.copies.failed,
		CountCallbacks: &s.callbacks, "nfs4_callbacks_lost": &s.callbacksLost,
		"nfs4_illegal_operations": &s.illegal, "nfs4_sessions_denied": &s.deniedCalls, CountReplays: &s.replays,
		CountRetriesWaited: &s.retriesWaited, CountToWorkers: &s.toWorkers,
	} {
		if n := n.Load(); n > 0 {
			out[name] = n
		}
	}
	return out
}
