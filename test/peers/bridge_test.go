package peers

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"syscall"
	"testing"

	"github.com/rstored/rstored/nfs/portmap"
)

// reached finds the address in what the bridge says when it is ready.
var reached = regexp.MustCompile(`reached at ([0-9.]+:[0-9]+)`)

// bridged runs rstorectl bridge in front of our server's RDMA port. What it
// returns is the server as TCP clients see it.
func (s *ours) bridged(t *testing.T) *ours {
	t.Helper()
	front := &ours{addr: loopback(), rdma: s.rdma, rdm: s.rdm}
	args := []string{
		"bridge", fmt.Sprintf("nfs+rdma://%v/data", s.rdma), "--listen",
		netip.AddrPortFrom(front.addr, 0).String(),
	}
	pm := netip.AddrPortFrom(front.addr, portmap.Port).String()
	front.portmapped = servePortmap(t, front.addr, func(l net.Listener) { _ = l.Close() })
	if front.portmapped {
		args = append(args, "--portmap", pm)
	}
	c := exec.Command(rstorectl, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(stderr)
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		rest, _ := io.ReadAll(said)
		if err := c.Wait(); err != nil {
			t.Errorf("rstorectl bridge: %v\n%s", err, rest)
		}
	})
	ready := false
	for !ready {
		line, err := said.ReadString('\n')
		if err != nil {
			t.Fatalf("rstorectl bridge ended: %s", line)
		}
		if m := reached.FindStringSubmatch(line); m != nil {
			front.nfs = netip.MustParseAddrPort(m[1])
			ready = !front.portmapped
		}
		ready = ready || regexp.MustCompile(`portmap queries are answered`).MatchString(line)
	}
	return front
}
