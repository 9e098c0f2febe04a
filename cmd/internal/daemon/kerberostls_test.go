package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestKerberosTLS: a call must meet sec and xprtsec of an export, both.
func TestKerberosTLS(t *testing.T) {
	dir := t.TempDir()
	specs := []string{
		dir + "=/tls(sec=krb5:krb5i:krb5p,xprtsec=tls:mtls,insecure)", dir + "=/mtls(sec=krb5p,xprtsec=mtls,insecure)",
	}
	k := newKerberized(t, specs...)
	s := newTLSServer(t, specs...)
	s.cfg.Kerberos, s.cfg.LeaseTime, s.cfg.GraceTime = k.cfg.Kerberos, k.cfg.LeaseTime, k.cfg.GraceTime
	const games = 5
	file := filepath.Join(dir, "f")
	err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(file, k.data, 0o600), os.Chown(file, games, games))
	if err != nil {
		t.Fatal(err)
	}
	d, _ := startDaemon(t, s.cfg)
	t.Cleanup(func() { stopDaemon(t, d) })
	at := "nfs+tcp://" + s.cfg.TCPListen[0]
	for _, version := range []string{"3", "4.2"} {
		for _, sec := range []string{"sys", "krb5", "krb5i", "krb5p"} {
			for _, x := range []struct {
				security rpc.Security
				who      string
				exports  []string // that admit krb5p by this security
			}{
				{rpc.Cleartext, "", nil}, {rpc.TLS, "", []string{"tls"}}, {rpc.MutualTLS, "client", []string{"tls", "mtls"}},
			} {
				c := s.dialer(x.security, x.who, version)
				c.Secure = k.dialer("alice", sec, version).Secure
				for _, export := range []string{"tls", "mtls"} {
					want := slices.Contains(x.exports, export) && sec != "sys" && (export == "tls" || sec == "krb5p")
					if err := k.read(c, at+"/"+export+"/f", k.data); (err == nil) != want {
						t.Errorf("version %s, %s by %s and %v: %v", version, export, sec, x.security, err)
					}
				}
			}
		}
		c := s.dialer(rpc.TLS, "", version)
		c.Secure = k.dialer("mail", "krb5p", version).Secure
		if err := k.read(c, at+"/tls/f", k.data); !errors.Is(err, nfs.ErrAcces) {
			t.Errorf("version %s, a file of another user: %v", version, err)
		}
	}
}
