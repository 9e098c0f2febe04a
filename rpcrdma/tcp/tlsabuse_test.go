package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestProbeWithinTLS: an AUTH_TLS probe over TLS is refused, and the session goes on.
func TestProbeWithinTLS(t *testing.T) {
	_, addr, _, cfg, _ := secureServer(t, Config{})
	c := dialTLS(t, addr, cfg)
	msg := probe(99, 0)[4:]
	got, err := forward(c, msg)
	if want := record(99, 1, 1, 1, 1)[4:]; err != nil || !bytes.Equal(got, want) {
		t.Errorf("%x %v", got, err)
	}
	if err := echo(c, procEcho, pattern(100)); err != nil {
		t.Error(err)
	}
}

// TestOrder: calls before the AUTH_TLS probe are answered before it, in cleartext. Calls to the
// client after it go over TLS.
func TestOrder(t *testing.T) {
	_, addr, release, cfg, _ := secureServer(t, Config{})
	r := rawTo(t, addr)
	r.send(record(1, 0, 2, prog, 1, procWait, 0, 0, 0, 0))
	r.send(record(2, 0, 2, prog, 1, 0, 0, 0, 0, 0))
	r.send(probe(5, 0))
	if got := rpc.ReplyXID(r.reply()); got != 2 {
		t.Errorf("%d before 2", got)
	}
	close(release)
	if got := rpc.ReplyXID(r.reply()); got != 1 {
		t.Errorf("%d before 1", got)
	}
	if got := r.reply(); !bytes.Equal(got, yes) {
		t.Errorf("%x", got)
	}
	cfg.NextProtos, cfg.MinVersion = []string{ALPN}, tls.VersionTLS13
	tc := tls.Client(r.Conn, cfg)
	if err := tc.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := tc.Write(record(7, 0, 2, prog, 1, 0, 0, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if b, err := rpc.ReadRecord(tc, nil, 100); err != nil || rpc.ReplyXID(b) != 7 {
		t.Errorf("%x %v", b, err)
	}
	if err := tc.CloseWrite(); err != nil { // the server answers a closing alert by one
		t.Fatal(err)
	}
	if _, err := tc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestAbuse: a client sends the probe and then something else. The connection ends, and each kind
// has its counter.
func TestAbuse(t *testing.T) {
	const short = 100 * time.Millisecond
	for _, tc := range []struct {
		about   string
		timeout time.Duration
		do      func(r *raw, cfg *tls.Config)
		want    Failure
	}{
		{"calls behind the question", 0, func(r *raw, _ *tls.Config) {
			r.send(append(probe(5, 0), record(6, 0, 2, prog, 1, 0, 0, 0, 0, 0)...))
			r.reply()
			if b := r.gone(); len(b) != 0 {
				r.t.Errorf("answered: %x", b)
			}
		}, FailedEarly},
		{"a call in the place of a handshake", 0, func(r *raw, _ *tls.Config) {
			r.send(probe(5, 0))
			r.reply()
			r.send(record(6, 0, 2, prog, 1, 0, 0, 0, 0, 0))
			r.gone()
		}, FailedGarbage},
		{"nothing", short, func(r *raw, _ *tls.Config) {
			r.send(probe(5, 0))
			r.reply()
			r.gone()
		}, FailedTimeout},
		{"half of a greeting", short, func(r *raw, _ *tls.Config) {
			r.send(probe(5, 0))
			r.reply()
			r.send([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3})
			r.gone()
		}, FailedTimeout},
		{"an end", 0, func(r *raw, _ *tls.Config) {
			r.send(probe(5, 0))
			r.reply()
			r.Close()
		}, FailedGone},
		{"another protocol", 0, func(r *raw, cfg *tls.Config) {
			r.send(probe(5, 0))
			r.reply()
			cfg.NextProtos = []string{"h2"}
			if err := tls.Client(r.Conn, cfg).HandshakeContext(r.t.Context()); err == nil {
				r.t.Error("agreed on another protocol")
			}
		}, FailedProtocol},
		{"TLS 1.2", 0, func(r *raw, cfg *tls.Config) {
			r.send(probe(5, 0))
			r.reply()
			cfg.NextProtos, cfg.MinVersion, cfg.MaxVersion = []string{ALPN}, tls.VersionTLS12, tls.VersionTLS12
			if err := tls.Client(r.Conn, cfg).HandshakeContext(r.t.Context()); err == nil {
				r.t.Error("TLS 1.2 was spoken")
			}
		}, FailedProtocol},
	} {
		t.Run(tc.about, func(t *testing.T) {
			s, addr, _, cfg, _ := secureServer(t, Config{HandshakeTimeout: tc.timeout})
			tc.do(rawTo(t, addr), cfg)
			until(t, "count", func() bool { return s.Counters().TLSFailures[tc.want] == 1 })
			until(t, "end", func() bool { return len(s.Conns()) == 0 })
			if n := s.Counters(); n.TLSHandshakes != 0 || len(n.Failed()) != 1 || n.Failed()[tc.want.String()] != 1 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// TestWithoutALPN: a client that names no protocol is accepted, as tlshd names none.
func TestWithoutALPN(t *testing.T) {
	_, addr, _, cfg, _ := secureServer(t, Config{})
	r := rawTo(t, addr)
	r.send(probe(5, 0))
	r.reply()
	tc := tls.Client(r.Conn, cfg)
	if _, err := tc.Write(record(7, 0, 2, prog, 1, 0, 0, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if b, err := rpc.ReadRecord(tc, nil, 100); err != nil || rpc.ReplyXID(b) != 7 ||
		tc.ConnectionState().NegotiatedProtocol != "" {
		t.Errorf("%x %v", b, err)
	}
}

// TestHalfOpen: connections that begin TLS and do not finish it are bounded in number and time.
func TestHalfOpen(t *testing.T) {
	const conns, more = 50, 150
	s, addr, _, cfg, _ := secureServer(t, Config{MaxConns: conns, HandshakeTimeout: time.Second})
	for range conns + more {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(probe(5, 0)) // a refused connection may fail here
	}
	until(t, "end of all", func() bool {
		n := s.Counters()
		return n.Connections+n.Refused == conns+more && n.TLSFailures[FailedTimeout] == n.Connections && len(s.Conns()) == 0
	})
	if n := s.Counters(); n.Refused == 0 {
		t.Errorf("%+v", n)
	}
	until(t, "session", func() bool { // on a busy host a second may be too short, now and then
		c, err := DialTLS(t.Context(), addr, cfg, prog, 1)
		if err != nil {
			return false
		}
		defer c.Close()
		return echo(c, procEcho, pattern(1000)) == nil
	})
}

// TestTLSShutdown: Shutdown answers the calls in progress, and then sends the closing alert. It
// does not wait for a handshake.
func TestTLSShutdown(t *testing.T) {
	s, addr, release, cfg, _ := secureServer(t, Config{HandshakeTimeout: time.Hour})
	c := dialTLS(t, addr, cfg)
	half := rawTo(t, addr)
	half.send(probe(5, 0))
	half.reply()
	done := make(chan error, 1)
	go func() { done <- c.Call(context.Background(), &rpc.Request{Prog: prog, Vers: 1, Proc: procWait}) }()
	until(t, "call", func() bool { return s.Counters().Calls == 4 })
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(context.Background()) }()
	half.gone()
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	until(t, "end", func() bool { return c.Err() != nil })
	if err := c.Err(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// TestCallsBackByTLS: a server calls its client over TLS.
func TestCallsBackByTLS(t *testing.T) {
	pool, issue := authority(t)
	server := &tls.Config{Certificates: []tls.Certificate{issue(hostName)}}
	called := make(chan rpc.Caller, 1)
	srv := rpc.NewServer(rpc.ServerConfig{
		Workers: 1,
		Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
			{Name: "NULL", Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
			{Name: "BACK", Serve: func(c *rpc.Call, _ bool) rpc.Status { called <- c.Back; return rpc.Done }},
		}}},
	})
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Config{TLS: func() *tls.Config { return server }}.Serve(l, srv)
	defer s.Close()
	r := rawTo(t, l.Addr().String())
	r.send(record(1, 0, 2, prog, 1, 1, 0, 0, 0, 0)) // before TLS
	r.reply()
	back := <-called
	r.send(probe(5, 0))
	r.reply()
	back.Call(&rpc.BackwardCall{Prog: 9, Vers: 1, Proc: 1, Timeout: time.Hour, Done: func(*xdr.Decoder, error) {}})
	tc := tls.Client(r.Conn, &tls.Config{
		RootCAs: pool, ServerName: hostName, NextProtos: []string{ALPN},
		MinVersion: tls.VersionTLS13,
	})
	if err := tc.HandshakeContext(t.Context()); err != nil { // no call comes first
		t.Fatal(err)
	}
	if b, err := rpc.ReadRecord(tc, nil, 1000); err != nil || rpc.IsReply(b) {
		t.Errorf("%x %v", b, err)
	}
}

// FuzzHandshake sends a server any bytes instead of a handshake, in any pieces.
func FuzzHandshake(f *testing.F) {
	f.Add([]byte{22, 3, 1, 0, 5, 1, 0, 0, 1, 3}, uint8(3))
	f.Add(probe(6, 0), uint8(0))
	f.Add(bytes.Repeat([]byte{22, 3, 3, 64, 0}, 50), uint8(7))
	_, issue := authority(f)
	server := &tls.Config{Certificates: []tls.Certificate{issue(hostName)}}
	srv := rpc.NewServer(rpc.ServerConfig{
		Workers: 1,
		Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
			{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
		}}},
	})
	f.Cleanup(srv.Close)
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		l := &oneConn{conns: make(chan net.Conn, 1), end: make(chan struct{})}
		s := Config{TLS: func() *tls.Config { return server }}.Serve(l, srv)
		near, far := net.Pipe()
		l.conns <- far
		go func() { _, _ = io.Copy(io.Discard, near) }()
		_, _ = near.Write(probe(1, 0))
		k := min(int(cut), len(b))
		_, _ = near.Write(b[:k])
		_, _ = near.Write(b[k:])
		near.Close()
		until(t, "end", func() bool { return len(s.Conns()) == 0 })
		if n := s.Counters(); n.TLSHandshakes != 0 {
			t.Errorf("%+v", n)
		}
		s.Close()
	})
}

// oneConn is a listener that accepts one given connection.
type oneConn struct {
	conns chan net.Conn
	end   chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.end:
		return nil, net.ErrClosed
	}
}
func (l *oneConn) Close() error   { close(l.end); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
