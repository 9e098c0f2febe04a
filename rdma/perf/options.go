package perf

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"
)

// Options describe a measurement.
type Options struct {
	Op      Op
	Latency bool // else bandwidth
	// Sizes of messages in bytes, one test each.
	Sizes []int
	// Iterations is the number of messages of a test on each queue pair. If Duration is set, a test
	// lasts for that time instead.
	Iterations int
	Duration   time.Duration
	// Depth bounds the messages in flight on each of QPs queue pairs. All of them together have 64
	// MiB at most, but each queue pair has one message in any case. Depth and QPs are 1 in tests of
	// latency.
	Depth int
	QPs   int
	// Bidirectional makes the server post messages too.
	Bidirectional bool
}

// latencyMax bounds the iterations of a test of latency: each has a time stamp.
const latencyMax = 10_000_000

// ErrOptions is wrapped by the errors of Validate.
var ErrOptions = errors.New("bad options")

// Validate checks the options. The limits of the server may be lower.
func (o *Options) Validate() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, a...))
	}
	switch {
	case !o.Op.known():
		return bad("%v", o.Op)
	case len(o.Sizes) == 0:
		return bad("no size")
	case o.Duration < 0 || o.Duration == 0 && o.Iterations < 1:
		return bad("%d iterations", o.Iterations)
	case o.Latency && o.Duration == 0 && o.Iterations > latencyMax:
		return bad("%d iterations; the most for latency is %d", o.Iterations, latencyMax)
	case o.Depth < 1 || o.Depth > math.MaxUint16:
		return bad("a queue depth of %d", o.Depth)
	case o.QPs < 1 || o.QPs > math.MaxUint16:
		return bad("%d queue pairs", o.QPs)
	case o.Latency && o.Bidirectional:
		return bad("latency has one direction")
	case o.Latency && (o.QPs > 1 || o.Depth > 1):
		return bad("latency is that of one message at a time, on one queue pair")
	}
	for _, n := range o.Sizes {
		switch {
		case n < 1 || n > SizeMax:
			return bad("a size of %d bytes; it is 1 to %d", n, SizeMax)
		case o.Op.Atomic() && n != AtomicSize:
			return bad("a size of %d bytes; atomics have %d", n, AtomicSize)
		}
	}
	return nil
}

// plan returns what a connection needs for the options.
func (o *Options) plan() plan {
	p := plan{op: o.Op, latency: o.Latency, bidirectional: o.Bidirectional, depth: o.Depth, qps: o.QPs}
	for _, n := range o.Sizes {
		p.size = max(p.size, n)
	}
	return p
}

// Result is the measurement of one size.
type Result struct {
	Size    int       // bytes of a message
	Sent    Direction // what the client posted
	Back    Direction // what the server posted, in bidirectional tests
	Latency Latency   // of tests of latency
}

// RefusedError means that the server refused the measurement.
type RefusedError struct {
	Server netip.AddrPort
	Why    string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("%v refuses: %s", e.Server, e.Why) }

// ConnectError means that there was no connection for another reason.
type ConnectError struct {
	Server netip.AddrPort
	Reason uint16 // of the REJ, if there was one
	Err    error
}

func (e *ConnectError) Error() string { return fmt.Sprintf("connecting to %v: %v", e.Server, e.Err) }
func (e *ConnectError) Unwrap() error { return e.Err }
