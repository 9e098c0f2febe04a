// Package e2e runs the two commands as their users do: a daemon in a process
// of its own, rstorectl against it over RDMA and over TCP on loopback, and
// faults in between. What a package can test alone is tested there.
package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

var (
	binDir   string
	nextHost atomic.Uint32
)

func TestMain(m *testing.M) {
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

// try runs rstorectl against the daemon.
func (d *daemon) try(limit time.Duration, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(binDir, "rstorectl"), append([]string{"--control", d.control}, args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: d.as}
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	err = c.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("no end within %v", limit)
	}
	return o.String(), e.String(), err
}

// ctl runs rstorectl and fails the test if it fails.
func (d *daemon) ctl(args ...string) string {
	d.t.Helper()
	o, e, err := d.try(4*time.Minute, args...)
	if err != nil {
		d.t.Fatalf("rstorectl %s: %v\n%s%s", strings.Join(args, " "), err, tail(o, 2000), tail(e, 4000))
	}
	return o
}

// url names a path of the first export over a transport, rdma or tcp.
func (d *daemon) url(transport, path string) string {
	port := "20049"
	if transport == "tcp" {
		port = "2049"
	}
	return fmt.Sprintf("nfs+%s://%s:%s/data/%s", transport, d.addr, port, strings.TrimPrefix(path, "/"))
}

// client is a Go client of the daemon, in this process, of version 3, whose reply cache
// outlives the daemon.
func (d *daemon) client(transport string) *client.Client {
	d.t.Helper()
	return d.clientOf(client.Version3, transport)
}

func (d *daemon) clientOf(version client.Version, transport string) *client.Client {
	d.t.Helper()
	dial := func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, d.addr.String()+":2049") }
	if transport == "rdma" {
		dev, err := roce.Open(roce.Config{})
		if err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { _ = dev.Close() })
		dial = func(ctx context.Context) (rpc.Client, error) {
			return rpcrdma.Dial(ctx, dev, netip.AddrPortFrom(d.addr, 20049), rpcrdma.ClientConfig{})
		}
	}
	c := client.New(client.Config{
		Version: version,
		Peer:    d.addr.String(), Dial: dial,
		Cred: &rpc.Cred{Flavor: rpc.AuthSys, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
	})
	d.t.Cleanup(func() { _ = c.Close() })
	return c
}

// stats is the daemon's statistics as JSON, flattened to dotted keys.
func (d *daemon) stats() map[string]float64 {
	d.t.Helper()
	var v any
	if err := json.Unmarshal([]byte(d.ctl("-o", "json", "stats")), &v); err != nil {
		d.t.Fatalf("stats is not JSON: %v", err)
	}
	flat := map[string]float64{}
	var walk func(prefix string, v any)
	walk = func(prefix string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, w := range v {
				walk(strings.TrimPrefix(prefix+"."+k, "."), w)
			}
		case float64:
			flat[prefix] = v
		}
	}
	walk("", v)
	return flat
}

// counter sums the statistics whose last key is name.
func counter(stats map[string]float64, name string) (sum float64, ok bool) {
	for k, v := range stats {
		if k == name || strings.HasSuffix(k, "."+name) {
			sum, ok = sum+v, true
		}
	}
	return sum, ok
}

// node is what a copy has to keep of one object.
type node struct {
	mode   fs.FileMode
	size   int64
	mtime  int64 // seconds
	nlink  uint64
	target string
	sum    string
}

// scan describes a tree by relative path.
func scan(t *testing.T, root string) map[string]node {
	t.Helper()
	out := map[string]node{}
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		fi, err := e.Info()
		if err != nil {
			return err
		}
		n := node{mode: fi.Mode(), nlink: uint64(fi.Sys().(*syscall.Stat_t).Nlink)}
		switch {
		case fi.Mode().IsRegular():
			n.size, n.mtime = fi.Size(), fi.ModTime().Unix()
			n.sum = sumFile(t, p)
		case fi.Mode()&fs.ModeSymlink != 0:
			n.target, err = os.Readlink(p)
			n.mode = fs.ModeSymlink
		case fi.IsDir():
			n.nlink = 0 // not a thing that a copy keeps
		}
		out[rel] = n
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sumFile is a SHA-256 of what is not zero in a file, and where, so that holes
// cost nothing and count as zeros.
func sumFile(t *testing.T, p string) string {
	t.Helper()
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	buf, zero := make([]byte, 1<<16), make([]byte, 1<<16)
	for at := int64(0); ; {
		at, err = unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return hex.EncodeToString(h.Sum(nil))
		}
		if err != nil {
			t.Fatal(err)
		}
		at &^= int64(len(buf) - 1)
		n, err := f.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if !bytes.Equal(buf[:n], zero[:n]) {
			fmt.Fprintf(h, "%d:%d:", at, n)
			_, _ = h.Write(buf[:n])
		}
		at += int64(len(buf))
	}
}

// sameTree reports the differences between two trees.
func sameTree(t *testing.T, want, got string) {
	t.Helper()
	a, b := scan(t, want), scan(t, got)
	bad := 0
	for rel, w := range a {
		g, ok := b[rel]
		if rel == "." {
			continue
		}
		if !ok {
			t.Errorf("%q is missing from the copy", rel)
		} else if g != w {
			t.Errorf("%q differs:\n want %+v\n  got %+v", rel, w, g)
		} else {
			continue
		}
		if bad++; bad > 20 {
			t.Fatal("and more")
		}
	}
	for rel := range b {
		if _, ok := a[rel]; !ok {
			t.Errorf("%q is in the copy only", rel)
		}
	}
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
