// Package guest runs rstored against the peer that decides what is right: the
// Linux kernel's own RDMA stack and NFS client, in guests that boot in about a
// second (User-Mode Linux, built by the script build from Debian packages).
//
// A Case is a shell script for each guest, the exports that they find, and where it
// needs one a function for what happens on the host meanwhile. Each run has a network
// namespace of its own with a bridge in it:
//
//	10.99.0.1, fd99::1     the bridge: rstored, or another program under test
//	10.99.0.2, fd99::2     the first guest, rxe0 on eth0
//	10.99.0.3, fd99::3     the second
//
// Where the daemon runs on a device of the kernel, it does so in a further guest.
//
// Nothing leads out of it. Only processes that the run has started are ended.
package guest

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Library is what every script begins with.
//
//go:embed lib.sh
var Library string

// HostAddr is where the namespace of a run is reached from its guests.
const (
	HostAddr  = "10.99.0.1"
	HostAddr6 = "fd99::1"
)

// Clients are the networks of a run, for exports: guests on either wire, the namespace, and what
// serves itself.
const Clients = "10.99.0.0/24 10.98.0.0/24 fd99::/64 127.0.0.0/8 ::1"

// exportOf is an export for --export; one that names no clients is for those of the run, by the
// options after its path.
func exportOf(export, dir string) string {
	if !strings.Contains(export, " ") {
		export += " " + Clients
	}
	return strings.ReplaceAll(export, "%s", dir)
}

// Case is one thing that must work.
type Case struct {
	Name    string
	Script  string            // what runs in each guest, after lib.sh; $GUEST is a or b
	Guests  int               // one if not said
	MTU     int               // of the bridge and the guests; 1500 if not said
	Env     map[string]string // for the script
	Exports []string          // for --export; %s is the directory of the run's exports; see exportOf. None: no daemon
	Daemon  []string          // further flags of the daemon, with %s as in Exports
	Setenv  []string          // variables of the daemon, likewise
	Prepare func(exports string) error
	Host    func(context.Context, *Run) error         // runs beside the guests; the case fails if it does
	Timeout time.Duration                             // a minute if not said
	FS      func(*Run) (undo func() error, err error) // of the exports; that of the run if nil
	Payload bool                                      // capture packets whole
	// packets are lost on purpose: tshark, which puts chunks together from them, is not asked
	Lossy bool
	// messages that are not RPC: tshark, which takes them for it, is not asked
	NotRPC bool
	Back   bool // tshark sees calls to the guest and their replies on RDMA
	MemMB  int  // of each guest; 768 if not said
	// interfaces of each guest, one if not said. Nothing is done with vec1 and those after it
	Wires  int
	Kernel func(r *Run, i int) []string // further parameters of guest i's kernel
	Quiet  bool                         // packets are neither recorded nor looked at
	// the guests are of "build tls": a kernel with TLS, and tlshd; without RDMA
	TLS    bool
	Device string // kind of the guests' RDMA device: rxe, if not said, or siw
	// what the daemon is on: soft, on the host, if not said; "verbs" makes it run in one more guest,
	// s, on that guest's device
	Server   string
	RDMACore bool // the case needs programs with the provider of rdma-core
}

// Runner runs cases.
type Runner struct {
	Cache string // what the script build has made
	Bin   string // where rstored, rstorectl and rping are
	Keep  string // where a failed case's console, log and packets go

	kernel atomic.Pointer[string]
}

// Run is a case being run.
type Run struct {
	Case    *Case
	Dir     string // everything of the run
	Exports string // served by the daemon
	Share   string // /run/host of every guest

	runner *Runner
	ns     string
	daemon *process
	vms    sync.Map     // number of a guest to its *process
	orders atomic.Int32 // given to guest s
	log    *os.File
}

// Cache is where the script build puts what it makes. It is an error if it was not run.
func Cache() (string, error) {
	dir := os.Getenv("RSTORED_GUEST_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(base, "rstored-guest")
	}
	for _, f := range []string{"linux", "root.ext4"} {
		if !exists(filepath.Join(dir, f)) {
			return "", fmt.Errorf("%s is not in %s: run test/guest/build", f, dir)
		}
	}
	return dir, nil
}

// tlsSuffix ends the names of what guests with TLS boot from.
const tlsSuffix = "-tls"

// runs makes names of namespaces unique in this process.
var runs atomic.Int32

// Run runs a case. What it leaves is removed, except after a failure the console
// of each guest, the daemon's log and the packets, in Keep.
func (r *Runner) Run(ctx context.Context, c *Case) (err error) {
	// What an earlier run has kept would look like this one's.
	if err := os.RemoveAll(filepath.Join(r.Keep, c.Name)); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rstored-guest-")
	if err != nil {
		return err
	}
	run := &Run{
		Case: c, Dir: dir, Exports: filepath.Join(dir, "exports"), Share: filepath.Join(dir, "share"),
		runner: r, ns: fmt.Sprintf("rstored-%d-%d", os.Getpid(), runs.Add(1)),
	}
	if c.servedByGuest() {
		run.Exports = filepath.Join(run.Share, "exports") // from where guest s takes them
	}
	defer func() {
		if err != nil {
			if kerr := run.keep(filepath.Join(r.Keep, c.Name)); kerr != nil {
				err = errors.Join(err, kerr)
			}
		}
		_ = os.RemoveAll(dir)
	}()
	timeout := c.Timeout
	if timeout == 0 {
		timeout = time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done after %v", timeout))
	defer cancel()
	return run.run(ctx)
}

func (r *Run) run(ctx context.Context) (err error) {
	for _, d := range []string{r.Exports, r.Share, r.path("state")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if r.Case.FS != nil {
		undo, err2 := r.Case.FS(r)
		if err2 != nil {
			return err2
		}
		defer func() { err = errors.Join(err, undo()) }()
	}
	// The daemon's callers are ordinary users on the way to the exports.
	if err := os.Chmod(r.Dir, 0o755); err != nil {
		return err
	}
	if r.Case.Prepare != nil {
		if err := r.Case.Prepare(r.Exports); err != nil {
			return err
		}
	}
	if r.log, err = os.Create(r.path("host.log")); err != nil {
		return err
	}
	defer r.log.Close()
	if err := r.network(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ip("netns", "del", r.ns)) }()
	if !r.Case.Quiet {
		capture, err := r.capture(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = capture.stop(syscall.SIGTERM) }()
	}
	if r.Case.Exports != nil && !r.Case.servedByGuest() {
		if err := r.StartDaemon(ctx); err != nil {
			return err
		}
		defer func() {
			if r.daemon != nil {
				err = errors.Join(err, r.StopDaemon(syscall.SIGTERM))
			}
		}()
	}
	if r.Case.Quiet {
		return r.guests(ctx)
	}
	sample, err := r.sample(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = sample.stop(syscall.SIGTERM) }()
	if err := r.guests(ctx); err != nil {
		return err
	}
	_ = sample.stop(syscall.SIGTERM) // ended by itself when it had enough
	if r.Case.Lossy || r.Case.NotRPC {
		return nil
	}
	return r.inspect(ctx)
}

// Command runs a program in the run's namespace to its end, its output in the host's log.
func (r *Run) Command(ctx context.Context, name string, args ...string) error {
	if p := filepath.Join(r.runner.Bin, name); !strings.Contains(name, "/") && exists(p) {
		name = p
	}
	p, err := r.start(filepath.Base(name), r.log, append([]string{name}, args...)...)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		_ = p.stop(syscall.SIGTERM)
		return context.Cause(ctx)
	}
}

// Tell lets the guests know that something has happened: "await NAME" in a script returns.
func (r *Run) Tell(name string) error {
	return os.WriteFile(filepath.Join(r.Share, "at."+name), nil, 0o644)
}

// Await waits until a guest has said "tell NAME".
func (r *Run) Await(ctx context.Context, name string) error {
	return r.until(ctx, nil, "a guest's "+name, func() bool { return exists(filepath.Join(r.Share, "at."+name)) })
}

// Sleep waits, but not beyond the end of the run.
func (r *Run) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Logf writes to the host's log.
func (r *Run) Logf(format string, args ...any) { fmt.Fprintf(r.log, format+"\n", args...) }

// guest boots guest i and waits for its script.
func (r *Run) guest(ctx context.Context, i int) error {
	name := r.Case.guestName(i)
	console, err := os.Create(r.path("console-" + name + ".log"))
	if err != nil {
		return err
	}
	defer console.Close()
	mem := cmp.Or(r.Case.MemMB, 768)
	if name == serverGuest {
		mem = serverMemMB
	}
	m := Machine{
		Cache: r.runner.Cache, Name: name, Dir: r.Dir, Share: r.Share, MemMB: mem, MTU: r.mtu(), IP4: guestAddr(i),
		IP6: guestAddr6(i),
	}
	if r.Case.TLS {
		m.suffix = tlsSuffix
	}
	for w := range max(1, r.Case.Wires) {
		m.Taps = append(m.Taps, Tap{tap(i, w), fmt.Sprintf("02:99:00:00:%02x:%02x", w, 2+i)})
	}
	if r.Case.Kernel != nil {
		m.Further = r.Case.Kernel(r, i)
	}
	// The kernel's messages and the script's output come by two descriptors into one file.
	p, err := r.start("guest "+name, console, m.Command()...)
	if err != nil {
		return err
	}
	r.vms.Store(i, p)
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.stop(syscall.SIGKILL)
		return fmt.Errorf("guest %s: %w", name, context.Cause(ctx))
	}
	rc, err := os.ReadFile(filepath.Join(r.Share, name+".rc"))
	switch status := strings.TrimSpace(string(rc)); {
	case err != nil || status == "":
		return fmt.Errorf("guest %s ended without a status: %s", name, lastLines(console.Name(), 3))
	case status != "0":
		return fmt.Errorf("guest %s: exit status %s: %s", name, status, lastLines(console.Name(), 3))
	}
	dmesg := filepath.Join(r.Share, name+".dmesg")
	if !r.Case.TLS {
		r.runner.noteKernel(dmesg)
	}
	return Bugs(dmesg)
}

var version = regexp.MustCompile(`Linux version \S+`)

// noteKernel remembers what a guest's kernel says that it is.
func (r *Runner) noteKernel(dmesg string) {
	b, _ := os.ReadFile(dmesg)
	if v := version.FindString(string(b)); v != "" {
		r.kernel.Store(&v)
	}
}

// Kernel is what the guests have run.
func (r *Runner) Kernel() string {
	if v := r.kernel.Load(); v != nil {
		return *v
	}
	return "unknown"
}

// trouble is what a kernel says when it has met a bug.
var trouble = []string{"BUG:", "WARNING:", "Oops", "blocked for more than"}

// Bugs returns an error if a kernel's messages tell of a bug.
func Bugs(dmesg string) error {
	b, err := os.ReadFile(dmesg)
	if err != nil {
		return err
	}
	for l := range strings.Lines(string(b)) {
		for _, t := range trouble {
			if strings.Contains(l, t) {
				return fmt.Errorf("the kernel says: %s", strings.TrimSpace(l))
			}
		}
	}
	return nil
}
