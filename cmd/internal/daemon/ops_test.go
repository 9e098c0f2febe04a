package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/ops"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
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
