package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/control"
)

// TestPurge: what the package's purge removes by name is all that a daemon leaves in its state
// directory, and nothing else.
func TestPurge(t *testing.T) {
	cfg := testConfig(t, t.TempDir()+"=/a")
	purge := func() {
		t.Helper()
		script := "set --; . ../../../deploy/package/deb/postrm; forget \"$DIR\""
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
		cmd.Env = append(os.Environ(), "DIR="+cfg.StateDir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for _, foreign := range []string{"", "mine"} {
		d, ctl := startDaemon(t, cfg)
		if _, err := ctl.Apply(t.Context(), control.Apply{
			File:    control.File{Name: "f", Syntax: "yaml", Text: "exports: [{path: " + t.TempDir() + ", pseudo: /b}]\n"},
			Disrupt: true,
		}); err != nil {
			t.Fatal(err)
		}
		stopDaemon(t, d)
		if _, err := os.Stat(filepath.Join(cfg.StateDir, "history")); err != nil {
			t.Fatal(err)
		}
		if foreign != "" {
			if err := os.WriteFile(filepath.Join(cfg.StateDir, foreign), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		purge()
		left, err := filepath.Glob(cfg.StateDir + "/*")
		if err != nil || foreign == "" && len(left) > 0 || foreign != "" && len(left) != 1 {
			t.Errorf("left over: %q, %v", left, err)
		}
		if _, err := os.Stat(cfg.StateDir); (err == nil) != (foreign != "") {
			t.Errorf("with %q: the directory: %v", strings.TrimSpace(foreign), err)
		}
	}
}
