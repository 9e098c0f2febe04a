package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/control"
)

// TestLinksBetweenExports: a client of an export cannot have another directory exported by putting
// a symbolic link in the place of one that is exported below; links of the host's administrator
// elsewhere are followed.
func TestLinksBetweenExports(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mk := func(name string) string {
		t.Helper()
		p := filepath.Join(base, name)
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	link := func(to, name string) string {
		t.Helper()
		p := filepath.Join(base, name)
		_ = os.RemoveAll(p)
		if err := os.Symlink(to, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	outer, inner, secret := mk("outer"), mk("outer/a/inner"), mk("secret")
	mk("secret/inner")
	cfg := testConfig(t, outer+"=/outer", inner+"=/outer/a/inner")
	d, ctl := startDaemon(t, cfg)
	ctx := t.Context()
	errorOf := func(pseudo string) string {
		t.Helper()
		e, err := ctl.Export(ctx, pseudo)
		if err != nil {
			t.Fatal(err)
		}
		return e.Error
	}
	if e := errorOf("/outer/a/inner"); e != "" {
		t.Fatalf("a directory: %s", e)
	}
	elsewhere := link(outer, "elsewhere") // the administrator's
	for _, tc := range []struct{ path, want string }{
		{link(secret, "outer/b"), "symbolic link in export /outer"},
		{link("../secret", "outer/c") + "/inner", "symbolic link in export /outer"},
		{filepath.Join(elsewhere, "b"), "symbolic link in export /outer"},
		{filepath.Join(elsewhere, "a"), ""},
		{link(secret, "to-secret"), ""},
	} {
		_, err := ctl.AddExport(ctx, parseExports(t, tc.path+"=/x *")[0])
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", strings.TrimPrefix(tc.path, base), err, tc.want)
		}
		if err == nil {
			if err := ctl.RemoveExport(ctx, "/x"); err != nil {
				t.Fatal(err)
			}
		}
	}
	stopDaemon(t, d)
	// At a start.
	link(secret, "outer/a")
	d, ctl = startDaemon(t, cfg)
	defer stopDaemon(t, d)
	if e := errorOf("/outer/a/inner"); !strings.Contains(e, "symbolic link in export /outer") {
		t.Errorf("at a start: %q", e)
	}
	list, err := ctl.Exports(ctx)
	if err != nil || !slices.ContainsFunc(list,
		func(e control.Export) bool { return e.Pseudo == "/outer" && e.Error == "" }) {
		t.Errorf("the outer export: %+v, %v", list, err)
	}
}
