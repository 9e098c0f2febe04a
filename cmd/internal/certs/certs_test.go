package certs

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rstored/rstored/cmd/internal/certs/certstest"
)

const name = "server.example"

func hours(n int) time.Time {
	return time.Now().Add(time.Duration(n) * time.Hour).Truncate(time.Second)
}

// handshake returns the errors of both ends, and what the server knows of the client.
func handshake(t *testing.T, server, client *tls.Config) (st tls.ConnectionState, serr, cerr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = near.SetDeadline(time.Now().Add(20 * time.Second))
	_ = far.SetDeadline(time.Now().Add(20 * time.Second))
	done := make(chan error, 1)
	s := tls.Server(far, server)
	go func() {
		err := s.HandshakeContext(t.Context())
		if err == nil {
			_, err = s.Write([]byte("hello"))
		}
		s.Close()
		done <- err
	}()
	c := tls.Client(near, client)
	if cerr = c.HandshakeContext(t.Context()); cerr == nil {
		_, cerr = io.ReadFull(c, make([]byte, 5)) // TLS 1.3: what the server refuses is heard here
	}
	c.Close()
	serr = <-done
	return s.ConnectionState(), serr, cerr
}

func load(t *testing.T, f Files) *Store {
	t.Helper()
	s, err := Load(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func serverOf(t *testing.T, s *Store, c Clients) *tls.Config {
	t.Helper()
	cfg, err := s.Server(c, "proto")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestWho lets in whom it should.
func TestWho(t *testing.T) {
	dir := t.TempDir()
	ca, other := certstest.New(t, "ca"), certstest.New(t, "other")
	caFile, otherFile := certstest.WriteFile(t, dir, "ca.pem", ca.PEM), certstest.WriteFile(t, dir, "other.pem", other.PEM)
	cert, key := ca.Issue(t, hours(10), name, "192.0.2.7").Write(t, dir, "server")
	ccert, ckey := ca.Issue(t, hours(10), "client.example").Write(t, dir, "client")
	ocert, okey := other.Issue(t, hours(10), "client.example").Write(t, dir, "foreign")
	ecert, ekey := ca.Issue(t, time.Now().Add(-time.Minute), name).Write(t, dir, "expired")
	for _, tc := range []struct {
		about          string
		server, client Files
		clients        Clients
		name           string
		ok             bool
		verified       bool
	}{
		{
			about: "a client without a certificate", server: Files{cert, key, caFile}, client: Files{CA: caFile}, name: name,
			ok: true,
		},
		{about: "by address", server: Files{cert, key, caFile}, client: Files{CA: caFile}, name: "192.0.2.7", ok: true},
		{about: "another name", server: Files{cert, key, caFile}, client: Files{CA: caFile}, name: "www.example"},
		{about: "another address", server: Files{cert, key, caFile}, client: Files{CA: caFile}, name: "192.0.2.8"},
		{about: "authorities of the system", server: Files{cert, key, caFile}, client: Files{}, name: name},
		{about: "other authorities", server: Files{cert, key, caFile}, client: Files{CA: otherFile}, name: name},
		{
			about: "a client with a certificate", server: Files{cert, key, caFile}, client: Files{ccert, ckey, caFile},
			name: name, ok: true, verified: true,
		},
		{about: "one of others", server: Files{cert, key, caFile}, client: Files{ocert, okey, caFile}, name: name},
		{
			about: "one of others that nobody verifies", server: Files{Cert: cert, Key: key}, client: Files{ocert, okey, caFile},
			name: name, ok: true,
		},
		{about: "expired", server: Files{cert, key, caFile}, client: Files{ecert, ekey, caFile}, name: name},
		{about: "the server's expired", server: Files{ecert, ekey, caFile}, client: Files{CA: caFile}, name: name},
		{
			about: "required", server: Files{cert, key, caFile}, clients: Require, client: Files{ccert, ckey, caFile},
			name: name, ok: true, verified: true,
		},
		{
			about: "required and not there", server: Files{cert, key, caFile}, clients: Require, client: Files{CA: caFile},
			name: name,
		},
		{
			about: "required and of others", server: Files{cert, key, caFile}, clients: Require,
			client: Files{ocert, okey, caFile}, name: name,
		},
	} {
		t.Run(tc.about, func(t *testing.T) {
			st, serr, cerr := handshake(t, serverOf(t, load(t, tc.server), tc.clients),
				load(t, tc.client).Client(tc.name, "proto"))
			if ok := serr == nil && cerr == nil; ok != tc.ok {
				t.Fatalf("server %v, client %v", serr, cerr)
			}
			if tc.ok && (st.Version != tls.VersionTLS13 || st.NegotiatedProtocol != "proto" ||
				(len(st.VerifiedChains) > 0) != tc.verified) {
				t.Errorf("%x %q %d", st.Version, st.NegotiatedProtocol, len(st.VerifiedChains))
			}
		})
	}
	old := load(t, Files{CA: caFile}).Client(name)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, serr, cerr := handshake(t, serverOf(t, load(t, Files{cert, key, caFile}), Ask), old); serr == nil ||
		cerr == nil {
		t.Error("TLS 1.2 was spoken")
	}
	if _, err := load(t, Files{Cert: cert, Key: key}).Server(Require); !errors.Is(err, ErrNoAuthorities) {
		t.Error(err)
	}
	if _, err := load(t, Files{CA: caFile}).Server(Ask); err == nil {
		t.Error("a server without a certificate")
	}
}

// TestRenewed has connections use what is in the files when they begin, and what was there
// before while that is no good.
func TestRenewed(t *testing.T) {
	dir := t.TempDir()
	ca, second := certstest.New(t, "ca"), certstest.New(t, "second")
	f := Files{CA: certstest.WriteFile(t, dir, "ca.pem", ca.PEM)}
	first := hours(10)
	f.Cert, f.Key = ca.Issue(t, first, name).Write(t, dir, "server")
	var out bytes.Buffer
	enc := zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "msg"})
	s, err := Load(f, zap.New(zapcore.NewCore(enc, zapcore.AddSync(&out), zapcore.InfoLevel)))
	if err != nil {
		t.Fatal(err)
	}
	server := serverOf(t, s, Ask)
	trusted := load(t, Files{CA: certstest.WriteFile(t, dir, "trusted.pem", append(bytes.Clone(ca.PEM), second.PEM...))})
	expires := func() time.Time {
		t.Helper()
		client := trusted.Client(name)
		var got time.Time
		client.VerifyConnection = func(st tls.ConnectionState) error { got = st.PeerCertificates[0].NotAfter; return nil }
		if _, serr, cerr := handshake(t, server, client); serr != nil || cerr != nil {
			t.Fatal(serr, cerr)
		}
		return got
	}
	check := func(about string, after time.Time, loads, failures uint64, bad bool) {
		t.Helper()
		for range 2 { // once is as good as twice
			if got := expires(); !got.Equal(after) {
				t.Errorf("%s: a certificate until %v instead of %v", about, got, after)
			}
		}
		st := s.Status()
		if st.Loads != loads || st.Failures != failures || (st.Err != nil) != bad || !st.NotAfter.Equal(after) ||
			st.Names[0] != name || st.Authorities.IsZero() {
			t.Errorf("%s: %+v", about, st)
		}
		if said := strings.Count(out.String(), "cannot be used"); said != int(failures) {
			t.Errorf("%s: said %d times:\n%s", about, said, out.String())
		}
	}
	check("at first", first.UTC(), 1, 0, false)

	renewed := second.Issue(t, hours(20), name)
	certstest.WriteFile(t, dir, "server.pem", renewed.Cert)
	check("without its key", s.Status().NotAfter, 1, 1, true)
	certstest.WriteFile(t, dir, "server.key", renewed.Key)
	after := s.Status().NotAfter
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if s.Status().NotAfter.Equal(after) {
		t.Error("a reload has loaded nothing")
	}
	check("renewed", s.Status().NotAfter, 2, 1, false)

	// In place, by a program that knows no better, and of the same time: the file is younger than
	// what a clock of a file system is sure to tell.
	third := second.Issue(t, hours(30), name)
	at := time.Now()
	for file, b := range map[string][]byte{f.Cert: third.Cert, f.Key: third.Key} {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	s.Poll()
	check("in place", s.Status().NotAfter, 3, 1, false)
	if s.Status().NotAfter.Before(hours(29)) {
		t.Error("not the third certificate")
	}

	for i, broken := range []func(){
		func() { certstest.WriteFile(t, dir, "server.pem", []byte("no certificate")) },
		func() { certstest.WriteFile(t, dir, "server.pem", nil) },
		func() { _ = os.Remove(f.Cert) },
		func() {
			certstest.WriteFile(t, dir, "server.pem", third.Cert)
			certstest.WriteFile(t, dir, "ca.pem", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
		},
		func() { certstest.WriteFile(t, dir, "ca.pem", third.Key) }, // no certificates in it
		func() { certstest.WriteFile(t, dir, "ca.pem", make([]byte, maxFile+1)) },
	} {
		broken()
		check("broken", s.Status().NotAfter, 3, uint64(2+i), true)
	}
	certstest.WriteFile(t, dir, "ca.pem", ca.PEM)
	check("as it was", s.Status().NotAfter, 3, 7, false)
}

// TestLinks follows links that are changed, as they are where secrets are mounted.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	ca := certstest.New(t, "ca")
	for i, d := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
		cert, key := ca.Issue(t, hours(10+10*i), name).Write(t, filepath.Join(dir, d), "tls")
		for _, f := range []string{cert, key} { // long settled, and of one time
			if err := os.Chtimes(f, time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := filepath.Join(dir, "now")
	if err := os.Symlink("one", link); err != nil {
		t.Fatal(err)
	}
	s := load(t, Files{Cert: filepath.Join(link, "tls.pem"), Key: filepath.Join(link, "tls.key")})
	s.Poll()
	if st := s.Status(); st.Loads != 1 || st.NotAfter.After(hours(11)) {
		t.Errorf("%+v", st)
	}
	if err := os.Symlink("two", link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	s.Poll()
	if st := s.Status(); st.Loads != 2 || st.NotAfter.Before(hours(19)) {
		t.Errorf("%+v", st)
	}
}

// TestLoad refuses what is no good, with the name of the file.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	ca := certstest.New(t, "ca")
	cert, key := ca.Issue(t, hours(10), name).Write(t, dir, "a")
	_, otherKey := ca.Issue(t, hours(10), name).Write(t, dir, "b")
	for _, tc := range []struct {
		f    Files
		want string
	}{
		{Files{Cert: cert}, "belong together"},
		{Files{Key: key}, "belong together"},
		{Files{Cert: cert, Key: otherKey}, "b.key"},
		{Files{Cert: key, Key: key}, "a.key"},
		{Files{Cert: cert, Key: filepath.Join(dir, "none")}, "none"},
		{Files{CA: key}, "no certificates"},
		{Files{CA: dir}, "directory"},
	} {
		if _, err := Load(tc.f, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc.f, err)
		}
	}
	if !(Files{}).Empty() || (Files{CA: key}).Empty() {
		t.Error("what is empty")
	}
}
