package ops

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// server is an rstored of this host, on a loopback address of its own, that exports a directory at
// /data.
type server struct {
	t                    *testing.T
	dir, host            string
	rdma, tcp, ops, sock string
	stop                 func() // also at the end of the test
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{
		t: t, dir: t.TempDir(),
		host: fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254)),
	}
	s.rdma, s.tcp, s.ops = net.JoinHostPort(s.host, "20049"), net.JoinHostPort(s.host, "2049"),
		net.JoinHostPort(s.host, "9049")
	short, err := os.MkdirTemp("", "rs") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	s.sock = filepath.Join(short, "c.sock")
	return s
}

// run starts it, and ends it with the test.
func (s *server) run(args ...string) {
	s.t.Helper()
	data := filepath.Join(s.dir, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(binaries(s.t), "rstored"), append([]string{
		"--state-dir", filepath.Join(s.dir, "state"), "--control", s.sock, "--export", data + "=/data(rw,no_root_squash)",
		"--rdma-listen", s.rdma, "--tcp-listen", s.tcp, "--log-level", "error", "--audit", "off",
	}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil || s.t.Failed() {
			s.t.Errorf("rstored: %v\n%s", err, stderr.String())
		}
	})
	s.t.Cleanup(s.stop)
	up := func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		defer cancel()
		return exec.CommandContext(ctx, filepath.Join(binaries(s.t), "rstorectl"), "--control", s.sock, "status").Run()
	}
	for until := time.Now().Add(20 * time.Second); up() != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			s.t.Fatalf("rstored does not answer: %v\n%s", up(), stderr.String())
		}
	}
}
