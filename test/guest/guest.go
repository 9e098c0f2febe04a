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
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rstored/rstored/rdma/wire/wiretest/tshark"
	"github.com/rstored/rstored/test/bench/compare"
)

// library is what every script begins with.
//
//go:embed lib.sh
var library string

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

// guestAddr is the IPv4 address of guest i, counted from 0.
func guestAddr(i int) string { return "10.99.0." + strconv.Itoa(2+i) }

// guestAddr6 is its IPv6 address.
func guestAddr6(i int) string { return "fd99::" + strconv.Itoa(2+i) }

// Case is one thing that must work.
type Case struct {
	Name    string
	Script  string            // what runs in each guest, after lib.sh; $GUEST is a or b
	Guests  int               // one if not said
	MTU     int               // of the bridge and the guests; 1500 if not said
	Env     map[string]string // for the script
	Exports []string          // for --export; %s is the directory of the run's exports; see exportOf. None: no daemon
	Daemon  []string          // further flags of the daemon, with %s as in Exports
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

// guests runs the scripts and what happens on the host meanwhile.
func (r *Run) guests(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := os.WriteFile(filepath.Join(r.Share, "script"), []byte(r.script()), 0o644); err != nil {
		return err
	}
	var env strings.Builder
	for k, v := range r.Case.Env {
		fmt.Fprintf(&env, "export %s='%s'\n", k, v)
	}
	host, host6 := HostAddr, HostAddr6
	if r.Case.servedByGuest() {
		i := r.Case.machines() - 1
		host, host6 = r.Addr(), guestAddr6(i)
		if err := r.give("rstored", "rstorectl"); err != nil {
			return err
		}
	}
	fmt.Fprintf(&env, "export GUEST=$g_name HOST=%s HOST6=%s RDMA=%s\n", host, host6, cmp.Or(r.Case.Device, "rxe"))
	if err := os.WriteFile(filepath.Join(r.Share, "env"), []byte(env.String()), 0o644); err != nil {
		return err
	}
	n := r.Case.machines()
	done := make(chan error, n+1)
	for i := range n {
		go func() { done <- r.guest(ctx, i) }()
	}
	if r.Case.Host != nil {
		n++
		go func() {
			err := r.Case.Host(ctx, r)
			if err != nil {
				err = fmt.Errorf("on the host: %w", err)
			}
			done <- err
		}()
	}
	var first error
	for range n {
		if err := <-done; err != nil && first == nil {
			first = err
			// A guest that waits for the other would wait in vain.
			cancel(err)
		}
	}
	return first
}

// network makes the namespace, its bridge and a tap for each guest.
func (r *Run) network() error {
	mtu := strconv.Itoa(r.mtu())
	if err := ip("netns", "add", r.ns); err != nil {
		return err
	}
	steps := [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0"},
		// A bridge takes the address of its lowest port, which would change with each tap.
		{"link", "set", "br0", "address", "02:99:00:00:00:01"},
		{"addr", "add", HostAddr + "/24", "dev", "br0"},
		{"addr", "add", HostAddr6 + "/64", "dev", "br0", "nodad"},
	}
	for i := range r.Case.machines() {
		for w := range max(1, r.Case.Wires) {
			steps = append(steps,
				[]string{"tuntap", "add", "dev", tap(i, w), "mode", "tap", "vnet_hdr"},
				[]string{"link", "set", tap(i, w), "mtu", mtu, "txqueuelen", "10000", "master", "br0", "up"})
		}
	}
	steps = append(steps, []string{"link", "set", "br0", "mtu", mtu, "up"})
	for _, s := range steps {
		if err := ip(append([]string{"-n", r.ns}, s...)...); err != nil {
			return errors.Join(err, ip("netns", "del", r.ns))
		}
	}
	return nil
}

// tap is the name of the host's end of interface w of guest i.
func tap(i, w int) string {
	if w == 0 {
		return "tap" + strconv.Itoa(i)
	}
	return fmt.Sprintf("tap%d.%d", i, w)
}

// capture records the packets of all guests.
func (r *Run) capture(ctx context.Context) (*process, error) {
	// Headers tell most; of a long run the end is kept.
	snap := "256"
	if r.Case.Payload {
		snap = "0"
	}
	return r.tcpdump(ctx, "packets.pcap0", "-s", snap, "-C", "100", "-W", "2", "-i", "br0", "-w", r.path("packets.pcap"))
}

// inspected is how many RoCE packets of a case tshark reads: with the connection, the
// mount and the first of the work among them, and not minutes of it.
const inspected = 3000

// sample records the first RoCE packets of the first guest, whole. At the tap they are
// as on the wire; the bridge sees what is still to be segmented.
func (r *Run) sample(ctx context.Context) (*process, error) {
	return r.tcpdump(ctx, "sample.pcap0", "-s", "0", "-c", strconv.Itoa(inspected), "-i", "tap0", "-w",
		r.path("sample.pcap0"),
		"udp", "port", "4791")
}

func (r *Run) tcpdump(ctx context.Context, file string, args ...string) (*process, error) {
	p, err := r.start("tcpdump", r.log, append([]string{"tcpdump", "-Z", "root", "-B", "65536", "-U"}, args...)...)
	if err != nil {
		return nil, err
	}
	// tcpdump writes the file's header when it listens.
	return p, r.until(ctx, p, "tcpdump to listen", func() bool {
		s, err := os.Stat(r.path(file))
		return err == nil && s.Size() > 0
	})
}

// inspect has tshark read what we sent of the sample. It may complain of nothing that it does not
// complain of in packets of the kernel to itself.
func (r *Run) inspect(ctx context.Context) error {
	kinds, err := tshark.Kinds(ctx, r.path("sample.pcap0"), HostAddr, HostAddr6)
	if errors.Is(err, exec.ErrNotFound) {
		return nil // the build script installs it
	}
	beyond := tshark.Beyond(kinds)
	if len(beyond) > 0 {
		return fmt.Errorf("%d complaints of tshark that the kernel's own packets do not have: %s", len(beyond),
			strings.Join(beyond[:min(len(beyond), 5)], "; "))
	}
	if err != nil || !r.Case.Back {
		return err
	}
	calls, replies, err := tshark.Callbacks(ctx, r.path("sample.pcap0"))
	if err == nil && (calls == 0 || replies != calls) {
		err = fmt.Errorf("tshark sees %d calls to the guest and %d replies", calls, replies)
	}
	r.Logf("%d callbacks, %d replies", calls, replies)
	return err
}

// Addr is the IPv4 address of the daemon.
func (r *Run) Addr() string {
	if r.Case.servedByGuest() {
		return guestAddr(r.Case.machines() - 1)
	}
	return HostAddr
}

// rdmaAt is where the daemon listens for RDMA, as its settings say it.
func (r *Run) rdmaAt() string {
	if r.Case.servedByGuest() {
		return "verbs://" + r.Addr() + ":20049"
	}
	return r.Addr() + ":20049"
}

// StartDaemon starts rstored and waits until its ports are open.
func (r *Run) StartDaemon(ctx context.Context) error {
	if r.Case.servedByGuest() {
		_, err := r.order(ctx, "serve")
		return err
	}
	args := []string{
		filepath.Join(r.runner.Bin, "rstored"), "--log-format", "console",
		"--state-dir", r.path("state"), "--control", r.path("control"),
		"--rdma-listen", HostAddr + ":20049", "--rdma-listen", "[" + HostAddr6 + "]:20049", "--tcp-listen", ":2049",
	}
	for _, e := range r.Case.Exports {
		args = append(args, "--export", exportOf(e, r.Exports))
	}
	for _, f := range r.Case.Daemon {
		args = append(args, strings.ReplaceAll(f, "%s", r.Exports))
	}
	p, err := r.start("rstored", r.log, args...)
	if err != nil {
		return err
	}
	r.daemon = p
	return r.until(ctx, p, "rstored to answer", func() bool { return r.Ctl("status") == nil })
}

// StopDaemon ends rstored with a signal.
func (r *Run) StopDaemon(sig syscall.Signal) error {
	if r.Case.servedByGuest() {
		_, err := r.order(context.Background(), "unserve", strconv.Itoa(int(sig)))
		return err
	}
	p := r.daemon
	r.daemon = nil
	if err := p.stop(sig); err != nil && sig == syscall.SIGTERM {
		return fmt.Errorf("rstored: %w", err)
	}
	return nil
}

// SignalDaemon sends rstored a signal that it survives.
func (r *Run) SignalDaemon(sig syscall.Signal) error {
	if r.Case.servedByGuest() {
		_, err := r.order(context.Background(), "kill", "-"+strconv.Itoa(int(sig)), "$DAEMON")
		return err
	}
	return r.daemon.cmd.Process.Signal(sig)
}

// signalGuest sends a signal to guest i; what it runs is stopped where its kernel is.
func (r *Run) signalGuest(i int, sig syscall.Signal) error {
	p, ok := r.vms.Load(i)
	if !ok {
		return fmt.Errorf("guest %d was not started", i)
	}
	return p.(*process).cmd.Process.Signal(sig)
}

// Processor is the processor time in seconds that guest i has used, in its kernel and in
// its processes. i of -1 is the daemon.
func (r *Run) Processor(i int) (float64, error) {
	p := r.daemon
	if i >= 0 {
		v, ok := r.vms.Load(i)
		if !ok {
			return 0, fmt.Errorf("guest %d was not started", i)
		}
		p = v.(*process)
	}
	if p == nil {
		return 0, errors.New("there is no daemon")
	}
	return compare.GroupCPU(p.cmd.Process.Pid)
}

// Ctl runs rstorectl against the daemon.
func (r *Run) Ctl(args ...string) error {
	_, err := r.CtlOutput(args...)
	return err
}

// CtlOutput is what rstorectl prints.
func (r *Run) CtlOutput(args ...string) (string, error) {
	if r.Case.servedByGuest() {
		words := []string{"ctl"}
		for _, a := range args {
			words = append(words, quote(a))
		}
		return r.order(context.Background(), words...)
	}
	args = append([]string{"--control", r.path("control")}, args...)
	return output(exec.Command(filepath.Join(r.runner.Bin, "rstorectl"), args...))
}

// holdings are what a daemon has because of its clients.
type holdings struct {
	Files, QPs, Regions int // open files, queue pairs, memory regions
}

// holdings counts them.
func (r *Run) holdings() (h holdings, err error) {
	if h.Files, err = r.openFiles(); err != nil {
		return h, err
	}
	out, err := r.CtlOutput("stats", "-o", "json")
	if err != nil {
		return h, err
	}
	var stats struct {
		Devices map[string]struct{ QPs, Regions int }
	}
	if err := json.Unmarshal([]byte(out), &stats); err != nil {
		return h, err
	}
	for _, d := range stats.Devices {
		h.QPs += d.QPs
		h.Regions += d.Regions
	}
	return h, nil
}

// openFiles is how many descriptors the daemon has.
func (r *Run) openFiles() (int, error) {
	if r.Case.servedByGuest() {
		n, err := r.order(context.Background(), "open_files")
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(n))
	}
	fds, err := os.ReadDir("/proc/" + strconv.Itoa(r.daemon.cmd.Process.Pid) + "/fd")
	return len(fds), err
}

// leftover is what was not given back. A few files come and go with the runtime; one
// for each of many mounts would not.
func (h holdings) leftover(before holdings) error {
	if h.QPs != before.QPs || h.Regions != before.Regions || h.Files > before.Files+5 {
		return fmt.Errorf("at the start %+v, and when the client is gone %+v", before, h)
	}
	return nil
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
	mtu := strconv.Itoa(r.mtu())
	suffix := ""
	if r.Case.TLS {
		suffix = tlsSuffix
	}
	args := []string{
		filepath.Join(r.runner.Cache, "linux"+suffix),
		"mem=" + strconv.Itoa(mem) + "M", "umid=" + name, "uml_dir=" + r.Dir,
		"ubd0r=" + filepath.Join(r.runner.Cache, "root"+suffix+".ext4"), "root=/dev/ubda", "ro", "rootfstype=ext4",
		"init=/guest/init",
		"loglevel=4", "panic=-1", "con=null", "con0=null,fd:1", "con1=null,fd:3", "ssl=null",
		"g.name=" + name, "g.dir=" + r.Share, "g.mtu=" + mtu, "g.ip4=" + guestAddr(i), "g.ip6=" + guestAddr6(i),
	}
	for w := range max(1, r.Case.Wires) {
		args = append(args, fmt.Sprintf("vec%d:transport=tap,ifname=%s,depth=128,gro=1,mtu=%s,mac=02:99:00:00:%02x:%02x", w,
			tap(i, w), mtu, w, 2+i))
	}
	if r.Case.Kernel != nil {
		args = append(args, r.Case.Kernel(r, i)...)
	}
	// The kernel's messages and the script's output come by two descriptors into one file.
	p, err := r.start("guest "+name, console, args...)
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
	return bugs(dmesg)
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

// bugs are a kernel's messages that tell of one.
func bugs(dmesg string) error {
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

func (r *Run) path(name string) string { return filepath.Join(r.Dir, name) }

func (r *Run) mtu() int {
	if r.Case.MTU == 0 {
		return 1500
	}
	return r.Case.MTU
}

// keep copies what explains a failure.
func (r *Run) keep(to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	var names []string
	for _, pattern := range []string{"*.log", "*.pcap?", "share/*.dmesg", "share/keep.*", "share/did.*"} {
		found, err := filepath.Glob(r.path(pattern))
		if err != nil {
			return err
		}
		names = append(names, found...)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(name)), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// process is one that the run has started. It is the leader of its own group, so
// that its children end with it.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// start starts a program in the run's namespace.
func (r *Run) start(name string, out *os.File, args ...string) (*process, error) {
	cmd := exec.Command("ip", append([]string{"netns", "exec", r.ns}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{out}
	// A test that is killed takes them along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal is bound to the thread, which must stay.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if err := cmd.Wait(); err != nil {
			p.err = fmt.Errorf("%s: %w", name, err)
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// stop ends the process and what it has started.
func (p *process) stop(sig syscall.Signal) error {
	defer func() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }()
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
		return p.err
	case <-time.After(15 * time.Second):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		return errors.New("did not end in 15 seconds")
	}
}

// until waits for a condition while a process lives.
func (r *Run) until(ctx context.Context, p *process, what string, f func() bool) error {
	var ended chan struct{}
	if p != nil {
		ended = p.done
	}
	for !f() {
		select {
		case <-ended:
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(p.err, errors.New(lastLines(r.log.Name(), 3))))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func ip(args ...string) error {
	_, err := output(exec.Command("ip", args...))
	return err
}

// output runs a command; a failure's output is part of the error.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// lastLines are the last lines of a file that are not empty.
func lastLines(name string, n int) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
