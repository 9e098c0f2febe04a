package daemon

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// conduct is where this program, started as an successor, finds what it is to do.
const conduct = "RSTORED_TEST_SUCCESSOR"

func TestMain(m *testing.M) {
	if how := os.Getenv(conduct); how != "" && os.Getenv(handover.Variable) != "" {
		os.Exit(runSuccessor(how))
	}
	os.Exit(m.Run())
}

// runSuccessor is a process that takes over, badly but for "serve", which says all the right words,
// and "serve as rstored", which means them.
func runSuccessor(how string) int {
	if how == "exit" {
		return 3
	}
	conn, err := handover.Inherited()
	if err != nil {
		panic(err)
	}
	if how == "serve as rstored" {
		if err := serveAsSuccessor(conn); err != nil {
			upgrade.Fail(conn, err)
			return 1
		}
		return 0
	}
	receive := func() *handover.Part {
		p, err := conn.Receive()
		if err != nil {
			os.Exit(1)
		}
		return p
	}
	say := func(word string) {
		data, err := upgrade.Encode(upgrade.Restored{Version: "test", RDMA: 1})
		if err != nil {
			panic(err)
		}
		if err := conn.Send(&handover.Part{Name: word, Version: upgrade.WordVersion, Data: data}); err != nil {
			os.Exit(1)
		}
	}
	hang := func() { time.Sleep(time.Hour) } // select {} ends a program that has no other goroutine
	receive()
	switch how {
	case "refuse":
		upgrade.Fail(conn, errors.New("the configuration is bad: no such key"))
		return 78
	case "hang":
		hang()
	case "nonsense":
		say("nonsense")
		hang()
	}
	say(upgrade.WordPrepared)
	for n := 0; receive().Name != upgrade.WordRestore; n++ {
		if how == "exit among parts" && n == 2 {
			return 3
		}
	}
	switch how {
	case "refuse what it got":
		upgrade.Fail(conn, errors.New("part 7 is of no use"))
		return 1
	case "hang with what it got":
		hang()
	}
	if how == "wait with what it got" {
		at := os.Getenv(meeting)
		if err := os.WriteFile(filepath.Join(at, "got"), nil, 0o600); err != nil {
			panic(err)
		}
		await(filepath.Join(at, "go"))
	}
	say(upgrade.WordRestored)
	switch receive(); how {
	case "exit when it may":
		return 3
	case "serve":
		say(upgrade.WordServing)
	}
	return 0
}

// meeting is where an successor finds the directory in which the two wait for each other.
const meeting = "RSTORED_TEST_MEETING"

// await waits for a file.
func await(name string) {
	for {
		if _, err := os.Stat(name); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// mountOver is a client of version 3, whose connection tells when it is lost.
func mountOver(t *testing.T, d *Daemon, transport string) (c *client.Client, dials func() int) {
	t.Helper()
	n := 0
	at := netip.MustParseAddrPort(d.cfg.Load().RDMAListen[0])
	dial := func(ctx context.Context) (rpc.Client, error) {
		n++
		return tcp.Dial(ctx, d.cfg.Load().TCPListen[0])
	}
	if transport == "rdma" {
		dev, err := roce.Open(roce.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dev.Close() })
		dial = func(ctx context.Context) (rpc.Client, error) {
			n++
			return rpcrdma.Dial(ctx, dev, at, rpcrdma.ClientConfig{})
		}
	}
	c = client.New(client.Config{
		Version: client.Version3, Peer: at.Addr().String(), Dial: dial,
		Cred: &rpc.Cred{Flavor: rpc.AuthSys},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c, func() int { return n }
}

// TestUpgradeFails: whatever goes wrong before the new process may serve, the old one goes on with
// its connections.
func TestUpgradeFails(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, t.TempDir()+"=/e(rw,no_root_squash)")
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	d.times.Drain = time.Minute
	ctx := t.Context()
	use := make(map[string]func(n int))
	for _, transport := range []string{"rdma", "tcp"} {
		c, dials := mountOver(t, d, transport)
		f, err := c.CreateFile(ctx, "/e/"+transport, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		had := dials()
		use[transport] = func(n int) {
			want := bytes.Repeat([]byte{byte(n + 1)}, 100_000)
			if _, err := f.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(want))
			if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("read over %s: %v", transport, err)
			}
			if n := dials(); n != had {
				t.Fatalf("the client connected over %s %d times more", transport, n-had)
			}
		}
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ how, path, want string }{
		{"", "/nonexistent/rstored", "no such file"},
		{"", script, "ended"},
		{"exit", exe, "ended"},
		{"refuse", exe, "no such key"},
		{"hang", exe, "did not answer within"},
		{"nonsense", exe, "nonsense"},
		{"exit among parts", exe, "it ended"}, // before or after all parts are sent
		{"refuse what it got", exe, "part 7 is of no use"},
		{"hang with what it got", exe, "did not answer within"},
	} {
		t.Setenv(conduct, c.how)
		d.times.Prepare, d.times.Restore = time.Minute, time.Minute
		switch c.how {
		case "hang":
			d.times.Prepare = time.Second / 2
		case "hang with what it got":
			d.times.Restore = time.Second / 2
		}
		u, err := ctl.Upgrade(ctx, c.path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "goes on") {
			t.Errorf("%s: %+v, %v; want %q", c.how, u, err, c.want)
		}
		for _, use := range use {
			use(i)
		}
	}
	// The state directory can be changed as before.
	if err := d.state.Journal().Add("somebody"); err != nil {
		t.Error(err)
	}
	if e, err := ctl.AddExport(ctx, parseExports(t, t.TempDir()+"=/more")[0]); err != nil {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestUpgradeLost: when the new process dies after it was let serve, the old one does not go on, as
// the two might have served at once.
func TestUpgradeLost(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(conduct, "exit when it may")
	d, _ := startDaemon(t, testConfig(t, t.TempDir()+"=/e"))
	d.times.Prepare, d.times.Restore, d.times.Serving = time.Minute, time.Minute, time.Minute
	defer func() { _ = d.control.Close() }() // the rest stands still until the process ends
	if _, err := d.Upgrade(exe); !errors.Is(err, errSuccessorFailed) {
		t.Fatalf("the upgrade: %v", err)
	}
	if len(d.failed) != 1 {
		t.Fatal("the daemon is not told to end")
	}
	// A signal to stop may be first, and must not find anything to close.
	if err := d.Stop(t.Context()); !errors.Is(err, errSuccessorFailed) {
		t.Fatalf("the stop: %v", err)
	}
}

// TestStopDuringUpgrade: who stops the server while it is handed over stops it, and not what takes
// its place.
func TestStopDuringUpgrade(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	t.Setenv(conduct, "wait with what it got")
	t.Setenv(meeting, at)
	d, _ := startDaemon(t, testConfig(t, t.TempDir()+"=/e(rw,no_root_squash)"))
	d.times.Prepare, d.times.Restore, d.times.Drain = time.Minute, time.Minute, time.Minute
	c, _ := mountOver(t, d, "rdma")
	if _, err := c.CreateFile(t.Context(), "/e/f", 0o644); err != nil {
		t.Fatal(err)
	}
	upgraded, stopped := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := d.Upgrade(exe)
		upgraded <- err
	}()
	await(filepath.Join(at, "got"))
	go func() { stopped <- d.Stop(context.Background()) }()
	for !d.draining.Load() {
		time.Sleep(time.Millisecond)
	}
	if err := os.WriteFile(filepath.Join(at, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-upgraded; !errors.Is(err, errDraining) {
		t.Errorf("the upgrade: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("the stop: %v", err)
	}
	if _, err := os.Stat(d.cfg.Load().Control); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the control socket: %v", err)
	}
	if _, err := d.Upgrade(exe); !errors.Is(err, errDraining) {
		t.Errorf("an upgrade after the stop: %v", err)
	}
}

// TestAfterUpgrade: a process whose place another has taken changes nothing any more, and closes
// nothing that is the other's.
func TestAfterUpgrade(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(conduct, "serve")
	d, _ := startDaemon(t, testConfig(t, t.TempDir()+"=/e"))
	d.times.Prepare, d.times.Restore, d.times.Serving = time.Minute, time.Minute, time.Minute
	done, err := d.mayAct()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Upgrade(exe); !errors.Is(err, errActing) {
		t.Fatalf("in the middle of an eviction: %v", err)
	}
	done()
	if _, err := d.Upgrade(exe); err != nil {
		t.Fatal(err)
	}
	if !d.isReplaced() {
		t.Fatal("the process does not know")
	}
	before, ro := d.Running(), true
	for what, change := range map[string]func() error{
		"add export":    func() error { _, err := d.AddExport(parseExports(t, t.TempDir()+"=/more")[0]); return err },
		"set export":    func() error { _, err := d.SetExport("/e", control.ExportPatch{ReadOnly: &ro}); return err },
		"remove export": func() error { return d.RemoveExport("/e") },
		"add port": func() error {
			_, err := d.AddPort(control.PortSpec{Transport: control.TransportTCP, Listen: "127.0.0.1:1"})
			return err
		},
		"remove port": func() error {
			return d.RemovePort(control.PortSpec{Transport: control.TransportTCP, Listen: d.cfg.Load().TCPListen[0]})
		},
		"add pkey":    func() error { return d.AddPKey("0x8001") },
		"remove pkey": func() error { return d.RemovePKey("0xffff") },
		"apply": func() error {
			_, err := d.Apply(control.Apply{File: control.File{Syntax: config.SyntaxYAML, Text: "exports: []"}, Disrupt: true},
				control.Peer{})
			return err
		},
		"evict":   func() error { return d.EvictClient("1") },
		"grace":   d.EndGrace,
		"reload":  d.Reload,
		"upgrade": func() error { _, err := d.Upgrade(exe); return err },
	} {
		if err := change(); !errors.Is(err, errReplaced) && !errors.Is(err, errUpgrading) {
			t.Errorf("%s: %v", what, err)
		}
	}
	d.mountsChanged()
	if now := d.Running(); now.Digest() != before.Digest() {
		t.Errorf("%+v is served, and was %+v", now, before)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Errorf("the stop: %v", err)
	}
	if _, err := os.Stat(d.cfg.Load().Control); err != nil {
		t.Errorf("the control socket: %v", err)
	}
	if _, err := os.Stat(filepath.Join(d.cfg.Load().StateDir, "history")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the history was written to: %v", err)
	}
}

// TestUpgradeRefused: what cannot be handed over is known before anything stands still.
func TestUpgradeRefused(t *testing.T) {
	d, ctl := startDaemon(t, testConfig(t, "memory:m"))
	defer stopDaemon(t, d)
	if _, err := ctl.Upgrade(t.Context(), ""); err == nil ||
		!strings.Contains(err.Error(), "is in the memory of this process") {
		t.Fatalf("a memory export: %v", err)
	}
}
