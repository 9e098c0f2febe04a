package tcp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

const hostName = "server.example"

// authority signs certificates for a name.
func authority(t testing.TB) (pool *x509.CertPool, issue func(name string) tls.Certificate) {
	t.Helper()
	make1 := func(tmpl, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if parent == nil {
			parent, signer = tmpl, key
		}
		der, err := x509.CreateCertificate(crand.Reader, tmpl, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c, key
	}
	from, to := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	ca, caKey := make1(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: from, NotAfter: to, IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}, nil, nil)
	pool = x509.NewCertPool()
	pool.AddCert(ca)
	return pool, func(name string) tls.Certificate {
		c, key := make1(&x509.Certificate{
			SerialNumber: big.NewInt(rand.Int64()), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to,
			DNSNames:    []string{name},
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, ca, caKey)
		return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
	}
}

// secureServer starts a server with TLS, and returns the configuration for its clients.
func secureServer(t *testing.T, cfg Config) (s *Listener, addr string, release chan struct{}, client *tls.Config,
	issue func(string) tls.Certificate,
) {
	t.Helper()
	pool, issue := authority(t)
	server := &tls.Config{
		Certificates: []tls.Certificate{issue(hostName)}, ClientCAs: pool,
		ClientAuth: tls.VerifyClientCertIfGiven, SessionTicketsDisabled: true,
	}
	cfg.TLS = func() *tls.Config { return server }
	s, addr, release = serve(t, cfg)
	return s, addr, release, &tls.Config{RootCAs: pool, ServerName: hostName}, issue
}

func dialTLS(t *testing.T, addr string, cfg *tls.Config) *Client {
	t.Helper()
	c, err := DialTLS(t.Context(), addr, cfg, prog, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// until waits for a condition that another goroutine makes true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s", what)
		}
	}
}

// TestTLS moves data of all sizes over TLS, many calls at once.
func TestTLS(t *testing.T) {
	s, addr, _, cfg, _ := secureServer(t, Config{MaxCalls: 8})
	c := dialTLS(t, addr, cfg)
	var wg sync.WaitGroup
	for g := range uint64(6) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(7, g))
			for range 30 {
				b := make([]byte, rnd.IntN(200_000)>>rnd.IntN(16))
				for i := range b {
					b[i] = byte(rnd.Uint32())
				}
				if err := echo(c, procEcho+2*rnd.Uint32N(2), b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, n := range []int{0, 1, recordMax - 1, recordMax, recordMax + 1, 1 << 20} {
		if err := echo(c, procEcho, pattern(n)); err != nil {
			t.Error(n, err)
		}
	}
	if err := echo(dial(t, addr), procEcho, pattern(1000)); err != nil { // without TLS
		t.Error(err)
	}
	if n := s.Counters(); n.TLSProbes != 1 || n.TLSHandshakes != 1 || n.TLSMutual != 0 || len(n.Failed()) != 0 {
		t.Errorf("%+v", n)
	}
	list := s.Conns()
	if len(list) != 2 || list[0].Security+list[1].Security != rpc.TLS {
		t.Errorf("%+v", list)
	}
	c.Close()
	until(t, "end of the connection", func() bool { return len(s.Conns()) == 1 })
}

// TestTLSPlaced: replies over TLS are placed in the callers' memory, and some calls are canceled.
func TestTLSPlaced(t *testing.T) {
	_, addr, _, cfg, _ := secureServer(t, Config{})
	c := dialTLS(t, addr, cfg)
	data := pattern(1 << 20)
	for i := range 20 {
		dst := make([]byte, len(data))
		ctx, cancel := context.WithCancel(t.Context())
		if i%3 == 2 {
			cancel()
		}
		var got []byte
		err := c.Call(ctx, &rpc.Request{
			Prog: prog, Vers: 1, Proc: procEcho, Dst: dst, ResMax: 2 << 20,
			Args: func(e *xdr.Encoder) { e.Bulk(data) },
			Res: func(d *xdr.Decoder) error {
				got = bytes.Clone(d.Opaque(1 << 20))
				return d.Err()
			},
		})
		cancel()
		if i%3 != 2 && (err != nil || !bytes.Equal(got, data)) {
			t.Fatal(err)
		}
	}
}

// TestMutualTLS: the server gets the name in a client's certificate.
func TestMutualTLS(t *testing.T) {
	type seen struct {
		peer rpc.Peer
		err  error
	}
	told := make(chan seen, 10)
	s, addr, _, cfg, issue := secureServer(t, Config{Secured: func(p *rpc.Peer, st *tls.ConnectionState, err error) {
		if (st == nil) != (err != nil) {
			t.Errorf("%v with %v", st, err)
		}
		told <- seen{*p, err}
	}})
	with := cfg.Clone()
	with.Certificates = []tls.Certificate{issue("client.example")}
	if err := echo(dialTLS(t, addr, with), procEcho, nil); err != nil {
		t.Fatal(err)
	}
	if p := <-told; p.err != nil || p.peer.Security != rpc.MutualTLS || p.peer.Name != "client.example" {
		t.Errorf("%+v", p)
	}
	_, other := authority(t)
	with.Certificates = []tls.Certificate{other("client.example")}
	var te *TLSError
	if _, err := DialTLS(t.Context(), addr, with, prog, 1); !errors.As(err, &te) ||
		!strings.Contains(err.Error(), "refuses TLS with this client") {
		t.Errorf("a certificate of somebody else: %v", err)
	}
	if p := <-told; p.err == nil || p.peer.Security != rpc.Cleartext {
		t.Errorf("%+v", p)
	}
	until(t, "count", func() bool {
		return s.Counters().TLSFailures[FailedCertificate]+s.Counters().TLSFailures[FailedProtocol] == 1
	})
	if n := s.Counters(); n.TLSMutual != 1 || n.TLSHandshakes != 1 || n.TLSFailures[FailedCertificate] != 1 {
		t.Errorf("%+v", n)
	}
}

// TestNoDowngrade: the client sends no call to a server without TLS, or with a wrong certificate.
func TestNoDowngrade(t *testing.T) {
	s, addr, _, cfg, _ := secureServer(t, Config{})
	_, plain, _ := serve(t, Config{})
	none, off, _ := serve(t, Config{TLS: func() *tls.Config { return nil }})
	_ = none
	otherName, otherCA := cfg.Clone(), cfg.Clone()
	otherName.ServerName = "www.example"
	otherCA.RootCAs, _ = authority(t)
	for _, tc := range []struct {
		about, addr string
		cfg         *tls.Config
		noTLS       bool
	}{
		{"a server without TLS", plain, cfg, true},
		{"a server with TLS switched off", off, cfg, true},
		{"another name", addr, otherName, false},
		{"another authority", addr, otherCA, false},
	} {
		_, err := DialTLS(t.Context(), tc.addr, tc.cfg, prog, 1)
		var te *TLSError
		if !errors.As(err, &te) || errors.Is(err, rpc.ErrNoTLS) != tc.noTLS {
			t.Errorf("%s: %v", tc.about, err)
		}
	}
	until(t, "count", func() bool { return s.Counters().TLSFailures[FailedRefused] == 2 })
}

// raw is a client whose messages the test writes.
type raw struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func rawTo(t *testing.T, addr string) *raw {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return &raw{t, c, bufio.NewReader(c)}
}

func record(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	mark := rpc.RecordMark(len(b))
	return append(mark[:], b...)
}

func probe(xid, proc uint32) []byte { return record(xid, 0, 2, prog, 1, proc, 7, 0, 0, 0) }

func (r *raw) send(b []byte) {
	r.t.Helper()
	if _, err := r.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) reply() []byte {
	r.t.Helper()
	b, err := rpc.ReadRecord(r.in, nil, 2000)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// gone waits for the end of the connection, and returns the bytes before it.
func (r *raw) gone() []byte {
	r.t.Helper()
	b, err := io.ReadAll(r.in)
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		r.t.Fatal(err)
	}
	return b
}

var yes = record(5, 1, 0, 0, 8, 0x53544152, 0x54544c53, 0)[4:] // "STARTTLS"

// TestProbe: the answer to the AUTH_TLS probe is that of RFC 9289 section 4.1, byte for byte.
func TestProbe(t *testing.T) {
	_, addr, _, _, _ := secureServer(t, Config{})
	_, plain, _ := serve(t, Config{})
	for _, tc := range []struct {
		about, addr string
		call, want  []byte
	}{
		{"yes", addr, probe(5, 0), yes},
		{
			"yes, but there is no such program", addr, record(5, 0, 2, prog+1, 1, 0, 7, 0, 0, 0),
			record(5, 1, 0, 0, 8, 0x53544152, 0x54544c53, 1)[4:],
		},
		{
			"yes, but there is no such version", addr, record(5, 0, 2, prog, 9, 0, 7, 0, 0, 0),
			record(5, 1, 0, 0, 8, 0x53544152, 0x54544c53, 2, 1, 1)[4:],
		},
		{"another procedure", addr, probe(5, 1), record(5, 1, 1, 1, 1)[4:]},
		{"a credential with a body", addr, record(5, 0, 2, prog, 1, 0, 7, 4, 0, 0, 0), record(5, 1, 1, 1, 1)[4:]},
		{"a verifier", addr, record(5, 0, 2, prog, 1, 0, 7, 0, 1, 0), record(5, 1, 1, 1, 3)[4:]},
		{"a server without TLS", plain, probe(5, 0), record(5, 1, 1, 1, 2)[4:]},
	} {
		r := rawTo(t, tc.addr)
		r.send(tc.call)
		if got := r.reply(); !bytes.Equal(got, tc.want) {
			t.Errorf("%s: %x instead of %x", tc.about, got, tc.want)
		}
		if bytes.Contains(tc.want, []byte("STARTTLS")) {
			continue
		}
		r.send(record(6, 0, 2, prog, 1, 0, 0, 0, 0, 0)) // the connection continues in cleartext
		if got := r.reply(); rpc.ReplyXID(got) != 6 {
			t.Errorf("%s: %x", tc.about, got)
		}
	}
}
