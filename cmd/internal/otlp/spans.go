package otlp

import (
	"context"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/rstored/rstored/cmd/internal/measure"
)

// scope names who made the spans.
const scope = "github.com/rstored/rstored/cmd/internal/otlp"

// faults are the statuses of failures of the server or its store. Other statuses, such as NOENT of
// a LOOKUP, are normal answers.
var faults = map[string]bool{"IO": true, "NOSPC": true, "DQUOT": true, "SERVERFAULT": true, "SYSTEM_ERR": true}

// spans makes spans from calls. One goroutine uses it.
type spans struct {
	ctx    context.Context // without a span
	tracer trace.Tracer
	ended  []sdktrace.ReadOnlySpan
}

// newSpans makes a spans. OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME override the server's own
// attributes.
func newSpans(ctx context.Context, version string) *spans {
	s := &spans{ctx: ctx}
	own := []attribute.KeyValue{attribute.String("service.name", "rstored"), attribute.String("service.version", version)}
	if host, err := os.Hostname(); err == nil {
		own = append(own, attribute.String("host.name", host))
	}
	// Invalid parts of the environment are ignored.
	res, err := resource.New(ctx, resource.WithAttributes(own...), resource.WithFromEnv())
	if err != nil || res == nil {
		res = resource.NewSchemaless(own...)
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithResource(res),
		sdktrace.WithSpanProcessor(s))
	s.tracer = p.Tracer(scope, trace.WithInstrumentationVersion(version))
	return s
}

// add makes the spans of a call.
func (s *spans) add(c *measure.SlowCall) {
	begin := c.Ended.Add(-c.Took)
	ctx, span := s.tracer.Start(s.ctx, c.Program+"."+c.Operation,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(begin),
		trace.WithAttributes(attributes(c)...))
	// A call first waits for memory and data, then for a worker. Only the duration in the store is
	// known, not its position.
	at := begin
	for _, part := range []struct {
		name string
		took time.Duration
	}{{"rdma fetch", c.RDMA}, {"queue", c.Queue}, {"store", c.Store}} {
		if part.took <= 0 {
			continue
		}
		_, child := s.tracer.Start(ctx, part.name, trace.WithTimestamp(at))
		if at = at.Add(part.took); at.After(c.Ended) {
			at = c.Ended
		}
		child.End(trace.WithTimestamp(at))
	}
	if faults[c.Status] {
		span.SetAttributes(attribute.String("error.type", c.Status))
		span.SetStatus(codes.Error, c.Status)
	}
	span.End(trace.WithTimestamp(c.Ended))
}

// attributes have the names of the semantic conventions for RPC, where these have one.
func attributes(c *measure.SlowCall) []attribute.KeyValue {
	list := []attribute.KeyValue{
		attribute.String("rpc.system", "onc_rpc"),
		attribute.String("rpc.system.name", "onc_rpc"),
		attribute.String("rpc.method", c.Operation),
		attribute.String("rpc.response.status_code", c.Status),
		attribute.String("onc_rpc.program.name", c.Program),
		attribute.Int64("onc_rpc.xid", int64(c.XID)),
		attribute.String("network.transport", c.Transport.String()),
		attribute.String("client.address", c.Client.Addr().Unmap().String()),
		attribute.Int("client.port", int(c.Client.Port())),
		attribute.Int("rpc.request.size", c.In),
		attribute.Int("rpc.response.size", c.Out),
	}
	if c.Export != "" {
		list = append(list, attribute.String("nfs.export", c.Export))
	}
	return list
}

// take returns the collected spans.
func (s *spans) take() []sdktrace.ReadOnlySpan {
	out := s.ended
	s.ended = nil
	return out
}

// OnStart implements sdktrace.SpanProcessor.
func (s *spans) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (s *spans) OnEnd(x sdktrace.ReadOnlySpan) { s.ended = append(s.ended, x) }

// Shutdown implements sdktrace.SpanProcessor.
func (s *spans) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (s *spans) ForceFlush(context.Context) error { return nil }
