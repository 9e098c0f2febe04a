// Package certs loads a certificate with its key, and the certificates of the authorities that
// peers are held against, from PEM files, makes configurations of TLS 1.3 from them, and loads
// them again when the files change, so that what is renewed is used without a restart.
//
// A new set of files that is no good, such as a certificate without its key, changes nothing:
// what was loaded before stays, and the failure is logged and counted.
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

// Files name what a Store loads. A server needs Cert and Key; a client has them if it is to
// say who it is. CA are the authorities that certificates of peers must come from: without it a
// server verifies no clients, and a client uses the authorities of the system.
type Files struct {
	Cert, Key string // PEM; Cert may have intermediate certificates behind the first
	CA        string // PEM
}

// Empty says that no file is named.
func (f Files) Empty() bool { return f == Files{} }

// maxFile bounds a file in bytes; the authorities of a whole system are some 200 KiB.
const maxFile = 4 << 20

// settled is how old a file must be for its time of change to tell it from what is written
// later; file systems have clocks as coarse as that.
const settled = 2 * time.Second

// Clients is what a server wants of its clients' certificates.
type Clients int

// A client without a certificate is let in by Ask, and not by Require. One with a certificate
// that does not come from the authorities is let in by neither, unless there are no authorities:
// then Ask verifies nothing, and the connection has no verified chains.
const (
	Ask Clients = iota
	Require
)

// ErrNoAuthorities is what Server says if certificates are required that nothing can be held
// against.
var ErrNoAuthorities = errors.New(
	"certificates of clients are required, but there are no authorities to verify them with")

// Store is what was loaded. Its methods may be called from any goroutine.
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

// loaded is a set of files that fit together.
type loaded struct {
	raw         [3][]byte
	cert        *tls.Certificate // nil without files for it
	authorities *x509.CertPool   // nil without a file for it
	first       *x509.Certificate
	notAfter    time.Time
	authAfter   time.Time
}

// stamp tells whether a file is the one that was read.
type stamp struct {
	info fs.FileInfo
}

func (s stamp) same(o stamp) bool {
	if s.info == nil || o.info == nil {
		return s.info == o.info
	}
	return os.SameFile(s.info, o.info) && s.info.Size() == o.info.Size() && s.info.ModTime().Equal(o.info.ModTime())
}

// Status is what a Store has loaded.
type Status struct {
	Files Files
	// Loads are sets of files that were taken, the first among them. Failures are those that
	// were not, and Err is why, until a set is taken again.
	Loads, Failures uint64
	Err             error
	// Loaded is when the set in use was taken.
	Loaded time.Time
	// Subject and Names are those of the certificate, and NotBefore and NotAfter when it is
	// valid: NotAfter with its chain, whichever ends first. Zero without a certificate.
	Subject             string
	Names               []string // DNS names and addresses
	NotBefore, NotAfter time.Time
	// Authorities is when the last of the authorities expires; zero without a file of them.
	Authorities time.Time
}

// Load loads the files. The logger, which may be nil, is told of what is loaded and what fails later.
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

// Reload loads the files again. If they are no good, what was loaded stays.
func (s *Store) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.load()
}

// Poll loads the files again if they have changed. It costs a few system calls. Every handshake
// does it, so that it is to be called only where there may be none for long.
func (s *Store) Poll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poll()
}

// Status says what is loaded.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// current is what is loaded, after a look at the files.
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

// poll is Poll with mu held.
func (s *Store) poll() {
	now := s.stamps()
	for i := range now {
		changed := !now[i].same(s.seen[i])
		// A file that was changed just before it was read may have been changed again
		// without a sign of it.
		young := now[i].info != nil && s.read.Sub(now[i].info.ModTime()) < settled
		if changed || young {
			_ = s.load() // logged and counted
			return
		}
	}
}

// load reads the files and takes them if they are good. Call with mu held.
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
		s.log.Info("loaded certificates again", zap.String("certificate", s.files.Cert),
			zap.String("ca", s.files.CA), zap.Time("expires", st.NotAfter))
	}
	return nil
}

// fail counts a set of files that was not taken, once for as long as it is there.
func (s *Store) fail(raw [3][]byte, err error) error {
	said := s.status.Err != nil && s.status.Err.Error() == err.Error() && same(raw, s.failed)
	s.failed, s.status.Err = raw, err
	if said {
		return err
	}
	s.status.Failures++
	if s.cur != nil {
		s.log.Warn("certificates have changed and cannot be used; those of before stay", zap.Error(err))
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
		return nil, fmt.Errorf("%s is longer than %d bytes, which is no file of certificates", name, maxFile)
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

// Server is a configuration for a server that speaks one of the protocols (ALPN), if any are
// named. Each handshake uses the files as they are then. Sessions are not resumed, so that each
// connection is held against them.
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
	// Nothing asks for it, but a configuration without any certificate is refused by some users of it.
	outer.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.current().cert, nil }
	return outer, nil
}

// Client is a configuration for one connection to the server of a name, or an address, which its
// certificate must have. Every connection should ask for its own, so that it uses the files as
// they are then.
func (s *Store) Client(server string, protocols ...string) *tls.Config {
	l := s.current()
	c := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, ServerName: server, RootCAs: l.authorities}
	if l.cert != nil {
		cert := *l.cert
		// Given even where the server names other authorities: it then refuses with a reason.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return c
}
