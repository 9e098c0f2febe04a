package e2e

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/rdmatest/netns"
)

// TestCopyServersRestart: of a file that one server copies from another one the client never gets
// less than what it is told, whichever of them is killed or upgraded meanwhile. An upgrade does not
// interrupt the copy.
func TestCopyServersRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "slow")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	all := []string{"--copy-partners", "127.64.0.0/10"}
	source := newDaemon(t, append(all, "--export", dir+"(rw,no_root_squash)")...)
	target := newDaemon(t, all...)
	p := &copyPair{
		addr: [2]netip.Addr{source.addr, target.addr},
		dial: func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) },
		slow: func(limit string) { source.ctl(limitArgs(limit)...) },
	}
	newCopyPair(t, p, dir, target.export)
	for _, p.netid = range []string{"tcp", "rdma"} {
		for _, c := range []struct {
			what string
			do   func()
		}{
			{"the destination is killed", func() {
				target.stop(syscall.SIGKILL)
				target.successor = 0
				target.start()
				p.forgotten()
			}},
			{"the source is killed", func() {
				source.stop(syscall.SIGKILL)
				source.successor = 0
				source.start()
				p.shortened()
			}},
			{"the destination is upgraded", func() {
				target.takeOver("upgrade")
				_, target.successor = target.serving()
				p.completes()
			}},
			{"the source is upgraded", func() {
				source.takeOver("upgrade")
				_, source.successor = source.serving()
				p.completes()
			}},
			{"the destination is killed before COMMIT", func() {
				p.slow("")
				o := p.told()
				target.stop(syscall.SIGKILL)
				target.successor = 0
				target.start()
				p.joins(true)
				if p.commits() == o.verf {
					t.Error("the verifier is the same")
				}
			}},
		} {
			t.Log(p.netid, c.what)
			p.halfway()
			c.do()
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}

// limitArgs are the arguments of rstorectl that limit what the export of the source sends.
func limitArgs(limit string) []string {
	args := []string{"export", "set", "/slow", "--unset", "export_bandwidth"}
	if limit != "" {
		args = []string{"export", "set", "/slow", "--option", "export_bandwidth=" + limit}
	}
	return args
}

// TestCopyServersFailover is TestCopyServersRestart with a pair of nodes as the destination, and then
// as the source. A planned failover does not interrupt the copy.
func TestCopyServersFailover(t *testing.T) {
	for _, pairIs := range []string{"destination", "source"} {
		t.Run(pairIs, func(t *testing.T) { copyServersFailover(t, pairIs == "source") })
	}
}

func copyServersFailover(t *testing.T, pairIsSource bool) {
	h := newPair(t)
	dir := t.TempDir()
	slow, data := filepath.Join(dir, "slow"), filepath.Join(dir, "data")
	for _, d := range []string{slow, data} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const rule = " 10.77.0.0/24(rw,insecure,no_root_squash)"
	h.more = []string{"--copy-partners", "10.77.0.0/24"}
	alone := netip.MustParseAddr("10.77.0.1")
	d := &daemon{t: t, control: filepath.Join(filepath.Dir(h.nodes[0].control), "alone")}
	args := append([]string{
		"--config", os.DevNull, "--tcp-listen", alone.String() + ":2049", "--state-dir", filepath.Join(dir, "state"),
		"--control", d.control, "--lease-time", "10s",
	}, h.more...)
	p := &copyPair{netid: "tcp", addr: [2]netip.Addr{alone, h.addr}, dial: func(addr string) (c net.Conn, err error) {
		h.clients.Do(func() { c, err = net.Dial("tcp", addr) })
		return c, err
	}}
	export := h.export
	p.slow = func(limit string) { d.ctl(limitArgs(limit)...) }
	if pairIsSource {
		p.addr[0], p.addr[1] = h.addr, alone
		args = append(args, "--export", data+rule)
		h.more = append(h.more, "--export", slow+rule)
		export = data
		p.slow = func(limit string) {
			if out, err := h.nodes[h.at].ctl(limitArgs(limit)...); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	} else {
		args = append(args, "--export", slow+rule)
	}
	startIn(t, h.clients, &d.log, args)
	h.move(0)
	h.nodes[0].start()
	h.nodes[0].serves()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, _, err := d.try(2*time.Second, "status")
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err, d.log.String())
		}
	}
	newCopyPair(t, p, slow, export)
	for _, planned := range []bool{true, false} {
		from, to := h.nodes[h.at], h.nodes[1-h.at]
		to.standby()
		p.halfway()
		t.Log("planned", planned)
		if planned {
			h.handOver()
		} else {
			from.end(syscall.SIGKILL)
			h.move(1 - h.at)
		}
		to.serves()
		switch {
		case planned:
			p.rejoins(!pairIsSource)
			p.completes()
		case pairIsSource:
			p.shortened()
		default:
			p.forgotten()
		}
		if t.Failed() {
			return
		}
	}
}

// startIn runs a daemon in a network namespace until the test ends.
func startIn(t *testing.T, s *netns.Space, log *logBuffer, args []string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "rstored"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	s.Do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s", strings.TrimSpace(tail(log.String(), 4000)))
		}
	})
}
