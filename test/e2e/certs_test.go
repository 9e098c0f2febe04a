package e2e

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority makes certificates in a directory.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.file, _ = a.make("authority",
		&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// issue makes NAME.pem and NAME.key, for servers and clients.
func (a *authority) issue(name string) (cert, key string) {
	a.t.Helper()
	c := &x509.Certificate{
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		c.IPAddresses = []net.IP{ip}
	}
	return a.make(name, c)
}

func (a *authority) make(name string, c *x509.Certificate) (cert, key string) {
	a.t.Helper()
	check := func(err error) {
		a.t.Helper()
		if err != nil {
			a.t.Fatal(err)
		}
	}
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	check(err)
	c.Subject, c.NotBefore, c.NotAfter = pkix.Name{CommonName: name}, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if a.cert == nil {
		a.cert, a.key = c, k
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, k.Public(), a.key)
	check(err)
	if a.cert == c {
		a.cert, err = x509.ParseCertificate(der)
		check(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	check(err)
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	check(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	check(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return cert, key
}
