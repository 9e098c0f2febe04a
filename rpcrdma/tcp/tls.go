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
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ALPN is the protocol name in the handshake (RFC 9289 section 7.2). A peer that offers another
// name is refused. A peer without ALPN should be refused too, but is not: the Linux kernel's
// tlshd (ktls-utils 1.0) sends none, as client and as server, and the AUTH_TLS probe before has
// agreed on the protocol.
const ALPN = "sunrpc"

// Failure is a reason for which a connection that began TLS has none.
type Failure int

// Failures.
const (
	FailedTimeout     Failure = iota // the peer was too slow
	FailedGone                       // the peer went away
	FailedEarly                      // the peer said something between its question and the answer
	FailedGarbage                    // what came was not TLS
	FailedCertificate                // the peer's certificate is none, or no good
	FailedRefused                    // the peer refused us: our certificate, mostly
	FailedProtocol                   // any other: no common version, cipher or protocol, say
	numFailures
)

// String is the failure as counters have it.
func (f Failure) String() string {
	return [...]string{"timeout", "gone", "early_data", "garbage", "certificate", "refused_by_peer", "protocol"}[f]
}

// errEarly is of bytes that came behind the question for TLS, before its answer.
var errEarly = errors.New("the peer did not wait for the answer to its question for TLS")

// errNoCertificate begins what crypto/tls says where one is required; it has no type for it.
const errNoCertificate = "tls: client didn't provide a certificate"

// failureOf sorts the errors of handshakes.
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
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
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

// handshakes counts them.
type handshakes struct {
	probes, done, mutual atomic.Uint64
	failed               [numFailures]atomic.Uint64
}

// Sizes of what is sent by TLS.
const (
	recordMax = 16 << 10 // plaintext of a record (RFC 8446 section 5.1)
	// flushMax is what is encrypted before it is sent, in bytes.
	flushMax = 128 << 10
	// flowBuffer is what is read at once, in bytes.
	flowBuffer = 32 << 10
)

// flow is the connection below TLS. It reads several records at once, and can buffer writes, so
// that records leave together.
type flow struct {
	net.Conn
	in *bufio.Reader

	mu   sync.Mutex
	held *[]byte // what was written since hold; nil without one
}

var flushes = sync.Pool{New: func() any { b := make([]byte, 0, flushMax+2*recordMax); return &b }}

func newFlow(c net.Conn) *flow { return &flow{Conn: c, in: bufio.NewReaderSize(c, flowBuffer)} }

func (f *flow) Read(p []byte) (int, error) { return f.in.Read(p) }

func (f *flow) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		return f.Conn.Write(p)
	}
	*f.held = append(*f.held, p...)
	if len(*f.held) < flushMax {
		return len(p), nil
	}
	_, err := f.Conn.Write(*f.held)
	*f.held = (*f.held)[:0]
	return len(p), err
}

// hold buffers what is written from now on, until release or flushMax.
func (f *flow) hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = flushes.Get().(*[]byte)
}

func (f *flow) release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.held
	f.held = nil
	var err error
	if len(*b) > 0 {
		_, err = f.Conn.Write(*b)
	}
	if cap(*b) <= flushMax+2*recordMax {
		*b = (*b)[:0]
		flushes.Put(b)
	}
	return err
}

// secured is a connection with TLS. Its Write may be called from one goroutine at a time, as
// may writeParts.
type secured struct {
	*tls.Conn
	flow *flow
}

// writeParts sends the pieces of messages, in as few records as there can be. The number is
// that of their bytes, not of those on the wire.
func (s *secured) writeParts(parts [][]byte) (n int64, err error) {
	s.flow.hold()
	defer func() {
		if rerr := s.flow.release(); err == nil {
			err = rerr
		}
	}()
	b := flushes.Get().(*[]byte)
	defer flushes.Put(b)
	plain := (*b)[:0] // less than a record
	for _, p := range parts {
		n += int64(len(p))
		for len(p) > 0 {
			if len(plain) == 0 && len(p) >= recordMax {
				whole := len(p) - len(p)%recordMax
				if _, err := s.Write(p[:whole]); err != nil {
					return n, err
				}
				p = p[whole:]
				continue
			}
			k := min(len(p), recordMax-len(plain))
			plain, p = append(plain, p[:k]...), p[k:]
			if len(plain) == recordMax {
				if _, err := s.Write(plain); err != nil {
					return n, err
				}
				plain = plain[:0]
			}
		}
	}
	if len(plain) > 0 {
		_, err = s.Write(plain)
	}
	return n, err
}

// writeParts sends the pieces of messages over any connection. parts is used up.
func writeParts(c net.Conn, parts *net.Buffers) (int64, error) {
	if s, ok := c.(*secured); ok {
		return s.writeParts(*parts)
	}
	return parts.WriteTo(c)
}

// forRPC returns a copy of a configuration with the settings that RFC 9289 requires.
func forRPC(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	cfg.MinVersion = tls.VersionTLS13 // RFC 9289 section 5
	cfg.NextProtos = []string{ALPN}
	// Records of a packet each are for browsers that show a page before it has arrived.
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

// nameOf is who a verified certificate is of: its first name or address, or its subject. The
// serial number and the issuer tell it from others (RFC 9289 section 5.2.1).
func nameOf(c *x509.Certificate) string {
	who := c.Subject.String()
	switch {
	case len(c.DNSNames) > 0:
		who = c.DNSNames[0]
	case len(c.IPAddresses) > 0:
		who = c.IPAddresses[0].String()
	}
	// What a peer may choose is bounded.
	const long = 255
	return who[:min(len(who), long)]
}

// serverTLS has a client begin TLS on a connection, of which a reader may have read too much.
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

// clientTLS asks a server for TLS and begins it. The program and the version are of what the
// connection is for. The caller has set a deadline.
func clientTLS(c net.Conn, cfg *tls.Config, prog, vers, xid uint32) (net.Conn, error) {
	var e xdr.Encoder
	rpc.EncodeTLSProbe(&e, xid, prog, vers)
	mark := rpc.RecordMark(e.Len())
	if _, err := c.Write(append(mark[:], e.B...)); err != nil {
		return nil, err
	}
	const replyMax = 1024
	b, err := rpc.ReadRecord(c, nil, replyMax) // and no byte more
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
