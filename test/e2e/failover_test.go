package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma/rdmatest/netns"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// A pair is two nodes, each in a network namespace of its own, with one export, one state directory
// and one address that is at one of them at a time. The clients are in a third namespace.
type pair struct {
	t       *testing.T
	disk    bool // export and state are on a file system of their own
	clients *netns.Space
	dev     *roce.Device // of the clients
	nodes   [2]*haNode
	addr    netip.Addr
	export  string
	state   string
	at      int // which node has the address
}

type haNode struct {
	p       *pair
	name    string
	space   *netns.Space
	control string
	log     logBuffer
	cmd     *exec.Cmd
	exited  chan struct{}
}

const (
	haPort = "eth0"
	haTerm = "2s"
)

func newPair(t *testing.T) *pair {
	t.Helper()
	dir := t.TempDir()
	disk := sharedDisk(t, dir)
	p := &pair{
		t: t, disk: disk, clients: netns.New(t), addr: netip.MustParseAddr("10.77.0.10"),
		export: filepath.Join(dir, "data"), state: filepath.Join(dir, "state"),
	}
	for _, d := range []string{p.export, p.state} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.clients.Run("ip", "link", "add", "br0", "type", "bridge"); err != nil {
		t.Skipf("the kernel has no bridge: %v", err)
	}
	p.clients.IP(t, "addr add 10.77.0.1/24 dev br0")
	p.clients.IP(t, "link set br0 up")
	var err error
	p.clients.Do(func() { p.dev, err = roce.Open(roce.Config{Addr: netip.MustParseAddr("10.77.0.1")}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.dev.Close() })
	run, err := os.MkdirTemp("", "rs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	for i, name := range []string{"a", "b"} {
		n := &haNode{p: p, name: name, space: netns.New(t), control: filepath.Join(run, name)}
		p.clients.Join(t, "to-"+name, n.space, haPort, 9000)
		p.clients.IP(t, "link set to-"+name+" master br0")
		n.space.IP(t, fmt.Sprintf("addr add 10.77.0.%d/24 dev %s", 2+i, haPort))
		p.nodes[i] = n
		t.Cleanup(func() {
			n.end(syscall.SIGKILL)
			if t.Failed() {
				t.Logf("log of node %s:\n%s", n.name, tail(n.log.String(), 8000))
			}
		})
	}
	p.at = -1
	return p
}

// move gives the address to a node, as keepalived does.
func (p *pair) move(to int) {
	p.t.Helper()
	if p.at >= 0 {
		_, _ = p.nodes[p.at].space.Run("ip", "addr", "del", p.addr.String()+"/24", "dev", haPort)
	}
	p.at = to
	n := p.nodes[to].space
	n.IP(p.t, "addr add "+p.addr.String()+"/24 dev "+haPort)
	if _, err := n.Run("arping", "-c", "1", "-A", "-I", haPort, p.addr.String()); err != nil {
		// Without arping the neighbours have to forget.
		if _, err := p.clients.Run("ip", "neigh", "flush", "dev", "br0"); err != nil {
			p.t.Fatal(err)
		}
	}
}

// start starts the daemon of a node. It does not wait for it.
func (n *haNode) start() {
	n.p.t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "rstored"), n.args()...)
	cmd.Stdout, cmd.Stderr = &n.log, &n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	n.space.Do(func() { err = cmd.Start() })
	if err != nil {
		n.p.t.Fatal(err)
	}
	n.cmd, n.exited = cmd, make(chan struct{})
	exited := n.exited
	go func() { _ = cmd.Wait(); close(exited) }()
}

// args are the arguments of the daemon of a node.
func (n *haNode) args() []string {
	at := n.p.addr.String()
	return []string{
		"--config", os.DevNull, "--export", n.p.export + " 10.77.0.0/24(rw,insecure,no_root_squash)",
		"--rdma-listen", at + ":20049", "--tcp-listen", at + ":2049", "--state-dir", n.p.state, "--control", n.control,
		"--ha-lease", haTerm, "--ha-node", n.name, "--lease-time", "10s",
	}
}

// serves waits until the daemon of a node serves.
func (n *haNode) serves() {
	n.p.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if exec.Command(filepath.Join(binDir, "rstorectl"), "--control", n.control, "status").Run() == nil {
			return
		}
		n.again()
		if time.Now().After(end) {
			n.p.t.Fatalf("the daemon of node %s does not serve", n.name)
		}
	}
}

// again starts a daemon again that has lost the lease, as systemd does: a busy machine can be too slow
// for such a short one.
func (n *haNode) again() {
	n.p.t.Helper()
	if n.cmd == nil {
		return
	}
	select {
	case <-n.exited:
		if code := n.cmd.ProcessState.ExitCode(); code != 75 {
			n.p.t.Fatalf("the daemon of node %s ended: %v", n.name, n.cmd.ProcessState)
		}
		n.p.t.Logf("node %s has lost the lease, and is started again", n.name)
		n.start()
	default:
	}
}

// end ends the daemon of a node by a signal, and returns its exit code.
func (n *haNode) end(sig syscall.Signal) int {
	if n.cmd == nil {
		return 0
	}
	_ = n.cmd.Process.Signal(sig)
	return n.wait()
}

// wait waits for the end of the daemon.
func (n *haNode) wait() int {
	select {
	case <-n.exited:
	case <-time.After(20 * time.Second):
		n.p.t.Errorf("the daemon of node %s does not end", n.name)
		_ = n.cmd.Process.Kill()
		<-n.exited
	}
	code := n.cmd.ProcessState.ExitCode()
	n.cmd = nil
	return code
}

// client is a client in the namespace of the clients.
func (p *pair) client(v client.Version, transport string) *client.Client {
	p.t.Helper()
	dial := func(ctx context.Context) (c rpc.Client, err error) {
		p.clients.Do(func() { c, err = tcp.Dial(ctx, p.addr.String()+":2049") })
		return c, err
	}
	if transport == "rdma" {
		dial = func(ctx context.Context) (rpc.Client, error) {
			return rpcrdma.Dial(ctx, p.dev, netip.AddrPortFrom(p.addr, 20049), rpcrdma.ClientConfig{})
		}
	}
	c := client.New(client.Config{
		Version: v, Peer: p.addr.String(), Dial: dial, Cred: &rpc.Cred{Flavor: rpc.AuthSys},
	})
	p.t.Cleanup(func() { _ = c.Close() })
	return c
}

// worker makes files, writes and renames them by one client. What it knows it has from replies.
type worker struct {
	name string
	c    *client.Client
	dir  client.Handle
	done []string      // names of files whose every step was acknowledged
	last atomic.Int64  // when a step was acknowledged last, of Unix time in nanoseconds
	gap  time.Duration // the longest time between two of these
	mu   sync.Mutex
}

// content is what is written into a file.
func content(name string) []byte { return []byte(strings.Repeat(name+"\n", 400)) }

// step makes one file: each of its calls must happen exactly once.
func (w *worker) step(ctx context.Context, i int) error {
	name := fmt.Sprintf("%s-%d", w.name, i)
	mode := uint32(0o600)
	n, err := w.c.Create(ctx, w.dir, name+".part", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		return fmt.Errorf("CREATE: %w", err)
	}
	w.acknowledged()
	if _, err := w.c.Write(ctx, n.Handle, content(name), 0, blockstore.FileSync); err != nil {
		return fmt.Errorf("WRITE: %w", err)
	}
	w.acknowledged()
	if err := w.c.Rename(ctx, w.dir, name+".part", w.dir, name); err != nil {
		return fmt.Errorf("RENAME: %w", err)
	}
	w.acknowledged()
	if i%3 == 0 {
		if err := w.c.Remove(ctx, w.dir, name); err != nil {
			return fmt.Errorf("REMOVE: %w", err)
		}
		w.acknowledged()
		return nil
	}
	w.done = append(w.done, name)
	return nil
}

func (w *worker) acknowledged() {
	now := time.Now().UnixNano()
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.last.Swap(now); before != 0 {
		w.gap = max(w.gap, time.Duration(now-before))
	}
}

// longest returns the longest pause since it was asked last.
func (w *worker) longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	gap := w.gap
	w.gap = 0
	return gap
}

// load is what clients of each version and transport do meanwhile.
type load struct {
	p        *pair
	workers  []*worker
	pausesOf map[string][]time.Duration // longest of each client in each round, by fault
	stop     atomic.Bool
	running  sync.WaitGroup
}

func (p *pair) load() *load {
	t, l := p.t, &load{p: p, pausesOf: make(map[string][]time.Duration)}
	for _, v := range []client.Version{client.Version3, client.Version42} {
		for _, transport := range []string{"rdma", "tcp"} {
			c := p.client(v, transport)
			root, err := c.Resolve(patient(t), "/data")
			if err != nil {
				t.Fatal(err)
			}
			l.workers = append(l.workers, &worker{name: fmt.Sprintf("%v-%s", v, transport), c: c, dir: root.Handle})
		}
	}
	for _, w := range l.workers {
		l.running.Go(func() {
			for i := 1; !l.stop.Load() && !t.Failed(); i++ {
				if err := w.step(patient(t), i); err != nil && t.Context().Err() == nil {
					t.Errorf("%s, file %d: %v", w.name, i, err)
				}
			}
		})
	}
	return l
}

func (l *load) end() {
	l.stop.Store(true)
	l.running.Wait()
}

// pauses returns the longest pause of each client since it was called last, which a fault has caused.
func (l *load) pauses(fault string) string {
	var all []string
	for _, w := range l.workers {
		gap := w.longest()
		all = append(all, fmt.Sprintf("%s %.1f s", w.name, gap.Seconds()))
		l.pausesOf[fault] = append(l.pausesOf[fault], gap)
	}
	return strings.Join(all, ", ")
}

// goesOn waits until each client has had an answer after since.
func (l *load) goesOn(since time.Time, what string) {
	t := l.p.t
	t.Helper()
	for _, w := range l.workers {
		for end := time.Now().Add(time.Minute); time.Unix(0, w.last.Load()).Before(since); time.Sleep(time.Millisecond) {
			if l.p.at >= 0 {
				l.p.nodes[l.p.at].again()
			}
			if time.Now().After(end) || t.Failed() {
				t.Fatalf("%s: %s does not continue", what, w.name)
			}
		}
	}
}

// verify ends the load, and compares what was acknowledged with what is there.
func (l *load) verify() {
	p, t := l.p, l.p.t
	t.Helper()
	l.end()
	var want []string
	for _, w := range l.workers {
		want = append(want, w.done...)
	}
	var have []string
	entries, err := os.ReadDir(p.export)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if n := e.Name(); n != "lost+found" && !strings.HasPrefix(n, heldPrefix) {
			have = append(have, n)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(want, have) {
		t.Errorf("%d files were acknowledged, and %d are there: %q", len(want), len(have), different(want, have))
	}
	for _, name := range want {
		b, err := os.ReadFile(filepath.Join(p.export, name))
		if err != nil || string(b) != string(content(name)) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	t.Logf("%d files", len(want))
}

// TestFailover: two nodes with one state directory and one address. Whatever happens to the one that
// serves, the other one takes over, the clients of every version and transport continue, nothing
// that was acknowledged is lost, and nothing is done twice. A node that was stopped and continues
// ends without an answer to anybody. FAILOVER_SEED sets the seed, FAILOVER_ROUNDS how many faults.
func TestFailover(t *testing.T) {
	seed := rand.Uint64()
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_SEED"), &seed)
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 7))
	rounds := 3
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_ROUNDS"), &rounds)
	p := newPair(t)
	p.move(0)
	p.nodes[0].start()
	p.nodes[0].serves()
	l := p.load()
	defer l.end()
	l.holdLocks()

	for i := range rounds {
		time.Sleep(time.Duration(300+r.IntN(500)) * time.Millisecond)
		l.pauses("")
		p.nodes[p.at].serves()
		from, to := p.nodes[p.at], p.nodes[1-p.at]
		var what string
		var stopped bool
		fault := time.Now()
		kinds := 4
		if p.disk {
			kinds++
		}
		switch (i + int(seed%uint64(kinds))) % kinds { // each kind in turn
		case 0:
			what = "a kill"
			from.end(syscall.SIGKILL)
		case 1:
			what = "a stopped process"
			stopped = true
			_ = from.cmd.Process.Signal(syscall.SIGSTOP)
		case 2:
			what = "a node without power"
			from.space.IP(t, "link set "+haPort+" down")
			from.end(syscall.SIGKILL)
		case 3:
			what = "a planned change"
			if code := from.end(syscall.SIGTERM); code != 0 {
				t.Errorf("node %s ended with %d", from.name, code)
			}
		case 4:
			what = "slow storage"
			p.freeze(time.Duration(2500+r.IntN(1500)) * time.Millisecond)
			if code := from.wait(); code != 75 {
				t.Errorf("node %s could not renew the lease, and ended with %d", from.name, code)
			}
		}
		p.move(1 - p.at)
		to.start()
		to.serves()
		served := time.Since(fault)
		l.goesOn(fault.Add(served), fmt.Sprintf("round %d, %s", i, what))
		if stopped {
			_ = from.cmd.Process.Signal(syscall.SIGCONT)
			if code := from.wait(); code != 75 {
				t.Errorf("node %s was stopped, and ended with %d", from.name, code)
			}
		}
		from.space.IP(t, "link set "+haPort+" up")
		time.Sleep(100 * time.Millisecond)
		t.Logf("round %d: %s of node %s: node %s serves after %.1f s; longest pauses: %s", i, what, from.name, to.name,
			served.Seconds(), l.pauses(what))
	}
	l.verify()
	l.distribution()
}

// different returns what one list has and the other has not.
func different(a, b []string) (d []string) {
	for _, x := range a {
		if _, ok := slices.BinarySearch(b, x); !ok {
			d = append(d, x)
		}
	}
	for _, x := range b {
		if _, ok := slices.BinarySearch(a, x); !ok {
			d = append(d, x)
		}
	}
	return d
}
