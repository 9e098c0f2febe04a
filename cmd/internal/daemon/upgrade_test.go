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

	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// conduct is where this program, started as an heir, finds what it is to do.
const conduct = "RSTORED_TEST_HEIR"

func TestMain(m *testing.M) {
	if how := os.Getenv(conduct); how != "" && os.Getenv(handover.Variable) != "" {
		os.Exit(beHeir(how))
	}
	os.Exit(m.Run())
}

// beHeir is a process that takes over, badly but for "serve".
func beHeir(how string) int {
	if how == "exit" {
		return 3
	}
	conn, err := handover.Inherited()
	if err != nil {
		panic(err)
	}
	if how == "serve" {
		if err := serveAsHeir(conn); err != nil {
			fail(conn, err)
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
		data, err := encode(restored{Version: "test", RDMA: 1})
		if err != nil {
			panic(err)
		}
		if err := conn.Send(&handover.Part{Name: word, Version: wordVersion, Data: data}); err != nil {
			os.Exit(1)
		}
	}
	hang := func() { select {} }
	receive()
	switch how {
	case "refuse":
		fail(conn, errors.New("the configuration is bad: no such key"))
		return 78
	case "hang":
		hang()
	case "nonsense":
		say("nonsense")
		hang()
	}
	say(wordPrepared)
	for n := 0; receive().Name != wordRestore; n++ {
		if how == "exit among parts" && n == 2 {
			return 3
		}
	}
	switch how {
	case "refuse what it got":
		fail(conn, errors.New("part 7 is of no use"))
		return 1
	case "hang with what it got":
		hang()
	}
	say(wordRestored)
	if how == "exit when it may" {
		receive()
		return 3
	}
	return 0
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
	c = client.New(client.Config{Version: client.Version3, Peer: at.Addr().String(), Dial: dial, Cred: &rpc.Cred{Flavor: rpc.AuthSys}})
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
	d.times.prepare, d.times.restore = 2*time.Second, 2*time.Second
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
		{"hang", exe, "nothing came of it"},
		{"nonsense", exe, "nonsense"},
		{"exit among parts", exe, "cannot take over"},
		{"refuse what it got", exe, "part 7 is of no use"},
		{"hang with what it got", exe, "nothing came of it"},
	} {
		t.Setenv(conduct, c.how)
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
	if e, err := ctl.AddExport(ctx, exports(t, t.TempDir()+"=/more")[0]); err != nil {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestUpgradeLost: when the new process dies after it was let serve, the old one does not go on, as the
// two might have served at once.
func TestUpgradeLost(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(conduct, "exit when it may")
	d, _ := startDaemon(t, testConfig(t, t.TempDir()+"=/e"))
	defer func() { _ = d.control.Close() }() // the rest stands still until the process ends
	if _, err := d.Upgrade(exe); !errors.Is(err, errLost) {
		t.Fatalf("the upgrade: %v", err)
	}
	select {
	case err := <-d.failed:
		if !errors.Is(err, errLost) {
			t.Fatal(err)
		}
	default:
		t.Fatal("the daemon is not told to end")
	}
}

// TestUpgradeRefused: what cannot be handed over is known before anything stands still.
func TestUpgradeRefused(t *testing.T) {
	d, ctl := startDaemon(t, testConfig(t, "memory:m"))
	defer stopDaemon(t, d)
	if _, err := ctl.Upgrade(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "is in the memory of this process") {
		t.Fatalf("a memory export: %v", err)
	}
}
