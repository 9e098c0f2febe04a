package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
)

// ganeshaPair is the configuration of nfs-ganesha on each node of a pair: one recovery directory,
// the lease time of the other tests, and the grace period that its documentation asks for with it.
const ganeshaPair = `NFS_CORE_PARAM {
	NFS_Protocols = 4;
	Enable_NLM = false;
	Enable_RQUOTA = false;
	Allow_Set_Io_Flusher_Fail = true;
}
NFSv4 {
	RecoveryBackend = fs;
	RecoveryRoot = %s;
	Lease_Lifetime = 10;
	Grace_Period = 15;
}
EXPORT {
	Export_Id = 11;
	Path = %s;
	Pseudo = /data;
	Access_Type = RW;
	Squash = No_Root_Squash;
	SecType = sys;
	Protocols = 4;
	Transports = TCP;
	FSAL { Name = VFS; }
}
LOG { Default_Log_Level = WARN; }
`

// TestGaneshaFailover measures what docs/ha.md compares with: the rounds of TestFailover with
// nfs-ganesha, whose clients are of version 4.2 over TCP. FAILOVER_GANESHA is how many. It says what
// was lost, and fails only if clients do not continue.
func TestGaneshaFailover(t *testing.T) {
	rounds := 0
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_GANESHA"), &rounds)
	if rounds == 0 {
		t.Skip("FAILOVER_GANESHA is not set: it measures another server")
	}
	if _, err := exec.LookPath("ganesha.nfsd"); err != nil {
		t.Skip(err)
	}
	p := newPair(t)
	p.useGanesha()
	p.move(0)
	p.nodes[0].start()
	p.answers()
	l := p.loadOf([]client.Version{client.Version42}, []string{"tcp"})
	defer l.end()
	for i := range rounds {
		time.Sleep(2 * time.Second)
		l.pauses("")
		from, to := p.nodes[p.at], p.nodes[1-p.at]
		what := []string{"a kill", "a node without power", "a planned change"}[i%3]
		switch i % 3 {
		case 0:
			from.end(syscall.SIGKILL)
		case 1:
			from.space.IP(t, "link set "+haPort+" down")
			from.end(syscall.SIGKILL)
		case 2:
			from.end(syscall.SIGTERM)
		}
		p.move(1 - p.at)
		to.start()
		p.answers()
		l.goesOn(time.Now(), what)
		from.space.IP(t, "link set "+haPort+" up")
		t.Logf("round %d: %s; longest pauses: %s", i, what, l.pauses(what))
	}
	l.verify()
	l.distribution()
}

// useGanesha has the nodes of a pair run nfs-ganesha.
func (p *pair) useGanesha() {
	t := p.t
	t.Helper()
	p.ganesha = true
	conf := filepath.Join(t.TempDir(), "ganesha.conf")
	if err := os.WriteFile(conf, []byte(fmt.Sprintf(ganeshaPair, p.state, p.export)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, n := range p.nodes {
		dir := t.TempDir()
		n.command = []string{
			"ganesha.nfsd", "-F", "-f", conf, "-L", filepath.Join(dir, "log"), "-p", filepath.Join(dir, "pid"),
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of node %s:\n%s", n.name, tail(read(filepath.Join(dir, "log")), 4000))
			}
		})
	}
}

// answers waits until somebody accepts connections at the address.
func (p *pair) answers() {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var c net.Conn
		var err error
		p.clients.Do(func() { c, err = net.DialTimeout("tcp", p.addr.String()+":2049", 200*time.Millisecond) })
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(end) {
			p.t.Fatal("nobody serves")
		}
	}
}
