package daemon

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// traceCollector is a collector of OpenTelemetry, as far as rstored needs one.
type traceCollector struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*tracepb.Span
}

func collectTraces(t *testing.T) *traceCollector {
	t.Helper()
	k := new(traceCollector)
	k.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		m := new(tracepb.TracesData)
		if err != nil || proto.Unmarshal(b, m) != nil {
			t.Errorf("a request of %d bytes cannot be understood: %v", len(b), err)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, rs := range m.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				k.spans = append(k.spans, ss.Spans...)
			}
		}
	}))
	t.Cleanup(k.Close)
	return k
}

// calls are the spans of calls, by name, transport, export and status, and the names of all
// children.
func (k *traceCollector) calls() (calls, children map[string]int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	calls, children = make(map[string]int), make(map[string]int)
	for _, s := range k.spans {
		if len(s.ParentSpanId) > 0 {
			children[s.Name]++
			continue
		}
		at := make(map[string]string)
		for _, a := range s.Attributes {
			at[a.Key] = a.Value.GetStringValue()
		}
		calls[s.Name+" "+at["network.transport"]+" "+at["nfs.export"]+" "+at["rpc.response.status_code"]]++
	}
	return calls, children
}

// TestTracesSent: calls over both transports by both versions come to a collector, to another one
// after a reload, and nowhere when that is what the configuration says. A stop sends what is left.
func TestTracesSent(t *testing.T) {
	first, second := collectTraces(t), collectTraces(t)
	cfg := testConfig(t, t.TempDir()+"=/a(rw,no_root_squash)")
	cfg.OpsListen = []string{testAddr() + ":9049"}
	cfg.OTLP.Endpoint, cfg.OTLP.Sample = first.URL, 1
	next := *cfg
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Start(cfg, func() (*config.Config, error) { c := next; return &c, nil }, log)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(o config.OTLP) {
		t.Helper()
		next.OTLP = o
		if err := d.Reload(); err != nil {
			t.Error(err)
		}
	}
	traffic(t, cfg, 256<<10)
	reload(config.OTLP{})
	if d.otlp.On() {
		t.Error("calls are traced after a reload that ends it")
	}
	traffic(t, cfg, 4096)
	reload(config.OTLP{Endpoint: second.URL, Sample: 1})
	traffic(t, cfg, 256<<10)
	if all := scrape(t, d); value(t, all, "rstored_otlp_traces_total", "result", "dropped")+value(t, all,
		"rstored_otlp_traces_total", "result", "failed") != 0 {
		t.Errorf("%+v", d.otlp.Counts())
	}
	stopDaemon(t, d)
	if c := d.otlp.Counts(); c.Sent == 0 || c.Dropped+c.Failed > 0 {
		t.Errorf("%+v", c)
	}
	var totals []int
	for i, k := range []*traceCollector{first, second} {
		calls, children := k.calls()
		for _, want := range []string{
			"nfs3.WRITE tcp /a OK", "nfs3.READ rdma /a OK", "nfs3.LOOKUP tcp /a NOENT",
			"nfs4.WRITE rdma /a OK", "nfs4.READ tcp /a OK", "nfs4.OPEN rdma /a OK",
		} {
			if calls[want] == 0 {
				t.Errorf("collector %d has no %s: %v", i, want, calls)
			}
		}
		for _, want := range []string{"rdma fetch", "queue", "store"} {
			if children[want] == 0 {
				t.Errorf("collector %d has no %s: %v", i, want, children)
			}
		}
		n := 0
		for _, c := range calls {
			n += c
		}
		totals = append(totals, n)
	}
	if c := d.otlp.Counts(); uint64(totals[0]+totals[1]) != c.Sent {
		t.Errorf("the collectors have %v, %+v", totals, c)
	}
}
