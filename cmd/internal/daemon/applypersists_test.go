package daemon

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
)

// TestApplyPersists: an applied file takes the place of configuration and run-time changes, over
// reloads and restarts; later changes come on top, drift tells them, and the history goes back.
func TestApplyPersists(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	cfg := testConfig(t, a+"=/a")
	cfg.RDMAListen = nil
	d, ctl := startDaemon(t, cfg)
	ctx := t.Context()
	names := func() string {
		var out []string
		for _, e := range d.Exports() {
			out = append(out, e.Pseudo+" "+e.Origin+strings.Join(e.Aliases, ","))
		}
		for _, p := range d.Ports() {
			out = append(out, p.Transport+" "+p.Origin)
		}
		return strings.Join(out, "; ")
	}
	check := func(when, want string) {
		t.Helper()
		if got := names(); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	drift := func(when string, want ...string) {
		t.Helper()
		x, err := ctl.Drift(ctx)
		got := []string{}
		for _, c := range x.Changes {
			got = append(got, c.Action+" "+c.Kind+" "+c.Name)
		}
		if err != nil || !slices.Equal(got, append([]string{}, want...)) || len(x.Problems) > 0 {
			t.Errorf("%s: drift %q of %+v, %v", when, got, x, err)
		}
	}
	drift("at first")
	if _, err := ctl.AddExport(ctx, parseExports(t, c+"=/c")[0]); err != nil {
		t.Fatal(err)
	}
	drift("with an export more", "add export /c")
	first := yamlFile("exports: [{path: %s, pseudo: /b}, {path: %s, pseudo: /a}]\n", b, a)
	if got, err := ctl.Apply(ctx, control.Apply{File: first, Comment: "first"}); err != nil || got.Number != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	applied := "/b applied" + b + "; /a applied/," + a + "; tcp config" // / stays at /a
	check("applied", applied)
	drift("applied")
	if got, err := ctl.Apply(ctx, control.Apply{File: first, Comment: "again"}); err != nil || got.Number != 0 {
		t.Errorf("again: %+v, %v", got, err)
	}
	if err := d.Reload(); err != nil {
		t.Fatal(err)
	}
	check("reloaded", applied)
	stopDaemon(t, d)
	d, ctl = startDaemon(t, cfg)
	check("restarted", applied)
	drift("restarted")
	if err := ctl.RemoveExport(ctx, "/a"); err != nil {
		t.Fatal(err)
	}
	drift("with an export less", "remove export /a")
	stopDaemon(t, d)
	d, ctl = startDaemon(t, cfg)
	check("restarted without it", "/b applied/,"+b+"; tcp config")
	if _, err := ctl.Apply(ctx, control.Apply{File: tableFile("%s *(ro)\n", c), Comment: "second"}); err != nil {
		t.Fatal(err)
	}
	check("the second", c+" applied; tcp config")
	e, err := ctl.HistoryEntry(ctx, 0)
	if err != nil || e.Number != 1 || e.Text != first.Text || e.UID != uint32(os.Getuid()) || e.Comment != "first" ||
		e.Digest != desired.Digest([]byte(first.Text)) {
		t.Errorf("the one before: %+v, %v", e, err)
	}
	if got, err := ctl.Apply(ctx, control.Apply{
		File:       control.File{Name: e.Name, Syntax: e.Syntax, Text: e.Text},
		RollbackOf: e.Number,
	}); err != nil || got.Number != 3 {
		t.Errorf("back: %+v, %v", got, err)
	}
	check("back", "/b applied/,"+b+"; /a applied"+a+"; tcp config") // /a was removed, so / is at the first
	if h, err := ctl.History(ctx); err != nil || len(h) != 3 || h[0].RollbackOf != 1 || h[0].Text != "" {
		t.Errorf("history %+v, %v", h, err)
	}
	if _, err := ctl.HistoryEntry(ctx, 9); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("an entry that is not there: %v", err)
	}
	own := control.Apply{File: control.File{Syntax: config.SyntaxOwn}}
	if got, err := ctl.Apply(ctx, own); err != nil || got.Number != 4 {
		t.Errorf("the configuration: %+v, %v", got, err)
	}
	check("the configuration", "/a config/,"+a+"; tcp config")
	if got, err := ctl.Apply(ctx, own); err != nil || got.Number != 0 {
		t.Errorf("the configuration again: %+v, %v", got, err)
	}
	if e, err := ctl.HistoryEntry(ctx, 4); err != nil {
		t.Error(err)
	} else if p, err := ctl.Plan(ctx, control.File{Name: e.Name, Syntax: e.Syntax, Text: e.Text}); err != nil ||
		len(p.Changes) > 0 {
		t.Errorf("the configuration from the history: %+v, %v", p, err)
	}
	drift("the configuration")
	d.Load = func() (*config.Config, error) { return nil, errors.New("line 7 is wrong") }
	if x, err := ctl.Drift(ctx); err != nil || len(x.Problems) != 1 || x.None() {
		t.Errorf("a bad configuration: %+v, %v", x, err)
	}
	stopDaemon(t, d)
}

// TestApplyConcurrently: many apply and change at once. What is served is always the whole of one
// file, with what was added to it, and in the end what is written is what runs.
func TestApplyConcurrently(t *testing.T) {
	cfg := testConfig(t, "memory:x")
	cfg.RDMAListen = nil
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	ctx := t.Context()
	dirs := [4]string{t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()}
	files := []control.File{
		yamlFile("exports: [{path: %s, pseudo: /a1}, {path: %s, pseudo: /a2}]\n", dirs[0], dirs[1]),
		yamlFile("exports: [{path: %s, pseudo: /b1}, {path: %s, pseudo: /b2}]\n", dirs[2], dirs[3]),
	}
	if _, err := ctl.Apply(ctx, control.Apply{File: files[0], Disrupt: true}); err != nil {
		t.Fatal(err)
	}
	var work, watch sync.WaitGroup
	over := make(chan struct{})
	watch.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			var kinds []string
			for _, x := range d.Table.Exports() {
				if n := x.Pseudo; len(n) == 3 && n[1] != 'c' {
					kinds = append(kinds, n)
				}
			}
			slices.Sort(kinds)
			if s := strings.Join(kinds, " "); s != "/a1 /a2" && s != "/b1 /b2" {
				t.Errorf("served at once: %s", s)
				return
			}
		}
	})
	const turns = 12
	var mu sync.Mutex
	refused, done := 0, 0
	for i := range 3 {
		work.Go(func() {
			for k := range turns {
				f := files[(i+k)%2]
				p, err := ctl.Plan(ctx, f)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = ctl.Apply(ctx, control.Apply{File: f, State: p.State, Disrupt: true})
				mu.Lock()
				switch {
				case err == nil:
					done++
				case strings.Contains(err.Error(), "has changed since"):
					refused++
				default:
					t.Errorf("apply: %v", err)
				}
				mu.Unlock()
			}
		})
	}
	work.Go(func() {
		for range turns {
			e := parseExports(t, "memory:c1")[0]
			_, _ = ctl.AddExport(ctx, e) // one that is there already is a conflict
			_ = ctl.RemoveExport(ctx, "/c1")
		}
	})
	work.Wait()
	close(over)
	watch.Wait()
	if done == 0 || done+refused != 3*turns {
		t.Errorf("%d done, %d refused", done, refused)
	}
	if x, err := ctl.Drift(ctx); err != nil || !x.None() {
		t.Errorf("%+v, %v", x, err)
	}
}

// crashEnv has this test's process start a daemon and end itself on the way.
const crashEnv = "RSTORED_TEST_CRASH"

// TestApplyKilled: a process that is killed while it applies a file serves, when it is started
// again, the old exports and ports or the new ones.
func TestApplyKilled(t *testing.T) {
	const sep = "|"
	if spec := os.Getenv(crashEnv); spec != "" {
		f := strings.Split(spec, sep)
		cfg := crashConfig(f[1], f[2], f[3])
		d, ctl := startDaemon(t, cfg)
		d.state.Reached = func(p string) {
			if p == f[0] {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		_, err := ctl.Apply(t.Context(), control.Apply{File: crashFile(f[2], f[3]), Disrupt: true})
		t.Fatalf("it was not killed: %v", err)
	}
	for point, isNew := range map[string]bool{"history": false, "state": true} {
		dir, a, addr := t.TempDir(), t.TempDir(), testAddr()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestApplyKilled$")
		cmd.Env = append(os.Environ(), crashEnv+"="+strings.Join([]string{point, dir, a, addr}, sep))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%s: %v\n%s", point, err, out)
		}
		d, ctl := startDaemon(t, crashConfig(dir, a, addr))
		var got []string
		for _, e := range d.Exports() {
			got = append(got, e.Pseudo)
		}
		for _, p := range d.Ports() {
			got = append(got, p.Listen)
		}
		want, entries := []string{"/a", "/m", addr + ":2049"}, 0
		if isNew {
			want, entries = []string{"/n", "/o", addr + ":3049"}, 1
		}
		if !slices.Equal(got, want) {
			t.Errorf("killed after %s: %q, want %q", point, got, want)
		}
		if h, err := ctl.History(t.Context()); err != nil || len(h) != entries {
			t.Errorf("killed after %s: history %v, %v", point, h, err)
		}
		// It can be applied, or is.
		if _, err := ctl.Apply(t.Context(), control.Apply{File: crashFile(a, addr), Disrupt: true}); err != nil {
			t.Errorf("killed after %s: %v", point, err)
		}
		stopDaemon(t, d)
	}
}

func crashConfig(dir, a, addr string) *config.Config {
	cfg := config.Default()
	cfg.StateDir, cfg.Control = filepath.Join(dir, "state"), filepath.Join(dir, "c.sock")
	cfg.RDMAListen, cfg.TCPListen = nil, []string{addr + ":2049"}
	cfg.Exports = []config.Export{{Path: a, Pseudo: "/a"}, {Path: "m", Pseudo: "/m", Type: config.TypeMemory}}
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	return cfg
}

func crashFile(a, addr string) control.File {
	return yamlFile("exports: [{path: %s, pseudo: /n}, {path: o, type: memory, pseudo: /o}]\ntcp_listen: ['%s:3049']\n", a,
		addr)
}
