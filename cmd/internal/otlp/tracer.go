package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/measure"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

const (
	queueMax  = 4096             // calls that wait to be sent
	batchMax  = 512              // calls in a request
	batchTime = 5 * time.Second  // a call waits for others at most
	sendTime  = 10 * time.Second // a request may take
	flushTime = 5 * time.Second  // what is left may take at the end
	tellTime  = time.Minute      // between two lines of the log about the collector
)

// tracesPath is where collectors take traces, below their base (OTLP, section OTLP/HTTP request).
const tracesPath = "/v1/traces"

// Settings choose the calls and the collector.
type Settings struct {
	// Endpoint is the base URL of the collector, such as http://127.0.0.1:4318. If it is empty, no
	// calls are traced.
	Endpoint string
	// Sample is the fraction of the calls that is traced, 0 to 1.
	Sample float64
	// CA is a PEM file of the authorities of the collector's certificate; empty: those of the host.
	CA string
}

// On reports whether any call is traced.
func (s *Settings) On() bool { return s.Endpoint != "" && s.Sample > 0 }

// Counts are traced calls by result.
type Counts struct {
	Sent    uint64 // the collector has them
	Dropped uint64 // too many waited
	Failed  uint64 // the collector did not take them
}

// Config is what a Tracer needs beside its settings.
type Config struct {
	Recorder *measure.Recorder // whose calls they are
	Version  string            // of the program
	Log      *zap.Logger
}

// Tracer chooses calls and sends them. Its methods may be called from any goroutine.
type Tracer struct {
	cfg    Config
	root   context.Context // of all requests
	cancel context.CancelFunc
	ended  sync.WaitGroup
	// flush and send are flushTime and sendTime.
	flush, send time.Duration

	sent, dropped, failed atomic.Uint64

	to atomic.Pointer[stream] // nil: off

	mu       sync.Mutex
	settings Settings
	ca       []byte
	closed   bool
}

// New makes a Tracer that is off.
func New(cfg Config) *Tracer {
	t := &Tracer{cfg: cfg, flush: flushTime, send: sendTime}
	t.root, t.cancel = context.WithCancel(context.Background())
	return t
}

// Configure changes the settings. Calls that were chosen under the old settings are sent as those
// say, within flushTime, without waiting for it. If the new settings cannot be used, nothing
// changes.
func (t *Tracer) Configure(s Settings) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ca []byte
	if s.CA != "" && s.On() {
		var err error
		if ca, err = os.ReadFile(s.CA); err != nil {
			return err
		}
	}
	if t.closed || s == t.settings && bytes.Equal(ca, t.ca) {
		return nil
	}
	var next *stream
	if s.On() {
		out, err := newExporter(s.Endpoint, ca)
		if err != nil {
			return err
		}
		next = t.newStream(out, s.Sample, queueMax, batchMax)
		t.ended.Go(next.run)
	}
	t.settings, t.ca = s, ca
	t.change(next)
	return nil
}

func (t *Tracer) change(next *stream) {
	if old := t.to.Swap(next); old != nil {
		close(old.stop)
	}
}

// On reports whether calls are traced; if not, Observe need not be called.
func (t *Tracer) On() bool { return t.to.Load() != nil }

// Observe decides by chance whether a call is traced, and queues it. It never waits, and allocates
// nothing for a call that is not chosen.
func (t *Tracer) Observe(c *rpc.Call, s rpc.Served, row int) {
	x := t.to.Load()
	if x == nil || rand.Float64() >= x.sample { //nolint:gosec // nobody gains by guessing
		return
	}
	select {
	case x.queue <- t.cfg.Recorder.Describe(c, &s, row, time.Now()):
	default:
		t.dropped.Add(1)
	}
}

// Counts returns the results of the chosen calls.
func (t *Tracer) Counts() Counts {
	return Counts{t.sent.Load(), t.dropped.Load(), t.failed.Load()}
}

// Close ends the tracer. Queued calls are sent within flushTime, as long as ctx allows.
func (t *Tracer) Close(ctx context.Context) {
	t.mu.Lock()
	t.closed = true
	t.change(nil)
	t.mu.Unlock()
	defer t.cancel()
	done := make(chan struct{})
	go func() {
		t.ended.Wait()
		close(done)
	}()
	late := time.NewTimer(t.flush)
	defer late.Stop()
	select {
	case <-done:
		return
	case <-ctx.Done():
	case <-late.C:
	}
	t.cancel()
	<-done
}

// stream sends calls to one collector. Its goroutine owns the fields without another owner.
type stream struct {
	t      *Tracer
	sample float64
	queue  chan measure.SlowCall // anyone sends, and nobody closes it
	stop   chan struct{}
	spans  *spans
	out    *exporter
	batch  int // most calls of a request
	calls  int // in spans

	told time.Time // of the last log line about a failure
	lost int       // calls lost since then
	down bool
}

func (t *Tracer) newStream(out *exporter, sample float64, queue, batch int) *stream {
	return &stream{
		t: t, sample: sample, queue: make(chan measure.SlowCall, queue), stop: make(chan struct{}),
		spans: newSpans(t.root, t.cfg.Version), out: out, batch: batch,
	}
}

func (x *stream) run() {
	tick := time.NewTicker(batchTime)
	defer tick.Stop()
	defer x.out.client.CloseIdleConnections()
	for {
		select {
		case c := <-x.queue:
			x.add(x.t.root, &c)
		case <-tick.C:
			x.flush(x.t.root)
		case <-x.stop:
			ctx, cancel := context.WithTimeout(x.t.root, x.t.flush)
			defer cancel()
			x.drain(ctx)
			return
		}
	}
}

func (x *stream) drain(ctx context.Context) {
	for {
		select {
		case c := <-x.queue:
			x.add(ctx, &c)
		default:
			x.flush(ctx)
			return
		}
	}
}

func (x *stream) add(ctx context.Context, c *measure.SlowCall) {
	x.spans.add(c)
	if x.calls++; x.calls >= x.batch {
		x.flush(ctx)
	}
}

func (x *stream) flush(ctx context.Context) {
	if x.calls == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, x.t.send)
	defer cancel()
	x.account(x.out.ExportSpans(ctx, x.spans.take()), x.calls, time.Now())
	x.calls = 0
}

// account counts the results of calls. It logs from time to time that a collector fails, and once
// that it works again.
func (x *stream) account(err error, calls int, now time.Time) {
	if err == nil {
		x.t.sent.Add(uint64(calls))
		if x.down {
			x.t.cfg.Log.Info("the collector of traces takes calls again", zap.String("endpoint", x.out.url))
			x.down = false
		}
		return
	}
	x.t.failed.Add(uint64(calls))
	x.lost += calls
	x.down = true
	if !x.told.IsZero() && now.Sub(x.told) < tellTime {
		return
	}
	x.t.cfg.Log.Warn("the collector of traces does not take calls", zap.String("endpoint", x.out.url),
		zap.Error(err), zap.Any("calls", x.lost))
	x.told, x.lost = now, 0
}

// newExporter makes the exporter to a collector; ca is PEM, or empty.
func newExporter(endpoint string, ca []byte) (*exporter, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(u.Path, tracesPath) {
		u = u.JoinPath(tracesPath)
	}
	tr := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 1, IdleConnTimeout: 2 * time.Minute,
	}
	if len(ca) > 0 {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("no certificate is in the file of authorities of the collector")
		}
		tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	// The client does not follow redirects, because a redirect can turn a POST into a GET.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &exporter{url: u.String(), client: &http.Client{Transport: tr, CheckRedirect: stay}}, nil
}
