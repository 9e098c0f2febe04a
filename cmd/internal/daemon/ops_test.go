package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/ops"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// fetch asks an ops port for something.
func fetch(t *testing.T, d *Daemon, path string) (status int, body []byte) {
	t.Helper()
	addrs := d.Ops().Addresses
	if len(addrs) == 0 {
		t.Fatal("there is no ops port")
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addrs[0]+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, body
}

func scrape(t *testing.T, d *Daemon) map[string]*dto.MetricFamily {
	t.Helper()
	status, body := fetch(t, d, "/metrics")
	if status != http.StatusOK {
		t.Fatalf("%d: %s", status, body)
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	got, err := p.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// value is the sum of the samples of a metric whose labels have these values; of a histogram
// their number.
func value(t *testing.T, all map[string]*dto.MetricFamily, name string, labels ...string) (sum float64) {
	t.Helper()
	if all[name] == nil {
		t.Errorf("there is no %s", name)
		return 0
	}
	for _, m := range all[name].Metric {
		have := make(map[string]string)
		for _, l := range m.Label {
			have[l.GetName()] = l.GetValue()
		}
		match := true
		for i := 0; i < len(labels); i += 2 {
			match = match && have[labels[i]] == labels[i+1]
		}
		if match {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// traffic writes and reads a file over both transports by versions 3 and 4.2, and has a call
// fail by each.
func traffic(t *testing.T, cfg *config.Config, size int) {
	t.Helper()
	for scheme, at := range map[string]string{"nfs+rdma": cfg.RDMAListen[0], "nfs+tcp": cfg.TCPListen[0]} {
		for _, version := range []client.Version{client.Version3, client.Version42} {
			dl := dial.Dialer{Version: version, MountPort: config.TCPPort}
			url := fmt.Sprintf("%s://%s/a/f%v", scheme, at, version)
			u, err := client.ParseURL(url)
			if err != nil {
				t.Fatal(err)
			}
			f, err := dl.Client(u).CreateFile(t.Context(), u.Path, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, size)
			if _, err := f.WriteAt(buf, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := f.ReadAt(buf, 0); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := dl.Open(t.Context(), url+"-not-there"); err == nil {
				t.Error("a file that is not there was opened")
			}
			if err := dl.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// opsDaemon is a daemon with an ops port and an audit log in a file.
func opsDaemon(t *testing.T, change func(*config.Config)) (*config.Config, *Daemon, *control.Dialer) {
	t.Helper()
	cfg := testConfig(t, t.TempDir()+"=/a(rw,no_root_squash)")
	cfg.OpsListen = []string{testAddr() + ":9049"}
	cfg.Audit = "file " + filepath.Join(t.TempDir(), "audit.log")
	if change != nil {
		change(cfg)
	}
	d, ctl := startDaemon(t, cfg)
	return cfg, d, ctl
}

// TestMetrics: what clients do shows in the metrics, by operation, export, client and
// transport, and every metric is one that the catalog has.
func TestMetrics(t *testing.T) {
	cfg, d, ctl := opsDaemon(t, nil)
	defer stopDaemon(t, d)
	const size = 256 << 10
	traffic(t, cfg, size)
	all := scrape(t, d)
	at := func(name string, labels ...string) float64 { return value(t, all, name, labels...) }
	for _, transport := range []string{"rdma", "tcp"} {
		for _, program := range []string{"nfs3", "nfs4"} {
			l := []string{"program", program, "transport", transport}
			if n := at("rstored_rpc_duration_seconds", append(l, "operation", "READ")...); n < 1 {
				t.Errorf("%v: %v READs", l, n)
			}
			if n := at("rstored_rpc_sent_bytes_total", append(l, "operation", "READ")...); n < size {
				t.Errorf("%v: READs sent %v bytes", l, n)
			}
			if n := at("rstored_rpc_received_bytes_total", append(l, "operation", "WRITE")...); n < size {
				t.Errorf("%v: WRITEs received %v bytes", l, n)
			}
		}
		if n := at("rstored_export_duration_seconds", "export", "/a", "kind", "write", "transport", transport); n < 2 {
			t.Errorf("%s: %v writes of the export", transport, n)
		}
		if n := at("rstored_export_failures_total", "export", "/a", "kind", "meta", "transport", transport); n < 2 {
			t.Errorf("%s: %v failures of the export", transport, n)
		}
		if n := at("rstored_client_duration_seconds", "transport", transport); n < 8 {
			t.Errorf("%s: %v calls of clients", transport, n)
		}
		if n := at("rstored_ports", "transport", transport, "state", "listening"); n != 1 {
			t.Errorf("%s: %v ports", transport, n)
		}
	}
	for _, tc := range []struct {
		least  float64
		name   string
		labels []string
	}{
		{2, "rstored_rpc_failures_total", []string{"program", "nfs3", "operation", "LOOKUP", "status", "NOENT"}},
		{2, "rstored_rpc_failures_total", []string{"program", "nfs4", "status", "NOENT"}},
		{2, "rstored_nfs4_operations_total", []string{"operation", "CREATE_SESSION"}},
		{2, "rstored_rpc_fetch_duration_seconds", nil},
		{4, "rstored_rpc_queue_duration_seconds", nil},
		{4, "rstored_store_duration_seconds", []string{"export", "/a", "operation", "write"}},
		{1, "rstored_store_size_bytes", []string{"export", "/a"}},
		{2 * size, "rstored_rdma_written_bytes_total", nil},
		{2 * size, "rstored_rdma_read_bytes_total", nil},
		{1, "rstored_build_info", nil},
		{1, "rstored_rpc_workers", []string{"state", "idle"}},
		{1, "rstored_exports", []string{"state", "served"}},
		{1, "rstored_rdma_device_rc_rx_packets_total", nil},
		{1, "rstored_rdma_loop_response_seconds", []string{"loop", "0"}},
		{1, "rstored_audit_events_total", []string{"event", "mount"}},
		{1, "go_goroutines", nil},
		{1, "process_open_fds", nil},
	} {
		if n := at(tc.name, tc.labels...); n < tc.least && tc.name != "rstored_rdma_loop_response_seconds" {
			t.Errorf("%s %v is %v, not at least %v", tc.name, tc.labels, n, tc.least)
		}
	}
	kinds := make(map[string]string)
	for _, m := range ops.Catalog() {
		kinds[m.Name] = m.Type
	}
	for name, f := range all {
		if strings.HasPrefix(name, "rstored_") && strings.ToUpper(kinds[name]) != f.GetType().String() {
			t.Errorf("%s is a %s, and a %q in the catalog", name, f.GetType(), kinds[name])
		}
	}
	calls := at("rstored_rpc_duration_seconds")
	if n := at("rstored_client_duration_seconds"); n != calls {
		t.Errorf("%v calls by operation, %v by client", calls, n)
	}
	slow, err := ctl.Slow(t.Context())
	if err != nil || len(slow) == 0 ||
		!slices.ContainsFunc(slow, func(s control.SlowCall) bool {
			return s.Operation == "nfs4.WRITE" && s.Export == "/a" &&
				s.StoreUS > 0
		}) {
		t.Errorf("slow calls %+v, %v", slow, err)
	}
	for _, s := range slow {
		if s.QueueUS+s.RDMAUS+s.StoreUS > s.TookUS+3 {
			t.Errorf("the parts are more than the whole: %+v", s)
		}
	}
}

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
