package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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
	at      int    // which node has the address
	promote string // the mode of the nodes
	ganesha bool   // nodes run nfs-ganesha
	// locks3 has guests hold locks of version 3. After a failover nobody gets a new lock for the grace
	// period of version 3, so no client then locks again what it has locked.
	locks3 bool
	more   []string // arguments of the daemons
}

type haNode struct {
	p       *pair
	name    string
	space   *netns.Space
	control string
	listen  string   // of a standby
	command []string // the server, if it is not rstored
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
		n := &haNode{
			p: p, name: name, space: netns.New(t), control: filepath.Join(run, name),
			listen: fmt.Sprintf("10.77.0.%d:20050", 2+i),
		}
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
	// arping waits for a second after it has sent.
	announce := fmt.Sprintf("command -v arping && { arping -c 1 -A -I %s %s >/dev/null 2>&1 & }", haPort, p.addr)
	if _, err := n.Run("sh", "-c", announce); err != nil {
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
	if n.command != nil {
		cmd = exec.Command(n.command[0], n.command[1:]...)
	}
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
	return append([]string{
		"--ha-promote", cmp.Or(n.p.promote, "auto"),
		"--config", os.DevNull, "--export", n.p.export + " 10.77.0.0/24(rw,insecure,no_root_squash)",
		"--rdma-listen", at + ":20049", "--tcp-listen", at + ":2049", "--state-dir", n.p.state, "--control", n.control,
		"--portmap-listen", at + ":111", "--ha-lease", haTerm, "--ha-node", n.name, "--ha-listen", n.listen,
		"--lease-time", "10s",
	}, n.p.more...)
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

// again starts a daemon again that has lost the lease, as systemd does: a busy machine can be too
// slow for such a short one.
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
	conn net.Conn // of a worker that is another process, which has no c and no dir; see others
}

// content is what is written into a file.
func content(name string) []byte { return []byte(strings.Repeat(name+"\n", 400)) }
