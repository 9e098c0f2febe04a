package state

import (
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Config describes a Server. Zero limits have defaults. Client IDs, sessions, stateids and owner
// strings come from peers: every table that a peer can fill has a limit here or is charged to
// Memory.
type Config struct {
	// Boot is different for each start of the server. It is part of client IDs, session IDs and
	// stateids, so the server recognizes those of an earlier start as stale. Zero and all ones would
	// make stateids that equal special ones; New replaces both by 1.
	Boot uint32
	// Lease is how long a client may be silent; 0 means 90 seconds. It is also the time that a client
	// has to return a recalled delegation.
	Lease time.Duration
	// Locks is the table of byte-range locks.
	Locks *lock.Table
	// Known are the clients, by their owner strings, that had state before the server
	// was started. They may reclaim it until GraceUntil. An empty list means no grace period.
	Known      []string
	GraceUntil time.Time
	// OthersReclaim reports whether clients of another protocol may be reclaiming locks
	// of the same table; nil means never.
	OthersReclaim func() bool
	// Journal stores the list of clients that may reclaim their state after the next start. One
	// goroutine at a time calls it. nil: no client may reclaim.
	Journal Journal
	// Cluster is the grace period that several servers share; nil: this server is alone.
	Cluster Cluster
	// Clients bounds the client records, Sessions the sessions of one client, States the opens, lock
	// stateids, delegations and copies of one client. Above a limit a new client, session, open or
	// lock gets DELAY (SETCLIENTID: RESOURCE), and the client tries again later.
	Clients, Sessions, States int
	// Memory bounds the state of all clients in bytes, ClientMemory the state of the clients of one
	// host.
	Memory, ClientMemory int64
	// Changed is called for clients that were confirmed or have ended. It must not wait. It may be
	// nil.
	Changed func(Change, ClientInfo)
	// Denied is called for requests that name a client ID or session of another client. It must not
	// wait. It may be nil.
	Denied func(op string, client uint64, from From)
	// Recall sends CB_RECALL. It must not wait, and it calls Server.Recalled once for each element,
	// after the reply or when there is none in time. It is called with no lock held. nil: no client
	// learns of a recall.
	Recall func([]Recall)
	// Unpin is called when an open or a delegation ends whose file the caller has pinned. Locks are
	// held: it must not wait, nor call this package. nil: no file is pinned.
	Unpin func(lock.File)
	// Delegations bounds the delegations, ClientDelegations those of one client.
	Delegations, ClientDelegations int
	// Offloads bounds the copies that go on after their replies, ClientOffloads those of
	// one client.
	Offloads, ClientOffloads int
}

// Change is an event of a client record.
type Change uint8

// Changes.
const (
	Established Change = iota // the client is confirmed, and may have state
	Replaced                  // a new start of the client has replaced it
	Ended                     // by its own request, by an administrator, or for other clients after its lease
)

func (c Change) String() string { return [...]string{"established", "replaced", "ended"}[c] }

// changed passes an event of a client to Config.Changed. Call with no lock held.
func (s *Server) changed(c *Client, what Change) {
	if s.cfg.Changed != nil {
		i := ClientInfo{ID: c.ID, Owner: ownerOf(c.owner), Confirmed: true, Renewed: time.Unix(0, c.renewed.Load())}
		if c.v40 != nil {
			i.Version = "4.0"
		}
		s.cfg.Changed(what, i)
	}
}

// Journal is a list of clients on stable storage, by their owner strings. A method returns when a
// crash can no longer undo the change. Add returns before the reply to the client's first OPEN.
// Remove returns before another client gets what the removed one had (RFC 8881 section 8.4.3).
type Journal interface {
	Add(owner string) error
	// Remove removes all of the owners, or after an error none.
	Remove(owners ...string) error
}

// Cluster is the grace period of several servers in front of one file system. Clients of any of them
// may reclaim during it, and none of them grants anything new. Its methods must not wait.
type Cluster interface {
	// Grace reports whether the period lasts.
	Grace() bool
	// Undecided reports whether a client that came at a time, and is not known, may become known by
	// BeginReclaim: its server may be lost.
	Undecided(since time.Time) bool
}

// Defaults and bounds of counts; Config.Memory and Config.ClientMemory bound the bytes. With the
// defaults one host runs out of memory (256 MiB) at about a third of statesDefault.
const (
	leaseDefault    = 90 * time.Second
	clientsDefault  = 1 << 16
	sessionsDefault = 64
	statesDefault   = 1 << 20
	delegsDefault   = 1 << 18
	delegsOfClient  = 1 << 14
	offloadsDefault = 64
	offloadsOf      = 8  // one client
	shards          = 64 // a power of two
)

// Server is the state of a server. mu guards the fields from owners to expired; the others have
// locks of their own.
type Server struct {
	cfg  Config
	seed maphash.Seed

	mu      sync.RWMutex
	owners  map[string]*records // by Client.owner; an entry has at least one record
	clients map[uint32]*Client  // by the low half of the client ID
	next    uint32              // of the last client ID given out
	// Of version 4.0: the number of verifiers that nextConfirm has made, and the low halves of the IDs
	// of the last clients that the server has ended.
	confirms uint32
	expired  []uint32
	// When sweep and Sweep last looked at all clients, in nanoseconds; 0: never.
	swept, sweptNew atomic.Int64

	mem      memory
	grace    grace
	delegs   delegCounts
	offloads atomic.Int64
	notices  notices
	shares   shareCounts

	sessions [shards]sessionShard
	files    [shards]fileShard
}

// sessionShard is a part of the table of all sessions. Each SEQUENCE reads one part, so requests of
// different sessions rarely wait for the same lock.
type sessionShard struct {
	mu sync.RWMutex
	m  map[SessionID]*Session
}

// fileShard is a part of the table of files that are open, delegated or reserved. All checks of a
// file against opens, delegations and reservations, and the entry that follows, happen under one
// mu: no conflicting entry can come between them.
type fileShard struct {
	mu    sync.Mutex
	m     map[lock.File][]*open // of all clients; no empty lists
	deleg delegShard
	// foreign are the reservations of other protocols; nil: there has been none.
	foreign map[lock.File][]foreign
}

// New makes a server without clients.
func New(cfg Config) *Server {
	// Zero and all ones would make stateids like the special ones.
	if cfg.Boot == 0 || cfg.Boot == 1<<32-1 {
		cfg.Boot = 1
	}
	if cfg.Lease <= 0 {
		cfg.Lease = leaseDefault
	}
	if cfg.Clients <= 0 {
		cfg.Clients = clientsDefault
	}
	if cfg.Sessions <= 0 {
		cfg.Sessions = sessionsDefault
	}
	if cfg.States <= 0 {
		cfg.States = statesDefault
	}
	if cfg.Memory <= 0 {
		cfg.Memory = memoryDefault
	}
	if cfg.ClientMemory <= 0 {
		cfg.ClientMemory = clientMemoryDefault
	}
	if cfg.Delegations <= 0 {
		cfg.Delegations = delegsDefault
	}
	if cfg.ClientDelegations <= 0 {
		cfg.ClientDelegations = delegsOfClient
	}
	if cfg.Offloads <= 0 {
		cfg.Offloads = offloadsDefault
	}
	if cfg.ClientOffloads <= 0 {
		cfg.ClientOffloads = offloadsOf
	}
	if cfg.Locks == nil {
		cfg.Locks = lock.New(0)
	}
	s := &Server{cfg: cfg, seed: maphash.MakeSeed(), owners: make(map[string]*records), clients: make(map[uint32]*Client)}
	s.mem.limit, s.mem.host, s.mem.hosts = cfg.Memory, min(cfg.ClientMemory, cfg.Memory), make(map[netip.Addr]*account)
	s.mem.clients = int64(max(cfg.Clients/clientsPart, clientsMin))
	s.grace.init(&s.cfg)
	for i := range shards {
		s.sessions[i].m = make(map[SessionID]*Session)
		s.files[i].m = make(map[lock.File][]*open)
	}
	return s
}

// Lease is how long a client may be silent.
func (s *Server) Lease() time.Duration { return s.cfg.Lease }

// SessionID is a sessionid4: Config.Boot and 96 random bits. Whoever knows it may bind a connection
// to the session, so that nobody must be able to guess it.
type SessionID [16]byte

// sessionID makes a session ID. crypto/rand ends the process if the system has no random bits.
func (s *Server) sessionID() (id SessionID) {
	binary.BigEndian.PutUint32(id[0:], s.cfg.Boot)
	_, _ = rand.Read(id[4:]) // it never fails
	return id
}

// shardOf uses the last byte of the ID: the first four are the same for all sessions.
func (s *Server) shardOf(id SessionID) *sessionShard { return &s.sessions[id[len(id)-1]%shards] }

// shardOfFile uses a hash with a random seed: no choice of files brings many into one shard.
func (s *Server) shardOfFile(f lock.File) *fileShard {
	return &s.files[maphash.Comparable(s.seed, f)%shards]
}

// Counts are the sizes of the tables.
type Counts struct {
	Clients, Sessions, Opens, Locks, Delegations int
}

// clientList returns the clients at one moment, in no order. They may end while the caller looks at
// them; the caller locks each one by itself, with no other lock held.
func (s *Server) clientList() []*Client {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.clients))
}

// Counts counts the entries of all tables. It locks one client at a time, so the numbers are not of
// one moment.
func (s *Server) Counts() (n Counts) {
	for _, c := range s.clientList() {
		c.mu.Lock()
		n.Clients++
		n.Sessions += len(c.sessions)
		n.Opens += len(c.opens)
		n.Locks += len(c.locks)
		n.Delegations += len(c.delegs)
		c.mu.Unlock()
	}
	return n
}

// client finds a client by its ID. It returns nil for an ID of an earlier start, and for a client
// that has ended: the client ID is stale in both cases.
func (s *Server) client(id uint64) *Client {
	if uint32(id>>32) != s.cfg.Boot {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.clients[uint32(id)]
}

// Client finds a confirmed client. An unconfirmed record is STALE_CLIENTID: nobody may use it yet.
func (s *Server) Client(id uint64) (*Client, nfs.Status) {
	if c := s.client(id); c != nil && c.confirmed.Load() {
		return c, nfs.OK
	}
	return nil, nfs.ErrStaleClientID
}
