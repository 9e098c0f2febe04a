package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Files name what a Store loads. A server needs Cert and Key. A client has them if it authenticates
// itself. CA has the authorities that certificates of peers must come from. Without CA a server
// verifies no clients, and a client uses the authorities of the system.
type Files struct {
	Cert, Key string // PEM; Cert may have intermediate certificates behind the first
	CA        string // PEM
}

// Empty reports whether no file is named.
func (f Files) Empty() bool { return f == Files{} }

// maxFile bounds a file in bytes; the authorities of a whole system are some 200 KiB.
const maxFile = 4 << 20

// settled is the age from which the modification time of a file tells it from a later version. It
// covers the coarsest clocks of file systems.
const settled = 2 * time.Second

// Clients is the policy of a server for certificates of its clients.
type Clients int

// Ask admits a client without a certificate, Require does not. Neither admits a certificate that
// does not come from the authorities. Without authorities Ask verifies nothing, and connections
// have no verified chains.
const (
	Ask Clients = iota
	Require
)

// ErrNoAuthorities is returned by Server if certificates are required and there are no authorities
// to verify them.
var ErrNoAuthorities = errors.New(
	"certificates of clients are required, but there are no authorities to verify them with")

// Store has the loaded certificates. Its methods may be called from any goroutine.
type Store struct {
	files Files
	log   *zap.Logger
	now   func() time.Time

	mu     sync.Mutex
	cur    *loaded
	seen   [3]stamp  // of the files when they were read last, for better or worse
	read   time.Time // when that was
	failed [3][]byte // what was read then, if it was no good
	status Status
}

// loaded is a valid set of files.
type loaded struct {
	raw         [3][]byte
	cert        *tls.Certificate // nil without files for it
	authorities *x509.CertPool   // nil without a file for it
	first       *x509.Certificate
	notAfter    time.Time
	authAfter   time.Time
}

// stamp identifies the version of a file that was read.
type stamp struct {
	info fs.FileInfo
}

func (s stamp) same(o stamp) bool {
	if s.info == nil || o.info == nil {
		return s.info == o.info
	}
	return os.SameFile(s.info, o.info) && s.info.Size() == o.info.Size() && s.info.ModTime().Equal(o.info.ModTime())
}

// Status describes a Store.
type Status struct {
	Files Files
	// Loads counts the sets of files that were loaded, Failures those that could not be. Err is the
	// last failure; the next success clears it.
	Loads, Failures uint64
	Err             error
	// Loaded is when the current set was loaded.
	Loaded time.Time
	// Subject and Names are those of the certificate. NotBefore and NotAfter bound its validity;
	// NotAfter is the earliest end in its chain. All are zero without a certificate.
	Subject             string
	Names               []string // DNS names and addresses
	NotBefore, NotAfter time.Time
	// Authorities is when the last authority expires. It is zero without a file of authorities.
	Authorities time.Time
}

// Load loads the files. The logger may be nil. It gets later loads and failures.
func Load(f Files, log *zap.Logger) (*Store, error) {
	if log == nil {
		log = zap.NewNop()
	}
	s := &Store{files: f, log: log, now: time.Now, status: Status{Files: f}}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("a certificate and its key belong together: one of the two files is not named")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s, s.load()
}

// Reload loads the files again. After a failure the old certificates stay in use.
func (s *Store) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.load()
}

// Poll loads the files again if they have changed. It costs a few system calls. Every handshake
// polls, so only programs with long pauses between handshakes call it.
func (s *Store) Poll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poll()
}

// Status describes the loaded certificates.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// current polls and returns the loaded certificates.
func (s *Store) current() *loaded {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poll()
	return s.cur
}

func (s *Store) names() [3]string { return [3]string{s.files.Cert, s.files.Key, s.files.CA} }

func (s *Store) stamps() (list [3]stamp) {
	for i, name := range s.names() {
		if name == "" {
			continue
		}
		if info, err := os.Stat(name); err == nil {
			list[i].info = info
		}
	}
	return list
}

// poll is Poll. The caller holds mu.
func (s *Store) poll() {
	now := s.stamps()
	for i := range now {
		changed := !now[i].same(s.seen[i])
		// A file can change again within the resolution of its modification time, after it was read.
		young := now[i].info != nil && s.read.Sub(now[i].info.ModTime()) < settled
		if changed || young {
			_ = s.load() // logged and counted
			return
		}
	}
}

// load reads the files and uses them if they are valid. The caller holds mu.
func (s *Store) load() error {
	s.seen, s.read = s.stamps(), s.now() // before reading: what changes meanwhile is seen next time
	var raw [3][]byte
	for i, name := range s.names() {
		if name == "" {
			continue
		}
		b, err := readFile(name)
		if err != nil {
			return s.fail(raw, err)
		}
		raw[i] = b
	}
	if s.cur != nil && same(raw, s.cur.raw) {
		s.failed, s.status.Err = [3][]byte{}, nil
		return nil
	}
	if s.status.Err != nil && same(raw, s.failed) {
		return s.status.Err // said before
	}
	l, err := s.parse(raw)
	if err != nil {
		return s.fail(raw, err)
	}
	again := s.cur != nil
	s.cur, s.failed = l, [3][]byte{}
	st := &s.status
	st.Loads++
	st.Err, st.Loaded, st.Authorities = nil, s.read, l.authAfter
	if c := l.first; c != nil {
		st.Subject, st.NotBefore, st.NotAfter = c.Subject.String(), c.NotBefore, l.notAfter
		st.Names = append([]string(nil), c.DNSNames...)
		for _, a := range c.IPAddresses {
			st.Names = append(st.Names, a.String())
		}
	}
	if again {
		s.log.Info("reloaded the certificates", zap.String("certificate", s.files.Cert),
			zap.String("ca", s.files.CA), zap.Time("expires", st.NotAfter))
	}
	return nil
}

// fail counts an invalid set of files, once for each version of the files.
func (s *Store) fail(raw [3][]byte, err error) error {
	said := s.status.Err != nil && s.status.Err.Error() == err.Error() && same(raw, s.failed)
	s.failed, s.status.Err = raw, err
	if said {
		return err
	}
	s.status.Failures++
	if s.cur != nil {
		s.log.Warn("the changed certificates cannot be used; the earlier ones stay in use", zap.Error(err))
	}
	return err
}

func same(a, b [3][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is longer than %d bytes and cannot be a file of certificates", name, maxFile)
	}
	return b, nil
}

func (s *Store) parse(raw [3][]byte) (*loaded, error) {
	l := &loaded{raw: raw}
	if s.files.Cert != "" {
		c, err := tls.X509KeyPair(raw[0], raw[1])
		if err != nil {
			return nil, fmt.Errorf("%s with %s: %w", s.files.Cert, s.files.Key, err)
		}
		l.cert, l.first = &c, c.Leaf
		l.notAfter = c.Leaf.NotAfter
		for _, der := range c.Certificate[1:] {
			x, err := x509.ParseCertificate(der)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.files.Cert, err)
			}
			if x.NotAfter.Before(l.notAfter) {
				l.notAfter = x.NotAfter
			}
		}
	}
	if s.files.CA != "" {
		l.authorities = x509.NewCertPool()
		n := 0
		for rest := raw[2]; ; {
			var b *pem.Block
			if b, rest = pem.Decode(rest); b == nil {
				break
			}
			if b.Type != "CERTIFICATE" {
				continue
			}
			x, err := x509.ParseCertificate(b.Bytes)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.files.CA, err)
			}
			l.authorities.AddCert(x)
			if n++; x.NotAfter.After(l.authAfter) {
				l.authAfter = x.NotAfter
			}
		}
		if n == 0 {
			return nil, fmt.Errorf("%s has no certificates", s.files.CA)
		}
	}
	return l, nil
}

// Server is the configuration of a server that speaks one of the protocols (ALPN), if any are
// named. Each handshake uses the current files. Sessions are not resumed, so that each connection
// is verified against them.
func (s *Store) Server(clients Clients, protocols ...string) (*tls.Config, error) {
	if s.files.Cert == "" {
		return nil, errors.New("a server needs a certificate and a key")
	}
	if clients == Require && s.files.CA == "" {
		return nil, ErrNoAuthorities
	}
	base := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, SessionTicketsDisabled: true}
	switch {
	case clients == Require:
		base.ClientAuth = tls.RequireAndVerifyClientCert
	case s.files.CA != "":
		base.ClientAuth = tls.VerifyClientCertIfGiven
	default:
		base.ClientAuth = tls.RequestClientCert
	}
	outer := base.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		l, c := s.current(), base.Clone()
		c.Certificates, c.ClientCAs = []tls.Certificate{*l.cert}, l.authorities
		return c, nil
	}
	// GetConfigForClient makes this unnecessary for crypto/tls, but some packages refuse a
	// configuration without any certificate.
	outer.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.current().cert, nil }
	return outer, nil
}

// Client is the configuration for one connection to the server with a name or an address, which its
// certificate must have. A caller should ask for one for each connection, so that the connection
// uses the current files.
func (s *Store) Client(server string, protocols ...string) *tls.Config {
	l := s.current()
	c := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, ServerName: server, RootCAs: l.authorities}
	if l.cert != nil {
		cert := *l.cert
		// The certificate is sent even if the server names other authorities, because the server then
		// refuses it with a reason.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return c
}
