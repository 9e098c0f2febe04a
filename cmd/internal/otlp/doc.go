// Package otlp sends traces of a random sample of calls to an OpenTelemetry collector, by OTLP over
// HTTP. Each call is a span with children for the places where its time went. The package knows
// calls and their times, and nothing of NFS.
//
// Begin reading at Tracer.Observe. spans.go makes the spans, export.go sends them. The methods of a
// Tracer may be called from any goroutine. Observe does not wait: a trace that finds the queue full
// is dropped and counted.
//
//	t := otlp.New(otlp.Config{Recorder: rec, Version: "1.0", Log: log})
//	err := t.Configure(otlp.Settings{Endpoint: "http://collector:4318", Sample: 0.01})
//	rec.Trace(t.Observe)
//	defer t.Close(ctx)
package otlp
