package daemon

import (
	"crypto/tls"
	"fmt"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// tlsSetup is what clients over TCP that ask for TLS are given.
type tlsSetup struct {
	files  certs.Files
	store  *certs.Store
	server *tls.Config
}

// applyTLS brings TLS in line with the configuration. Certificates that cannot be used leave what
// was there before.
func (d *Daemon) applyTLS(cfg *config.Config) error {
	want := certs.Files{Cert: cfg.TLS.Certificate, Key: cfg.TLS.Key, CA: cfg.TLS.ClientCA}
	old := d.tls.Load()
	switch {
	case want.Empty():
		if old != nil {
			d.log.Info("TLS is not offered any more")
		}
		d.tls.Store(nil)
		return nil
	case old != nil && old.files == want:
		if err := old.store.Reload(); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
		return nil
	}
	store, err := certs.Load(want, d.log.Slog("tls"))
	if err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	server, err := store.Server(certs.Ask, tcp.ALPN)
	if err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	d.tls.Store(&tlsSetup{want, store, server})
	st := store.Status()
	d.log.Info("TLS is offered to NFS over TCP", zap.String("certificate", want.Cert), zap.Strings("names", st.Names),
		zap.Time("expires", st.NotAfter))
	return nil
}

// tlsConfig is what the next client is given, or nil.
func (d *Daemon) tlsConfig() *tls.Config {
	if s := d.tls.Load(); s != nil {
		return s.server
	}
	return nil
}

// secured has it written down how a connection is protected.
func (d *Daemon) secured(p *rpc.Peer, st *tls.ConnectionState, err error) {
	fields := []zap.Field{zap.String("client", p.Addr.String()), zap.String("xprtsec", p.Security.String())}
	if err != nil {
		d.audit.Event("tls", append(fields, zap.String("result", "failed"), zap.String("why", short(err.Error())))...)
		return
	}
	fields = append(fields, zap.String("result", "OK"), zap.String("cipher", tls.CipherSuiteName(st.CipherSuite)))
	if p.Security == rpc.MutualTLS {
		// The two tell the client from all others (RFC 9289 section 5.2.1).
		c := st.PeerCertificates[0]
		fields = append(fields, zap.String("name", p.Name), zap.String("serial", c.SerialNumber.Text(16)),
			zap.String("issuer", short(c.Issuer.String())))
	}
	d.audit.Event("tls", fields...)
}

// short bounds what a peer has a part in.
func short(s string) string {
	const most = 300
	return s[:min(len(s), most)]
}

// tlsStatus is what is known of TLS, after a look at the files; nil without TLS.
func (d *Daemon) tlsStatus() *control.TLS {
	s := d.tls.Load()
	if s == nil {
		return nil
	}
	s.store.Poll()
	st := s.store.Status()
	t := &control.TLS{
		Certificate: s.files.Cert, Key: s.files.Key, ClientCA: s.files.CA, Subject: st.Subject,
		Names:     append([]string{}, st.Names...),
		NotBefore: st.NotBefore, NotAfter: st.NotAfter, Loaded: st.Loaded, Loads: st.Loads, Failures: st.Failures,
	}
	if s.files.CA != "" {
		t.ClientCANotAfter = &st.Authorities
	}
	if st.Err != nil {
		t.Error = st.Err.Error()
	}
	t.Counts = d.counters.TLS()
	return t
}
