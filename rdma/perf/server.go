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

// Port is the default port, that of perftest.
const Port = 18515

// Limits bound what clients can make a server do.
type Limits struct {
	// Clients are the addresses that may connect.
	Clients []netip.Prefix
	// MaxSize is the largest message, in bytes.
	MaxSize int
	// MaxDepth bounds the messages in flight on a queue pair.
	MaxDepth int
	// MaxQPs bounds the queue pairs of a run, MaxConnections those of all runs together.
	MaxQPs         int
	MaxConnections int
	// Memory bounds all buffers together, in bytes.
	Memory int
	// IdleTimeout ends a connection whose client sends nothing, MaxDuration every connection.
	IdleTimeout time.Duration
	MaxDuration time.Duration
}

// SizeMax is the largest value of Limits.MaxSize: 2^23 bytes, the last size of perftest's -a.
const SizeMax = 1 << 23

// DefaultLimits allow what perftest does by default, and no client.
func DefaultLimits() Limits {
	return Limits{
		MaxSize: SizeMax, MaxDepth: 512, MaxQPs: 16, MaxConnections: 64, Memory: 256 << 20,
		IdleTimeout: 30 * time.Second, MaxDuration: 10 * time.Minute,
	}
}

// Validate checks the limits.
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

// Kind is the kind of reason for which a server refuses or ends a measurement. It is the name of a
// counter, and the Note.Detail of the connection's post-mortem.
type Kind string

// The kinds.
const (
	RefusedClient    Kind = "refused_client"    // not one of Limits.Clients
	RefusedVersion   Kind = "refused_version"   // another version
	RefusedMalformed Kind = "refused_malformed" // no request for a measurement
	RefusedLimit     Kind = "refused_limit"     // more than a limit
	RefusedFull      Kind = "refused_full"      // MaxConnections
	RefusedMemory    Kind = "refused_memory"    // no memory is free
	EndedIdle        Kind = "ended_idle"        // IdleTimeout
	EndedDuration    Kind = "ended_duration"    // MaxDuration
	EndedMisused     Kind = "ended_misused"     // an illegal message
	EndedFailed      Kind = "ended_failed"      // a work request failed
)

// Kinds are all of them.
var Kinds = [...]Kind{
	RefusedClient, RefusedVersion, RefusedMalformed, RefusedLimit, RefusedFull, RefusedMemory,
	EndedIdle, EndedDuration, EndedMisused, EndedFailed,
}

// Counters count since the start of a server.
type Counters struct {
	accepted atomic.Uint64
	kinds    [len(Kinds)]atomic.Uint64
}

// Accepted is the number of connections that were accepted.
func (c *Counters) Accepted() uint64 { return c.accepted.Load() }

// Of is the number of connections that were refused or ended for a reason of kind k.
func (c *Counters) Of(k Kind) uint64 {
	if i := slices.Index(Kinds[:], k); i >= 0 {
		return c.kinds[i].Load()
	}
	return 0
}

func (c *Counters) add(k Kind) { c.kinds[slices.Index(Kinds[:], k)].Add(1) }

// Server is the passive side of measurements, on any number of ports and devices. They share its
// limits.
type Server struct {
	limits Limits
	log    *slog.Logger
	arena  *rdma.Arena
	n      Counters

	mu       sync.Mutex
	sessions map[*session]struct{}
	runs     map[runKey]int // queue pairs
	gone     *sync.Cond     // a session was removed
}

// runKey identifies a run. Two hosts may choose the same number.
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

// Counters returns the counters.
func (s *Server) Counters() *Counters { return &s.n }

// Connections is the number of connections.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

// Memory is the used part of the arena in bytes.
func (s *Server) Memory() int { return s.arena.Stats().InUse }

// Close frees the server's memory. The caller has closed its listeners. If one of them could not
// end its connections, Close returns an error, and the memory stays mapped.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.sessions); n > 0 {
		return fmt.Errorf("perf: %d connections still use the memory", n)
	}
	return s.arena.Close()
}

// Listener is a port of a device on which a server listens.
type Listener struct {
	s   *Server
	dev rdma.Device
	l   rdma.Listener
}

// Listen listens on a port of a device; 0 is any free one.
func (s *Server) Listen(dev rdma.Device, port uint16) (*Listener, error) {
	l := &Listener{s: s, dev: dev}
	var err error
	l.l, err = dev.Listen(port, l.accept)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Addr is the address listened on.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Close ends the listener and its connections, and returns when their memory is free. The device
// must still be open.
func (l *Listener) Close() error {
	err := l.l.Close()
	// When every loop has made a turn, all requests are answered.
	for _, loop := range l.dev.Loops() {
		turned := make(chan struct{})
		if loop.Submit(func() { close(turned) }) {
			select {
			case <-turned:
			case <-time.After(closeTime): // the loop has ended
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

// judge checks a request against the limits. On success the session is counted, and the caller ends
// it by forget. Everything in the request is the choice of the client.
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
		over("a size of", int(q.Size), s.limits.MaxSize),
		over("a queue depth of", int(q.Depth), s.limits.MaxDepth),
		over("queue pairs:", int(q.QPs), s.limits.MaxQPs),
	} {
		if no != nil {
			return nil, no
		}
	}
	x.key = runKey{from, q.Run}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.runs[x.key] >= int(q.QPs):
		return nil, &refusal{RefusedLimit, fmt.Sprintf("more than the %d queue pairs that the run has", q.QPs)}
	case len(s.sessions) >= s.limits.MaxConnections:
		return nil, &refusal{RefusedFull, fmt.Sprintf("%d connections measure already", len(s.sessions))}
	}
	s.sessions[x] = struct{}{}
	s.runs[x.key]++
	return x, nil
}

// accept answers a request. It runs on the loop.
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

// rejectConsumer is the CM reject reason "consumer reject" (IBTA 12.6.7.2).
const rejectConsumer = 28

// forget removes a session whose memory is free.
func (s *Server) forget(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x)
	if s.runs[x.key]--; s.runs[x.key] == 0 {
		delete(s.runs, x.key)
	}
	s.gone.Broadcast()
}
