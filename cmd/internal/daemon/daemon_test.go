package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// testAddr is an address of loopback that nobody else is likely to use.
func testAddr() string {
	return fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
}

// testConfig is a configuration whose everything is temporary.
func testConfig(t *testing.T, specs ...string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	cfg := config.Default()
	cfg.StateDir = filepath.Join(dir, "state")
	cfg.Control = filepath.Join(dir, "c.sock")
	addr := testAddr()
	cfg.RDMAListen = []string{addr + ":20049"}
	cfg.TCPListen = []string{addr + ":2049"}
	cfg.Exports = parseExports(t, specs...)
	return cfg
}

// Start is start without an upgrade, with the devices of the host.
func Start(cfg *config.Config, load func() (*config.Config, error), log *telemetry.Log) (*Daemon, error) {
	return start(cfg, load, log, false, nil, devices.System())
}

func startDaemon(t *testing.T, cfg *config.Config) (*Daemon, *control.Dialer) {
	t.Helper()
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Start(cfg, func() (*config.Config, error) { return cfg, nil }, log)
	if err != nil {
		t.Fatal(err)
	}
	return d, control.Dial(cfg.Control)
}

func stopDaemon(t *testing.T, d *Daemon) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := d.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// TestChangesPersist: exports and ports changed over the control socket are the
// same after a restart, and those of the configuration that were removed stay
// away.
func TestChangesPersist(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	cfg := testConfig(t, a+"=/a", b+"=/b")
	d, ctl := startDaemon(t, cfg)
	ctx := t.Context()

	add := func(spec string) (control.Export, error) { return ctl.AddExport(ctx, parseExports(t, spec)[0]) }
	if e, err := add(c + "=/c(ro,async) 10.0.0.0/8(no_root_squash)"); err != nil || e.Pseudo != "/c" ||
		e.Origin != control.OriginRuntime {
		t.Fatalf("add: %+v, %v", e, err)
	}
	if _, err := add(c + "=/a"); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("a second export at /a: %v", err)
	}
	if _, err := add("/nonexistent/dir"); err == nil {
		t.Error("a directory that does not exist was exported")
	}
	ro := true
	if e, err := ctl.SetExport(ctx, a, control.ExportPatch{ReadOnly: &ro}); err != nil || !e.ReadOnly {
		t.Errorf("set: %+v, %v", e, err)
	}
	if err := ctl.RemoveExport(ctx, "/b"); err != nil {
		t.Errorf("remove: %v", err)
	}
	if err := ctl.RemoveExport(ctx, "/b"); err == nil {
		t.Error("removed twice")
	}
	extra := control.PortSpec{Transport: control.TransportTCP, Listen: testAddr() + ":3049"}
	if p, err := ctl.AddPort(ctx, extra); err != nil || len(p.Addresses) != 1 {
		t.Errorf("add port: %+v, %v", p, err)
	}
	if _, err := ctl.AddPort(ctx, extra); err == nil {
		t.Error("the same port was added twice")
	}
	if err := ctl.RemovePort(ctx, control.PortSpec{
		Transport: control.TransportTCP,
		Listen:    cfg.TCPListen[0],
	}); err != nil {
		t.Errorf("remove port: %v", err)
	}
	before := describe(t, ctl)
	stopDaemon(t, d)
	if _, err := ctl.Status(ctx); err == nil {
		t.Error("the control socket answers after the stop")
	}

	d, ctl = startDaemon(t, cfg)
	defer stopDaemon(t, d)
	if after := describe(t, ctl); !slices.Equal(before, after) {
		t.Errorf("before the restart:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	want := []string{"/a", "/c"}
	var got []string
	for _, e := range d.Exports() {
		got = append(got, e.Pseudo)
	}
	if !slices.Equal(got, want) {
		t.Errorf("exports %q, want %q", got, want)
	}
	if err := d.Reload(); err != nil {
		t.Errorf("reload: %v", err)
	}
	if s, err := ctl.Status(ctx); err != nil || s.Exports != 2 || s.Ports != 2 || s.State != control.StateRunning {
		t.Errorf("status %+v, %v", s, err)
	}
}

func describe(t *testing.T, ctl *control.Dialer) []string {
	t.Helper()
	es, err := ctl.Exports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ps, err := ctl.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		out = append(out, fmt.Sprintf("%d %s %s ro=%v async=%v %v %v %s %s", e.ID, e.Pseudo, e.Path, e.ReadOnly, e.Async,
			e.Clients, e.Aliases, e.Origin, e.Error))
	}
	for _, p := range ps {
		out = append(out, fmt.Sprintf("%s %s %v %s %s", p.Transport, p.Listen, p.Addresses, p.Origin, p.Error))
	}
	return out
}

// TestConflicts: what cannot be shared is refused in words, and a start that
// fails leaves nothing behind.
func TestConflicts(t *testing.T) {
	cfg := testConfig(t, t.TempDir()+"=/a")
	d, _ := startDaemon(t, cfg)
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	start := func(c *config.Config) error {
		d, err := Start(c, nil, log)
		if err == nil {
			stopDaemon(t, d)
		}
		return err
	}
	if err := start(cfg); !errors.Is(err, state.ErrBusy) {
		t.Errorf("same state directory: %v", err)
	}
	other := testConfig(t)
	other.Control = cfg.Control
	if err := start(other); err == nil || !strings.Contains(err.Error(), "another rstored answers") {
		t.Errorf("same control socket: %v", err)
	}
	// The rest is served, if there is any.
	degraded := func(what string, c *config.Config, want string) {
		t.Helper()
		d, ctl := startDaemon(t, c)
		defer stopDaemon(t, d)
		if s, err := ctl.Status(t.Context()); err != nil || len(s.Problems) != 1 || !strings.Contains(s.Problems[0], want) {
			t.Errorf("%s: %+v, %v", what, s, err)
		}
	}
	other = testConfig(t)
	other.TCPListen = cfg.TCPListen
	degraded("same TCP port", other, "in use")
	other = testConfig(t)
	other.RDMAListen = cfg.RDMAListen
	degraded("same RDMA address", other, "4791")
	other.TCPListen = cfg.TCPListen
	if err := start(other); err == nil || !strings.Contains(err.Error(), "in use") ||
		!strings.Contains(err.Error(), "4791") {
		t.Errorf("the same port and address: %v", err)
	}
	stopDaemon(t, d)
	if err := start(cfg); err != nil {
		t.Errorf("after the first one stopped: %v", err)
	}
	degraded("no directory", testConfig(t, "/nonexistent/dir"), "no such file")
	degraded("one directory of two", testConfig(t, "/nonexistent/dir", t.TempDir()+"=/b"), "no such file")
	if entries, err := os.ReadDir(filepath.Dir(cfg.Control)); err != nil ||
		slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "c.sock" }) {
		t.Errorf("the control socket was left behind: %v %v", entries, err)
	}
}

// parseExports reads exports as the flag --export has them.
func parseExports(t *testing.T, specs ...string) []config.Export {
	t.Helper()
	out := make([]config.Export, 0, len(specs))
	for _, s := range specs {
		e, err := config.ParseExport(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// TestStopAtOnce: a daemon that stops before the control interface serves leaves no socket that
// answers the next one.
func TestStopAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{listener: l}
	d.control = control.NewServer(d, control.Access{}, zap.NewNop(), nil)
	if err := d.closeControl(); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		t.Error("the socket answers")
	}
}
