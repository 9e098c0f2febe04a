package control

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/certs/certstest"
)

// TestRoles: who may do what, by the names of a certificate and the lists.
func TestRoles(t *testing.T) {
	for _, tc := range []struct {
		names, admins, readers []string
		want                   Role
	}{
		{[]string{"a"}, nil, nil, Nobody},
		{[]string{""}, nil, nil, Nobody},
		{[]string{"*"}, nil, nil, Nobody},
		{[]string{"a"}, []string{"a"}, nil, Admin},
		{[]string{"x", "a"}, []string{"b", "a"}, nil, Admin},
		{[]string{"a"}, []string{"b"}, nil, Nobody},
		{[]string{"a"}, nil, []string{"a"}, Reader},
		{[]string{"a"}, nil, []string{"b"}, Nobody},
		{[]string{"a"}, []string{"a"}, []string{"a"}, Admin},
		{[]string{"a"}, []string{"b"}, []string{"*"}, Reader},
		{[]string{"a"}, []string{"*"}, nil, Admin},
		{[]string{"*"}, []string{"b"}, nil, Nobody},
		{[]string{"*"}, []string{"b"}, []string{"c"}, Nobody},
		{[]string{""}, []string{""}, nil, Nobody},
		{[]string{"A"}, []string{"a"}, nil, Nobody},
	} {
		if got := RoleOf(tc.names, tc.admins, tc.readers); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
	u, _ := url.Parse("spiffe://example.org/ops")
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "cn"}, DNSNames: []string{"a.example.org"},
		EmailAddresses: []string{"a@example.org"}, URIs: []*url.URL{u},
	}
	if got := Names(c); !slices.Equal(got, []string{"cn", "a.example.org", "a@example.org", "spiffe://example.org/ops"}) {
		t.Errorf("names %q", got)
	}
}

// remote is a server on TCP, its authority, and what it was told.
type remote struct {
	t    *testing.T
	ca   *certstest.CA
	dir  string
	addr string
	s    *Server
	stop func()
	hold chan struct{} // if not nil, requests wait until it is closed

	mu              sync.Mutex
	admins, readers []string
	actions         []Action
	refused         chan error
	asked           chan struct{} // gets something for each request
}

func serveRemote(t *testing.T) *remote {
	t.Helper()
	r := &remote{
		t: t, ca: certstest.New(t, "our authority"), dir: t.TempDir(), refused: make(chan error, 1000),
		admins: []string{"alice"}, asked: make(chan struct{}, 1000),
	}
	cert, key := r.ca.Issue(t, time.Now().Add(time.Hour), "127.0.0.1").Write(t, r.dir, "server")
	store, err := certs.Load(certs.Files{Cert: cert, Key: key, CA: certstest.WriteFile(t, r.dir, "ca.pem", r.ca.PEM)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := store.Server(certs.Require)
	if err != nil {
		t.Fatal(err)
	}
	access, err := NewAccess("")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	r.s = NewServer(&fake{}, access, zap.NewNop(), func(a Action) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.actions = append(r.actions, a)
	})
	r.stop = r.s.ServeRemote(l, Remote{
		TLS: conf,
		Role: func(names []string) Role {
			r.asked <- struct{}{}
			if r.hold != nil {
				<-r.hold
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			return RoleOf(names, r.admins, r.readers)
		},
		Refused: func(_ net.Addr, err error) { r.refused <- err },
	})
	t.Cleanup(func() {
		r.stop()
		_ = r.s.Close()
	})
	return r
}

// TestRemoteShutdown: who has asked from another host is answered before the server ends.
func TestRemoteShutdown(t *testing.T) {
	r := serveRemote(t)
	r.hold = make(chan struct{})
	d := DialRemote(r.addr, r.files(r.ca, time.Now().Add(time.Hour), "alice"))
	answered, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := d.Status(t.Context())
		answered <- err
	}()
	<-r.asked
	go func() { ended <- r.s.Shutdown(t.Context()) }()
	select {
	case err := <-ended:
		t.Errorf("it has ended before the answer: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(r.hold)
	if err := <-answered; err != nil {
		t.Errorf("the answer: %v", err)
	}
	if t.Failed() {
		return
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func (r *remote) lists(admins, readers []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.admins, r.readers = admins, readers
}

// files are those of a client with a certificate of an authority.
func (r *remote) files(ca *certstest.CA, ends time.Time, name string) certs.Files {
	cert, key := ca.Issue(r.t, ends, name).Write(r.t, r.dir, name)
	return certs.Files{Cert: cert, Key: key, CA: certstest.WriteFile(r.t, r.dir, "ca.pem", r.ca.PEM)}
}

// TestRemote: the interface by TLS, by role, and what the audit log is told.
func TestRemote(t *testing.T) {
	r := serveRemote(t)
	d := DialRemote(r.addr, r.files(r.ca, time.Now().Add(time.Hour), "alice"))
	ctx := t.Context()
	if s, err := d.Status(ctx); err != nil || s.PID != 7 {
		t.Fatalf("status %+v, %v", s, err)
	}
	if err := d.SetLogLevel(ctx, "debug"); err != nil {
		t.Error(err)
	}
	var b strings.Builder
	if err := d.Capture(ctx, CaptureSpec{}, &b); err != nil || b.Len() == 0 {
		t.Errorf("capture %q, %v", b.String(), err)
	}
	r.mu.Lock()
	if len(r.actions) != 2 || r.actions[0].Peer.Subject != "CN=alice" || r.actions[0].Peer.Serial == "" ||
		r.actions[0].Peer.Remote == "" || r.actions[0].Status != 200 {
		t.Errorf("the audit log is told of %+v", r.actions)
	}
	r.actions = nil
	r.mu.Unlock()

	// Lists count from the next request on, on connections that there are.
	r.lists([]string{"bob"}, []string{"alice"})
	if _, err := d.Status(ctx); err != nil {
		t.Errorf("a reader looks: %v", err)
	}
	const look = "may look at this server"
	for what, err := range map[string]error{
		"log level": d.SetLogLevel(ctx, "debug"),
		"remove":    d.RemoveExport(ctx, "/a"),
		"capture":   d.Capture(ctx, CaptureSpec{}, &b),
		"trace":     d.Trace(ctx, netip.Addr{}, func(*TraceCall) error { return nil }),
	} {
		if err == nil || !strings.Contains(err.Error(), look) || !strings.Contains(err.Error(), "CN=alice") {
			t.Errorf("%s by a reader: %v", what, err)
		}
	}
	r.mu.Lock()
	if len(r.actions) != 4 || r.actions[0].Status != 403 {
		t.Errorf("the audit log is told of %+v", r.actions)
	}
	r.mu.Unlock()
	r.lists([]string{"bob"}, nil)
	if _, err := d.Status(ctx); err == nil ||
		!strings.Contains(err.Error(), "certificate CN=alice may not control this server") {
		t.Errorf("a stranger: %v", err)
	}
}

// TestRemoteRefused: who gets no connection, and that it is told.
func TestRemoteRefused(t *testing.T) {
	r := serveRemote(t)
	hour := time.Now().Add(time.Hour)
	other := certstest.New(t, "another authority")
	good := r.files(r.ca, hour, "alice")
	wrongServer := good
	wrongServer.CA = certstest.WriteFile(t, r.dir, "other.pem", other.PEM)
	for _, tc := range []struct {
		name  string
		files certs.Files
		want  string
		told  string // to the server; empty: it depends on when the client goes
	}{
		{"another authority", r.files(other, hour, "mallory"), "refuses the certificate", "unknown authority"},
		{"expired", r.files(r.ca, time.Now().Add(-time.Minute), "late"), "refuses the certificate", "expired"},
		{"the server's authority is another", wrongServer, "--ca names the authority", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := DialRemote(r.addr, tc.files).Status(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the client is told %v", err)
			}
			if err := <-r.refused; tc.told != "" && !strings.Contains(err.Error(), tc.told) {
				t.Errorf("the server is told %v", err)
			}
		})
	}
	if _, err := DialRemote(r.addr, certs.Files{CA: good.CA}).Status(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "--cert and --key") {
		t.Errorf("without a certificate: %v", err)
	}
	if _, err := DialRemote(r.addr, certs.Files{Cert: good.Cert, Key: good.CA}).Status(t.Context()); err == nil {
		t.Error("a key that is none")
	}

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(r.ca.PEM)
	pair, err := tls.LoadX509KeyPair(good.Cert, good.Key)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(conf *tls.Config) error {
		conf.RootCAs, conf.ServerName = pool, "127.0.0.1"
		c, err := tls.Dial("tcp", r.addr, conf)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")); err != nil {
			return err
		}
		b, err := io.ReadAll(c)
		if err == nil && !strings.Contains(string(b), " 200 OK") {
			err = errors.New(string(b))
		}
		return err
	}
	if err := ask(&tls.Config{Certificates: []tls.Certificate{pair}}); err != nil {
		t.Errorf("the good one: %v", err)
	}
	if err := ask(&tls.Config{}); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: %v", err)
	}
	<-r.refused
	if err := ask(&tls.Config{Certificates: []tls.Certificate{pair}, MaxVersion: tls.VersionTLS12}); err == nil ||
		!strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
	if err := <-r.refused; !strings.Contains(err.Error(), "versions") {
		t.Errorf("TLS 1.2: the server is told %v", err)
	}
}

// TestRemoteFull: connections that say nothing hold up nobody until there are too many, which are
// closed at once; those that end make room.
func TestRemoteFull(t *testing.T) {
	r := serveRemote(t)
	d := DialRemote(r.addr, r.files(r.ca, time.Now().Add(time.Hour), "alice"))
	var held []net.Conn
	dial := func() net.Conn {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for range remoteConns - 1 {
		held = append(held, dial())
	}
	if _, err := d.Status(t.Context()); err != nil {
		t.Fatalf("beside silent connections: %v", err)
	}
	// One more than there may be is closed, which the silent one sees.
	one := dial()
	if _, err := one.Read(make([]byte, 1)); err == nil {
		t.Error("a connection too many is read from")
	}
	for full := false; !full; {
		full = errors.Is(<-r.refused, ErrFull)
	}
	for _, c := range held {
		_ = c.Close()
	}
	for range held {
		<-r.refused // the handshakes that will not be
	}
	if _, err := d.Status(t.Context()); err != nil {
		t.Errorf("after they have gone: %v", err)
	}
}

// TestRemoteStop: the request that closes its own port is answered, and nobody can connect after
// it.
func TestRemoteStop(t *testing.T) {
	r := serveRemote(t)
	files := r.files(r.ca, time.Now().Add(time.Hour), "alice")
	d := DialRemote(r.addr, files)
	r.mu.Lock() // the request waits where it asks for its role
	done := make(chan error, 1)
	go func() {
		_, err := d.Status(t.Context())
		done <- err
	}()
	<-r.asked
	r.stop()
	r.stop() // again
	r.mu.Unlock()
	if err := <-done; err != nil {
		t.Errorf("the request in progress: %v", err)
	}
	if _, err := DialRemote(r.addr, files).Status(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "no server answers") {
		t.Errorf("after the stop: %v", err)
	}
}

// TestAuditedPeers: what a refusal says of who asked.
func TestAuditedPeers(t *testing.T) {
	for want, p := range map[string]Peer{
		"user 7":                {UID: 7},
		"certificate CN=a,O=b":  {Remote: "10.0.0.1:5", Subject: "CN=a,O=b"},
		"certificate [a.b c.d]": {Remote: "10.0.0.1:5", Subject: "[a.b c.d]"},
	} {
		if p.String() != want {
			t.Errorf("%q, want %q", p.String(), want)
		}
	}
}

// TestRemoteUpgrade: another host may start an upgrade, but not name what is executed.
func TestRemoteUpgrade(t *testing.T) {
	r := serveRemote(t)
	d := DialRemote(r.addr, r.files(r.ca, time.Now().Add(time.Hour), "alice"))
	if _, err := d.Upgrade(t.Context(), "/opt/rstored"); err == nil || !strings.Contains(err.Error(), "own host") {
		t.Errorf("with an executable: %v", err)
	}
	if _, err := d.Upgrade(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "1.2 goes on") {
		t.Errorf("without: %v", err) // the backend's answer
	}
	r.lists(nil, nil)
	if _, err := d.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "may not control") {
		t.Errorf("with nobody named: %v", err)
	}
}
