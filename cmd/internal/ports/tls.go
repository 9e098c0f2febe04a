package ports

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/audit"
	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// TLS is the TLS of NFS over TCP (RFC 9289). It is made before the ports, and can be used by
// several goroutines.
type TLS struct {
	Audit    *audit.Log
	Counters *counters.Transports
	Log      *telemetry.Log

	offer atomic.Pointer[offer] // nil: there is no TLS
}

// offer is the TLS that clients can have.
type offer struct {
	files  certs.Files
	store  *certs.Store
	server *tls.Config
}

// Apply applies the configuration of TLS. If the new certificates cannot be used, the previous ones
// stay in use.
func (t *TLS) Apply(cfg *config.Config) error {
	want := certs.Files{Cert: cfg.TLS.Certificate, Key: cfg.TLS.Key, CA: cfg.TLS.ClientCA}
	old := t.offer.Load()
	switch {
	case want.Empty():
		if old != nil {
			t.Log.Info("TLS is not offered any more")
		}
		t.offer.Store(nil)
		return nil
	case old != nil && old.files == want:
		if err := old.store.Reload(); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
		return nil
	}
	store, err := certs.Load(want, t.Log.Library("tls"))
	if err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	server, err := store.Server(certs.Ask, tcp.ALPN)
	if err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	t.offer.Store(&offer{want, store, server})
	st := store.Status()
	t.Log.Info("TLS is offered to NFS over TCP", zap.String("certificate", want.Cert), zap.Strings("names", st.Names),
		zap.Time("expires", st.NotAfter))
	return nil
}

// config returns the configuration for the next client, or nil.
func (t *TLS) config() *tls.Config {
	if o := t.offer.Load(); o != nil {
		return o.server
	}
	return nil
}

// secured records in the audit log how a connection is protected.
func (t *TLS) secured(p *rpc.Peer, st *tls.ConnectionState, err error) {
	fields := []zap.Field{zap.String("client", p.Addr.String()), zap.String("xprtsec", p.Security.String())}
	if err != nil {
		t.Audit.Event("tls", append(fields, zap.String("result", "failed"), zap.String("why", short(err.Error())))...)
		return
	}
	fields = append(fields, zap.String("result", "OK"), zap.String("cipher", tls.CipherSuiteName(st.CipherSuite)))
	if p.Security == rpc.MutualTLS {
		// Serial number and issuer identify the client (RFC 9289 section 5.2.1).
		c := st.PeerCertificates[0]
		fields = append(fields, zap.String("name", p.Name), zap.String("serial", c.SerialNumber.Text(16)),
			zap.String("issuer", short(c.Issuer.String())))
	}
	t.Audit.Event("tls", fields...)
}

// short bounds the length of a text that has a part chosen by a peer.
func short(s string) string {
	const most = 300
	return s[:min(len(s), most)]
}

// Status checks the files of the certificates, and returns the state of TLS; nil without TLS.
func (t *TLS) Status() *control.TLS {
	o := t.offer.Load()
	if o == nil {
		return nil
	}
	o.store.Poll()
	st := o.store.Status()
	out := &control.TLS{
		Certificate: o.files.Cert, Key: o.files.Key, ClientCA: o.files.CA, Subject: st.Subject,
		Names:     append([]string{}, st.Names...),
		NotBefore: st.NotBefore, NotAfter: st.NotAfter, Loaded: st.Loaded, Loads: st.Loads, Failures: st.Failures,
		Counts: t.Counters.TLS(),
	}
	if o.files.CA != "" {
		out.ClientCANotAfter = &st.Authorities
	}
	if st.Err != nil {
		out.Error = st.Err.Error()
	}
	return out
}

// countControlRefused counts connections to control ports that were refused.
const countControlRefused = "control_tls_refused"

func controlFiles(cfg *config.Config) certs.Files {
	return certs.Files{Cert: cfg.ControlTLS.Cert, Key: cfg.ControlTLS.Key, CA: cfg.ControlTLS.ClientCA}
}

// remoteControl returns how other hosts control the daemon: by TLS. Their role is the one that the
// configuration gives their certificate at the time of the request.
func (s *Set) remoteControl() (r control.Remote, err error) {
	cfg := s.Settings()
	if err := cfg.ControlTLS.Complete(); err != nil {
		return r, fmt.Errorf("control_tls: %w", err)
	}
	store, err := certs.Load(controlFiles(cfg), s.Log.Library("control"))
	if err != nil {
		return r, err
	}
	r.Role = func(names []string) control.Role {
		now := s.Settings().ControlTLS
		return control.RoleOf(names, now.Admins, now.Readers)
	}
	r.Refused = func(client net.Addr, err error) {
		s.Counters.AddErrors(map[string]uint64{countControlRefused: 1})
		s.Audit.Event("control_reject", zap.String("client", client.String()), zap.String("reason", short(err.Error())))
	}
	r.TLS, err = store.Server(certs.Require)
	return r, err
}
