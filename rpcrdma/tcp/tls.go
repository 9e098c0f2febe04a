package tcp

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ALPN is the protocol name in the handshake (RFC 9289 section 7.2). A peer that offers another
// name is refused. A peer without ALPN should be refused too, but is not: the Linux kernel's
// tlshd (ktls-utils 1.0) sends none, as client and as server, and the AUTH_TLS probe before has
// agreed on the protocol.
const ALPN = "sunrpc"

// Failure is the reason why a connection has no TLS after an AUTH_TLS probe.
type Failure int

// Failures.
const (
	FailedTimeout     Failure = iota // the peer was too slow
	FailedGone                       // the peer closed the connection
	FailedEarly                      // the peer sent data between the probe and its answer
	FailedGarbage                    // the peer did not send TLS
	FailedCertificate                // the peer's certificate is missing or invalid
	FailedRefused                    // the peer refused us, usually our certificate
	FailedProtocol                   // any other, such as no common version, cipher or protocol
	numFailures
)

// String is the name of the counter.
func (f Failure) String() string {
	return [...]string{"timeout", "gone", "early_data", "garbage", "certificate", "refused_by_peer", "protocol"}[f]
}

// errEarly means that bytes followed the AUTH_TLS probe before its answer. They could be an
// attacker's, who prepends cleartext to the protected connection.
var errEarly = errors.New("the peer sent data before the reply to its AUTH_TLS probe")

// errNoCertificate is the text of the error of crypto/tls for a missing certificate, which has no
// type.
const errNoCertificate = "tls: client didn't provide a certificate"

// failureOf classifies the error of a handshake.
// The order matters: an error can be of several kinds, and the first one is the most precise.
func failureOf(err error) Failure {
	var (
		record  tls.RecordHeaderError
		alert   tls.AlertError
		cert    *tls.CertificateVerificationError
		invalid x509.CertificateInvalidError
		op      *net.OpError
	)
	switch {
	case errors.Is(err, errEarly):
		return FailedEarly
	case errors.Is(err, os.ErrDeadlineExceeded):
		return FailedTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return FailedGone
	case errors.As(err, &record):
		return FailedGarbage
	case errors.As(err, &cert), errors.As(err, &invalid), err.Error() == errNoCertificate:
		return FailedCertificate
	case errors.As(err, &alert), errors.As(err, &op) && op.Op == "remote error":
		return FailedRefused
	}
	return FailedProtocol
}

// handshakes counts handshakes.
type handshakes struct {
	probes, done, mutual atomic.Uint64
	failed               [numFailures]atomic.Uint64
}

// forRPC returns a copy of a configuration with the settings that RFC 9289 requires.
func forRPC(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	cfg.MinVersion = tls.VersionTLS13 // RFC 9289 section 5
	cfg.NextProtos = []string{ALPN}
	// The first records of crypto/tls are short, for browsers that show a page before all of it is
	// here.
	cfg.DynamicRecordSizingDisabled = true
	if inner := cfg.GetConfigForClient; inner != nil {
		cfg.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := inner(h)
			if c == nil || err != nil {
				return nil, err
			}
			c = c.Clone()
			c.GetConfigForClient = nil
			return forRPC(c), nil
		}
	}
	return cfg
}

// nameOf is the name in a verified certificate: the first DNS name or address, or else the subject
// (RFC 9289 section 5.2.1). Its length is bounded, because the peer chooses it.
func nameOf(c *x509.Certificate) string {
	who := c.Subject.String()
	switch {
	case len(c.DNSNames) > 0:
		who = c.DNSNames[0]
	case len(c.IPAddresses) > 0:
		who = c.IPAddresses[0].String()
	}
	const long = 255
	return who[:min(len(who), long)]
}

// serverTLS makes the server's handshake. early is the number of bytes that were read after the
// probe. The caller has set a deadline: a peer that stops in the middle of the handshake occupies
// one connection until then.
func serverTLS(c net.Conn, cfg *tls.Config, early int) (*secured, error) {
	if early > 0 {
		return nil, errEarly
	}
	f := newFlow(c)
	s := &secured{tls.Server(f, forRPC(cfg)), f}
	if err := s.Handshake(); err != nil {
		return nil, err
	}
	return s, nil
}

// clientTLS sends the AUTH_TLS probe and makes the client's handshake. prog and vers are those of
// the connection's calls. The caller has set a deadline.
//
//	probe      XID, CALL, NULL of prog and vers, credential AUTH_TLS, verifier AUTH_NONE
//	reply      accepted, verifier AUTH_NONE with "STARTTLS"
//	           any other reply: ErrNoTLS, and the connection is closed
func clientTLS(c net.Conn, cfg *tls.Config, prog, vers, xid uint32) (net.Conn, error) {
	var e xdr.Encoder
	rpc.EncodeTLSProbe(&e, xid, prog, vers)
	mark := rpc.RecordMark(e.Len())
	if _, err := c.Write(append(mark[:], e.B...)); err != nil {
		return nil, err
	}
	const replyMax = 1024
	b, err := rpc.ReadRecord(c, nil, replyMax) // reads no byte behind the record
	if err != nil {
		return nil, fmt.Errorf("asking for TLS: %w", err)
	}
	if err := rpc.DecodeTLSReply(b, xid); err != nil {
		return nil, err
	}
	f := newFlow(c)
	s := &secured{tls.Client(f, forRPC(cfg)), f}
	if err := s.Handshake(); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return s, nil
}

// startTLS answers an AUTH_TLS probe and starts TLS (RFC 9289 section 4.1). It waits for the
// calls in progress, so that their replies precede the answer. The answer is the last cleartext:
// everything after it, calls to the peer included, waits for the handshake.
//
//	client                       reader                          writer
//	probe (AUTH_TLS)  ------->   waits for the other calls
//	                             dispatches the probe  ------->  replies of the other calls
//	                  <----------------------------------------  STARTTLS, the last cleartext
//	                             reads asked           <-------  asked
//	handshake         <------>   Handshake                       waits
//	                             begin                 ------->  goes on, over TLS
//	calls             ------->   reads from TLS
//
// Bytes between the probe and STARTTLS end the connection (errEarly): an attacker could have
// inserted them.
func (c *conn) startTLS(k *call, in *bufio.Reader, cfg *tls.Config) error {
	s := c.s
	s.n.tls.probes.Add(1)
	for range s.cfg.MaxCalls - 1 {
		<-c.free
	}
	defer func() { // new calls, because the old ones have the peer without TLS
		for range s.cfg.MaxCalls - 1 {
			c.free <- nil
		}
	}()
	k.Reset()
	k.CanTLS = true
	s.srv.Dispatch(&k.Call, xdr.NewDecoder(k.record), false)
	// If the server refuses TLS, the writer writes the answer like any other and frees the call.
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
	if c.draining.Load() || s.pause.on() { // SetDeadline may have replaced theirs
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
