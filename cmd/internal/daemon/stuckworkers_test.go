package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestHealth: the answers follow exports that fail and the drain.
func TestHealth(t *testing.T) {
	gone := t.TempDir()
	cfg, d, ctl := opsDaemon(t, func(c *config.Config) {
		c.Exports = append(c.Exports,
			parseExports(t, gone+"=/gone")...)
	})
	check := func(path string, want int, word string) {
		t.Helper()
		if status, body := fetch(t, d, path); status != want || !strings.Contains(string(body), word) {
			t.Errorf("%s: %d %q, want %d and %q", path, status, body, want, word)
		}
	}
	check("/livez", 200, "ok workers\n")
	check("/livez", 200, "ok loop ")
	check("/readyz", 200, "ok export /gone\n")
	check("/debug/pprof/goroutine?debug=1", 403, "rstorectl ops pprof on")
	check("/debug/trace?seconds=0.01", 403, "")
	if err := ctl.SetPprof(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	check("/debug/pprof/goroutine?debug=1", 200, "goroutine profile")
	check("/debug/trace?seconds=0.01", 200, "")
	if err := ctl.SetPprof(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	check("/debug/pprof/heap", 403, "")
	check("/nothing", 404, "")

	// An export whose directory is not there, as after a reload that found it so.
	bad := *cfg
	bad.Exports = append(slices.Clone(cfg.Exports), parseExports(t, filepath.Join(gone, "missing")+"=/missing")...)
	*cfg = bad
	if err := ctl.Reload(t.Context()); err == nil {
		t.Error("a reload with an export that cannot be opened reported nothing")
	}
	check("/readyz", 503, "failed export /missing: ")
	check("/livez", 200, "")
	if err := ctl.RemoveExport(t.Context(), "/missing"); err != nil {
		t.Fatal(err)
	}
	check("/readyz", 200, "")
	d.draining.Store(true)
	check("/readyz", 503, "failed running: ")
	check("/livez", 200, "")
	stopDaemon(t, d)
}

// TestStuckWorkers: workers that are all busy for too long with the same calls are no sign of
// life, and one that finishes a call is.
func TestStuckWorkers(t *testing.T) {
	var w monitor
	at := time.Now()
	for _, tc := range []struct {
		load  rpc.Load
		after time.Duration
		want  time.Duration
	}{
		{rpc.Load{Workers: 2, Busy: 2, Done: 5}, 0, 0},
		{rpc.Load{Workers: 2, Busy: 2, Queued: 9, Done: 5}, time.Minute, time.Minute},
		{rpc.Load{Workers: 2, Busy: 2, Queued: 9, Done: 5}, 2 * time.Minute, 3 * time.Minute},
		{rpc.Load{Workers: 2, Busy: 2, Queued: 8, Done: 6}, time.Second, 0},
		{rpc.Load{Workers: 2, Busy: 1, Done: 6}, time.Hour, 0},
	} {
		at = at.Add(tc.after)
		if got := w.progress(tc.load, at); got != tc.want {
			t.Errorf("%+v: %v, want %v", tc.load, got, tc.want)
		}
	}
}

// TestAudit: mounts, clients, connections and actions are written down, with who and what.
func TestAudit(t *testing.T) {
	cfg, d, ctl := opsDaemon(t, nil)
	traffic(t, cfg, 4096)
	ctx := t.Context()
	if err := ctl.SetLogLevel(ctx, "warn"); err != nil {
		t.Fatal(err)
	}
	ro := true
	if _, err := ctl.SetExport(ctx, "/a", control.ExportPatch{ReadOnly: &ro}); err != nil {
		t.Fatal(err)
	}
	if err := ctl.RemoveExport(ctx, "/nope"); err == nil {
		t.Error("what is not there was removed")
	}
	d.audit.Flush()
	stopDaemon(t, d)

	name := strings.TrimPrefix(cfg.Audit, "file ")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	var lines []map[string]any
	for line := range strings.Lines(string(text)) {
		m := make(map[string]any)
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, m)
	}
	find := func(event string, fields ...string) {
		t.Helper()
		if !slices.ContainsFunc(lines, func(m map[string]any) bool {
			ok := m["event"] == event && m["time"] != nil
			for i := 0; i < len(fields); i += 2 {
				b, err := json.Marshal(m[fields[i]])
				ok = ok && err == nil && strings.Contains(string(b), fields[i+1])
			}
			return ok
		}) {
			t.Errorf("there is no line %q %q in\n%s", event, fields, text)
		}
	}
	uid, pid := fmt.Sprint(os.Getuid()), fmt.Sprint(os.Getpid())
	find("start", "pid", pid)
	find("mount", "path", "/a", "result", `"OK"`, "export", `"/a"`, "client", "127.", "uid", uid)
	find("rdma_connect", "client", "127.", "local", ":20049", "pkey", "0xffff")
	find("rdma_disconnect", "client", "127.")
	find("nfs4_client_established", "owner", "\"", "client_id", "0x")
	find("nfs4_session", "client", "127.", "transport", "rdma", "version", "4.2")
	find("control", "uid", uid, "pid", pid, "request", "/v1/log-level?level=warn", "status", "200", "old",
		`"log_level":"error"`, "new", `"log_level":"warn"`)
	find("control", "request", "/v1/export?name=%2Fa", "old", `"read_only":false`, "new", `"read_only":true`)
	find("control", "method", "DELETE", "request", "nope", "status", "404", "old", "{}", "new", "{}")
	find("stop")
}

// TestTrace: a trace has the calls of its client, with their arguments, and leaves nothing behind
// when it ends.
func TestTrace(t *testing.T) {
	cfg, d, ctl := opsDaemon(t, nil)
	defer stopDaemon(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	var seen []string
	enough, once := make(chan struct{}), sync.Once{}
	go func() {
		ended <- ctl.Trace(ctx, netip.Addr{}, func(c *control.TraceCall) error {
			if c.UID != uint32(os.Getuid()) || c.TookUS < 0 || c.XID == "" {
				t.Errorf("%+v", c)
			}
			seen = append(seen, c.Operation+" "+c.Transport+" "+c.Export+" "+c.Status+": "+c.Arguments)
			if c.Operation == "nfs3.LOOKUP" && c.Status == "NOENT" && c.Transport == "tcp" {
				once.Do(func() { close(enough) })
			}
			return nil
		})
	}()
	go func() {
		ended <- ctl.Trace(ctx, netip.MustParseAddr("192.0.2.7"), func(c *control.TraceCall) error {
			t.Errorf("a call of somebody else: %+v", c)
			return nil
		})
	}()
	watching := func() int {
		if l := d.traces.list.Load(); l != nil {
			return len(*l)
		}
		return 0
	}
	reach := func(want int) {
		t.Helper()
		for until := time.Now().Add(10 * time.Second); watching() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%d traces, want %d", watching(), want)
			}
		}
	}
	reach(2)
	traffic(t, cfg, 8192)
	select {
	case <-enough:
	case <-time.After(10 * time.Second):
		t.Error("the trace does not have everything")
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	reach(0)
	text := strings.Join(seen, "\n")
	for _, want := range []string{
		`nfs3\.CREATE rdma /a OK: dir=0x[0-9a-f]{8} name="f`,
		`nfs3\.WRITE tcp /a OK: fh=0x[0-9a-f]{8} offset=0 count=8192 stable=\d`,
		`nfs3\.READ rdma /a OK: fh=0x[0-9a-f]{8} offset=0 count=8192`,
		`nfs3\.LOOKUP tcp /a NOENT: dir=0x[0-9a-f]{8} name="f.*-not-there"`,
		`mount3\.MNT tcp .*: path="/a"`,
		`nfs4\.WRITE rdma /a OK: 4\.2 .*SEQUENCE\(slot=\d+ seq=\d+\) PUTFH\(fh=0x[0-9a-f]{8}\) WRITE\(offset=0 count=8192 ` +
			`stable=\d\)`,
		`nfs4\.READ tcp /a OK: 4\.2 .*READ\(offset=0 count=8192\)`,
		`nfs4\.OPEN rdma /a OK: 4\.2 .*OPEN\(access=\d deny=\d\)`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("nothing like %s in\n%s", want, text)
		}
	}
}
