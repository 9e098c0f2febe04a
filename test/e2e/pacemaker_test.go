package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// corosyncPair is the configuration of corosync for a pair whose nodes have the addresses 2 and 3. A
// node that says nothing for 1 s is lost.
const corosyncPair = `totem {
	version: 2
	cluster_name: pair
	transport: knet
	crypto_cipher: none
	crypto_hash: none
	token: 1000
}
logging {
	to_stderr: yes
	to_syslog: no
}
quorum {
	provider: corosync_votequorum
	two_node: 1
	wait_for_all: 0
}
nodelist {
	node {
		ring0_addr: 10.77.0.2
		name: a
		nodeid: 1
	}
	node {
		ring0_addr: 10.77.0.3
		name: b
		nodeid: 2
	}
}
`

// pacemakerPair are the resources of docs/ha.md: the address, and rstored beside it.
const pacemakerPair = `<resources><group id="nfs">
<primitive id="address" class="ocf" provider="heartbeat" type="IPaddr2">
<instance_attributes id="a"><nvpair id="a1" name="ip" value="%[1]s"/><nvpair id="a2" name="cidr_netmask" value="24"/>
<nvpair id="a3" name="nic" value="eth0"/></instance_attributes>
<operations><op id="a4" name="monitor" interval="1s" timeout="20s"/></operations></primitive>
<primitive id="rstored" class="ocf" provider="rstored" type="rstored">
<instance_attributes id="r"><nvpair id="r1" name="binary" value="%[2]s/rstored"/>
<nvpair id="r2" name="client" value="%[2]s/rstorectl"/><nvpair id="r3" name="config" value="/run/rstored.yaml"/>
</instance_attributes>
<operations><op id="r4" name="start" interval="0" timeout="60s"/><op id="r5" name="stop" interval="0" timeout="60s"/>
<op id="r6" name="monitor" interval="1s" timeout="20s"/></operations></primitive>
</group></resources>
`

// pacemakerConfig is the configuration of rstored on a node.
const pacemakerConfig = `state_dir: %[1]s
ha_lease: %[2]s
ha_node: %[3]s
lease_time: 10s
rdma_listen: ["%[4]s:20049"]
tcp_listen: ["%[4]s:2049"]
exports:
  - path: %[5]s
    clients:
      - cidr: 10.77.0.0/24
        squash: no_root_squash
        secure: false
`

// clusterNode is a node of Pacemaker's.
type clusterNode struct {
	n    *haNode
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
}

// start boots the node: its processes are in namespaces of their own.
func (c *clusterNode) start(t *testing.T) {
	t.Helper()
	script, err := filepath.Abs("pacemaker.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "-m", "-u", "-p", "-i", "-f", "--kill-child", "--mount-proc", "sh", script, c.dir,
		c.n.name)
	cmd.Stdout, cmd.Stderr = &c.n.log, &c.n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.n.space.Do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	c.cmd, c.done = cmd, done
}

// first is the number of the node's first process.
func (c *clusterNode) first() string {
	pid := strconv.Itoa(c.cmd.Process.Pid)
	b, _ := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	return strings.TrimSpace(string(b))
}

// run runs a command on the node.
func (c *clusterNode) run(words ...string) (string, error) {
	out, err := exec.Command("nsenter", append([]string{"-t", c.first(), "-m", "-u", "-p", "-i", "-n"}, words...)...).
		CombinedOutput()
	return string(out), err
}

// kill ends all processes of the node, as a loss of power does.
func (c *clusterNode) kill() {
	first, _ := strconv.Atoi(c.first())
	if first > 0 {
		_ = syscall.Kill(first, syscall.SIGKILL)
	}
	_ = c.cmd.Process.Kill()
	<-c.done
	_, _ = c.n.space.Run("ip", "addr", "del", c.n.p.addr.String()+"/24", "dev", haPort)
}

// serves reports whether rstored on the node serves.
func (c *clusterNode) serves() bool {
	_, err := c.run(filepath.Join(binDir, "rstorectl"), "--control", "/run/rstored/rstored.sock", "status")
	return err == nil
}

// TestPacemaker: Pacemaker and Corosync as Debian has them, on two nodes, move the address and
// rstored with the resource agent. FAILOVER_ROUNDS is how many faults.
func TestPacemaker(t *testing.T) {
	for _, name := range []string{
		"pacemakerd", "corosync", "cibadmin", "unshare", "/usr/lib/ocf/resource.d/heartbeat/IPaddr2",
	} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("Pacemaker is not installed: %v", err)
		}
	}
	seed := rand.Uint64()
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_SEED"), &seed)
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 10))
	rounds := 3
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_ROUNDS"), &rounds)
	p := newPair(t)
	dir := t.TempDir()
	agent := read(filepath.Join("..", "..", "deploy", "pacemaker", "rstored"))
	write := func(name, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("corosync.conf", corosyncPair, 0o644)
	write("rstored", agent, 0o755)
	write("resources.xml", fmt.Sprintf(pacemakerPair, p.addr, binDir), 0o644)
	var cs [2]*clusterNode
	for i, n := range p.nodes {
		write(n.name+".yaml", fmt.Sprintf(pacemakerConfig, p.state, haTerm, n.name, p.addr, p.export), 0o644)
		c := &clusterNode{n: n, dir: dir}
		cs[i] = c
		c.start(t)
		t.Cleanup(func() {
			if t.Failed() {
				out, _ := c.run("crm_mon", "-1")
				t.Logf("node %s: %s\n%s", n.name, out, tail(read(filepath.Join(dir, n.name+".corosync")), 2000))
			}
			c.kill()
		})
	}
	wait := func(what string, so func() bool) {
		t.Helper()
		for end := time.Now().Add(90 * time.Second); !so(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not so: %s", what)
			}
		}
	}
	online := func() bool {
		out, err := cs[0].run("crm_mon", "-1")
		return err == nil && strings.Contains(out, "Online: [ a b ]")
	}
	wait("both nodes are online", online)
	for _, words := range [][]string{
		{"crm_attribute", "-n", "stonith-enabled", "-v", "false"},
		{"crm_attribute", "-n", "no-quorum-policy", "-v", "ignore"},
		{"cibadmin", "--replace", "-o", "resources", "--xml-file", filepath.Join(dir, "resources.xml")},
	} {
		if out, err := cs[0].run(words...); err != nil {
			t.Fatalf("%v: %v: %s", words, err, out)
		}
	}
	at := func() (serving int) {
		t.Helper()
		serving = -1
		wait("a node serves", func() bool {
			for i, c := range cs {
				if c.serves() {
					serving = i
				}
			}
			return serving >= 0
		})
		return serving
	}
	at()
	l := p.load()
	defer l.end()
	l.holdLocks()
	faults := []string{"no power", "the daemon killed", "moved"}
	for i := range rounds {
		time.Sleep(time.Duration(500+r.IntN(500)) * time.Millisecond)
		from := at()
		c := cs[from]
		l.pauses("")
		what := faults[(i+int(seed%uint64(len(faults))))%len(faults)]
		fault := time.Now()
		switch what {
		case "no power":
			c.n.space.IP(t, "link set "+haPort+" down")
			c.kill()
		case "the daemon killed":
			if out, err := c.run("sh", "-c", "kill -9 $(cat /run/resource-agents/rstored-rstored.pid)"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		case "moved":
			if out, err := c.run("crm_standby", "-v", "on", "-N", c.n.name); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		if other := cs[1-from]; what != "the daemon killed" {
			wait("the other node serves", other.serves)
			fault = time.Now()
		}
		l.goesOn(fault.Add(300*time.Millisecond), fmt.Sprintf("round %d, %s", i, what))
		t.Logf("round %d: node %s, %s; longest pauses: %s", i, c.n.name, what, l.pauses(what))
		switch what {
		case "no power":
			c.n.space.IP(t, "link set "+haPort+" up")
			c.start(t)
		case "moved":
			if out, err := c.run("crm_standby", "-D", "-N", c.n.name); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		wait("both nodes are online again", online)
	}
	l.verify()
	l.distribution()
}
