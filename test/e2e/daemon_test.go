// Package e2e runs the two commands as their users do: a daemon in a process
// of its own, rstorectl against it over RDMA and over TCP on loopback, and
// faults in between. What a package can test alone is tested there.
package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	binDir   string
	nextHost atomic.Uint32
)

func TestMain(m *testing.M) {
	if file := os.Getenv(appendTo); file != "" {
		if err := appendLines(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	dir, err := os.MkdirTemp("", "rstored-e2e-")
	if err != nil {
		panic(err)
	}
	build := exec.Command("go", "build", "-C", "../..", "-o", dir+string(filepath.Separator),
		"./cmd/rstored", "./cmd/rstorectl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the commands: %v\n%s", err, out)
		os.Exit(1)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // some tests run them as somebody else
		panic(err)
	}
	binDir = dir
	nextHost.Store(uint32(os.Getpid()) << 4)
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// loopback hands out an address of 127.64.0.0/10 that no other test here has.
func loopback() netip.Addr {
	n := nextHost.Add(1)
	return netip.AddrFrom4([4]byte{127, 64 | byte(n>>16&31), byte(n >> 8), byte(n)})
}

// daemon is one rstored process over a state directory that outlives it.
type daemon struct {
	t         *testing.T
	addr      netip.Addr
	export    string
	state     string
	control   string
	args      []string
	as        *syscall.Credential // who runs rstorectl; nil is this process's user
	log       logBuffer
	cmd       *exec.Cmd
	exited    chan struct{}
	program   string               // that start starts
	successor int                  // the process that has taken its place, 0 for none
	runs      *syscall.SysProcAttr // who runs the daemon; nil is this process's user
	bridged   *os.Process          // the bridge that was started last
	nofile    int                  // limit of file descriptors at the next start; 0 is the process's own
}

// logBuffer is what a process has written so far.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newDaemon prepares and starts a daemon that exports a fresh directory.
func newDaemon(t *testing.T, args ...string) *daemon {
	t.Helper()
	return newDaemonOn(t, nil, args...)
}

// newDaemonOf is newDaemon with another program.
func newDaemonOf(t *testing.T, program string, args ...string) *daemon {
	t.Helper()
	return newDaemonOn(t, func(d *daemon) { d.program = program }, args...)
}

// newDaemonOn is newDaemon after prepare, which may be nil, has done what has to be done to
// the directories of the daemon.
func newDaemonOn(t *testing.T, prepare func(*daemon), args ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{
		t: t, addr: loopback(), export: filepath.Join(dir, "data"), state: filepath.Join(dir, "state"),
		args: args, program: filepath.Join(binDir, "rstored"),
	}
	// A Unix socket's path is short; a test's directory need not be.
	run, err := os.MkdirTemp("", "rs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	d.control = filepath.Join(run, "ctl")
	for _, p := range []string{d.export, d.state} {
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if prepare != nil {
		prepare(d)
	}
	d.start()
	t.Cleanup(func() {
		d.stop(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("daemon log:\n%s", tail(d.log.String(), 8000))
		}
	})
	return d
}

// asUnit has the daemon run as the unit file has it: not as root, with its capabilities.
func (d *daemon) asUnit() {
	d.t.Helper()
	d.runs = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: service, Gid: service, Groups: []uint32{}},
		AmbientCaps: []uintptr{
			unix.CAP_DAC_READ_SEARCH, unix.CAP_DAC_OVERRIDE, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN, unix.CAP_FOWNER,
			unix.CAP_FSETID,
			unix.CAP_LEASE, unix.CAP_MKNOD, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_ADMIN,
		},
	}
	for _, p := range []string{d.state, filepath.Dir(d.control)} {
		if err := os.Chown(p, service, service); err != nil {
			d.t.Fatal(err)
		}
	}
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

func (d *daemon) start() {
	d.t.Helper()
	if code, said := d.tryStart(); code != 0 {
		d.t.Fatalf("rstored ended at once, exit code %d:\n%s", code, said)
	}
}

// tryStart starts it and waits until it serves, or has ended by itself with an exit code and
// what it said.
func (d *daemon) tryStart() (code int, said string) {
	d.t.Helper()
	args := append([]string{
		"--export", d.export + "(rw,no_root_squash)",
		"--rdma-listen", d.addr.String() + ":20049",
		"--tcp-listen", d.addr.String() + ":2049",
		"--state-dir", d.state,
		"--control", d.control,
	}, d.args...)
	before := len(d.log.String())
	cmd := exec.Command(d.program, args...)
	if d.nofile > 0 {
		cmd = exec.Command("sh", append([]string{"-c", `ulimit -n "$0" && exec "$@"`, strconv.Itoa(d.nofile), cmd.Path},
			args...)...)
	}
	cmd.Stdout, cmd.Stderr = &d.log, &d.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if d.runs != nil {
		cmd.SysProcAttr.Credential, cmd.SysProcAttr.AmbientCaps = d.runs.Credential, d.runs.AmbientCaps
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	d.cmd, d.exited = cmd, exited
	deadline := time.Now().Add(time.Minute)
	for {
		if _, _, err := d.try(2*time.Second, "status"); err == nil {
			return 0, d.log.String()[before:]
		}
		select {
		case <-exited:
			d.cmd = nil
			return cmd.ProcessState.ExitCode(), d.log.String()[before:]
		default:
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("rstored did not answer on its control socket:\n%s", d.log.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stop ends the daemon by sig and waits for it.
func (d *daemon) stop(sig syscall.Signal) {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(sig)
	if d.successor != 0 {
		_ = syscall.Kill(d.successor, sig)
	}
	select {
	case <-d.exited: // the successor has the same log, whose end is waited for
	case <-time.After(20 * time.Second):
		d.t.Errorf("rstored did not end within 20 s of %v", sig)
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
	d.cmd = nil
}
