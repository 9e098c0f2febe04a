package ops

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority makes certificates by openssl.
type authority struct {
	t    *testing.T
	dir  string
	name string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t, t.TempDir(), name}
	run(t, a.dir, nil, "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
		"-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN="+name,
		"-addext", "keyUsage=critical,keyCertSign")
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue makes NAME.pem and NAME.key; days may be negative, and then it has expired.
func (a *authority) issue(name, alt, days string) (cert, key string) {
	a.t.Helper()
	ext := a.file(name + ".ext")
	if err := os.WriteFile(ext, []byte("subjectAltName="+alt+"\nextendedKeyUsage=serverAuth,clientAuth\n"),
		0o600); err != nil {
		a.t.Fatal(err)
	}
	run(a.t, a.dir, nil, "openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
		"-keyout", name+".key", "-out", name+".csr", "-subj", "/O=rstored tests/CN="+name)
	run(a.t, a.dir, nil, "openssl", "x509", "-req", "-in", name+".csr", "-CA", "ca.pem", "-CAkey", "ca.key",
		"-CAcreateserial", "-out", name+".pem", "-days", days, "-extfile", ext)
	return a.file(name + ".pem"), a.file(name + ".key")
}

// TestControlByOpenSSL: a client of TLS that others wrote, with certificates that they made, is let
// in or refused as it should be, and learns why.
func TestControlByOpenSSL(t *testing.T) {
	need(t, "openssl")
	s := newServer(t)
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	cert, key := ours.issue("server", "IP:"+s.host, "1")
	at := s.host + ":9048"
	s.run("--control-tls-listen", at, "--control-tls-certificate", cert, "--control-tls-key", key,
		"--control-tls-client-ca", ours.file("ca.pem"), "--control-tls-admins", "alice.example.org")

	alice, aliceKey := ours.issue("alice", "DNS:alice.example.org", "1")
	bob, bobKey := ours.issue("bob", "DNS:bob.example.org", "1")
	late, lateKey := ours.issue("late", "DNS:alice.example.org", "-1")
	forged, forgedKey := theirs.issue("alice", "DNS:alice.example.org", "1")
	for _, tc := range []struct {
		name   string
		args   []string
		want   string
		served bool
	}{
		{"good", []string{"-cert", alice, "-key", aliceKey}, "HTTP/1.1 200 OK", true},
		{"verified", []string{"-cert", alice, "-key", aliceKey}, "Verify return code: 0 (ok)", true},
		{"only TLS 1.3", []string{"-cert", alice, "-key", aliceKey}, "TLSv1.3", true},
		{"no name on the list", []string{"-cert", bob, "-key", bobKey}, "HTTP/1.1 403 Forbidden", false},
		{"no certificate", nil, "alert certificate required", false},
		{"another authority", []string{"-cert", forged, "-key", forgedKey}, "alert unknown ca", false},
		{"expired", []string{"-cert", late, "-key", lateKey}, "alert certificate expired", false},
		{"TLS 1.2", []string{"-tls1_2", "-cert", alice, "-key", aliceKey}, "alert protocol version", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "openssl",
				append([]string{"s_client", "-connect", at, "-CAfile", ours.file("ca.pem"), "-ign_eof"}, tc.args...)...)
			cmd.Stdin = strings.NewReader("GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			cmd.WaitDelay = 10 * time.Second
			out, _ := cmd.CombinedOutput()
			if !bytes.Contains(out, []byte(tc.want)) {
				t.Errorf("openssl does not say %q:\n%s", tc.want, out)
			}
			if answered := bytes.Contains(out, []byte("HTTP/1.1 200")); answered != tc.served {
				t.Errorf("served: %v\n%s", answered, out)
			}
		})
	}
	if out := run(t, s.dir, nil, filepath.Join(binaries(t), "rstorectl"), "--server", at, "--cert", alice, "--key",
		aliceKey, "--ca", ours.file("ca.pem"), "stats"); !strings.Contains(out, "error control_tls_refused") {
		t.Errorf("the counters of what was refused:\n%s", out)
	}
}
