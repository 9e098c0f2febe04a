package tcp

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Config bounds a Listener. Zero fields have defaults.
type Config struct {
	// MaxRecord is the longest call in bytes; 0 means rpc.MaxRecord.
	MaxRecord int
	// MaxCalls is the number of calls of one connection that may be in
	// progress; the connection is not read beyond them. 0 means 64.
	MaxCalls int
	// MaxConns is the number of connections; further ones are closed at once.
	// 0 means 1024.
	MaxConns int
	// ConnMemory is the memory in bytes that the calls of a connection may use, in requests and in
	// replies that the client has not taken. Beyond it the connection is not read. 0 means 8 MiB.
	ConnMemory int
	// Limiter, if not nil, admits connections by client.
	Limiter *rpc.ConnLimiter
	// WriteTimeout ends connections whose peer does not take its replies. 0
	// means one minute.
	WriteTimeout time.Duration
	// Later defers serving to Start, so that connections of another process can be imported first.
	Later bool
	// TLS is what clients that ask for TLS are given; the version and the protocol are set
	// here. It is called for each of them. nil, or a result of nil: there is no TLS.
	TLS func() *tls.Config
	// HandshakeTimeout is how long the beginning of TLS may take. 0 means ten seconds.
	HandshakeTimeout time.Duration
	// Secured, if not nil, is called after every handshake; err is nil if the connection has TLS.
	// It must not wait.
	Secured func(p *rpc.Peer, st *tls.ConnectionState, err error)
	// Closed, if not nil, is called after the end of every connection, when none of its calls is in
	// progress.
	Closed func(p rpc.Peer)
	Logger *slog.Logger
}

// Counters of a Listener since its start.
type Counters struct {
	Connections, Refused uint64 // accepted; closed at once because of MaxConns
	Calls, Replies       uint64
	// BackwardCalls were sent to clients, and BackwardReplies came.
	BackwardCalls, BackwardReplies uint64
	BytesIn, BytesOut              uint64
	BadRecords                     uint64 // connections lost to a record that is no record
	WriteErrors                    uint64 // connections lost while a reply was written
	SlowClients                    uint64 // of these, because the peer took nothing for WriteTimeout
	Paused                         uint64 // times a connection was not read for its memory or its limits
	// TLSProbes are clients that asked for TLS, TLSHandshakes those that have it, TLSMutual of
	// these those with a verified certificate, and TLSFailures the others.
	TLSProbes, TLSHandshakes, TLSMutual uint64
	TLSFailures                         [numFailures]uint64
}

// Failed are the TLSFailures by name; those that never occurred are left out.
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
	connections, refused, calls, replies, bytesIn, bytesOut, badRecords, writeErrors, backCalls, backReplies, slow, paused atomic.Uint64

	tls handshakes
}

// ConnInfo describes a connection.
type ConnInfo struct {
	Remote, Local netip.AddrPort
	Since         time.Time
	Calls         uint64
	Security      rpc.Security
	Name          string // of a verified certificate
	// Memory is what its calls hold, in bytes.
	Memory int
}

// Listener serves the connections that a net.Listener accepts.
type Listener struct {
	l   net.Listener
	srv *rpc.Server
	cfg Config
	n   counters

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
	done   sync.WaitGroup
	hold   hold
}

// Serve serves srv to the connections that l accepts, with default bounds. It
// returns at once; Close ends it.
func Serve(l net.Listener, srv *rpc.Server) *Listener { return Config{}.Serve(l, srv) }

// Serve is Serve with the bounds of c.
func (c Config) Serve(l net.Listener, srv *rpc.Server) *Listener {
	c.MaxRecord = cmp.Or(c.MaxRecord, rpc.MaxRecord)
	c.MaxCalls = cmp.Or(c.MaxCalls, 64)
	c.MaxConns = cmp.Or(c.MaxConns, 1024)
	c.ConnMemory = cmp.Or(c.ConnMemory, 8<<20)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, time.Minute)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Listener{l: l, srv: srv, cfg: c, conns: make(map[*conn]struct{})}
	if !c.Later {
		s.Start()
	}
	return s
}

// Addr is the address listened on.
func (s *Listener) Addr() net.Addr { return s.l.Addr() }

// Close stops accepting, ends every connection and waits for the calls in
// progress. Their replies are lost.
func (s *Listener) Close() error {
	s.mu.Lock()
	s.closed = true
	err := s.l.Close()
	for c := range s.conns {
		c.end()
	}
	s.mu.Unlock()
	s.hold.end()
	s.done.Wait()
	return err
}

// Counters returns the counts since the start.
func (s *Listener) Counters() Counters {
	n := &s.n
	out := Counters{
		Connections: n.connections.Load(), Refused: n.refused.Load(), Calls: n.calls.Load(), Replies: n.replies.Load(),
		BytesIn: n.bytesIn.Load(), BytesOut: n.bytesOut.Load(), BadRecords: n.badRecords.Load(), WriteErrors: n.writeErrors.Load(),
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
func (s *Listener) Conns() []ConnInfo {
	s.mu.Lock()
	var out []ConnInfo
	for c := range s.conns {
		out = append(out, ConnInfo{Remote: c.peer.Addr, Local: c.peer.Local, Since: c.since, Calls: c.calls.Load(), Security: c.peer.Security, Name: c.peer.Name, Memory: c.gate.memory()})
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b ConnInfo) int { return a.Remote.Compare(b.Remote) })
	return out
}

func (s *Listener) accept() {
	defer s.done.Done()
	for {
		nc, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if interrupted(err) {
			s.hold.wait()
			continue
		}
		if err != nil {
			s.cfg.Logger.Warn("accepting a connection", "error", err)
			time.Sleep(50 * time.Millisecond) // most likely out of descriptors
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

// admit counts a connection, or says why it is refused.
func (s *Listener) admit(c *conn) error {
	if err := s.cfg.Limiter.Admit(c.peer.Addr.Addr(), true); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		s.cfg.Limiter.Release(c.peer.Addr.Addr(), true)
		return net.ErrClosed
	case len(s.conns) >= s.cfg.MaxConns:
		s.cfg.Limiter.Release(c.peer.Addr.Addr(), true)
		s.cfg.Limiter.CountRefused(rpc.RefusedConnections)
		return fmt.Errorf("there are %d connections already", len(s.conns))
	}
	s.conns[c] = struct{}{}
	s.done.Add(1)
	if s.hold.on() {
		_ = c.c.SetReadDeadline(longPast)
	}
	return nil
}

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// conn is one connection. One goroutine reads calls and dispatches them, another writes replies,
// so a peer that does not read delays only itself.
type conn struct {
	s     *Listener
	c     net.Conn // the socket
	out   net.Conn // what is written to: c, or TLS over it
	peer  rpc.Peer // changed by the reader, with s.mu held
	since time.Time
	calls atomic.Uint64
	// draining says that no more calls are read, but replies still written.
	draining atomic.Bool
	writing  atomic.Bool
	calling  atomic.Int32 // calls to the peer that are not written yet

	// Where the reader stands while it is held.
	where    sync.Mutex
	standing bool
	reader   *rpc.Records
	record   []byte
	rest     []byte // was read by another process

	// The writer sends on asked after the reply to an AUTH_TLS probe, and then waits for begin,
	// which says whether the connection has TLS.
	asked chan struct{}
	begin chan bool

	gate    gate
	acks    *acks
	free    chan *call // calls not in progress; their number bounds everything
	replies chan *call // and calls to the peer
	back    *rpc.Backward
}

// call is a Call with the memory of its record and of its bulk result.
type call struct {
	rpc.Call
	c       *conn
	held    int // bytes that the gate was told of
	record  []byte
	mark    [rpc.MarkLen]byte
	payload []*[]byte
	back    bool // a call to the peer
}

// end closes the connection, which ends its reader.
func (c *conn) end() {
	c.gate.open()
	c.acks.Settle()
	c.c.Close()
}

// keepMax is the most memory that an idle call keeps for its next record or
// reply.
const keepMax = 16 << 10

func newConn(s *Listener, nc net.Conn, peer rpc.Peer) *conn {
	c := &conn{s: s, c: nc, out: nc, since: time.Now(), peer: peer, acks: newAcks(nc)}
	c.free = make(chan *call, s.cfg.MaxCalls)
	c.begin, c.asked = make(chan bool), make(chan struct{})
	c.replies = make(chan *call, s.cfg.MaxCalls+rpc.BackwardCalls)
	c.back = rpc.NewBackward(c.callBack, s.cfg.MaxRecord, rpc.BackwardCalls)
	for range s.cfg.MaxCalls {
		c.free <- nil // made when first used
	}
	c.gate.init(s.cfg.ConnMemory)
	return c
}

func (c *conn) serve() {
	s := c.s
	defer s.done.Done()
	defer s.cfg.Limiter.Release(c.peer.Addr.Addr(), true)
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.write()
	}()
	err := c.read()
	if !c.draining.Load() {
		c.gate.open()
		c.hangUp()
	}
	c.back.Close()
	switch {
	case c.draining.Load(), errors.Is(err, net.ErrClosed), errors.Is(err, io.EOF):
	case errors.Is(err, rpc.ErrRecordTooLong), errors.Is(err, rpc.ErrTooManyFragments):
		s.n.badRecords.Add(1)
		s.cfg.Logger.Warn("closing a connection", "peer", c.peer.Addr.String(), "error", err)
	default:
		s.cfg.Logger.Debug("connection lost", "peer", c.peer.Addr.String(), "error", err)
	}
	for range s.cfg.MaxCalls { // wait for the calls in progress
		<-c.free
	}
	close(c.replies)
	<-written
	c.hangUp()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	if s.cfg.Closed != nil {
		s.cfg.Closed(c.peer)
	}
}

// End closes a connection, by its number.
func (s *Listener) End(conn int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.peer.Conn == conn {
			c.end()
		}
	}
}

// hangUp ends the connection, TLS with its closing alert. For the reader.
func (c *conn) hangUp() {
	c.acks.Settle()
	c.out.Close()
}

// startTLS answers an AUTH_TLS probe and starts TLS (RFC 9289 section 4.1). It waits for the
// calls in progress, so that their replies precede the answer. The answer is the last cleartext:
// everything after it, calls to the peer included, waits for the handshake.
func (c *conn) startTLS(k *call, in *bufio.Reader, cfg *tls.Config) error {
	s := c.s
	s.n.tls.probes.Add(1)
	for range s.cfg.MaxCalls - 1 {
		<-c.free
	}
	defer func() { // with nothing in them that was set up for the peer as he was
		for range s.cfg.MaxCalls - 1 {
			c.free <- nil
		}
	}()
	k.Reset()
	k.CanTLS = true
	s.srv.Dispatch(&k.Call, xdr.NewDecoder(k.record), false)
	// The server has refused if nobody waits: the answer is on its way like any other.
	select {
	case k := <-c.free:
		c.free <- k
		return nil
	case <-c.asked:
	}
	_ = c.c.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout))
	var tc *secured
	err := net.ErrClosed
	if !c.draining.Load() {
		tc, err = serverTLS(c.c, cfg, in.Buffered())
	}
	if err != nil {
		s.n.tls.failed[failureOf(err)].Add(1)
		if s.cfg.Secured != nil {
			s.cfg.Secured(&c.peer, nil, err)
		}
		c.begin <- false
		<-c.free
		c.free <- nil
		return fmt.Errorf("TLS: %w", err)
	}
	s.mu.Lock()
	_ = c.c.SetDeadline(time.Time{})
	if c.draining.Load() || s.hold.on() { // whose deadline may have been undone
		_ = c.c.SetReadDeadline(longPast)
	}
	s.mu.Unlock()
	st := tc.ConnectionState()
	s.n.tls.done.Add(1)
	s.mu.Lock()
	c.peer.Security = rpc.TLS
	if len(st.VerifiedChains) > 0 {
		s.n.tls.mutual.Add(1)
		c.peer.Security, c.peer.Name = rpc.MutualTLS, nameOf(st.PeerCertificates[0])
	}
	s.mu.Unlock()
	if s.cfg.Secured != nil {
		s.cfg.Secured(&c.peer, &st, nil)
	}
	in.Reset(tc)
	c.out = tc
	c.begin <- true
	<-c.free
	c.free <- nil
	return nil
}

func (c *conn) read() error {
	in := c.stream()
	r := rpc.NewRecords(in, c.s.cfg.MaxRecord)
	for {
		if c.gate.wait() {
			c.s.n.paused.Add(1)
		}
		k := <-c.free
		if k == nil {
			k = &call{c: c}
			k.Peer, k.Back, k.Settler = c.peer, c.back, c.acks
			k.Alloc = k.alloc
			k.Reply = c.reply
			k.TransportData = k
		}
		var err error
		k.record, err = r.Next(k.record)
		for interrupted(err) && !c.draining.Load() {
			c.stand(r, k.record)
			k.record, err = r.Next(k.record)
		}
		if err != nil {
			c.free <- k
			return err
		}
		c.s.n.bytesIn.Add(uint64(rpc.MarkLen + len(k.record)))
		if rpc.IsReply(k.record) && c.back.Receive(k.record, 0) {
			c.s.n.backReplies.Add(1)
			c.free <- k
			continue
		}
		c.s.n.calls.Add(1)
		c.calls.Add(1)
		c.acks.Settle() // who sends a call has most likely read what was answered before
		if c.s.cfg.TLS != nil && rpc.IsTLSProbe(k.record) {
			if cfg := c.s.cfg.TLS(); cfg != nil {
				if err := c.startTLS(k, in, cfg); err != nil {
					return err
				}
				continue
			}
		}
		k.hold(len(k.record))
		k.Reset()
		c.s.srv.Dispatch(&k.Call, xdr.NewDecoder(k.record), false)
	}
}

// reply is rpc.Call.Reply. It does not block: there are no more calls than
// room in the channel.
func (c *conn) reply(rc *rpc.Call, drop bool) {
	k := rc.TransportData.(*call)
	if drop {
		c.recycle(k)
		return
	}
	k.hold(len(k.Res.B))
	c.replies <- k
}

// callBack sends a call to the peer.
func (c *conn) callBack(msg []byte) bool {
	k := &call{back: true}
	k.Res.B = msg
	c.calling.Add(1)
	select {
	case c.replies <- k:
		c.s.n.backCalls.Add(1)
		return true
	default: // the peer answers what it was not yet sent
		c.calling.Add(-1)
		return false
	}
}

func (c *conn) recycle(k *call) {
	if k.back {
		c.calling.Add(-1)
		return
	}
	for _, p := range k.payload {
		freePayload(p)
	}
	k.payload = k.payload[:0]
	c.gate.hold(-k.held)
	k.held = 0
	if cap(k.record) > keepMax {
		rpc.FreeRecord(k.record)
		k.record = nil
	}
	if cap(k.Res.B) > keepMax {
		k.Res.B = nil
	}
	k.Res.Reset()
	c.free <- k
}

// write writes replies, those that are ready together at once, by reference.
func (c *conn) write() {
	var batch []*call
	var parts [][]byte
	var bufs net.Buffers // what is left of parts
	failed := false
	for k := range c.replies {
		c.writing.Store(true)
		batch, parts = append(batch[:0], k), k.appendParts(parts[:0])
		tls := k.StartTLS // the last that is said without it
		for more := !tls; more && len(batch) < 16; {
			select {
			case k, ok := <-c.replies:
				if more = ok && !k.StartTLS; ok {
					tls = k.StartTLS
					batch, parts = append(batch, k), k.appendParts(parts)
				}
			default:
				more = false
			}
		}
		if !failed {
			c.c.SetWriteDeadline(time.Now().Add(c.s.cfg.WriteTimeout))
			bufs = parts
			n, err := writeParts(c.out, &bufs)
			c.s.n.bytesOut.Add(uint64(n))
			if err != nil {
				failed = true
				c.s.n.writeErrors.Add(1)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					c.s.n.slow.Add(1)
					c.s.cfg.Logger.Warn("closing a connection: the client takes no replies", "peer", c.peer.Addr.String(),
						"timeout", c.s.cfg.WriteTimeout, "memory", c.gate.memory())
				}
				c.end() // and the reader
			} else {
				c.acks.wrote(n, batch)
				for _, k := range batch {
					if !k.back {
						c.s.n.replies.Add(1)
					}
				}
			}
		}
		clear(parts)
		if tls {
			c.asked <- struct{}{}
			failed = !<-c.begin || failed
		}
		for _, k := range batch {
			c.recycle(k)
		}
		c.writing.Store(false)
	}
}

var pad [4]byte

// appendParts appends the reply as one record of one fragment.
func (k *call) appendParts(parts [][]byte) [][]byte {
	k.mark = rpc.RecordMark(k.Res.Len())
	return appendMessage(append(parts, k.mark[:]), &k.Res)
}

// appendMessage appends the pieces of an encoded message.
func appendMessage(parts [][]byte, e *xdr.Encoder) [][]byte {
	at := 0
	for _, r := range e.Refs {
		parts = append(parts, e.B[at:r.At], r.Data, pad[:xdr.Pad(len(r.Data))])
		at = r.At
	}
	return append(parts, e.B[at:])
}

// Payload memory comes in two sizes, for it would be cleared at each use if it
// were made anew.
var (
	smallPayloads = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}
	largePayloads = sync.Pool{New: func() any { b := make([]byte, 1<<20); return &b }}
)

// payloadsMax bounds the bulk results of one call.
const payloadsMax = 8

func (k *call) alloc(n int) []byte {
	if len(k.payload) == payloadsMax {
		return nil
	}
	var p *[]byte
	switch {
	case n <= 64<<10:
		p = smallPayloads.Get().(*[]byte)
	case n <= 1<<20:
		p = largePayloads.Get().(*[]byte)
	default:
		return nil
	}
	k.payload = append(k.payload, p)
	k.hold(len(*p))
	return (*p)[:n]
}

func freePayload(p *[]byte) {
	if len(*p) <= 64<<10 {
		smallPayloads.Put(p)
	} else {
		largePayloads.Put(p)
	}
}
