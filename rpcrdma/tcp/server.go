package tcp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Config bounds a Listener. Zero fields have defaults.
type Config struct {
	// MaxRecord is the longest call in bytes; 0 means rpc.MaxRecord.
	MaxRecord int
	// MaxCalls bounds the calls in progress of one connection. While it has as many, the connection
	// is not read. 0 means 64.
	MaxCalls int
	// MaxConns bounds the connections; further ones are closed at once. 0 means 1024.
	MaxConns int
	// ConnMemory bounds the memory in bytes of the calls of a connection: of requests, and of
	// replies that the client has not taken. Beyond it the connection is not read. 0 means 8 MiB.
	ConnMemory int
	// Limiter, if not nil, admits connections by client.
	Limiter *rpc.ConnLimiter
	// WriteTimeout ends connections whose peer does not take its replies. 0 means one minute.
	WriteTimeout time.Duration
	// Later defers serving to Start, so that connections of another process can be imported first.
	Later bool
	// TLS returns the configuration for a client that asks for TLS. The Listener sets version and
	// protocol itself. If TLS or its result is nil, there is no TLS.
	TLS func() *tls.Config
	// HandshakeTimeout bounds the TLS handshake. 0 means ten seconds.
	HandshakeTimeout time.Duration
	// Secured, if not nil, is called after every handshake; err is nil if the connection has TLS.
	// It must not wait.
	Secured func(p *rpc.Peer, st *tls.ConnectionState, err error)
	// Closed, if not nil, is called after the end of every connection, when none of its calls is in
	// progress.
	Closed func(p rpc.Peer)
	// Reset ends connections by RST, also when the process is killed. It is for an address that
	// moves between hosts. Without Reset the kernel retains an ended connection for minutes if its
	// client cannot be reached. If the address moves away and back meanwhile, and a client connects
	// from the same port, the kernel takes the client for the old one. With Reset, replies that the
	// client has not acknowledged are lost.
	Reset  bool
	Logger *slog.Logger
}

// Counters of a Listener since its start.
type Counters struct {
	Connections, Refused uint64 // accepted; closed at once because of MaxConns
	Calls, Replies       uint64
	// BackwardCalls were sent to clients, and BackwardReplies received.
	BackwardCalls, BackwardReplies uint64
	BytesIn, BytesOut              uint64
	BadRecords                     uint64 // connections ended because of an invalid record
	WriteErrors                    uint64 // connections lost while a reply was written
	SlowClients                    uint64 // of these, because the peer took nothing for WriteTimeout
	Paused                         uint64 // times a connection was not read because of its memory or limits
	// TLSProbes are clients that asked for TLS. TLSHandshakes of them have it, TLSMutual of these
	// with a verified certificate. TLSFailures do not have it.
	TLSProbes, TLSHandshakes, TLSMutual uint64
	TLSFailures                         [numFailures]uint64
}

// Failed are the TLSFailures that occurred, by name.
func (c *Counters) Failed() map[string]uint64 {
	out := make(map[string]uint64)
	for i, n := range c.TLSFailures {
		if n > 0 {
			out[Failure(i).String()] = n
		}
	}
	return out
}

type counters struct {
	connections, refused, calls, replies, bytesIn, bytesOut, badRecords, writeErrors, backCalls, backReplies, slow,
	paused atomic.Uint64

	tls handshakes
}

// ConnInfo describes a connection.
type ConnInfo struct {
	Remote, Local netip.AddrPort
	Since         time.Time
	Calls         uint64
	Security      rpc.Security
	Name          string // of a verified certificate
	// Memory is that of its calls, in bytes.
	Memory int
}

// Listener serves the connections that a net.Listener accepts.
//
// Lock order: Listener.mu, then conn.pausing, or the mutex of pause or of a gate. Listener.mu is
// not held while a socket is read or written.
type Listener struct {
	l   net.Listener
	srv *rpc.Server
	cfg Config
	n   counters

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
	done   sync.WaitGroup
	pause  pause
}

// Serve serves srv to the connections that l accepts, with default bounds. It returns at once;
// Close ends it.
func Serve(l net.Listener, srv *rpc.Server) *Listener { return Config{}.Serve(l, srv) }

// Serve is Serve with the bounds of c.
func (c Config) Serve(l net.Listener, srv *rpc.Server) *Listener {
	c.MaxRecord = cmp.Or(c.MaxRecord, rpc.MaxRecord)
	c.MaxCalls = cmp.Or(c.MaxCalls, 64)
	c.MaxConns = cmp.Or(c.MaxConns, 1024)
	c.ConnMemory = cmp.Or(c.ConnMemory, 8<<20)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, time.Minute)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 10*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	s := &Listener{l: l, srv: srv, cfg: c, conns: make(map[*conn]struct{})}
	if !c.Later {
		s.Start()
	}
	return s
}

// Addr is the address listened on.
func (s *Listener) Addr() net.Addr { return s.l.Addr() }

// Close stops accepting, ends every connection and waits for the calls in progress. Their replies
// are lost.
func (s *Listener) Close() error {
	err := s.stop((*conn).end)
	s.done.Wait()
	return err
}

// stop stops accepting and calls fn for every connection. Paused readers continue, and see the end.
// After stop, accept returns, and admit refuses a connection that was accepted before.
func (s *Listener) stop(fn func(*conn)) (err error) {
	s.mu.Lock()
	s.closed = true
	err = s.l.Close()
	for c := range s.conns {
		fn(c)
	}
	s.mu.Unlock()
	s.pause.end()
	return err
}

// Shutdown is Close, but first lets every connection finish the calls that it has read and deliver
// their replies, until ctx ends. A call that has arrived only in part is not served; its client
// sends it again on another connection.
func (s *Listener) Shutdown(ctx context.Context) error {
	err := s.stop((*conn).drain)
	drained := make(chan struct{})
	go func() {
		s.done.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-ctx.Done():
		s.each((*conn).end)
		<-drained
	}
	return err
}

// each calls fn for every connection. fn must not wait.
func (s *Listener) each(fn func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		fn(c)
	}
}

// End closes a connection, by its number.
func (s *Listener) End(number int64) {
	s.each(func(c *conn) {
		if c.peer.Conn == number {
			c.end()
		}
	})
}

// Counters returns the counts since the start.
func (s *Listener) Counters() Counters {
	n := &s.n
	out := Counters{
		Connections: n.connections.Load(), Refused: n.refused.Load(), Calls: n.calls.Load(), Replies: n.replies.Load(),
		BytesIn: n.bytesIn.Load(), BytesOut: n.bytesOut.Load(), BadRecords: n.badRecords.Load(),
		WriteErrors: n.writeErrors.Load(),
		SlowClients: n.slow.Load(), Paused: n.paused.Load(),
		BackwardCalls: n.backCalls.Load(), BackwardReplies: n.backReplies.Load(),
		TLSProbes: n.tls.probes.Load(), TLSHandshakes: n.tls.done.Load(), TLSMutual: n.tls.mutual.Load(),
	}
	for i := range n.tls.failed {
		out.TLSFailures[i] = n.tls.failed[i].Load()
	}
	return out
}

// Conns lists the connections, by remote address.
func (s *Listener) Conns() (out []ConnInfo) {
	s.each(func(c *conn) {
		out = append(out, ConnInfo{
			Remote: c.peer.Addr, Local: c.peer.Local, Since: c.since, Calls: c.calls.Load(),
			Security: c.peer.Security, Name: c.peer.Name, Memory: c.gate.memory(),
		})
	})
	slices.SortFunc(out, func(a, b ConnInfo) int { return a.Remote.Compare(b.Remote) })
	return out
}

// accept accepts connections until the socket is closed. A connection beyond a bound is closed at
// once, without a byte: the client retries, with a delay.
func (s *Listener) accept() {
	defer s.done.Done()
	for {
		nc, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if interrupted(err) {
			s.pause.wait()
			continue
		}
		if err != nil {
			s.cfg.Logger.Warn("accepting a connection", "error", err)
			time.Sleep(50 * time.Millisecond) // there are probably no file descriptors left
			continue
		}
		c := newConn(s, nc, rpc.Peer{
			Addr: addrPort(nc.RemoteAddr()), Local: addrPort(nc.LocalAddr()), Transport: rpc.TransportTCP, Conn: rpc.NextConn(),
		})
		if err := s.admit(c); err != nil {
			s.n.refused.Add(1)
			nc.Close()
			if !errors.Is(err, net.ErrClosed) {
				s.cfg.Logger.Warn("connection refused", "peer", c.peer.Addr.String(), "error", err)
			}
			continue
		}
		s.n.connections.Add(1)
		go c.serve()
	}
}

// admit counts a connection, or returns why it is refused.
//
//	check                        bound                      error
//	clients, per client, fds     Config.Limiter             *rpc.Refused
//	the Listener is closed                                  net.ErrClosed
//	connections of the port      MaxConns                   refused
//
// serve releases what Admit has counted, also for connections that were imported.
func (s *Listener) admit(c *conn) (err error) {
	addr := c.peer.Addr.Addr()
	if err := s.cfg.Limiter.Admit(addr, true); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		err = net.ErrClosed
	case len(s.conns) >= s.cfg.MaxConns:
		s.cfg.Limiter.CountRefused(rpc.RefusedConnections)
		err = fmt.Errorf("there are %d connections already", len(s.conns))
	}
	if err != nil {
		s.cfg.Limiter.Release(addr, true)
		return err
	}
	s.conns[c] = struct{}{}
	s.done.Add(1)
	if s.pause.on() {
		_ = c.c.SetReadDeadline(longPast)
	}
	return nil
}

// addrPort is the address of a TCP connection, an IPv4 address without its IPv6 form.
func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}
