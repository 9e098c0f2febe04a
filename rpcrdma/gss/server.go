package gss

import (
	"cmp"
	"container/list"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Established is the context that an Acceptor has made from a client's token.
type Established struct {
	Context   *Context
	Principal string // with its realm
	Acceptor  string // principal of this server, with its realm, as the client named it
	Token     []byte // for the client
	Expires   time.Time
}

// InitError is a token that an Acceptor refuses. Major and Minor go to the client, whose programs
// print them.
type InitError struct {
	Major, Minor uint32
	// Principal is the client's, if the ticket could be decrypted.
	Principal string
	Err       error
}

func (e *InitError) Error() string { return e.Err.Error() }
func (e *InitError) Unwrap() error { return e.Err }

// Acceptor establishes contexts. Its errors should be of type InitError.
type Acceptor interface {
	Accept(token []byte, now time.Time) (Established, error)
}

// Identity is the user of this host for a principal.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
	// Unmapped says that no user of this host is the principal. UID and GID then have no meaning.
	Unmapped bool
}

// ServerConfig describes a Server.
type ServerConfig struct {
	Acceptor Acceptor
	// Identify says which user a principal is. It may wait. It is called once for each context.
	Identify func(principal string) Identity
	// Contexts bounds all contexts. PerHost bounds the contexts that one address has established. 0
	// means 4096 and 512. A context beyond a bound replaces the least recently used one, whose
	// client then establishes another context.
	Contexts, PerHost int
	// Outcome, if not nil, is called for each token: with a nil error after a context was
	// established, otherwise with the reason of the refusal.
	Outcome func(peer netip.Addr, principal string, err error)
}

// handleLen is the length of a handle: a random number and the number of the context. The random
// number makes handles unknown that come from a process which did not hand over.
const handleLen = 16

// Server has the contexts of a server. Lock order: Server.mu, then ServerContext.mu.
type Server struct {
	cfg   ServerConfig
	nonce uint64

	mu       sync.Mutex
	last     uint64
	contexts map[uint64]*ServerContext
	used     list.List // of *ServerContext, least recently used first
	hosts    map[netip.Addr]*list.List
	// recent is the last of used, or nil. Most calls are of the same context as the one before, and
	// Find then needs no lock. It is written with mu locked.
	recent atomic.Pointer[ServerContext]

	n counters
}

// Stats counts what happened to contexts and calls since the start.
type Stats struct {
	Active      int    // contexts
	Established uint64 // contexts
	Refused     uint64 // tokens
	Evicted     uint64 // contexts that were forgotten to make room
	Unknown     uint64 // calls whose handle is unknown or whose context has expired
	BadMIC      uint64 // calls whose header or data has a wrong checksum
	Replayed    uint64 // calls whose sequence number was seen, or is below the window
}

type counters struct {
	established, refused, evicted, unknown, badMIC, replayed atomic.Uint64
}

// NewServer makes a Server without contexts.
func NewServer(cfg ServerConfig) *Server {
	cfg.Contexts = cmp.Or(max(cfg.Contexts, 0), 4096)
	cfg.PerHost = cmp.Or(max(cfg.PerHost, 0), 512)
	s := &Server{cfg: cfg, contexts: make(map[uint64]*ServerContext), hosts: make(map[netip.Addr]*list.List)}
	var b [8]byte
	_, _ = rand.Read(b[:]) // does not fail: crypto/rand ends the program instead
	s.nonce = binary.BigEndian.Uint64(b[:])
	return s
}

// ServerContext is a context of a Server. It may be used after the Server has forgotten it.
type ServerContext struct {
	*Context
	Principal string
	Acceptor  string
	Identity  Identity
	expires   time.Time

	handle [handleLen]byte
	number uint64
	host   netip.Addr
	inAll  *list.Element
	inHost *list.Element

	mu     sync.Mutex
	window Window
}

// Handle identifies the context in calls. It must not be changed.
func (x *ServerContext) Handle() []byte { return x.handle[:] }

// Accept establishes a context from the token of a call of Init. The results in res go to the
// client. x is nil if the token is refused. Accept may wait for Identify.
func (s *Server) Accept(peer netip.Addr, token []byte, now time.Time) (res InitRes, x *ServerContext) {
	est, err := s.cfg.Acceptor.Accept(token, now)
	if err != nil {
		s.n.refused.Add(1)
		res.Major = Failure
		principal := ""
		if e, ok := err.(*InitError); ok { //nolint:errorlint // an Acceptor returns it unwrapped
			res.Major, res.Minor, principal = e.Major, e.Minor, e.Principal
		}
		s.outcome(peer, principal, err)
		return res, nil
	}
	x = &ServerContext{
		Context: est.Context, Principal: est.Principal, Acceptor: est.Acceptor, expires: est.Expires, host: peer.Unmap(),
	}
	x.Identity = Identity{Unmapped: true}
	if s.cfg.Identify != nil {
		x.Identity = s.cfg.Identify(est.Principal)
	}
	s.add(x)
	s.n.established.Add(1)
	s.outcome(peer, est.Principal, nil)
	return InitRes{Handle: x.handle[:], Major: Complete, Window: windowSize, Token: est.Token}, x
}

func (s *Server) outcome(peer netip.Addr, principal string, err error) {
	if s.cfg.Outcome != nil {
		s.cfg.Outcome(peer, principal, err)
	}
}

// add gives a context its number and enters it. If there are too many contexts, it forgets others.
func (s *Server) add(x *ServerContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	x.number = s.last
	s.enter(x)
}

// enter enters a context with its number. The caller has s.mu locked.
func (s *Server) enter(x *ServerContext) {
	binary.BigEndian.PutUint64(x.handle[:], s.nonce)
	binary.BigEndian.PutUint64(x.handle[8:], x.number)
	of := s.hosts[x.host]
	if of == nil {
		of = list.New()
		s.hosts[x.host] = of
	}
	for of.Len() >= s.cfg.PerHost {
		s.remove(of.Front().Value.(*ServerContext))
		s.n.evicted.Add(1)
	}
	for len(s.contexts) >= s.cfg.Contexts {
		s.remove(s.used.Front().Value.(*ServerContext))
		s.n.evicted.Add(1)
	}
	s.hosts[x.host] = of // remove may have deleted it
	s.contexts[x.number] = x
	x.inAll, x.inHost = s.used.PushBack(x), of.PushBack(x)
	s.recent.Store(x)
}

// remove forgets a context. The caller has s.mu locked.
func (s *Server) remove(x *ServerContext) {
	if s.contexts[x.number] != x {
		return
	}
	delete(s.contexts, x.number)
	s.recent.CompareAndSwap(x, nil)
	s.used.Remove(x.inAll)
	of := s.hosts[x.host]
	of.Remove(x.inHost)
	if of.Len() == 0 {
		delete(s.hosts, x.host)
	}
}

// Find returns the context of a handle, or nil if there is none or it has expired.
func (s *Server) Find(handle []byte, now time.Time) *ServerContext {
	if x := s.recent.Load(); x != nil && string(handle) == string(x.handle[:]) && !now.After(x.expires) {
		return x
	}
	if len(handle) != handleLen || binary.BigEndian.Uint64(handle) != s.nonce {
		s.n.unknown.Add(1)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.contexts[binary.BigEndian.Uint64(handle[8:])]
	if x != nil && now.After(x.expires) {
		s.remove(x)
		x = nil
	}
	if x == nil {
		s.n.unknown.Add(1)
		return nil
	}
	s.used.MoveToBack(x.inAll)
	s.hosts[x.host].MoveToBack(x.inHost)
	s.recent.Store(x)
	return x
}

// Verdict is what a server does with a call.
type Verdict uint8

// Verdicts.
const (
	Proceed Verdict = iota
	// Discard: no answer (RFC 2203 section 5.3.3.1).
	Discard
	// CredProblem: denied with RPCSEC_GSS_CREDPROBLEM. The client establishes another context.
	CredProblem
	// CtxProblem: denied with RPCSEC_GSS_CTXPROBLEM. The client's context is used up or broken.
	CtxProblem
)

// Check judges the header of a call. The verifier must be a MIC token for the bytes of the message
// up to and including the credential. The sequence number must be new. Check compares the checksum
// first, so that nobody but the client moves the window.
func (s *Server) Check(x *ServerContext, c *Cred, header, verifier []byte) Verdict {
	if c.Seq > SeqMax {
		return CtxProblem
	}
	if x.VerifyMIC(verifier, header) != nil {
		s.n.badMIC.Add(1)
		return CredProblem
	}
	x.mu.Lock()
	fresh := x.window.Admit(c.Seq)
	x.mu.Unlock()
	if !fresh {
		s.n.replayed.Add(1)
		return Discard
	}
	return Proceed
}

// Destroy forgets a context.
func (s *Server) Destroy(x *ServerContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(x)
}

// BadData counts a call whose arguments have a wrong checksum.
func (s *Server) BadData() { s.n.badMIC.Add(1) }

// Stats reads the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	active := len(s.contexts)
	s.mu.Unlock()
	return Stats{
		Active: active, Established: s.n.established.Load(), Refused: s.n.refused.Load(), Evicted: s.n.evicted.Load(),
		Unknown: s.n.unknown.Load(), BadMIC: s.n.badMIC.Load(), Replayed: s.n.replayed.Load(),
	}
}
