package control

import (
	"context"
	"io"
	"time"
)

// SupportBackend is the part of a Backend for support bundles.
type SupportBackend interface {
	// Metrics writes the metrics in the text format of Prometheus.
	Metrics(w io.Writer) error
	// RecentLog are the last lines of the log, JSON.
	RecentLog() []byte
	// Goroutines writes the stacks of the goroutines, without arguments.
	Goroutines(w io.Writer) error
	// Profile writes a CPU profile until ctx ends.
	Profile(ctx context.Context, w io.Writer) error
}

// ProfileMax is the longest profile.
const ProfileMax = 2 * time.Minute
