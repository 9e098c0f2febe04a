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

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// keepalived is keepalived on one node, with the configuration and the script of deploy/keepalived.
type keepalived struct {
	n    *haNode
	dir  string
	unit string // the command
	// status is the command that fails if the daemon does not answer.
	status string
	cmd    *exec.Cmd
	done   chan struct{}
}

// write writes the configuration and the script with what an administrator changes in them, and the
// commands that take the place of systemctl.
func (k *keepalived) write(t *testing.T) {
	t.Helper()
	recipe := filepath.Join("..", "..", "deploy", "keepalived")
	b, err := os.ReadFile(filepath.Join(recipe, "keepalived.conf"))
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(k.dir, "rstored-ha")
	conf := strings.NewReplacer("/usr/lib/rstored/rstored-ha", script, "interface eth0", "interface "+haPort,
		"192.0.2.10/24", k.n.p.addr.String()+"/24", "priority 100", fmt.Sprintf("priority %d", 100+k.n.name[0]-'a')).
		Replace(string(b))
	ha, err := os.ReadFile(filepath.Join(recipe, "rstored-ha"))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{k.unit, k.dir, filepath.Join(binDir, "rstored")}
	for _, a := range k.n.args() {
		args = append(args, "'"+a+"'")
	}
	ctl := filepath.Join(binDir, "rstorectl") + " --quiet --control " + k.n.control + " status"
	standby := k.dir + "/standby"
	if k.n.command != nil { // nfs-ganesha cannot wait beside the address
		args = append([]string{k.unit, k.dir}, k.n.command...)
		ctl = "rpcinfo -a " + k.n.p.addr.String() + ".8.1 -T tcp 100003 4"
		standby = "true"
	}
	k.status = ctl
	// A process that has ended, and that nobody has waited for, does not run.
	runs := fmt.Sprintf("#!/bin/sh\nruns() { grep -q '^State:.[^ZX]' /proc/$(cat %s/unit)/status; } 2>/dev/null\n", k.dir)
	// As systemctl start: one that runs already is left alone.
	begin := runs + fmt.Sprintf("if ! runs; then\n\t%[1]s >>%[2]s/log 2>&1 &\n\techo $! >%[2]s/unit\nfi\n",
		strings.Join(args, " "), k.dir)
	start := begin + "until timeout 5 " + ctl + " >/dev/null 2>&1; do runs || exit 1; sleep 0.05; done\n"
	// As systemctl stop: it waits, and a second call sends no second signal.
	stop := runs + fmt.Sprintf("runs || exit 0\npid=$(cat %[1]s/unit)\n"+
		"if mkdir %[1]s/stopping.$pid 2>/dev/null; then kill $pid 2>/dev/null; fi\n"+
		"while runs; do sleep 0.02; done\n", k.dir)
	// As systemctl kill: the unit starts the daemon again.
	kill := fmt.Sprintf("#!/bin/sh\nkill -9 $(cat %s/pid)\n", k.dir)
	dead := runs + "! runs\n"
	settings := fmt.Sprintf("DEAD=%[1]s/dead\nSTART=%[1]s/start\nSTANDBY=%[5]s\nSTOP=%[1]s/stop\nKILL=%[1]s/kill\n"+
		"STATUS='%s'\nMARK=%[1]s/mark\n"+
		"FAILOVER='%[3]s --control %[4]s failover --to'\nRESTART='kill '$(cat %[1]s/keepalived.pid)\n",
		k.dir, ctl, filepath.Join(binDir, "rstorectl"), k.n.control, standby)
	ha = []byte(strings.ReplaceAll(string(ha), "/etc/default/rstored-ha", k.dir+"/default"))
	for name, content := range map[string]string{
		"keepalived.conf": conf, "rstored-ha": string(ha), "default": settings,
		"start": start, "standby": begin, "stop": stop, "kill": kill, "dead": dead,
	} {
		mode := os.FileMode(0o755)
		if name == "keepalived.conf" {
			mode = 0o644 // keepalived reads no configuration that can be executed
		}
		if err := os.WriteFile(filepath.Join(k.dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
}

func (k *keepalived) start(t *testing.T) {
	t.Helper()
	at := func(name string) string { return filepath.Join(k.dir, name) }
	k.cmd = exec.Command("keepalived", "--dont-fork", "--log-console", "--log-detail", "--vrrp",
		"-f", at("keepalived.conf"), "-p", at("keepalived.pid"), "-r", at("vrrp.pid"))
	log, err := os.OpenFile(at("keepalived.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	k.cmd.Stdout, k.cmd.Stderr = log, log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	k.n.space.Do(func() { err = k.cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	done, cmd := make(chan struct{}), k.cmd
	go func() { _ = cmd.Wait(); close(done) }()
	k.done = done
}

// pid reads a number that a process has left, or 0.
func (k *keepalived) pid(name string) int {
	b, err := os.ReadFile(filepath.Join(k.dir, name))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// kill kills the processes of the node, as a loss of power does, and waits for their end. The files
// of process numbers do not suffice: a script may be about to start the daemon.
func (k *keepalived) kill() {
	for k.killOnce() {
	}
	if k.done != nil {
		<-k.done
	}
	for _, name := range []string{"keepalived.pid", "vrrp.pid", "pid", "unit", "mark"} {
		_ = os.Remove(filepath.Join(k.dir, name))
	}
	_, _ = k.n.space.Run("ip", "addr", "del", k.n.p.addr.String()+"/24", "dev", haPort)
}

// killOnce kills what runs on the node at one moment, in its network namespace, and reports whether
// there was anything. A process number that is in use again can't be killed by mistake, as the
// descriptor is of the process whose namespace was read after it was opened. Command lines would not
// do: reading /proc/PID/cmdline of a process was seen to hang while FUSE mounts had no server.
func (k *keepalived) killOnce() bool {
	found, mine := false, ""
	k.n.space.Do(func() { mine, _ = os.Readlink("/proc/thread-self/ns/net") })
	if mine == "" {
		k.n.p.t.Fatal("the namespace of a node has no name")
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if its, _ := os.Readlink(dir + "/ns/net"); its == mine && pid != os.Getpid() {
			found = true
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			// It is readable when all threads have ended and the files are closed.
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Minute.Milliseconds()))
		}
		_ = unix.Close(fd)
	}
	return found
}

// TestKeepalived: the recipe of docs/ha.md with keepalived as Debian has it, on two nodes. A node
// loses its power, its cable, or its daemon; the other one takes address and lease. FAILOVER_FAULTS
// has the names of faults, with commas between them, if not all are wanted. With FAILOVER_GANESHA the
// nodes run nfs-ganesha, for comparison.
func TestKeepalived(t *testing.T) {
	if _, err := exec.LookPath("keepalived"); err != nil {
		t.Skip("keepalived is not installed")
	}
	seed := rand.Uint64()
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_SEED"), &seed)
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 8))
	rounds := 3
	_, _ = fmt.Sscan(os.Getenv("FAILOVER_ROUNDS"), &rounds)
	p := newPair(t)
	p.promote = "address"
	if os.Getenv("FAILOVER_GANESHA") != "" {
		p.useGanesha()
	}
	unit := filepath.Join(t.TempDir(), "unit")
	if out, err := exec.Command("go", "build", "-o", unit, "./unit").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	faults := []string{
		"no power", "no cable", "the daemon killed", "the daemon killed for good", "the daemon stopped", "planned",
		"planned failover",
	}
	if p.disk {
		faults = append(faults, "slow storage")
	}
	if only := os.Getenv("FAILOVER_FAULTS"); only != "" {
		faults = strings.Split(only, ",")
	}
	var ks [2]*keepalived
	for i, n := range p.nodes {
		// keepalived runs no script below a directory that others can write to, as /tmp is.
		dir, err := os.MkdirTemp("/run", "rstored-test-")
		if err != nil {
			t.Skipf("no directory for scripts of root: %v", err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		k := &keepalived{n: n, dir: dir, unit: unit}
		ks[i] = k
		k.write(t)
		t.Cleanup(func() {
			k.kill()
			if t.Failed() {
				for _, name := range []string{"log", "keepalived.log"} {
					b, _ := os.ReadFile(filepath.Join(k.dir, name))
					t.Logf("%s of node %s:\n%s", name, n.name, tail(string(b), 6000))
				}
			}
		})
		k.start(t)
	}
	// Who has the mark of the script serves, and is checked.
	serving := func() int {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			for i, k := range ks {
				if _, err := os.Stat(filepath.Join(k.dir, "mark")); err != nil {
					continue
				}
				if _, err := k.n.space.Run("sh", "-c", "timeout 5 "+k.status); err == nil {
					return i
				}
			}
		}
		t.Fatal("no node serves")
		return 0
	}
	serving()
	var l *load
	if p.ganesha {
		l = p.loadOf([]client.Version{client.Version42}, []string{"tcp"})
	} else {
		l = p.load()
	}
	defer l.end()
	if !p.ganesha {
		l.holdLocks()
	}
	for i := range rounds {
		time.Sleep(time.Duration(500+r.IntN(500)) * time.Millisecond)
		at := serving()
		k := ks[at]
		l.pauses("")
		what := faults[(i+int(seed%uint64(len(faults))))%len(faults)]
		fault := time.Now()
		switch what {
		case "no power":
			k.n.space.IP(t, "link set "+haPort+" down")
			k.kill()
		case "no cable":
			p.clients.IP(t, "link set to-"+k.n.name+" down")
		case "the daemon killed for good": // as when systemd has given up
			_ = syscall.Kill(k.pid("unit"), syscall.SIGKILL)
			_ = syscall.Kill(k.pid("pid"), syscall.SIGKILL)
		case "the daemon killed":
			_ = syscall.Kill(k.pid("pid"), syscall.SIGKILL)
		case "the daemon stopped":
			_ = syscall.Kill(k.pid("pid"), syscall.SIGSTOP)
		case "planned":
			_ = k.cmd.Process.Signal(syscall.SIGTERM)
			<-k.done
		case "planned failover":
			other := ks[1-at]
			other.n.listens()
			fault = time.Now()
			l.pauses("")
			failover := exec.Command(filepath.Join(k.dir, "rstored-ha"), "failover", other.n.name)
			if out, err := failover.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			<-k.done
		case "slow storage":
			p.freeze(time.Duration(500+r.IntN(3000)) * time.Millisecond)
		}
		since := fault.Add(300 * time.Millisecond)
		if strings.HasPrefix(what, "planned") {
			since = time.Now() // until now this node could answer
		}
		l.goesOn(since, fmt.Sprintf("round %d, %s", i, what))
		t.Logf("round %d: node %s, %s; longest pauses: %s", i, k.n.name, what, l.pauses(what))
		k.n.space.IP(t, "link set "+haPort+" up")
		p.clients.IP(t, "link set to-"+k.n.name+" up")
		if what == "no power" || strings.HasPrefix(what, "planned") {
			k.start(t)
		}
		time.Sleep(2 * time.Second) // the node is a standby again
	}
	l.verify()
	l.distribution()
}

// TestHAScript: a start that waits, as for the lease of the other node, ends when the node loses
// the address, and what keepalived said last counts.
func TestHAScript(t *testing.T) {
	dir := t.TempDir()
	script, err := filepath.Abs(filepath.Join("..", "..", "deploy", "keepalived", "rstored-ha"))
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{
		"start": "#!/bin/sh\necho start >>" + at("did") + "\necho $$ >" + at("pid") +
			"\n[ -e " + at("free") + " ] || exec sleep 30\n",
		"kill": "#!/bin/sh\necho kill >>" + at("did") + "\nrm -f " + at("hangs") + "\n",
		"stop": "#!/bin/sh\necho stop >>" + at("did") + "\n[ ! -e " + at("hangs") + " ] || exec sleep 30" +
			"\n[ ! -e " + at("pid") + " ] || kill $(cat " + at("pid") + ")\nexit 0\n",
		"default": fmt.Sprintf("START=%[1]s/start\nSTOP=%[1]s/stop\nKILL=%[1]s/kill\nSTATUS=%[1]s/status\nMARK=%[1]s/mark\n"+
			"DEAD='test ! -e %[1]s/again'\n"+
			"STANDBY=%[1]s/standby\nFAILOVER=%[1]s/failover\nRESTART=%[1]s/restart\n", dir),
		"status": "#!/bin/sh\n[ -e " + at("again") + " ] && echo status >>" + at("calls") +
			" && [ $(wc -l <" + at("calls") + ") -gt 4 ]\n",
		"restart": "#!/bin/sh\necho restart >>" + at("did") + "\n",
		"failover": "#!/bin/sh\n[ ! -e " + at("mark") + " ] || echo checked >>" + at("did") +
			"\necho handover >>" + at("did") +
			"\nexit $(cat " + at("fails") + ")\n",
		"standby": "#!/bin/sh\necho standby >>" + at("did") + "\n",
	} {
		if err := os.WriteFile(at(name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) *exec.Cmd {
		t.Helper()
		c := exec.Command(script, args...)
		c.Env = append(os.Environ(), "RSTORED_HA_CONFIG="+at("default"))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	notify := func(state string) *exec.Cmd { return run("notify", "INSTANCE", "rstored", state, "100") }
	if err := run("check").Wait(); err != nil {
		t.Errorf("the check of a node without the address: %v", err)
	}
	start := notify("MASTER")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile(at("pid")); err == nil && len(b) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nothing was started")
		}
	}
	began := time.Now()
	if err := notify("BACKUP").Wait(); err != nil {
		t.Error(err)
	}
	if start.Wait() == nil {
		t.Error("a start that was ended has succeeded")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the stop waited %v for the start", took)
	}
	if _, err := os.Stat(at("mark")); err == nil {
		t.Error("a node without the address has the mark")
	}
	_ = os.Remove(at("pid"))
	if err := os.WriteFile(at("free"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := notify("MASTER").Wait(); err != nil {
		t.Error(err)
	}
	if run("check").Wait() == nil {
		t.Error("the check of a daemon that does not answer succeeds")
	}
	if did := strings.Fields(read(at("did"))); did[len(did)-1] != "stop" {
		t.Errorf("done by the check of a daemon that has ended: %q", did)
	}
	// One that systemd starts again has more time than one that has failed for good.
	_ = os.WriteFile(at("again"), nil, 0o644)
	if err := run("check").Wait(); err != nil {
		t.Errorf("the check of a daemon that is starting again: %v; calls: %q", err, read(at("calls")))
	}
	_ = os.Remove(at("again"))
	// A daemon that hands over is not checked meanwhile, and is again if that fails.
	for fails, want := range map[string]string{"1": "handover", "0": "handover restart"} {
		_ = os.Remove(at("did"))
		_ = os.WriteFile(at("mark"), nil, 0o644)
		_ = os.WriteFile(at("fails"), []byte(fails), 0o644)
		if err := run("failover", "b").Wait(); (err == nil) != (fails == "0") {
			t.Errorf("a handover that fails: %s: %v", fails, err)
		}
		did := strings.Join(strings.Fields(read(at("did"))), " ")
		if _, err := os.Stat(at("mark")); did != want || (err == nil) != (fails == "1") {
			t.Errorf("a handover that fails: %s: done: %q, want %q; the mark: %v", fails, did, want, err)
		}
	}
	// A daemon that hangs does not stop by itself.
	if err := os.WriteFile(at("hangs"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	_ = notify("BACKUP").Wait()
	if took := time.Since(began); took > 20*time.Second || !strings.Contains(read(at("did")), "stop\nkill\nstop\n") {
		t.Errorf("a daemon that hangs was stopped after %v by %q", took, read(at("did")))
	}
	if err := notify("FAULT").Wait(); err != nil {
		t.Error(err)
	}
	if err := run("check").Wait(); err != nil {
		t.Errorf("the check after a fault: %v", err)
	}
	_ = notify("BACKUP").Wait()
	if did := strings.Join(strings.Fields(read(at("did"))), " "); !strings.HasSuffix(did, " stop standby standby") {
		t.Errorf("done: %q", did)
	}
}
