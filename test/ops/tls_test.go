package ops

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

const tlsName = "server.example"

// opensslFiles makes an authority, and certificates of a server and a client from it.
func opensslFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	run(t, dir, nil, "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
		"-keyout", "ca.key", "-out", "ca.pem",
		"-subj", "/CN=authority", "-days", "2")
	for _, c := range []struct{ file, name, algorithm string }{
		{"server", tlsName, "rsa:2048"},
		{"client", "client.example", "ed25519"},
	} {
		if err := os.WriteFile(filepath.Join(dir, c.file+".ext"),
			[]byte("subjectAltName=DNS:"+c.name+"\nextendedKeyUsage=serverAuth,clientAuth\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, dir, nil, "openssl", "req", "-newkey", c.algorithm, "-nodes", "-keyout", c.file+".key", "-out", c.file+".csr",
			"-subj", "/CN="+c.name)
		run(t, dir, nil, "openssl", "x509", "-req", "-in", c.file+".csr", "-CA", "ca.pem", "-CAkey", "ca.key",
			"-CAcreateserial", "-days", "1",
			"-extfile", c.file+".ext", "-out", c.file+".pem")
	}
	return dir
}

// words is a record of them.
func words(list ...uint32) []byte {
	var b []byte
	for _, w := range list {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	mark := rpc.RecordMark(len(b))
	return append(mark[:], b...)
}

// relay takes one connection and passes it on over another one.
func relay(t *testing.T, to func() (net.Conn, error)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		near, err := l.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		far, err := to()
		if err != nil {
			t.Error(err)
			return
		}
		defer far.Close()
		go func() { _, _ = io.Copy(far, near); far.Close() }()
		_, _ = io.Copy(near, far)
	}()
	return l.Addr().String()
}

var (
	askTLS = words(5, 0, 2, nfs3.Program, nfs3.Version, 0, 7, 0, 0, 0)
	yesTLS = words(5, 1, 0, 0, 8, 0x53544152, 0x54544c53, 0) // "STARTTLS"
)

// TestOpenSSLClient has the TLS of OpenSSL speak to rstored.
func TestOpenSSLClient(t *testing.T) {
	need(t, "openssl")
	files, dir := opensslFiles(t), t.TempDir()
	host := fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	run(t, "../..", nil, "go", "build", "-o", dir, "./cmd/rstored")
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "rstored"), "--state-dir", filepath.Join(dir, "state"),
		"--control", filepath.Join(dir, "c.sock"),
		"--export", t.TempDir()+"=/a(rw,xprtsec=mtls)", "--rdma-listen", "", "--tcp-listen", host+":2049", "--log-format",
		"json",
		"--tls-certificate", filepath.Join(files, "server.pem"), "--tls-key", filepath.Join(files, "server.key"),
		"--tls-client-ca", filepath.Join(files, "ca.pem"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	stop := func() {
		if ended {
			return
		}
		ended = true
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("rstored: %v\n%s", err, stderr.String())
		}
	}
	defer stop()
	asked := func() (net.Conn, error) {
		for until := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			c, err := net.Dial("tcp", host+":2049")
			if err != nil && time.Now().Before(until) {
				continue
			}
			if err != nil {
				return nil, err
			}
			got := make([]byte, len(yesTLS))
			if _, err := c.Write(askTLS); err != nil {
				return nil, err
			}
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, yesTLS) {
				return nil, fmt.Errorf("%x: %w", got, err)
			}
			return c, nil
		}
	}
	null, answer := words(9, 0, 2, nfs3.Program, nfs3.Version, 0, 0, 0, 0, 0), words(9, 1, 0, 0, 0, 0)
	for _, args := range [][]string{
		nil,
		{"-cert", filepath.Join(files, "client.pem"), "-key", filepath.Join(files, "client.key")},
		{"-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"},
		{"-ciphersuites", "TLS_AES_256_GCM_SHA384", "-groups", "P-384"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c := exec.CommandContext(ctx, "openssl", append([]string{
			"s_client", "-connect", relay(t, asked), "-alpn", tcp.ALPN, "-tls1_3", "-quiet", "-CAfile",
			filepath.Join(files, "ca.pem"),
			"-verify_return_error", "-verify_hostname", tlsName,
		}, args...)...)
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var complaint bytes.Buffer
		c.Stderr = &complaint
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(answer))
		_, werr := in.Write(null)
		if _, err := io.ReadFull(out, got); err != nil || werr != nil || !bytes.Equal(got, answer) {
			t.Errorf("%q: %x %v %v\n%s", args, got, err, werr, complaint.String())
		}
		in.Close()
		cancel()
		_ = c.Wait()
	}
	stop()
	for _, want := range []string{
		`"result":"OK","cipher":"TLS_CHACHA20_POLY1305_SHA256"`,
		`"result":"OK","cipher":"TLS_AES_256_GCM_SHA384"`, `"name":"client.example"`,
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("the audit log has no %s:\n%s", want, stderr.String())
		}
	}
}

// TestOpenSSLServer has our client speak to the TLS of OpenSSL, with a certificate of its own.
func TestOpenSSLServer(t *testing.T) {
	need(t, "openssl")
	files := opensslFiles(t)
	at := fmt.Sprintf("127.%d.%d.%d:20490", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := exec.CommandContext(ctx, "openssl", "s_server", "-accept", at, "-alpn", tcp.ALPN, "-tls1_3", "-quiet", "-naccept",
		"1", "-Verify", "3", "-verify_return_error",
		"-cert", filepath.Join(files, "server.pem"), "-key", filepath.Join(files, "server.key"), "-CAfile",
		filepath.Join(files, "ca.pem"))
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = s.Wait() }()
	// What the server does for RPC is done here, in cleartext: OpenSSL has the rest of the connection.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		near, err := l.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		question, err := rpc.ReadRecord(near, nil, 1000)
		if err != nil || !rpc.IsTLSProbe(question) {
			t.Errorf("%x %v", question, err)
			return
		}
		var far net.Conn
		for until := time.Now().Add(20 * time.Second); far == nil &&
			time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			far, _ = net.Dial("tcp", at)
		}
		if far == nil {
			t.Error("openssl does not listen")
			return
		}
		defer far.Close()
		_, _ = near.Write(words(rpc.ReplyXID(question), 1, 0, 0, 8, 0x53544152, 0x54544c53, 0))
		go func() { _, _ = io.Copy(far, near); far.Close() }()
		_, _ = io.Copy(near, far)
	}()
	// The server's part of two calls.
	go func() {
		for range 2 {
			b, err := rpc.ReadRecord(out, nil, 1000)
			if err != nil {
				return
			}
			_, _ = in.Write(words(rpc.ReplyXID(b), 1, 0, 0, 0, 0))
		}
	}()
	pem, err := os.ReadFile(filepath.Join(files, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	pair, err := tls.LoadX509KeyPair(filepath.Join(files, "client.pem"), filepath.Join(files, "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := tcp.DialTLS(ctx, l.Addr().String(),
		&tls.Config{RootCAs: pool, ServerName: tlsName, Certificates: []tls.Certificate{pair}}, nfs3.Program, nfs3.Version)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Call(ctx, &rpc.Request{Prog: nfs3.Program, Vers: nfs3.Version}); err != nil {
		t.Error(err)
	}
}
