package daemon

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/certs/certstest"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// tlsServer is a daemon with certificates, and clients of it.
type tlsServer struct {
	t     *testing.T
	ca    *certstest.CA
	dir   string
	cfg   *config.Config
	files map[string]certs.Files // of clients: "" for one without a certificate
}

func newTLSServer(t *testing.T, specs ...string) *tlsServer {
	s := &tlsServer{t: t, ca: certstest.New(t, "ours"), dir: t.TempDir(), cfg: testConfig(t, specs...)}
	c := &s.cfg.TLS
	c.ClientCA = certstest.WriteFile(t, s.dir, "ca.pem", s.ca.PEM)
	s.renew(time.Now().Add(time.Hour))
	c.Certificate, c.Key = filepath.Join(s.dir, "server.pem"), filepath.Join(s.dir, "server.key")
	cert, key := s.ca.Issue(t, time.Now().Add(time.Hour), "client.example").Write(t, s.dir, "client")
	s.files = map[string]certs.Files{"": {CA: c.ClientCA}, "client": {Cert: cert, Key: key, CA: c.ClientCA}}
	return s
}

// withFile is a directory with a file f.
func withFile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (s *tlsServer) renew(until time.Time) {
	host, _, _ := strings.Cut(s.cfg.TCPListen[0], ":")
	s.ca.Issue(s.t, until, host, "server.example").Write(s.t, s.dir, "server")
}

// dialer is a client of a version, with these files.
func (s *tlsServer) dialer(sec rpc.Security, who, version string) *dial.Dialer {
	s.t.Helper()
	store, err := certs.Load(s.files[who], nil)
	if err != nil {
		s.t.Fatal(err)
	}
	v, err := client.ParseVersion(version)
	if err != nil {
		s.t.Fatal(err)
	}
	d := &dial.Dialer{
		Cred: &rpc.Cred{Flavor: rpc.AuthSys}, Version: v, Security: sec, GiveUp: 20 * time.Second,
		TLS: func(server string) (*tls.Config, error) { return store.Client(server, tcp.ALPN), nil },
	}
	s.t.Cleanup(func() { _ = d.Close() })
	return d
}

func (s *tlsServer) read(d *dial.Dialer, at string) error {
	u, err := client.ParseURL(at)
	if err != nil {
		s.t.Fatal(err)
	}
	f, err := d.Client(u).Open(s.t.Context(), u.Path)
	if err != nil {
		return err
	}
	b := make([]byte, 7)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "content" {
		s.t.Errorf("%q %v", b, err)
	}
	return f.Close()
}

// TestXprtSec serves an export to those alone whose connections are as its rules want them, with
// the errors of the kernel's server.
func TestXprtSec(t *testing.T) {
	s := newTLSServer(t, withFile(t)+"=/any", withFile(t)+"=/plain(xprtsec=none)", withFile(t)+"=/tls(xprtsec=tls)",
		withFile(t)+"=/mtls(xprtsec=mtls)",
		withFile(t)+"=/both(xprtsec=tls,transport=rdma:tcp)", withFile(t)+"=/secret(xprtsec=tls:mtls)",
		withFile(t)+"=/free(xprtsec=none:mtls)")
	d, ctl := startDaemon(t, s.cfg)
	t.Cleanup(func() { stopDaemon(t, d) }) // after its clients are gone
	type conn struct {
		name, who, url string
		sec            rpc.Security
	}
	conns := []conn{
		{"none", "", "nfs+tcp://" + s.cfg.TCPListen[0], rpc.Cleartext},
		{"tls", "", "nfs+tcp://" + s.cfg.TCPListen[0], rpc.TLS},
		{"mtls", "client", "nfs+tcp://" + s.cfg.TCPListen[0], rpc.MutualTLS},
		{"rdma", "", "nfs+rdma://" + s.cfg.RDMAListen[0], rpc.Cleartext},
	}
	for _, version := range []string{"3", "4.2"} {
		want := nfs.ErrWrongSec
		if version == "3" {
			want = nfs.ErrAcces
		}
		for _, c := range conns {
			dialer := s.dialer(c.sec, c.who, version)
			dialer.MountPort = 0
			for export, admitted := range map[string]string{
				"/any": "none tls mtls rdma", "/plain": "none rdma", "/tls": "tls mtls", "/mtls": "mtls", "/both": "tls mtls rdma",
				"/secret": "tls mtls", "/free": "none mtls rdma",
			} {
				err := s.read(dialer, c.url+export+"/f")
				switch ok := strings.Contains(" "+admitted+" ", " "+c.name+" "); {
				case ok && err != nil, !ok && !errors.Is(err, want):
					t.Errorf("version %s, %s by %s: %v", version, export, c.name, err)
				}
			}
			if c.sec != rpc.Cleartext && version == "3" {
				list, err := ctl.Clients(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				found := false
				for _, x := range list {
					found = found || x.XprtSec == c.sec.String() && (x.Name == "client.example") == (c.sec == rpc.MutualTLS)
				}
				if !found {
					t.Errorf("%s is not among %+v", c.name, list)
				}
			}
		}
	}
	st, err := ctl.Stats(t.Context())
	if err != nil || st.Errors["nfs_unprotected_clients"] == 0 {
		t.Errorf("%+v %v", st.Errors, err)
	}
	status, err := ctl.Status(t.Context())
	if err != nil || status.TLS == nil || status.TLS.Counts.Mutual == 0 ||
		status.TLS.Counts.Handshakes <= status.TLS.Counts.Mutual || status.TLS.Names[0] != "server.example" {
		t.Errorf("%+v %v", status.TLS, err)
	}
}

// TestXprtSecDefault: what the setting wants holds for exports that say nothing, over TCP.
func TestXprtSecDefault(t *testing.T) {
	s := newTLSServer(t, withFile(t)+"=/a", withFile(t)+"=/open 127.0.0.0/8(xprtsec=none:tls)")
	s.cfg.TLS.XprtSec = []string{config.XprtMutual}
	d, _ := startDaemon(t, s.cfg)
	t.Cleanup(func() { stopDaemon(t, d) }) // after its clients are gone
	at := "nfs+tcp://" + s.cfg.TCPListen[0]
	if err := s.read(s.dialer(rpc.Cleartext, "", "4.2"), at+"/a/f"); !errors.Is(err, nfs.ErrWrongSec) {
		t.Error(err)
	}
	if err := s.read(s.dialer(rpc.TLS, "", "4.2"), at+"/a/f"); !errors.Is(err, nfs.ErrWrongSec) {
		t.Error(err)
	}
	if err := s.read(s.dialer(rpc.Cleartext, "client", "3"), at+"/a/f?xprtsec=mtls"); err != nil {
		t.Error(err)
	}
	if err := s.read(s.dialer(rpc.Cleartext, "", "3"), at+"/open/f"); err != nil {
		t.Error(err)
	}
	if err := s.read(s.dialer(rpc.Cleartext, "", "3"), "nfs+rdma://"+s.cfg.RDMAListen[0]+"/a/f"); err != nil {
		t.Error(err)
	}
	if err := s.read(s.dialer(rpc.MutualTLS, "", "3"), at+"/a/f"); !errors.Is(err, dial.ErrNoCertificate) {
		t.Error(err)
	}
	if err := s.read(s.dialer(rpc.TLS, "", "3"), "nfs+rdma://"+s.cfg.RDMAListen[0]+"/a/f"); !errors.Is(err,
		client.ErrNoTLSByRDMA) {
		t.Error(err)
	}
}

// TestTLSReload: certificates are renewed, taken away and given by a reload, and one that is no
// good changes nothing.
func TestTLSReload(t *testing.T) {
	s := newTLSServer(t, withFile(t)+"=/a")
	d, ctl := startDaemon(t, s.cfg)
	t.Cleanup(func() { stopDaemon(t, d) }) // after its clients are gone
	next := *s.cfg
	d.Load = func() (*config.Config, error) { c := next; return &c, nil }
	at := "nfs+tcp://" + s.cfg.TCPListen[0] + "/a/f"
	until := func() time.Time {
		t.Helper()
		st, err := ctl.Status(t.Context())
		if err != nil || st.TLS == nil {
			t.Fatalf("%+v %v", st, err)
		}
		return st.TLS.NotAfter
	}
	first := until()
	s.renew(first.Add(time.Hour))
	if err := s.read(s.dialer(rpc.TLS, "", "3"), at); err != nil { // nobody has to be told
		t.Error(err)
	}
	if got := until(); !got.Equal(first.Add(time.Hour)) {
		t.Errorf("%v", got)
	}
	certstest.WriteFile(t, s.dir, "server.key", []byte("no key"))
	if err := ctl.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "server.key") {
		t.Errorf("a reload with a bad key: %v", err)
	}
	if err := s.read(s.dialer(rpc.TLS, "", "3"), at); err != nil {
		t.Error(err)
	}
	st, err := ctl.Status(t.Context())
	if err != nil || st.TLS.Error == "" || st.TLS.Failures != 1 || len(st.Problems) != 1 ||
		!st.TLS.NotAfter.Equal(first.Add(time.Hour)) {
		t.Errorf("%+v %+v %v", st, st.TLS, err)
	}
	s.renew(first)
	next.TLS = config.TLS{XprtSec: next.TLS.XprtSec}
	if err := ctl.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.read(s.dialer(rpc.TLS, "", "3"), at); !errors.Is(err, rpc.ErrNoTLS) ||
		!strings.Contains(err.Error(), "does not offer TLS") {
		t.Error(err)
	}
	if err := s.read(s.dialer(rpc.Cleartext, "", "3"), at); err != nil {
		t.Error(err)
	}
	if st, err := ctl.Status(t.Context()); err != nil || st.TLS != nil {
		t.Errorf("%+v %v", st, err)
	}
	next.TLS = s.cfg.TLS
	if err := ctl.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.read(s.dialer(rpc.TLS, "", "3"), at); err != nil {
		t.Error(err)
	}
	if got := until(); !got.Equal(first) {
		t.Errorf("%v", got)
	}
}

// TestTLSStart refuses to start with certificates that are no good.
func TestTLSStart(t *testing.T) {
	s := newTLSServer(t, t.TempDir()+"=/a")
	certstest.WriteFile(t, s.dir, "server.key", []byte("no key"))
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := Start(s.cfg, nil, log); err == nil {
		stopDaemon(t, d)
		t.Error("started without a key")
	} else if !strings.Contains(err.Error(), "server.key") {
		t.Error(err)
	}
}
