package perf_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/roce"
)

// patience is how long anything may take before a test gives up.
const patience = 30 * time.Second

func open(t testing.TB) *roce.Device {
	t.Helper()
	d, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// everyone returns limits that admit all clients of the loopback interface.
func everyone(change func(*perf.Limits)) perf.Limits {
	l := perf.DefaultLimits()
	l.Clients = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	if change != nil {
		change(&l)
	}
	return l
}

// serve starts a server on a device of its own. At the end of the test all memory of the server
// must be free.
func serve(t testing.TB, l perf.Limits) (*perf.Server, netip.AddrPort) {
	t.Helper()
	dev := open(t)
	s, err := perf.NewServer(l, nil)
	if err != nil {
		t.Fatal(err)
	}
	pl, err := s.Listen(dev, perf.Port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pl.Close(); err != nil {
			t.Error(err)
		}
		if n := s.Memory(); n != 0 {
			t.Errorf("%d bytes are still in use", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, pl.Addr()
}

func run(t testing.TB, at netip.AddrPort, o perf.Options) ([]perf.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out []perf.Result
	err := perf.Run(ctx, open(t), at, o, func(r perf.Result) { out = append(out, r) })
	return out, err
}

// counted returns the counters of a server that are not zero.
func counted(s *perf.Server) string {
	var out []string
	if n := s.Counters().Accepted(); n != 0 {
		out = append(out, fmt.Sprintf("accepted %d", n))
	}
	for _, k := range perf.Kinds {
		if n := s.Counters().Of(k); n != 0 {
			out = append(out, fmt.Sprintf("%s %d", k, n))
		}
	}
	return strings.Join(out, ", ")
}

// TestMeasure runs every operation in every mode, and checks counts and bytes.
func TestMeasure(t *testing.T) {
	for _, op := range []perf.Op{perf.Write, perf.Read, perf.Send, perf.FetchAdd, perf.CompareSwap} {
		sizes := []int{1, 64, 65, 5000, 1 << 20}
		if op.Atomic() {
			sizes = []int{perf.AtomicSize}
		}
		for _, c := range []struct {
			name string
			o    perf.Options
		}{
			{"bw", perf.Options{Iterations: 40, Depth: 16, QPs: 1}},
			{"bw of fewer than the depth", perf.Options{Iterations: 3, Depth: 128, QPs: 1}},
			{"bw of three", perf.Options{Iterations: 20, Depth: 5, QPs: 3}},
			{"bw both ways", perf.Options{Iterations: 40, Depth: 16, QPs: 1, Bidirectional: true}},
			{"bw of three both ways", perf.Options{Iterations: 20, Depth: 5, QPs: 3, Bidirectional: true}},
			{"lat", perf.Options{Iterations: 30, Depth: 1, QPs: 1, Latency: true}},
		} {
			t.Run(op.String()+" "+c.name, func(t *testing.T) {
				s, at := serve(t, everyone(nil))
				o := c.o
				o.Op, o.Sizes = op, sizes
				got, err := run(t, at, o)
				if err != nil {
					t.Fatal(err)
				}
				if len(got) != len(sizes) {
					t.Fatalf("%d results for %d sizes", len(got), len(sizes))
				}
				for i, r := range got {
					want := uint64(o.Iterations * o.QPs)
					check := func(name string, d perf.Direction, want uint64) {
						if d.Iterations != want || d.Bytes != want*uint64(sizes[i]) || want > 0 != (d.Elapsed > 0) {
							t.Errorf("size %d, %s: %+v; want %d messages", sizes[i], name, d, want)
						}
						if want > 0 && !o.Latency && d.Peak < d.Bandwidth()*0.999 {
							t.Errorf("size %d, %s: the peak %.0f is below the average %.0f", sizes[i], name, d.Peak, d.Bandwidth())
						}
					}
					check("client", r.Sent, want)
					back := uint64(0)
					if o.Bidirectional {
						back = want
					}
					check("server", r.Back, back)
					if l := r.Latency; o.Latency &&
						!(0 < l.Min && l.Min <= l.Typical && l.Typical <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max &&
							l.Min <= l.Average && l.Average <= l.Max) {
						t.Errorf("size %d: %+v", sizes[i], l)
					}
				}
				if got, want := counted(s), fmt.Sprintf("accepted %d", o.QPs); got != want {
					t.Errorf("counted %q, want %q", got, want)
				}
			})
		}
	}
}

// TestLoops: the queue pairs of a run may belong to different loops of the server.
func TestLoops(t *testing.T) {
	dev, err := roce.Open(roce.Config{Shards: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s, err := perf.NewServer(everyone(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	o := perf.Options{Op: perf.Send, Sizes: []int{64, 9000}, Iterations: 50, Depth: 4, QPs: 8, Bidirectional: true}
	got, err := run(t, l.Addr(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range got {
		if r.Sent.Iterations != 400 || r.Back.Iterations != 400 {
			t.Errorf("%+v", r)
		}
	}
	if err := errors.Join(l.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

// TestServerGone: a run ends with an error when its server ends.
func TestServerGone(t *testing.T) {
	dev := open(t)
	s, err := perf.NewServer(everyone(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(dev, perf.Port)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := perf.Options{
		Op: perf.Write, Sizes: slices.Repeat([]int{64}, 1<<16), Duration: time.Millisecond, Depth: 4, QPs: 2,
		Bidirectional: true,
	}
	var once sync.Once
	err = perf.Run(ctx, open(t), l.Addr(), o, func(perf.Result) {
		once.Do(func() {
			if err := errors.Join(l.Close(), s.Close()); err != nil {
				t.Error(err)
			}
		})
	})
	if err == nil || !strings.Contains(err.Error(), "is over") {
		t.Errorf("%v", err)
	}
}

// TestDuration measures for a time instead of a number of messages.
func TestDuration(t *testing.T) {
	for _, o := range []perf.Options{
		{Op: perf.Write, Depth: 16, QPs: 2},
		{Op: perf.Send, Depth: 16, QPs: 2, Bidirectional: true},
		{Op: perf.Read, Depth: 1, QPs: 1, Latency: true},
	} {
		_, at := serve(t, everyone(nil))
		o.Sizes, o.Duration = []int{8, 4096}, 30*time.Millisecond
		got, err := run(t, at, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range got {
			if r.Sent.Iterations == 0 || r.Sent.Peak != 0 || o.Bidirectional != (r.Back.Iterations > 0) ||
				o.Latency != (r.Latency.Average > 0) {
				t.Errorf("%v: %+v", o.Op, r)
			}
		}
	}
}

// sorts removes the numbers of refusals from counted. On a busy host a client repeats its request
// before the answer arrives, and the server counts the refusal twice.
func sorts(counted string) string { return refusedTimes.ReplaceAllString(counted, "$1") }

var refusedTimes = regexp.MustCompile(`(refused_[a-z]+) \d*`)

// TestRefusals: the server refuses requests beyond its limits with a text, and counts them.
func TestRefusals(t *testing.T) {
	basic := perf.Options{Op: perf.Write, Sizes: []int{4096}, Iterations: 1, Depth: 4, QPs: 1}
	for _, c := range []struct {
		name   string
		limits func(*perf.Limits)
		o      func(*perf.Options)
		why    string
		n      string
	}{
		{
			"client", func(l *perf.Limits) { l.Clients = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, nil,
			"may not measure here", "refused_client 1",
		},
		{"nobody", func(l *perf.Limits) { l.Clients = nil }, nil, "may not measure here", "refused_client 1"},
		{"size", func(l *perf.Limits) { l.MaxSize = 4095 }, nil, "a size of 4096; the most here is 4095", "refused_limit 1"},
		{"depth", func(l *perf.Limits) { l.MaxDepth = 3 }, nil, "a queue depth of 4; the most here is 3", "refused_limit 1"},
		{
			"queue pairs", func(l *perf.Limits) { l.MaxQPs = 2 }, func(o *perf.Options) { o.QPs = 3 },
			"queue pairs: 3; the most here is 2", "refused_limit ",
		},
		{
			"connections", func(l *perf.Limits) { l.MaxConnections = 2 }, func(o *perf.Options) { o.QPs = 3 },
			"2 connections measure already", "accepted 2, refused_full 1",
		},
		{
			"memory", func(l *perf.Limits) { l.Memory = 1 << 20 }, func(o *perf.Options) { o.Sizes = []int{1 << 21} },
			"no memory", "refused_memory 1",
		},
		{
			"duration", func(l *perf.Limits) { l.MaxDuration = time.Second },
			func(o *perf.Options) { o.Duration = 2 * time.Second }, "longer than the 1s", "accepted 1",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, at := serve(t, everyone(c.limits))
			o := basic
			if c.o != nil {
				c.o(&o)
			}
			_, err := run(t, at, o)
			var no *perf.RefusedError
			if !errors.As(err, &no) || !strings.Contains(no.Why, c.why) {
				t.Errorf("%v; want a refusal: %s", err, c.why)
			}
			// The client gives up at the first refusal. The server may not have got the requests of
			// the other queue pairs by then.
			if got := counted(s); sorts(got) != sorts(c.n) && (o.QPs == 1 || !strings.HasPrefix(sorts(got), sorts(c.n))) {
				t.Errorf("counted %q, want %q", got, c.n)
			}
		})
	}
}
