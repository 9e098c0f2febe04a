package perf

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rdma"
)

// Port is where perftest, and so the server, listens unless told otherwise.
const Port = 18515

// Limits bound what clients make a server do. Every one of them counts.
type Limits struct {
	// Clients may connect; nobody else.
	Clients []netip.Prefix
	// MaxSize is the largest message, in bytes.
	MaxSize int
	// MaxDepth is how many messages may be under way on a queue pair.
	MaxDepth int
	// MaxQPs is how many queue pairs a run may have, MaxConnections how many all
	// runs may have together.
	MaxQPs         int
	MaxConnections int
	// Memory is for all buffers together, in bytes.
	Memory int
	// IdleTimeout ends a connection whose client says nothing, MaxDuration every
	// connection.
	IdleTimeout time.Duration
	MaxDuration time.Duration
}

// SizeMax is the largest message that a server can be told to allow: 2^23 bytes, the last
// size of -a.
const SizeMax = 1 << 23

// DefaultLimits allow what perftest does by default, to nobody.
func DefaultLimits() Limits {
	return Limits{
		MaxSize: SizeMax, MaxDepth: 512, MaxQPs: 16, MaxConnections: 64, Memory: 256 << 20,
		IdleTimeout: 30 * time.Second, MaxDuration: 10 * time.Minute,
	}
}

// Validate says which limit makes no sense.
func (l *Limits) Validate() error {
	for _, x := range []struct {
		name           string
		is, least, max int
	}{
		{"max_size", l.MaxSize, AtomicSize, SizeMax},
		{"max_depth", l.MaxDepth, 1, 1 << 15},
		{"max_qps", l.MaxQPs, 1, 1 << 10},
		{"max_connections", l.MaxConnections, 1, 1 << 16},
		{"max_memory", l.Memory, 1 << 16, 1 << 40},
		{"idle_timeout", int(l.IdleTimeout / time.Second), 1, 1 << 16},
		{"max_duration", int(l.MaxDuration / time.Second), 1, 1 << 16},
	} {
		if x.is < x.least || x.is > x.max {
			return fmt.Errorf("%s: %d is not within %d to %d", x.name, x.is, x.least, x.max)
		}
	}
	return nil
}

// Kind is a way in which a server refuses or ends a measurement. It is the name of its
// counter, and in Note.Detail of the connection's post-mortem.
type Kind string

// The kinds.
const (
	RefusedClient    Kind = "refused_client"    // not one of Limits.Clients
	RefusedVersion   Kind = "refused_version"   // speaks another version
	RefusedMalformed Kind = "refused_malformed" // asks for no measurement
	RefusedLimit     Kind = "refused_limit"     // asks for more than a limit
	RefusedFull      Kind = "refused_full"      // too many at once
	RefusedMemory    Kind = "refused_memory"    // no memory left
	EndedIdle        Kind = "ended_idle"        // said nothing for too long
	EndedDuration    Kind = "ended_duration"    // took too long
	EndedMisused     Kind = "ended_misused"     // sent what it should not
	EndedFailed      Kind = "ended_failed"      // a message could not be delivered
)

// Kinds are all of them.
var Kinds = [...]Kind{
	RefusedClient, RefusedVersion, RefusedMalformed, RefusedLimit, RefusedFull, RefusedMemory,
	EndedIdle, EndedDuration, EndedMisused, EndedFailed,
}

// Counters are what a server counted. They only grow.
type Counters struct {
	accepted atomic.Uint64
	kinds    [len(Kinds)]atomic.Uint64
}

// Accepted is the number of connections that were accepted.
func (c *Counters) Accepted() uint64 { return c.accepted.Load() }

// Of is the number of connections that were refused or ended in a way.
func (c *Counters) Of(k Kind) uint64 {
	if i := slices.Index(Kinds[:], k); i >= 0 {
		return c.kinds[i].Load()
	}
	return 0
}

func (c *Counters) add(k Kind) { c.kinds[slices.Index(Kinds[:], k)].Add(1) }

// Server is the other side of measurements, on any number of ports and devices, which
// share its limits.
type Server struct {
	limits Limits
	log    *slog.Logger
	arena  *rdma.Arena
	n      Counters

	mu       sync.Mutex
	sessions map[*session]struct{}
	runs     map[runKey]int // queue pairs
	gone     *sync.Cond     // a session is
}

// runKey names a run. Two hosts may have chosen the same number.
type runKey struct {
	client netip.Addr
	id     uint64
}

// NewServer makes a server that listens nowhere yet. log may be nil.
func NewServer(l Limits, log *slog.Logger) (*Server, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	arena, err := rdma.NewArena(l.Memory)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{limits: l, log: log, arena: arena, sessions: make(map[*session]struct{}), runs: make(map[runKey]int)}
	s.gone = sync.NewCond(&s.mu)
	return s, nil
}

// Counters are what the server has counted.
func (s *Server) Counters() *Counters { return &s.n }

// Connections is how many connections measure.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

// Memory is how much of the arena is in use, in bytes.
func (s *Server) Memory() int { return s.arena.Stats().InUse }

// Close gives the server's memory back. Its listeners have been closed before; if one of
// them could not end its connections, the memory stays.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.sessions); n > 0 {
		return fmt.Errorf("perf: %d connections still use the memory", n)
	}
	return s.arena.Close()
}

// Listener is one port of a device that a server answers at.
type Listener struct {
	s   *Server
	dev rdma.Device
	l   rdma.Listener
}

// Listen answers at a port of a device; 0 is any free one.
func (s *Server) Listen(dev rdma.Device, port uint16) (*Listener, error) {
	l := &Listener{s: s, dev: dev}
	var err error
	l.l, err = dev.Listen(port, l.accept)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Addr is where the listener listens.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Close ends the listener and its connections, and returns when their memory is back.
// The device must still be open.
func (l *Listener) Close() error {
	err := l.l.Close()
	// A request that was on its way to the listener has been answered when every loop
	// has come round.
	for _, loop := range l.dev.Loops() {
		turned := make(chan struct{})
		if loop.Submit(func() { close(turned) }) {
			select {
			case <-turned:
			case <-time.After(closeTime): // the loop ended meanwhile
			}
		}
	}
	s := l.s
	late := false
	timer := time.AfterFunc(closeTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.gone.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n := 0
		for x := range s.sessions {
			if x.l == l {
				n++
				late = !x.loop.Submit(x.close) || late
			}
		}
		switch {
		case n == 0:
			return err
		case late:
			return errors.Join(err, fmt.Errorf("perf: %d connections did not end", n))
		}
		s.gone.Wait()
	}
}

// refusal is why a request is refused.
type refusal struct {
	kind Kind
	why  string
}

// judge decides about a request. On success the session is counted, and has to be
// forgotten.
func (l *Listener) judge(r rdma.ConnRequest) (*session, *refusal) {
	s := l.s
	from := r.Remote().Addr().Unmap()
	allowed := false
	for _, p := range s.limits.Clients {
		allowed = allowed || p.Contains(from)
	}
	if !allowed {
		return nil, &refusal{RefusedClient, fmt.Sprintf("clients at %v may not measure here", from)}
	}
	x := &session{s: s, l: l, loop: r.Loop(), client: r.Remote()}
	switch err := x.req.decode(r.PrivateData()); {
	case errors.As(err, new(versionError)):
		return nil, &refusal{RefusedVersion, fmt.Sprintf("the client speaks %v", err)}
	case err != nil:
		return nil, &refusal{RefusedMalformed, fmt.Sprintf("%v; this is the port of rstorectl perf", err)}
	}
	q := &x.req
	over := func(what string, is, most int) *refusal {
		if is <= most {
			return nil
		}
		return &refusal{RefusedLimit, fmt.Sprintf("%s %d; the most here is %d", what, is, most)}
	}
	for _, no := range []*refusal{
		over("a size of", int(q.size), s.limits.MaxSize),
		over("a queue depth of", int(q.depth), s.limits.MaxDepth),
		over("queue pairs:", int(q.qps), s.limits.MaxQPs),
	} {
		if no != nil {
			return nil, no
		}
	}
	x.key = runKey{from, q.run}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.runs[x.key] >= int(q.qps):
		return nil, &refusal{RefusedLimit, fmt.Sprintf("more than the %d queue pairs that the run has", q.qps)}
	case len(s.sessions) >= s.limits.MaxConnections:
		return nil, &refusal{RefusedFull, fmt.Sprintf("%d connections measure already", len(s.sessions))}
	}
	s.sessions[x] = struct{}{}
	s.runs[x.key]++
	return x, nil
}

// accept answers a request. On the loop.
func (l *Listener) accept(r rdma.ConnRequest) {
	x, no := l.judge(r)
	if no == nil {
		no = x.open(r)
	}
	if no == nil {
		return
	}
	l.s.n.add(no.kind)
	l.s.log.Info("a measurement was refused", "client", r.Remote().String(), "why", no.why)
	if a, ok := r.(rdma.Annotated); ok {
		a.Annotate(func() rdma.Note { return rdma.Note{Why: no.why, Detail: no.kind} })
	}
	r.Reject(rejectConsumer, encodeReject(no.why))
}

// rejectConsumer is the reason of a REJ that says more in its private data.
const rejectConsumer = 28

// forget is called when nothing of a session is in use any more.
func (s *Server) forget(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x)
	if s.runs[x.key]--; s.runs[x.key] == 0 {
		delete(s.runs, x.key)
	}
	s.gone.Broadcast()
}
