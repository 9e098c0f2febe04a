package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// TestOwnHostAlone: an export without clients admits the server's own host, and nobody else.
func TestOwnHostAlone(t *testing.T) {
	d, _ := startDaemon(t, testConfig(t, t.TempDir()+"=/a"))
	defer stopDaemon(t, d)
	s := d.ExportSet.All()[0].NFS("/a", nil)
	var got []string
	for _, r := range s.Clients {
		got = append(got, r.CIDR.String()+" "+r.Squash.String())
	}
	if want := []string{"127.0.0.0/8 root_squash", "::1/128 root_squash"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestExposureIsSaid: what an export lets everybody do is in a plan, and in the log at the start,
// after a reload and after each change at run time.
func TestExposureIsSaid(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(t, dir+"=/safe", dir+"=/open *(rw,no_root_squash)")
	core, logged := observer.New(zapcore.InfoLevel)
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	log.Logger = zap.New(core)
	d, err := Start(cfg, func() (*config.Config, error) { return cfg, nil }, log)
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)
	check := func(when string) {
		t.Helper()
		var warned []string
		for _, e := range logged.TakeAll() {
			if e.Level == zapcore.WarnLevel && strings.HasPrefix(e.Message, "export ") {
				warned = append(warned, e.Message)
			}
		}
		if len(warned) != 2 || !strings.Contains(warned[0], "/open: every host that can reach this server may write") ||
			!strings.Contains(warned[1], "/open: root of every host") {
			t.Errorf("%s: %q", when, warned)
		}
	}
	check("start")
	if err := d.Reload(); err != nil {
		t.Fatal(err)
	}
	check("reload")
	everybody := config.Export{
		Path: dir, Pseudo: "/safe",
		Clients: []config.Client{{CIDR: config.Everyone, Squash: config.NoRootSquash}},
	}
	if _, err := d.SetExport("/open", control.ExportPatch{Clients: &everybody.Clients}); err != nil {
		t.Fatal(err)
	}
	check("change")
	if err := d.RemoveExport("/open"); err != nil {
		t.Fatal(err)
	}
	everybody.Pseudo = "/open"
	if _, err := d.AddExport(everybody); err != nil {
		t.Fatal(err)
	}
	check("addition")
	f := yamlFile("exports: [{path: %s, pseudo: /open, clients: [{cidr: '*', squash: no_root_squash}]}]", dir)
	if _, err := d.Apply(control.Apply{File: f, Disrupt: true}, control.Peer{}); err != nil {
		t.Fatal(err)
	}
	check("applied file")
	p, err := d.Plan(yamlFile("exports: [{path: %s, pseudo: /w, clients: [{cidr: 0.0.0.0/1}, {cidr: 128.0.0.0/1}]}, "+
		"{path: %s, pseudo: /c}]", dir, dir))
	if err != nil || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "/w: every host") {
		t.Errorf("plan: %q, %v", p.Warnings, err)
	}
}

// TestUpgradeExecutable: an executable that others could change is not started.
func TestUpgradeExecutable(t *testing.T) {
	d, ctl := startDaemon(t, testConfig(t, t.TempDir()+"=/a"))
	defer stopDaemon(t, d)
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\ntouch "+ran+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	try := func(path, want string) {
		t.Helper()
		if _, err := ctl.Upgrade(t.Context(), path); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "goes on") {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := os.Stat(ran); err == nil {
			t.Error("it ran")
		}
	}
	chmod := func(p string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(script, 0o757)
	try(script, "can be written by others")
	chmod(script, 0o755)
	chmod(dir, 0o777)
	try(script, "can be written by others")
	chmod(dir, 0o755)
	try("script", "not an absolute path")
	if os.Geteuid() == 0 {
		if err := os.Chown(script, 1234, 1234); err != nil {
			t.Fatal(err)
		}
		try(script, "belongs to user 1234")
	}
}
