package failover

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"time"
)

// keyInfo separates the key of these connections from other uses of the secret.
const keyInfo = "rstored planned failover 1"

// errStranger is the error for a peer that does not know the secret.
var errStranger = errors.New("the other end has another key: do both nodes have the same state directory?")

// config is the configuration of both ends of a connection.
func config(secret []byte) (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, keyInfo, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := key.Public().(ed25519.PublicKey)
	now := time.Now()
	// Nobody checks the dates or the name: the key alone counts.
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.AddDate(1, 0, 0)}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, public, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}},
		ClientAuth:             tls.RequireAnyClientCert,
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, //nolint:gosec // VerifyConnection compares the key.
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !public.Equal(s.PeerCertificates[0].PublicKey) {
				return errStranger
			}
			return nil
		},
	}, nil
}
