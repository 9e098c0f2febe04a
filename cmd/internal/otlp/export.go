package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// answerMax bounds what is read of an answer, in bytes.
const answerMax = 64 << 10

// exporter sends spans by OTLP over HTTP. OpenTelemetry's own exporter would link gRPC.
type exporter struct {
	url    string
	client *http.Client
}

// ExportSpans implements sdktrace.SpanExporter. All spans have one resource and scope. It does not
// send again after a failure.
func (e *exporter) ExportSpans(ctx context.Context, list []sdktrace.ReadOnlySpan) error {
	if len(list) == 0 {
		return nil
	}
	body, err := proto.Marshal(message(list))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "rstored")
	res, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, answerMax))
	switch {
	case res.StatusCode < 200 || res.StatusCode > 299:
		return fmt.Errorf("it answers %s", res.Status)
	case err != nil:
		return err
	}
	return refused(answer)
}

// Shutdown implements sdktrace.SpanExporter.
func (e *exporter) Shutdown(context.Context) error { return nil }

var errAnswer = errors.New("its answer cannot be understood")

// refused reads the number of rejected spans from an ExportTraceServiceResponse. The type itself is
// in a package that links gRPC.
func refused(answer []byte) error {
	const fieldPartial, fieldSpans, fieldText = 1, 1, 2
	var spans uint64
	var text string
	err := fields(answer, func(n protowire.Number, _ uint64, partial []byte) error {
		if n != fieldPartial {
			return nil
		}
		return fields(partial, func(n protowire.Number, v uint64, b []byte) error {
			switch n {
			case fieldSpans:
				spans = v
			case fieldText:
				text = string(b)
			}
			return nil
		})
	})
	if err == nil && spans > 0 {
		err = fmt.Errorf("it refused %d spans: %q", spans, text)
	}
	return err
}

// fields calls f for each field of a message: a number, or bytes.
func fields(b []byte, f func(n protowire.Number, v uint64, b []byte) error) error {
	for len(b) > 0 {
		n, typ, used := protowire.ConsumeTag(b)
		if used < 0 {
			return errAnswer
		}
		b = b[used:]
		var v uint64
		var data []byte
		switch typ {
		case protowire.VarintType:
			v, used = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			data, used = protowire.ConsumeBytes(b)
		default:
			used = protowire.ConsumeFieldValue(n, typ, b)
		}
		if used < 0 {
			return errAnswer
		}
		if err := f(n, v, data); err != nil {
			return err
		}
		b = b[used:]
	}
	return nil
}

// message is the request for spans: TracesData is on the wire what ExportTraceServiceRequest is.
func message(list []sdktrace.ReadOnlySpan) *tracepb.TracesData {
	out := make([]*tracepb.Span, 0, len(list))
	for _, s := range list {
		out = append(out, span(s))
	}
	by := list[0].InstrumentationScope()
	return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource: &resourcepb.Resource{Attributes: values(list[0].Resource().Attributes())},
		ScopeSpans: []*tracepb.ScopeSpans{{
			Scope: &commonpb.InstrumentationScope{Name: by.Name, Version: by.Version}, Spans: out,
		}},
	}}}
}

func span(s sdktrace.ReadOnlySpan) *tracepb.Span {
	id, trace := s.SpanContext().SpanID(), s.SpanContext().TraceID()
	out := &tracepb.Span{
		TraceId: trace[:], SpanId: id[:], Name: s.Name(), Flags: uint32(s.SpanContext().TraceFlags()),
		Kind:              tracepb.Span_SpanKind(s.SpanKind()), // they have the same numbers
		StartTimeUnixNano: uint64(max(s.StartTime().UnixNano(), 0)), EndTimeUnixNano: uint64(max(s.EndTime().UnixNano(), 0)),
		Attributes: values(s.Attributes()),
	}
	if p := s.Parent(); p.HasSpanID() {
		id := p.SpanID()
		out.ParentSpanId = id[:]
	}
	if s.Status().Code == codes.Error {
		out.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: s.Status().Description}
	}
	return out
}

func values(list []attribute.KeyValue) []*commonpb.KeyValue {
	out := make([]*commonpb.KeyValue, 0, len(list))
	for _, a := range list {
		v := new(commonpb.AnyValue)
		if a.Value.Type() == attribute.INT64 {
			v.Value = &commonpb.AnyValue_IntValue{IntValue: a.Value.AsInt64()}
		} else {
			v.Value = &commonpb.AnyValue_StringValue{StringValue: a.Value.String()}
		}
		out = append(out, &commonpb.KeyValue{Key: string(a.Key), Value: v})
	}
	return out
}
