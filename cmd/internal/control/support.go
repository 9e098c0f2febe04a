package control

import (
	"context"
	"io"
	"time"
)

// SupportBackend is the part of a Backend that is for a support bundle.
type SupportBackend interface {
	// Metrics writes the metrics in the text format of Prometheus.
	Metrics(w io.Writer) error
	// RecentLog are the last lines of the log, JSON.
	RecentLog() []byte
	// Goroutines writes where the goroutines are, without arguments.
	Goroutines(w io.Writer) error
	// Profile writes a CPU profile of as long as ctx lasts.
	Profile(ctx context.Context, w io.Writer) error
}

// ProfileMax is the longest profile.
const ProfileMax = 2 * time.Minute
