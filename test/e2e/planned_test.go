package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// ctl runs rstorectl for the daemon of a node.
func (n *haNode) ctl(args ...string) (out string, err error) {
	cmd := exec.Command(filepath.Join(binDir, "rstorectl"), append([]string{"--control", n.control}, args...)...)
	b, err := cmd.CombinedOutput()
	return string(b), err
}

// role is what a node says that it is, or empty.
func (n *haNode) role() string {
	out, err := n.ctl("--output", "json", "ha", "status")
	var h struct{ Role string }
	if err != nil || json.Unmarshal([]byte(out), &h) != nil {
		return ""
	}
	return h.Role
}

// becomes waits until a node has a role.
func (n *haNode) becomes(role string) {
	n.p.t.Helper()
	for end := time.Now().Add(time.Minute); n.role() != role; time.Sleep(20 * time.Millisecond) {
		n.again()
		if time.Now().After(end) {
			n.p.t.Fatalf("node %s does not become %s, but is %q", n.name, role, n.role())
		}
	}
}

// standby starts a daemon that waits, if there is none, and waits until it can be handed over to.
func (n *haNode) standby() {
	n.p.t.Helper()
	if n.cmd == nil {
		n.waits()
	}
	n.becomes("standby")
	n.listens()
}

// listens waits until another node can hand over to this one.
func (n *haNode) listens() {
	n.p.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(n.p.state, "standby."+n.name)); err == nil {
			return
		}
		if time.Now().After(end) {
			n.p.t.Fatalf("node %s does not listen", n.name)
		}
	}
}

// handOver hands over from the node with the address to the other one, and moves the address.
func (p *pair) handOver() {
	p.t.Helper()
	from, to := p.nodes[p.at], p.nodes[1-p.at]
	if out, err := from.ctl("failover", "--to", to.name); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
	p.move(1 - p.at)
}

// clientIDs are the clients of version 4 that a node knows.
func (n *haNode) clientIDs() (ids []string) {
	n.p.t.Helper()
	out, err := n.ctl("--output", "json", "client", "list")
	var list []struct{ ID string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &list)
	}
	if err != nil {
		n.p.t.Fatalf("%v: %s", err, out)
	}
	for _, c := range list {
		ids = append(ids, c.ID)
	}
	slices.Sort(ids)
	return ids
}

// lockable reports whether a program of the host gets a lock of bytes 2 to 5 of a file.
func lockable(t *testing.T, name string) bool {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: 2, Len: 4}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l) == nil
}

// isLocked reports whether somebody has a lock of bytes 2 to 5 of a file.
func isLocked(t *testing.T, name string) bool {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: 2, Len: 4}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		t.Fatal(err)
	}
	return l.Type != unix.F_UNLCK
}

// TestPlannedFailover: a node hands over to the other one and back. There is no grace period,
// clients keep their IDs, their locks are locks of the host on the new node, and nothing is lost or
// done twice.
func TestPlannedFailover(t *testing.T) {
	rounds := 2
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_ROUNDS"), &rounds)
	p := newPair(t)
	p.move(0)
	p.nodes[0].start()
	p.nodes[0].serves()
	l := p.load()
	defer l.end()
	l.holdLocks()
	held := filepath.Join(p.export, heldPrefix+client.Version42.String())
	if out, err := p.nodes[0].ctl("failover", "--to", "b"); err == nil || !strings.Contains(out, "no standby") {
		t.Errorf("to a node that is not there: %v: %s", err, out)
	}
	for i := range rounds {
		from, to := p.nodes[p.at], p.nodes[1-p.at]
		to.standby()
		if out, err := to.ctl("status"); err == nil || !strings.Contains(out, "standby") {
			t.Errorf("the status of a standby: %v: %s", err, out)
		}
		l.goesOn(time.Now(), "before")
		ids := from.clientIDs()
		l.pauses("")
		fault := time.Now()
		p.handOver()
		if lockable(t, held) {
			t.Errorf("round %d: a program gets the lock of a client", i)
		}
		to.serves()
		if out, err := to.ctl("grace", "show"); err != nil || !strings.Contains(out, "no grace period") {
			t.Errorf("round %d: %v: %s", i, err, out)
		}
		served := time.Since(fault)
		l.goesOn(time.Now(), fmt.Sprintf("round %d", i))
		if now := to.clientIDs(); !slices.Equal(ids, now) {
			t.Errorf("round %d: clients %q, before %q", i, now, ids)
		}
		from.becomes("standby")
		t.Logf("round %d: node %s serves after %.2f s; longest pauses: %s", i, to.name, served.Seconds(),
			l.pauses("planned failover"))
	}
	l.verify()
	l.distribution()
}

// TestPlannedFails: whatever happens to the standby or to the node that serves during a planned
// failover, one of them serves, clients keep their locks, and nothing is lost or done twice.
func TestPlannedFails(t *testing.T) {
	seed := rand.Uint64()
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_SEED"), &seed)
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 9))
	rounds := 2
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_ROUNDS"), &rounds)
	p := newPair(t)
	p.move(0)
	p.nodes[0].start()
	p.nodes[0].serves()
	l := p.load()
	defer l.end()
	l.holdLocks()
	for i := range rounds {
		from, to := p.nodes[p.at], p.nodes[1-p.at]
		to.standby()
		l.goesOn(time.Now(), "before")
		l.pauses("")
		victim, what := to, "the standby is killed"
		if (uint64(i)+seed)%2 == 1 {
			victim, what = from, "the serving node is killed"
		}
		done := make(chan string, 1)
		go func() {
			out, err := from.ctl("failover", "--to", to.name)
			done <- fmt.Sprint(strings.TrimSpace(out), " ", err)
		}()
		time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
		victim.end(syscall.SIGKILL)
		t.Logf("round %d: %s: %s", i, what, <-done)
		// Whoever has the lease gets the address, as by a cluster manager that asks.
		other := p.nodes[0]
		if victim == other {
			other = p.nodes[1]
		}
		other.becomes("serving")
		if p.nodes[p.at] != other {
			p.move(1 - p.at)
		}
		l.goesOn(time.Now(), fmt.Sprintf("round %d, %s", i, what))
		t.Logf("round %d: longest pauses: %s", i, l.pauses(what))
	}
	l.verify()
	l.distribution()
}

// TestPromote: where nodes wait for a promotion, none of them serves by itself, one that was
// demoted neither, and a promoted one does. A node whose daemon was killed takes its own lease
// again.
func TestPromote(t *testing.T) {
	p := newPair(t)
	p.promote = "manual"
	a, b := p.nodes[0], p.nodes[1]
	a.waits()
	b.waits()
	p.move(0)
	if out, err := a.ctl("ha", "promote", "--wait", "1m"); err != nil {
		t.Fatal(err, out)
	}
	if out, err := a.ctl("ha", "promote"); err != nil {
		t.Errorf("a promotion of a node that serves: %v: %s", err, out)
	}
	c := p.client(client.Version42, "tcp")
	f, err := c.CreateFile(patient(t), "/data/f", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.TryLock(0, 1, true); err != nil {
		t.Fatal(err)
	}
	a.end(syscall.SIGKILL)
	a.start()
	a.serves()
	if out, err := b.ctl("ha", "promote", "--wait", "10ms"); err == nil || !strings.Contains(out, `"a" had the lease`) {
		t.Errorf("a promotion beside a node that serves: %v: %s", err, out)
	}
	b.end(syscall.SIGKILL) // it forgets its promotion
	b.waits()
	if out, err := a.ctl("ha", "demote"); err != nil {
		t.Fatal(err, out)
	}
	a.becomes("standby")
	out := ""
	const released = "has released the lease"
	for end := time.Now().Add(time.Minute); !strings.Contains(out, released); time.Sleep(20 * time.Millisecond) {
		if out, err = b.ctl("ha", "status"); time.Now().After(end) { // it looks four times in a second
			t.Fatalf("a standby: %v: %s", err, out)
		}
	}
	if !strings.Contains(out, "ha promote") {
		t.Errorf("a standby: %s", out)
	}
	if out, err := b.ctl("ha", "demote"); err == nil || !strings.Contains(out, "standby") {
		t.Errorf("a demotion of a standby: %v: %s", err, out)
	}
	p.move(1)
	if out, err := b.ctl("ha", "promote"); err != nil {
		t.Fatal(err, out)
	}
	if out, err = b.ctl("ha", "status"); err != nil || !strings.Contains(out, "serving") {
		t.Errorf("a node that serves: %v: %s", err, out)
	}
	if _, err := f.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
	if a.role() != "standby" {
		t.Errorf("the node that was demoted is %s", a.role())
	}
}

// TestPromoteAddress: where nodes serve with the address, a promotion without it fails and says so,
// the address suffices, and a node that was demoted waits for a promotion although it has the
// address.
func TestPromoteAddress(t *testing.T) {
	p := newPair(t)
	p.promote = "address"
	a := p.nodes[0]
	a.waits()
	if out, err := a.ctl("ha", "promote"); err == nil || !strings.Contains(out, p.addr.String()) {
		t.Errorf("a promotion without the address: %v: %s", err, out)
	}
	if out, err := a.ctl("ha", "status"); err != nil || !strings.Contains(out, "needs") {
		t.Errorf("a standby without the address: %v: %s", err, out)
	}
	p.move(0)
	a.becomes("serving")
	if out, err := a.ctl("ha", "demote"); err != nil {
		t.Fatal(err, out)
	}
	a.becomes("standby")
	time.Sleep(time.Second) // twice the time after which it would have looked at the lease
	if a.role() != "standby" {
		t.Errorf("a node that was demoted is %s", a.role())
	}
	if out, err := a.ctl("ha", "promote"); err != nil {
		t.Fatal(err, out)
	}
	if a.role() != "serving" {
		t.Errorf("a node that was promoted is %s", a.role())
	}
}

// waits starts a daemon that waits, and waits until it answers.
func (n *haNode) waits() {
	n.start()
	n.becomes("standby")
}
