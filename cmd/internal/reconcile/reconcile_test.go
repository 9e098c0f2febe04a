package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/audit"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/ports"
	"github.com/rstored/rstored/cmd/internal/postmortem"
	"github.com/rstored/rstored/cmd/internal/service"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// rig is a Reconciler without listeners and control interface.
type rig struct {
	*Reconciler
	t   *testing.T
	dir string
	// settings are in force, written is what the configuration says.
	settings, written *config.Config
	clients           []control.Client
}

// newRig serves the exports named a of a new directory.
func newRig(t *testing.T, exports ...string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir()}
	for _, d := range []string{"a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(r.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.settings = r.config(exports...)
	r.written = r.settings
	r.start()
	return r
}

// config is a configuration with exports of the rig's directories, each NAME(OPTIONS).
func (r *rig) config(exports ...string) *config.Config {
	r.t.Helper()
	cfg := config.Default()
	cfg.StateDir = filepath.Join(r.dir, "state")
	cfg.RDMAListen, cfg.TCPListen = nil, nil
	for _, s := range exports {
		name, options, _ := strings.Cut(s, "(")
		e, err := config.ParseExport(fmt.Sprintf("%s=/%s(%s", filepath.Join(r.dir, name), name, options))
		if err != nil {
			r.t.Fatal(err)
		}
		cfg.Exports = append(cfg.Exports, e)
	}
	return cfg
}

// start makes the reconciler, as a daemon does at its start, and serves what is desired.
func (r *rig) start() {
	r.t.Helper()
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		r.t.Fatal(err)
	}
	st, err := state.Open(context.Background(), r.settings.StateDir, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	aud, err := audit.Open(config.AuditOff, log.Always)
	if err != nil {
		r.t.Fatal(err)
	}
	settings := func() *config.Config { return r.settings }
	srv, err := service.New(service.Config{
		Settings: settings, State: st, Files: posixfs.NewFiles(64), Log: log, Audit: aud.Slog(),
		Callers: func() map[rpc.Peer]rpc.Caller { return nil },
		MayAct:  func() (func(), error) { return func() {}, nil },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	socks, err := sockets.Inherit(nil, log.Logger, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	var counts counters.Transports
	devs := devices.New(devices.Config{
		Opener: devices.System(), Settings: settings, State: st, Sockets: socks, Failures: new(postmortem.Log),
		Counters: &counts, Log: log,
	})
	var mu sync.Mutex
	r.Reconciler = New(Config{
		Settings: settings, Load: func() (*config.Config, error) { return r.written, nil },
		State: st, Service: srv, Log: log,
		Ports: ports.New(ports.Config{
			Settings: settings, State: st, Sockets: socks, Devices: devs, Counters: &counts, Audit: aud, Log: log,
			RPC: srv.RPC, Programs: srv.Programs, Admits: srv.Table.AdmitsHost, Limiter: rpc.NewConnLimiter(rpc.ConnLimits{}),
		}),
		Clients: func() []control.Client { return r.clients },
		Mu:      &mu, MayChange: func() error { mu.Lock(); return nil },
	})
	r.t.Cleanup(r.stop)
	r.apply(true)
}

// stop closes what start made. A second call does nothing.
func (r *rig) stop() {
	if r.Reconciler == nil {
		return
	}
	r.Service.Close()
	if err := errors.Join(r.Service.ExportSet.Close(), r.State.Close()); err != nil {
		r.t.Error(err)
	}
	r.Reconciler = nil
}

func (r *rig) apply(atStart bool) {
	r.t.Helper()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if err := errors.Join(r.ApplyExports(atStart), r.ApplyPorts(atStart)); err != nil {
		r.t.Fatal(err)
	}
}

// reload puts the written configuration in force, as a reload does.
func (r *rig) reload(exports ...string) {
	r.t.Helper()
	r.written = r.config(exports...)
	r.settings = r.written
	r.apply(false)
}

// file is a document with exports as in config.
func (r *rig) file(exports ...string) control.File {
	var b strings.Builder
	b.WriteString("exports:\n")
	for _, s := range exports {
		name, options, _ := strings.Cut(strings.TrimSuffix(s, ")"), "(")
		fmt.Fprintf(&b, "  - {path: %s, pseudo: /%s, read_only: %v}\n", filepath.Join(r.dir, name), name, options == "ro")
	}
	return control.File{Name: "new.yaml", Syntax: config.SyntaxYAML, Text: b.String()}
}

// served are the exports that are served, each with its option ro.
func (r *rig) served() []string {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	out := []string{}
	for _, e := range r.Running().Exports {
		s := e.Pseudo
		if e.ReadOnly {
			s += " ro"
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

func (r *rig) want(when string, exports ...string) {
	r.t.Helper()
	if got := r.served(); !slices.Equal(got, exports) {
		r.t.Errorf("%s: %q is served, want %q", when, got, exports)
	}
}

// TestFirstApplyIsRolledBack: a file takes the place of the exports of the configuration, over a
// restart too, and entry 0 of the history leads back to them.
func TestFirstApplyIsRolledBack(t *testing.T) {
	r := newRig(t, "a(rw)", "b(rw)")
	r.want("at the start", "/a", "/b")
	done, err := r.Apply(control.Apply{File: r.file("a(ro)", "c(rw)")}, control.Peer{})
	if err != nil || done.Number != 1 || len(done.Plan.Changes) != 3 {
		t.Fatalf("%+v, %v", done, err)
	}
	r.want("after the file", "/a ro", "/c")
	again, err := r.Apply(control.Apply{File: r.file("a(ro)", "c(rw)")}, control.Peer{})
	if err != nil || again.Number != 0 {
		t.Errorf("the same file once more: %+v, %v", again, err)
	}
	r.stop()
	r.start()
	r.want("after a restart", "/a ro", "/c")
	first, err := r.HistoryEntry(0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Apply(control.Apply{
		File:       control.File{Name: first.Name, Syntax: first.Syntax, Text: first.Text},
		RollbackOf: first.Number,
	}, control.Peer{})
	if err != nil {
		t.Fatal(err)
	}
	r.want("after the rollback", "/a", "/b")
	if d := r.Drift(); len(d.Changes) != 0 || d.RunTime || d.Unread || len(d.Shadowed) != 0 {
		t.Errorf("drift after the rollback: %+v", d)
	}
}

// TestReloadUnderAnAppliedFile: while a file is applied, a reload of the configuration changes no
// export. Drift says which settings are not in force, and applying the configuration ends it.
func TestReloadUnderAnAppliedFile(t *testing.T) {
	r := newRig(t, "a(rw)")
	if _, err := r.Apply(control.Apply{File: r.file("b(rw)")}, control.Peer{}); err != nil {
		t.Fatal(err)
	}
	r.reload("a(rw)", "c(rw)")
	r.want("after the reload", "/b")
	if d := r.Drift(); !slices.Contains(d.Shadowed, "exports") || len(d.Changes) != 0 {
		t.Errorf("drift: %+v", d)
	}
	if _, err := r.Apply(control.Apply{File: control.File{Syntax: config.SyntaxOwn}}, control.Peer{}); err != nil {
		t.Fatal(err)
	}
	r.want("after the configuration was applied", "/a", "/c")
	if d := r.Drift(); len(d.Shadowed) != 0 || len(d.Changes) != 0 {
		t.Errorf("drift at the end: %+v", d)
	}
}

// TestDrift: what was changed at run time, and what was written and not read yet, are told apart.
func TestDrift(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(r *rig) error
		runTime bool
		unread  bool
		changes []string
	}{
		{"nothing", func(*rig) error { return nil }, false, false, nil},
		{"an export was removed", func(r *rig) error { return r.RemoveExport("/b") }, true, false, []string{"remove /b"}},
		{"an export was added", func(r *rig) error {
			_, err := r.AddExport(r.config("c(rw)").Exports[0])
			return err
		}, true, false, []string{"add /c"}},
		{"the file was edited", func(r *rig) error {
			r.written = r.config("a(rw)", "b(ro)")
			return nil
		}, false, true, []string{"change /b"}},
	} {
		r := newRig(t, "a(rw)", "b(rw)")
		if err := tc.change(r); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		d := r.Drift()
		var got []string
		for _, c := range d.Changes {
			got = append(got, c.Action+" "+c.Name)
		}
		if d.RunTime != tc.runTime || d.Unread != tc.unread || !slices.Equal(got, tc.changes) {
			t.Errorf("%s: %q, %+v", tc.name, got, d)
		}
		r.stop()
	}
}

// TestApplyRefused: a file that cannot be served as a whole, or was planned for another state,
// changes nothing.
func TestApplyRefused(t *testing.T) {
	r := newRig(t, "a(rw)", "b(rw)")
	plan, err := r.Plan(r.file("a(rw)"))
	if err != nil || plan.State == "" || len(plan.Changes) != 1 {
		t.Fatalf("%+v, %v", plan, err)
	}
	for _, tc := range []struct {
		name string
		a    control.Apply
		want string
	}{
		{"a directory that is not there", control.Apply{File: r.file("a(rw)", "nothing(rw)")}, "no such file"},
		{"another state", control.Apply{File: r.file("a(rw)"), State: "0"}, control.ErrChanged.Error()},
		{
			"a comment that is too long",
			control.Apply{File: r.file("a(rw)"), Comment: strings.Repeat("x", CommentMax+1)},
			"comment",
		},
		{"no document", control.Apply{File: control.File{Syntax: config.SyntaxYAML, Text: "exports: 7"}}, "exports"},
	} {
		if _, err := r.Apply(tc.a, control.Peer{}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		r.want(tc.name, "/a", "/b")
	}
	if list, err := r.History(); err != nil || len(list) != 0 {
		t.Errorf("the history has %v, %v", list, err)
	}
}
