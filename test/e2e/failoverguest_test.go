package e2e

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/rdmatest/netns"
	"github.com/rstored/rstored/test/guest"
)

// guestScript is what a guest does that is a client of a pair.
//
//go:embed failoverguest.sh
var guestScript string

// others are clients of a pair that are processes of their own: the kernel's client in guests, and
// FUSE mounts. FAILOVER_CLIENTS says which there are: "guests", "fuse", or both with a comma
// between them.
type others struct {
	l       *load
	addr    string // where they report
	arrived chan *worker
	dir     string // with the command steady, shared with guests
	guests  []*haGuest
}

// haGuest is a guest that runs.
type haGuest struct {
	name    string
	cmd     *exec.Cmd
	done    chan struct{}
	console string
}

// wanted says whether a kind of further clients is wanted.
func wanted(kind string) bool { return strings.Contains(os.Getenv("FAILOVER_CLIENTS"), kind) }

// others starts the further clients that are wanted, and waits until each has had its first
// replies.
func (l *load) others() {
	t, p := l.p.t, l.p
	t.Helper()
	if !wanted("guests") && !wanted("fuse") {
		return
	}
	o := &others{l: l, arrived: make(chan *worker), dir: t.TempDir()}
	l.more = o
	build := exec.Command("go", "build", "-o", filepath.Join(o.dir, "steady"), "./steady")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var at net.Listener
	var err error
	p.clients.Do(func() { at, err = net.Listen("tcp", "10.77.0.1:0") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = at.Close() })
	o.addr = at.Addr().String()
	go o.accept(at)
	count := 0
	if wanted("guests") {
		if p.ganesha {
			o.boot(0, "tcp", "4.2")
			count++
		} else {
			o.boot(0, "rdma", "3", "4.2")
			o.boot(1, "tcp", "3", "4.2")
			count += 4
		}
	}
	if wanted("fuse") {
		for i, kind := range []string{"rdma", "tcp"} {
			o.fuse(i, kind)
			count++
		}
	}
	for range count {
		select {
		case w := <-o.arrived:
			l.workers = append(l.workers, w)
		case <-time.After(time.Minute):
			for _, g := range o.guests {
				t.Logf("guest %s: %s", g.name, tail(read(g.console), 2000))
			}
			t.Fatal("not all clients have come")
		}
	}
	l.goesOn(time.Now(), "before")
}

// accept takes what workers say.
func (o *others) accept(at net.Listener) {
	for {
		c, err := at.Accept()
		if err != nil {
			return
		}
		o.l.running.Go(func() { o.follow(c) })
	}
}

// follow reads what one worker says until it ends.
func (o *others) follow(c net.Conn) {
	t := o.l.p.t
	defer func() { _ = c.Close() }()
	lines := bufio.NewScanner(c)
	if !lines.Scan() {
		return
	}
	w := &worker{name: lines.Text(), conn: c}
	o.arrived <- w
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "+":
			w.acknowledged()
		case "file":
			w.done = append(w.done, rest)
		case "end":
			return
		default:
			t.Errorf("%s: %s", w.name, rest)
		}
	}
	t.Errorf("%s has gone: %v", w.name, lines.Err())
}

// stop has all workers end, and bounds the wait for them.
func (o *others) stop() {
	if o == nil {
		return
	}
	for _, g := range o.guests {
		_ = os.WriteFile(filepath.Join(filepath.Dir(g.console), "at.stop"), nil, 0o644)
	}
	for _, w := range o.l.workers {
		if w.conn != nil {
			_ = w.conn.SetReadDeadline(time.Now().Add(time.Minute))
			_, _ = w.conn.Write([]byte("."))
		}
	}
}

// boot boots a guest that mounts over one kind of transport.
func (o *others) boot(i int, kind string, versions ...string) {
	t, p := o.l.p.t, o.l.p
	t.Helper()
	cache, err := guest.Cache()
	if err != nil {
		t.Skip(err)
	}
	g := &haGuest{name: string(rune('a' + i)), done: make(chan struct{})}
	share := filepath.Join(o.dir, g.name)
	g.console = filepath.Join(share, "console")
	carrier := map[string]string{"rdma": "rdma,port=20049", "tcp": "proto=tcp,port=2049"}[kind]
	lock3 := ""
	if p.locks3 {
		lock3 = "hold"
	}
	env := fmt.Sprintf("export LOCK3=%s GUEST=%s PAIR=%s EXPORT=/data REPORT=%s KIND=%s CARRIER=%s VERSIONS='%s'\n",
		lock3, g.name, p.addr,
		o.addr, kind, carrier, strings.Join(versions, " "))
	program, err := os.ReadFile(filepath.Join(o.dir, "steady"))
	err = errors.Join(err, os.Mkdir(share, 0o755), os.WriteFile(filepath.Join(share, "steady"), program, 0o755),
		os.WriteFile(filepath.Join(share, "script"), []byte(guest.Library+guestScript), 0o644),
		os.WriteFile(filepath.Join(share, "env"), []byte(env), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	tap := "tap" + g.name
	for _, words := range []string{
		"tuntap add dev " + tap + " mode tap vnet_hdr", "link set " + tap + " mtu 9000 txqueuelen 10000 master br0 up",
	} {
		p.clients.IP(t, words)
	}
	m := guest.Machine{
		Cache: cache, Name: g.name, Dir: share, Share: share, MemMB: 512, MTU: 4200,
		IP4: fmt.Sprintf("10.77.0.%d", 21+i), IP6: fmt.Sprintf("fd77::%d", 21+i),
		Taps: []guest.Tap{{Name: tap, MAC: fmt.Sprintf("02:77:00:00:00:%02x", 21+i)}},
	}
	console, err := os.Create(g.console)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = console.Close() }()
	words := m.Command()
	g.cmd = exec.Command(words[0], words[1:]...)
	g.cmd.Stdout, g.cmd.Stderr, g.cmd.ExtraFiles = console, console, []*os.File{console}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.clients.Do(func() { err = g.cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.cmd.Wait(); close(g.done) }()
	o.guests = append(o.guests, g)
	t.Cleanup(func() {
		_ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL)
		<-g.done
		if t.Failed() {
			t.Logf("console of guest %s:\n%s", g.name, tail(read(g.console), 6000))
		}
	})
}

// locked waits until the file systems of the host have the locks of version 3, which guests reclaim
// after a failover.
func (o *others) locked() {
	if o == nil {
		return
	}
	t := o.l.p.t
	t.Helper()
	for _, w := range o.l.workers {
		if !strings.HasPrefix(w.name, "linux-3-") {
			continue
		}
		name := filepath.Join(o.l.p.export, heldPrefix+w.name)
		for end := time.Now().Add(40 * time.Second); !isLocked(t, name); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%s has lost its lock", w.name)
				return
			}
		}
	}
}

// ended waits for the end of all guests, whose scripts have compared what fio has written.
func (o *others) ended() {
	if o == nil {
		return
	}
	t := o.l.p.t
	t.Helper()
	for _, g := range o.guests {
		share := filepath.Dir(g.console)
		select {
		case <-g.done:
		case <-time.After(2 * time.Minute):
			t.Errorf("guest %s does not end", g.name)
			continue
		}
		if rc := strings.TrimSpace(read(filepath.Join(share, g.name+".rc"))); rc != "0" {
			t.Errorf("guest %s: exit status %q", g.name, rc)
		}
		if err := guest.Bugs(filepath.Join(share, g.name+".dmesg")); err != nil {
			t.Errorf("guest %s: %v", g.name, err)
		}
		for line := range strings.Lines(read(g.console)) {
			if strings.Contains(line, "fio has written") {
				t.Logf("guest %s: %s", g.name, strings.TrimSpace(line))
			}
		}
	}
}

// fuse mounts by FUSE with rstorectl, from an address of its own: a host has one port of RoCEv2.
func (o *others) fuse(i int, kind string) {
	t, p := o.l.p.t, o.l.p
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("there is no FUSE here: %v", err)
	} else {
		_ = f.Close()
	}
	dir, space, wire := t.TempDir(), netns.New(t), "fuse-"+kind
	p.clients.Join(t, wire, space, haPort, 9000)
	p.clients.IP(t, "link set "+wire+" master br0")
	space.Addr(t, fmt.Sprintf("10.77.0.%d/24", 31+i), haPort)
	rstorectl := filepath.Join(binDir, "rstorectl")
	if _, err := space.Run(rstorectl, "mount", "nfs+"+kind+"://"+p.addr.String()+"/data", dir, "-o",
		"vers=4.2"); err != nil {
		t.Fatal(err)
	}
	var w *exec.Cmd
	t.Cleanup(func() {
		if w != nil && w.Process != nil {
			_ = w.Process.Kill()
		}
		out, err := exec.Command(rstorectl, "umount", dir).CombinedOutput()
		if err != nil {
			t.Errorf("umount: %v: %s", err, out)
			_ = exec.Command(rstorectl, "umount", "--force", dir).Run()
		}
		if w != nil {
			_ = w.Wait()
		}
	})
	lock := "lock"
	if p.locks3 {
		lock = "hold"
	}
	w = exec.Command(filepath.Join(o.dir, "steady"), o.addr, "fuse-"+kind, dir, lock)
	var err error
	p.clients.Do(func() { err = w.Start() })
	if err != nil {
		t.Fatal(err)
	}
}

// read returns the content of a file, or nothing.
func read(name string) string {
	b, _ := os.ReadFile(name)
	return string(b)
}

// TestKernelFailover: the kernel's client in guests, and FUSE mounts, continue after a kill of the
// node that serves, and after a planned failover back. Locks of version 3 are held, too: guests
// reclaim them when they are notified. It takes a minute.
func TestKernelFailover(t *testing.T) {
	if os.Getenv("RSTORED_GUEST") != "1" {
		t.Skip("guests are booted by make interop")
	}
	t.Setenv("FAILOVER_CLIENTS", "guests,fuse")
	p := newPair(t)
	p.locks3 = true
	p.move(0)
	a, b := p.nodes[0], p.nodes[1]
	a.start()
	a.serves()
	l := p.load()
	defer l.end()
	l.holdLocks()
	l.pauses("")
	a.end(syscall.SIGKILL)
	p.move(1)
	b.start()
	b.serves()
	l.goesOn(time.Now(), "after a kill")
	t.Logf("killed; longest pauses: %s", l.pauses("killed"))
	l.more.locked()
	a.standby()
	p.handOver()
	l.more.locked()
	l.goesOn(time.Now(), "after a planned failover")
	t.Logf("planned failover; longest pauses: %s", l.pauses("planned"))
	l.verify()
}
