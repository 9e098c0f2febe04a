package daemon

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/control"
)

func TestFull(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		st   blockstore.Stat
		want string
	}{
		{blockstore.Stat{}, ""}, // an overlay of something that has no size
		{blockstore.Stat{TotalBytes: 100 * gib, AvailBytes: 2 * gib, TotalFiles: 9, AvailFiles: 1}, ""},
		{blockstore.Stat{TotalBytes: 1000 * gib, AvailBytes: 2 * gib}, ""},
		{blockstore.Stat{TotalBytes: 1000 * gib, AvailBytes: gib / 2}, "512 of 1024000 MiB"},
		{blockstore.Stat{TotalBytes: 10 * gib, AvailBytes: gib / 20}, "51 of 10240 MiB"},
		{blockstore.Stat{TotalBytes: 50, FreeBytes: 5}, "0 of 0 MiB"}, // what is free is root's
		{blockstore.Stat{TotalBytes: gib, AvailBytes: gib, TotalFiles: 100}, "all its 100 inodes"},
	} {
		if got := full(&tc.st); !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf("%+v: %q, want %q", tc.st, got, tc.want)
		}
	}
}

// TestUnreadable: a directory that has gone while it is served is in the status, in the list of
// exports and in the answer of the ops port, which stays 200: what clients have open is served.
func TestUnreadable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, dir+"=/d", t.TempDir()+"=/well")
	cfg.OpsListen = []string{testAddr() + ":9049"}
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	d.monitor.health.check(d.ExportSet.All())
	if s, err := ctl.Status(t.Context()); err != nil || s.State != control.StateRunning {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	d.monitor.health.check(d.ExportSet.All())
	const want = "export /d: its directory cannot be read: "
	s, err := ctl.Status(t.Context())
	if err != nil || s.State != control.StateDegraded || len(s.Problems) != 1 || !strings.HasPrefix(s.Problems[0], want) {
		t.Errorf("%+v, %v", s, err)
	}
	if p := d.Sample().Server.Problems; len(p) != 1 || !strings.HasPrefix(p[0], want) {
		t.Errorf("the page has %q", p)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+opsAddr(d)+"/readyz", nil)
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	if r.StatusCode != http.StatusOK || !strings.Contains(string(b), "warning "+want) {
		t.Errorf("%d\n%s", r.StatusCode, b)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.monitor.health.check(d.ExportSet.All())
	if s, err := ctl.Status(t.Context()); err != nil || s.State != control.StateRunning {
		t.Errorf("%+v, %v", s, err)
	}
}
