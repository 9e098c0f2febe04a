package guest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// tlsCase is the kernel's client with TLS, by a version.
func tlsCase(version string) Case {
	return Case{
		Name: "tls-v" + string(version[0]) + version[min(2, len(version)):], TLS: true, Script: script("tls"),
		Env: env("VERS", version), NotRPC: true, Payload: true, Timeout: 4 * time.Minute,
		Exports: []string{
			"%s/open=/open(rw,no_root_squash)", "%s/tls=/tls(rw,no_root_squash,xprtsec=tls)",
			"%s/mtls=/mtls(rw,no_root_squash,xprtsec=mtls)",
		},
		Daemon: []string{
			"--tls-certificate", "%s/../share/tls/server.pem", "--tls-key", "%s/../share/tls/server.key", "--tls-client-ca",
			"%s/../share/tls/ca.pem",
		},
		Prepare: tlsFiles, Host: tlsHost,
	}
}

// signer is an authority for certificates.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func template(name string, until time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
	}, err
}

// newSigner writes the certificate of a new authority to NAME.pem.
func newSigner(dir, name string) (*signer, error) {
	tmpl, err := template(name, time.Now().Add(24*time.Hour))
	if err != nil {
		return nil, err
	}
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	s := new(signer)
	if s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, s.key.Public(), s.key)
	if err != nil {
		return nil, err
	}
	if s.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return s, writePEM(filepath.Join(dir, name+".pem"), "CERTIFICATE", der)
}

// issue writes a certificate and its key to FILE.pem and FILE.key, in the place of others.
func (s *signer) issue(dir, file, host string, until time.Time) error {
	tmpl, err := template(host, until)
	if err != nil {
		return err
	}
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	if a := net.ParseIP(host); a != nil {
		tmpl.IPAddresses = []net.IP{a}
	} else {
		tmpl.DNSNames = []string{host}
	}
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, s.cert, key.Public(), s.key)
	if err != nil {
		return err
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(writePEM(filepath.Join(dir, file+".pem"), "CERTIFICATE", der),
		writePEM(filepath.Join(dir, file+".key"), "PRIVATE KEY", k))
}

func writePEM(name, kind string, der []byte) error {
	if err := os.WriteFile(name+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

const tlsServer = "server.example"

// theSigner is the authority of the run, for tlsHost.
var theSigner *signer

// tlsFiles makes the exports and the certificates, which the guest finds in its share.
func tlsFiles(exports string) error {
	dir := filepath.Join(filepath.Dir(exports), "share", "tls")
	for _, d := range []string{
		dir, filepath.Join(exports, "open"), filepath.Join(exports, "tls"),
		filepath.Join(exports, "mtls"),
	} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	ca, err := newSigner(dir, "ca")
	if err != nil {
		return err
	}
	other, err := newSigner(dir, "other")
	if err != nil {
		return err
	}
	theSigner = ca
	soon := time.Now().Add(3 * time.Hour)
	return errors.Join(
		ca.issue(dir, "server", tlsServer, soon), ca.issue(dir, "client", "client.example", soon),
		other.issue(dir, "stranger", "client.example", soon),
	)
}

// tlsKnfsd is the Go client on the kernel's server with TLS.
func tlsKnfsd() Case {
	return Case{
		Name: "tls-knfsd", TLS: true, Script: script("tls-knfsd"), NotRPC: true,
		Prepare: func(exports string) error {
			dir := filepath.Join(filepath.Dir(exports), "share", "tls")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			ca, err := newSigner(dir, "ca")
			if err != nil {
				return err
			}
			soon := time.Now().Add(3 * time.Hour)
			return ca.issue(dir, "server", guestAddr(0), soon)
		}, Host: tlsKernelServes, Timeout: 3 * time.Minute,
	}
}

// tlsKernelServes has rstorectl store, read and remove files by TLS, and refused where the export
// wants more than it has. That kernel cannot keep certificates of clients, so that nobody is mtls
// to it.
func tlsKernelServes(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "serving"); err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(r.Share, "tls", name) }
	none := []string{"--nfs-version", "4.2", "--give-up", "20s"}
	byTLS := append([]string{"--xprtsec", "tls", "--tls-ca", file("ca.pem")}, none...)
	rstorectl := func(how []string, args ...string) error {
		return r.Command(ctx, "rstorectl", append(append([]string{args[0]}, how...), args[1:]...)...)
	}
	b := make([]byte, 8<<20+5)
	if _, err := rand.Read(b); err != nil {
		return err
	}
	src, back := r.path("big"), r.path("back")
	if err := os.WriteFile(src, b, 0o644); err != nil {
		return err
	}
	at := "nfs+tcp://" + guestAddr(0)
	if err := rstorectl(byTLS, "put", src, at+"/e/big"); err != nil {
		return err
	}
	if err := r.Tell("stored"); err != nil {
		return err
	}
	if err := r.Await(ctx, "summed"); err != nil {
		return err
	}
	want, err := sumOf(src)
	if err != nil {
		return err
	}
	there, err := os.ReadFile(filepath.Join(r.Share, "sum.e"))
	if err != nil || string(bytes.TrimSpace(there)) != want {
		return fmt.Errorf("the server has %s instead of %s: %w", there, want, err)
	}
	if err := rstorectl(byTLS, "get", at+"/e/big", back); err != nil {
		return err
	}
	if got, err := sumOf(back); err != nil || got != want {
		return fmt.Errorf("%s instead of %s came back: %w", got, want, err)
	}
	for _, s := range []struct {
		how    []string
		export string
	}{{none, "/e/big"}, {none, "/m/"}, {byTLS, "/m/"}} {
		if err := rstorectl(s.how, "ls", at+s.export); err == nil {
			return fmt.Errorf("%s is served by %q", s.export, s.how)
		}
	}
	return errors.Join(rstorectl(byTLS, "rm", at+"/e/big"), r.Tell("done"))
}

// tlsState is what the daemon says of TLS.
type tlsState struct {
	TLS struct {
		NotAfter time.Time `json:"not_after"`
		Loads    int
		Counts   struct {
			Handshakes, Mutual int
			Failed             map[string]int
		}
	}
}

func (r *Run) tlsState() (s tlsState, err error) {
	out, err := r.CtlOutput("status", "-o", "json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// tlsClients are the connections of the guest by how they are protected.
func (r *Run) tlsClients(sec, name string) error {
	out, err := r.CtlOutput("clients", "-o", "json")
	if err != nil {
		return err
	}
	var list []struct{ XprtSec, Name string }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return err
	}
	for _, c := range list {
		if c.XprtSec == sec && c.Name == name {
			return nil
		}
	}
	return fmt.Errorf("no connection by %s of %q in %s", sec, name, out)
}

// tlsHost looks at the server's side, renews its certificate, and restarts it.
func tlsHost(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "tls"); err != nil {
		return err
	}
	if err := r.tlsClients("tls", ""); err != nil {
		return err
	}
	if err := r.Tell("looked"); err != nil {
		return err
	}
	if err := r.Await(ctx, "mtls"); err != nil {
		return err
	}
	if err := r.tlsClients("mtls", "client.example"); err != nil {
		return err
	}
	later := time.Now().Add(9 * time.Hour)
	if err := theSigner.issue(filepath.Join(r.Share, "tls"), "server", tlsServer, later); err != nil {
		return err
	}
	s, err := r.tlsState()
	if err != nil {
		return err
	}
	if s.TLS.Loads != 2 || later.Sub(s.TLS.NotAfter) > time.Minute {
		return fmt.Errorf("after the renewal: %+v", s)
	}
	if err := r.Tell("renewed"); err != nil {
		return err
	}
	if err := r.Await(ctx, "restart"); err != nil {
		return err
	}
	if s, err = r.tlsState(); err != nil {
		return err
	}
	r.Logf("TLS: %+v", s)
	failed := s.TLS.Counts.Failed
	// tlshd hangs up on a server whose certificate it does not like: by its authority, and by its
	// name.
	if s.TLS.Counts.Handshakes < 7 || s.TLS.Counts.Mutual < 3 || failed["certificate"] == 0 ||
		failed["gone"]+failed["refused_by_peer"] < 2 {
		return fmt.Errorf("counted otherwise: %+v", s)
	}
	if err := r.StopDaemon(syscall.SIGKILL); err != nil {
		return err
	}
	if err := r.StartDaemon(ctx); err != nil {
		return err
	}
	// What went over the wire so far.
	var wire []byte
	names, err := filepath.Glob(r.path("packets.pcap*"))
	if err != nil {
		return err
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			return err
		}
		wire = append(wire, b...)
	}
	if !bytes.Contains(wire, []byte("what everybody may see")) {
		return errors.New("the packets do not have what was written without TLS")
	}
	if bytes.Contains(wire, []byte("the secret of the guest")) {
		return errors.New("what was written by TLS can be read in the packets")
	}
	return r.Tell("restarted")
}
