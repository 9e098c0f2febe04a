package daemon

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/ctl"
	"github.com/rstored/rstored/cmd/internal/doctor"
	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// rstorectl runs a command on a daemon, and returns what it prints.
func rstorectl(t *testing.T, d *Daemon, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	root := ctl.Root(&cli.Globals{Out: &out, Err: &out})
	root.SetArgs(append([]string{"--control", d.cfg.Load().Control}, args...))
	if code := cli.Run(root, &out); code != cli.ExitOK {
		t.Fatalf("rstorectl %q: exit code %d\n%s", args, code, out.String())
	}
	return out.String()
}

// TestFirstApplyRolledBack: a rollback after the first file serves what was served before it. If
// that is what the configuration says, no file is applied any more.
func TestFirstApplyRolledBack(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	for name, change := range map[string]func(*Daemon, *control.Dialer) error{
		"the configuration": nil,
		"changes at run time": func(d *Daemon, c2 *control.Dialer) error {
			if _, err := c2.AddExport(t.Context(), parseExports(t, c+"=/c")[0]); err != nil {
				return err
			}
			if err := d.RemoveExport("/a"); err != nil {
				return err
			}
			_, err := c2.AddPort(t.Context(), control.PortSpec{Transport: control.TransportTCP, Listen: testAddr() + ":2049"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, a+"=/a", b+"=/b")
			cfg.RDMAListen = nil
			d, ctl := startDaemon(t, cfg)
			if change != nil {
				if err := change(d, ctl); err != nil {
					t.Fatal(err)
				}
			}
			before := d.Running()
			if _, err := ctl.HistoryEntry(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "no file was applied") {
				t.Errorf("before the first file: %v", err)
			}
			f := yamlFile("exports: [{path: %s, pseudo: /new}]\ntcp_listen: ['%s:2049']\n", b, testAddr())
			if _, err := ctl.Apply(t.Context(), control.Apply{File: f, Disrupt: true}); err != nil {
				t.Fatal(err)
			}
			if now := d.Running(); now.Digest() == before.Digest() {
				t.Fatal("the file changed nothing")
			}
			rstorectl(t, d, "rollback", "--yes")
			if now := d.Running(); now.Digest() != before.Digest() {
				t.Errorf("back: %+v\nbefore: %+v", now, before)
			}
			if applied := d.state.Applied(); (applied == nil) != (change == nil) {
				t.Errorf("applied: %+v", applied)
			}
			stopDaemon(t, d)
			d, ctl = startDaemon(t, cfg)
			defer stopDaemon(t, d)
			if now := d.Running(); now.Digest() != before.Digest() {
				t.Errorf("after a restart: %+v\nbefore: %+v", now, before)
			}
			h, err := ctl.History(t.Context())
			if err != nil || len(h) != 2 || !strings.Contains(h[0].Comment, "before the first file") {
				t.Errorf("history: %+v, %v", h, err)
			}
			// And forth again.
			if e, err := ctl.HistoryEntry(t.Context(), 0); err != nil || e.Number != 1 || e.Text != f.Text {
				t.Errorf("the file: %+v, %v", e, err)
			}
		})
	}
}

// TestReloadShadowed: a reload of settings that an applied file stands in the place of says so, as
// do drift and the doctor. What it does put in force is not mentioned.
func TestReloadShadowed(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	cfg := testConfig(t, a+"=/a")
	cfg.RDMAListen = nil
	core, logged := observer.New(zapcore.WarnLevel)
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	log.Logger = zap.New(core)
	d, err := Start(cfg, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)
	ctl := control.Dial(cfg.Control)
	findings := func() (out []string) {
		for _, f := range doctor.Server(t.Context(), doctor.This(), ctl) {
			if strings.HasPrefix(f.Check, "config-") {
				out = append(out, f.Check+": "+f.What+" -> "+f.Do)
			}
		}
		return out
	}
	edit := func(change func(*config.Config)) {
		next := *d.cfg.Load()
		change(&next)
		d.Load = func() (*config.Config, error) { return &next, nil }
	}
	edit(func(*config.Config) {})
	if out := rstorectl(t, d, "reload"); out != "" {
		t.Errorf("a reload without a file: %q", out)
	}
	f := yamlFile("exports: [{path: %s, pseudo: /a}]\n", a)
	if _, err := ctl.Apply(t.Context(), control.Apply{File: f, Disrupt: true}); err != nil {
		t.Fatal(err)
	}
	if out := rstorectl(t, d, "reload"); out != "" {
		t.Errorf("a configuration that says the same: %q", out)
	}
	edit(func(c *config.Config) { c.Exports = parseExports(t, a+"=/a", b+"=/b") })
	x, err := ctl.Drift(context.Background())
	if err != nil || !x.None() || x.Unread || x.RunTime || !slices.Equal(x.Shadowed, []string{"exports"}) {
		t.Errorf("drift: %+v, %v", x, err)
	}
	if out := rstorectl(t, d, "reload"); !strings.Contains(out, "not in force: exports") ||
		!strings.Contains(out, "the applied file 1") {
		t.Errorf("the reload says %q", out)
	}
	if got := findings(); len(got) != 2 || !strings.Contains(got[1], "config-shadowed") ||
		!strings.Contains(got[1], "apply --configuration") {
		t.Errorf("doctor: %q", got)
	}
	if list := d.Exports(); len(list) != 1 {
		t.Errorf("exports %+v", list)
	}
	if n := logged.FilterFieldKey("not_in_force").Len(); n != 1 {
		t.Errorf("the log says so %d times", n)
	}
	// Ports are the configuration's still. What is written of them and not loaded is drift that a
	// reload ends.
	more := testAddr() + ":2049"
	edit(func(c *config.Config) { c.TCPListen = append(slices.Clone(c.TCPListen), more) })
	if got := findings(); len(got) != 2 || !strings.Contains(got[0], "'rstorectl reload' loads") ||
		strings.Contains(got[0], "run time") {
		t.Errorf("doctor of an unread configuration: %q", got)
	}
	rstorectl(t, d, "reload")
	if x, err := ctl.Drift(t.Context()); err != nil || !x.None() {
		t.Errorf("reloaded: %+v, %v", x, err)
	}
	// A reload does not end changes of run time, and the doctor does not say so.
	if err := d.RemovePort(control.PortSpec{Transport: control.TransportTCP, Listen: more}); err != nil {
		t.Fatal(err)
	}
	if got := findings(); len(got) != 2 || !strings.Contains(got[0], "made at run time") ||
		strings.Contains(got[0], "'rstorectl reload'") {
		t.Errorf("doctor of a change at run time: %q", got)
	}
	rstorectl(t, d, "apply", "--configuration", "--yes")
	if x, err := ctl.Drift(t.Context()); err != nil || !x.None() || len(x.Shadowed) > 0 {
		t.Errorf("the configuration again: %+v, %v", x, err)
	}
}
