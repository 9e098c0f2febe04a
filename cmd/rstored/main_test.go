package main

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/handover"
)

// The test binary is rstored when it is told to be.
func TestMain(m *testing.M) {
	if os.Getenv("BE_RSTORED") != "" {
		main()
	}
	os.Exit(m.Run())
}

// buffer may be written and read by different goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func command(args ...string) (*exec.Cmd, *buffer) {
	out := new(buffer)
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), "BE_RSTORED=1", "RSTORED_CONFIG="+os.DevNull)
	c.Stdout, c.Stderr = out, out
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return c, out
}

func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// TestExitCodes: what does not start says why, with the right exit code.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	addr := fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	good := file("good.yaml", fmt.Sprintf("exports: [{path: %q}]\nlog_level: debug\ntcp_listen: ['%s:2049']\n"+
		"rdma_listen: ['%s:20049']\n", dir, addr, addr))
	bad := file("bad.yaml", "log_level: loud\n")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	noCert := file("cert.yaml", fmt.Sprintf("tls: {certificate: %s/none.pem, key: %s/none.pem}\n", dir, dir))
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--config", bad}, 78, "loud"},
		{[]string{"--config", filepath.Join(dir, "none.yaml")}, 78, "no such file"},
		{[]string{"--export", "/d(fast)"}, 78, "fast"},
		{[]string{"--tcp-listen", "here"}, 78, "ADDR:PORT"},
		{[]string{"--frobnicate"}, 2, "frobnicate"},
		{[]string{"sing"}, 2, "sing"},
		{
			[]string{
				"--export", dir, "--state-dir", dir + "/s", "--control", dir + "/c", "--tcp-listen", taken, "--rdma-listen=",
			}, 1, "tcp " + taken + ": in use by another process",
		},
		{[]string{"config", "validate", "--config", good}, 0, "good"},
		{[]string{"config", "validate", "--config", bad}, 78, "loud"},
		{[]string{"config", "validate", "--export", "/nonexistent"}, 1, "export /nonexistent: "},
		{[]string{"config", "validate", "--config", good, "--tcp-listen", taken}, 1, "port tcp " + taken + ": in use"},
		{[]string{"config", "validate", "--config", good, "--audit", "file " + dir + "/log/audit.log"}, 0, "good"},
		{[]string{"config", "validate", "--config", good, "--audit", "file " + dir + "/a/b/audit.log"}, 78, "audit: "},
		{[]string{"config", "validate", "--config", good, "--state-dir", bad}, 78, "state_dir: "},
		{[]string{"config", "validate", "--config", good, "--control", bad + "/c"}, 78, "control: "},
		{[]string{"config", "validate", "--config", good, "--control-group", "nosuchgroup"}, 78, "control_group: "},
		{[]string{"config", "validate", "--config", noCert}, 78, dir + "/none.pem"},
		{[]string{"config", "dump", "--config", good, "--log-level", "error"}, 0, "log_level: error"},
		{[]string{"config", "default"}, 0, ":20049"},
		{[]string{"version"}, 0, "rstored "},
		{[]string{"--help"}, 0, "--export"},
	} {
		c, out := command(tc.args...)
		if code := exitCode(c.Run()); code != tc.code || !strings.Contains(out.String(), tc.want) {
			t.Errorf("rstored %q: exit code %d, want %d and %q\n%s", tc.args, code, tc.code, tc.want, out)
		}
	}
}

// TestLife: the zero-configuration start (but for the addresses), readiness
// told to the service manager, reload with a bad and with a good file, graceful stop.
func TestLife(t *testing.T) {
	dir := t.TempDir()
	addr := fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	conf, sock, notify := filepath.Join(dir, "r.yaml"), filepath.Join(dir, "c.sock"), filepath.Join(dir, "notify")
	write := func(text string) {
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, sub := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exports := func(subs ...string) string {
		s := "exports:\n"
		for _, sub := range subs {
			s += fmt.Sprintf("  - path: %s/%s\n", dir, sub)
		}
		return s
	}
	write(exports("a"))
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	told := func(want string) {
		t.Helper()
		b := make([]byte, 512)
		if err := manager.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := manager.Read(b)
			if err == nil && strings.HasPrefix(string(b[:n]), "FDSTORE") {
				continue // a socket that it is to keep; its copy is closed with the message
			}
			if err != nil || !strings.Contains(string(b[:n]), want) {
				t.Fatalf("the service manager was told %q, %v; want %q", b[:n], err, want)
			}
			return
		}
	}

	c, out := command("--config", conf, "--rdma-listen", addr+":20049", "--tcp-listen", addr+":2049",
		"--state-dir", filepath.Join(dir, "state"), "--control", sock)
	c.Env = append(c.Env, "NOTIFY_SOCKET="+notify)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	defer func() {
		_ = c.Process.Kill()
		if t.Failed() {
			t.Logf("log:\n%s", out)
		}
	}()
	told("READY=1")
	ctl := control.Dial(sock)
	count := func(want int) {
		t.Helper()
		s, err := ctl.Status(t.Context())
		if err != nil || s.Exports != want || s.Ports != 2 {
			t.Errorf("status %+v, %v; want %d exports and 2 ports", s, err, want)
		}
	}
	count(1)
	signal := func(s unix.Signal) {
		t.Helper()
		if err := c.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	write("exprots: []\n")
	signal(unix.SIGHUP)
	told("RELOADING=1")
	told("READY=1")
	count(1)
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(out.String(),
		"exprots"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) { // what it writes is on its way for a moment
			t.Fatal("the log does not say what is wrong with the new file")
		}
	}
	write(exports("a", "b"))
	signal(unix.SIGHUP)
	told("RELOADING=1")
	told("READY=1")
	count(2)

	signal(unix.SIGTERM)
	told("STOPPING=1")
	if code := exitCode(<-ended); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if _, err := os.Stat(sock); err == nil {
		t.Error("the control socket was left behind")
	}
}

// TestHangupBeforeServing: whoever asks for a reload while a process is about to take over does not
// end it.
func TestHangupBeforeServing(t *testing.T) {
	dir := t.TempDir()
	state, sock := filepath.Join(dir, "state"), filepath.Join(dir, "c.sock")
	conn, theirs, err := handover.Pair()
	if err != nil {
		t.Fatal(err)
	}
	c, out := command("--state-dir", state, "--control", sock)
	c.ExtraFiles = []*os.File{theirs}
	c.Env = append(c.Env, handover.Variable+"=3")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill() }()
	_ = theirs.Close()
	var hello bytes.Buffer
	if err := gob.NewEncoder(&hello).Encode(struct{ StateDir, Control string }{state, sock}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Send(&handover.Part{Name: "hello", Version: 1, Data: hello.Bytes()}); err != nil {
		t.Fatal(err)
	}
	if p, err := conn.Receive(); err != nil || p.Name != "prepared" {
		t.Fatalf("%+v, %v: %s", p, err, out)
	}
	if err := c.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for pending := true; pending; { // until it has come
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		pending = !strings.Contains(string(b), "ShdPnd:\t0000000000000000\n")
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(c.Wait()); code != 1 || !strings.Contains(out.String(), "the old process has given up") {
		t.Errorf("exit code %d, and it says %s", code, out)
	}
}
