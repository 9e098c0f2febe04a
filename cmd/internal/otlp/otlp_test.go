package otlp

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/proto"

	"github.com/rstored/rstored/cmd/internal/measure"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// collector takes traces.
type collector struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*tracepb.Span
	res   map[string]string
}

func (k *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	m := new(tracepb.TracesData)
	if err == nil {
		err = proto.Unmarshal(b, m)
	}
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" ||
		r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "not a trace", http.StatusBadRequest)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, rs := range m.ResourceSpans {
		k.res = words(rs.Resource.Attributes)
		for _, ss := range rs.ScopeSpans {
			k.spans = append(k.spans, ss.Spans...)
		}
	}
}

func (k *collector) got() []*tracepb.Span {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.spans
}

// collect starts a collector; without a handler it takes everything.
func collect(t *testing.T, h http.HandlerFunc) *collector {
	t.Helper()
	k := new(collector)
	if h == nil {
		h = k.ServeHTTP
	}
	k.Server = httptest.NewServer(h)
	t.Cleanup(k.Close)
	return k
}

func words(list []*commonpb.KeyValue) map[string]string {
	out := make(map[string]string)
	for _, a := range list {
		if v, ok := a.Value.Value.(*commonpb.AnyValue_IntValue); ok {
			out[a.Key] = fmt.Sprint(v.IntValue)
		} else {
			out[a.Key] = a.Value.GetStringValue()
		}
	}
	return out
}

func newTracer(t *testing.T, log io.Writer) *Tracer {
	t.Helper()
	r := measure.NewRecorder(measure.Config{
		Programs:   []rpc.Program{{Name: "nfs3", Prog: 100003, Vers: 3, Procs: []rpc.Proc{{Name: "NULL"}, {Name: "READ"}}}},
		StatusName: func(n uint32) string { return map[uint32]string{2: "NOENT", 5: "IO"}[n] },
	})
	r.SetExports(map[uint32]string{1: "/a"})
	enc := zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "msg"})
	lines := zap.New(zapcore.NewCore(enc, zapcore.AddSync(log), zapcore.InfoLevel))
	tr := New(Config{Recorder: r, Version: "1.2.3", Log: lines})
	tr.flush, tr.send = time.Minute, time.Minute // this host may be slow
	t.Cleanup(func() { tr.Close(t.Context()) })
	return tr
}

func configure(t *testing.T, tr *Tracer, s Settings) {
	t.Helper()
	if err := tr.Configure(s); err != nil {
		t.Fatal(err)
	}
}

func testCall(outcome uint32) *rpc.Call {
	return &rpc.Call{
		XID: 0xfedcba98, Peer: rpc.Peer{Addr: netip.MustParseAddrPort("10.0.0.7:911"), Transport: rpc.TransportRDMA},
		Meta: rpc.CallMeta{Export: 1, Fetch: 100 * time.Microsecond, Store: 300 * time.Microsecond, Outcome: outcome},
	}
}

var served = rpc.Served{Row: 1, Args: 120, Reply: 4096, Took: 900 * time.Microsecond, Queued: 200 * time.Microsecond}

// TestSpans: a call is a span with what is known of it, and with children in the order of its time.
func TestSpans(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
	k := collect(t, nil)
	tr := newTracer(t, io.Discard)
	configure(t, tr, Settings{Endpoint: k.URL, Sample: 1})
	for _, outcome := range []uint32{0, 2, 5} {
		tr.Observe(testCall(outcome), served, 1)
	}
	tr.Close(t.Context())
	if c := tr.Counts(); c != (Counts{Sent: 3}) {
		t.Errorf("%+v", c)
	}
	if r := k.res; r["service.name"] != "rstored" || r["service.version"] != "1.2.3" ||
		r["deployment.environment.name"] != "lab" {
		t.Errorf("resource %v", r)
	}
	calls := make(map[string]*tracepb.Span)
	children := make(map[string][]*tracepb.Span)
	for _, s := range k.got() {
		if len(s.TraceId) != 16 || len(s.SpanId) != 8 {
			t.Fatalf("%v", s)
		}
		if len(s.ParentSpanId) > 0 {
			children[string(s.ParentSpanId)] = append(children[string(s.ParentSpanId)], s)
		} else {
			calls[words(s.Attributes)["rpc.response.status_code"]] = s
		}
	}
	for _, status := range []string{"OK", "NOENT", "IO"} {
		s := calls[status]
		if s == nil {
			t.Errorf("no span for a call with %s", status)
			continue
		}
		if s.Name != "nfs3.READ" || s.Kind != tracepb.Span_SPAN_KIND_SERVER ||
			s.EndTimeUnixNano-s.StartTimeUnixNano != uint64(time.Millisecond) {
			t.Errorf("%s: %v", status, s)
		}
		if failed := s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR; failed != (status == "IO") {
			t.Errorf("%s: %v", status, s.Status)
		}
		have := words(s.Attributes)
		for key, want := range map[string]string{
			"rpc.system": "onc_rpc", "rpc.method": "READ", "onc_rpc.program.name": "nfs3", "onc_rpc.xid": "4275878552",
			"network.transport": "rdma",
			"client.address":    "10.0.0.7", "client.port": "911", "nfs.export": "/a", "rpc.request.size": "120",
			"rpc.response.size": "4096",
		} {
			if have[key] != want {
				t.Errorf("%s: %s is %q, want %q", status, key, have[key], want)
			}
		}
		at := s.StartTimeUnixNano
		for i, want := range []string{"rdma fetch", "queue", "store"} {
			if list := children[string(s.SpanId)]; len(list) != 3 {
				t.Fatalf("%d children", len(list))
			}
			x := children[string(s.SpanId)][i]
			if took := x.EndTimeUnixNano - x.StartTimeUnixNano; x.Name != want || x.StartTimeUnixNano != at ||
				took != uint64(100*time.Microsecond)*uint64(i+1) || !bytes.Equal(x.TraceId, s.TraceId) {
				t.Errorf("%s: %v", status, x)
			}
			at = x.EndTimeUnixNano
		}
	}
}

// TestSample: all, none, or about a part of the calls are drawn.
func TestSample(t *testing.T) {
	const calls = 4000
	for _, tc := range []struct {
		sample      float64
		least, most int
	}{{0, 0, 0}, {1, calls, calls}, {0.25, calls / 8, calls / 2}} {
		k := collect(t, nil)
		tr := newTracer(t, io.Discard)
		configure(t, tr, Settings{Endpoint: k.URL, Sample: tc.sample})
		if tr.On() != (tc.sample > 0) {
			t.Errorf("%v: on is %v", tc.sample, tr.On())
		}
		for range calls {
			tr.Observe(testCall(0), served, 1)
		}
		tr.Close(t.Context())
		c := tr.Counts()
		if n := int(c.Sent + c.Dropped); n < tc.least || n > tc.most || c.Failed > 0 || len(k.got()) != 4*int(c.Sent) {
			t.Errorf("%v: %+v, %d spans", tc.sample, c, len(k.got()))
		}
	}
}

// TestAllocations: what is off, and a call that is not drawn, cost no memory.
func TestAllocations(t *testing.T) {
	k := collect(t, nil)
	for name, s := range map[string]Settings{"off": {}, "not drawn": {Endpoint: k.URL, Sample: 1e-300}} {
		tr := newTracer(t, io.Discard)
		configure(t, tr, s)
		r, c := tr.cfg.Recorder, testCall(0)
		if r.Trace(nil); tr.On() {
			r.Trace(tr.Observe)
		}
		for what, observe := range map[string]func(*rpc.Call, rpc.Served){
			"recorder": r.Observe, "tracer": func(c *rpc.Call, s rpc.Served) { tr.Observe(c, s, s.Row) },
		} {
			if n := testing.AllocsPerRun(1000, func() { observe(c, served) }); n != 0 {
				t.Errorf("%s, %s: %v allocations", name, what, n)
			}
		}
	}
}
