// Package compare is what the benchmarks of rstored beside other servers have in common:
// samples of variants that take turns, rows, which are ratios of their rounds, and the
// report of them as a table, as JSON and as a picture.
package compare

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Variant is one side of a comparison, three words: a server, the carrier or the place, and
// the client, such as "ganesha tcp libnfs".
type Variant string

// Split returns the three words.
func (v Variant) Split() (server, carrier, client string) {
	f := strings.Fields(string(v))
	return f[0], f[1], f[2]
}

// Sample is what one measurement of one variant gave.
type Sample struct {
	Rate   float64 `json:"bytes_per_second,omitempty"`
	Ops    float64 `json:"operations_per_second,omitempty"`
	P50    float64 `json:"median_seconds,omitempty"`
	P99    float64 `json:"p99_seconds,omitempty"`
	Server float64 `json:"server_cpu_seconds,omitempty"` // in the time that was measured
	Client float64 `json:"client_cpu_seconds,omitempty"`
	PerGiB float64 `json:"server_cpu_seconds_per_gib,omitempty"`
	PerOp  float64 `json:"server_cpu_seconds_per_operation,omitempty"`
	// Value is of experiments that measure something else.
	Value float64 `json:"value,omitempty"`
}

// Load is the output of the programs that make load, and what others say in their own way.
type Load struct {
	Ops     uint64  `json:"ops"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	Jain    float64 `json:"jain"` // fairness among connections
}

// Sample divides by the time, and by what was done in it, what took cpu seconds of the
// server.
func (l *Load) Sample(cpu float64) (Sample, error) {
	if l.Seconds <= 0 || l.Ops == 0 {
		return Sample{}, fmt.Errorf("%d operations in %g seconds", l.Ops, l.Seconds)
	}
	s := Sample{
		Rate: float64(l.Bytes) / l.Seconds, Ops: float64(l.Ops) / l.Seconds, P50: l.P50, P99: l.P99,
		Server: cpu, Client: l.CPU, PerOp: cpu / float64(l.Ops),
	}
	if l.Bytes > 0 {
		s.PerGiB = cpu / float64(l.Bytes) * (1 << 30)
	}
	return s, nil
}

// Taken are the samples of a variant, by round, or why there are none.
type Taken struct {
	Samples []Sample `json:"samples,omitempty"`
	Err     string   `json:"error,omitempty"`
}

// Rounds has variants take turns.
func Rounds(ctx context.Context, n int, name string, variants []Variant,
	measure func(context.Context, Variant) (Sample, error),
) (map[Variant]*Taken, error) {
	all := make(map[Variant]*Taken)
	for _, v := range variants {
		all[v] = &Taken{}
	}
	failed, err := Turns(ctx, n, name, variants, func(ctx context.Context, v Variant) (Sample, error) {
		s, err := measure(ctx, v)
		if err == nil {
			all[v].Samples = append(all[v].Samples, s)
		}
		return s, err
	})
	if err != nil {
		return nil, err
	}
	for v, err := range failed {
		all[v].Err, all[v].Samples = err.Error(), nil
	}
	return all, nil
}

// Turns measures each of several things, different ones, in n rounds, every other round in the
// opposite order: what drifts meets all of them. What fails once is not measured again, and is
// returned with its error. It says on standard error what each gave, under the name of the
// experiment.
func Turns[T comparable](ctx context.Context, n int, name string, things []T,
	measure func(context.Context, T) (Sample, error),
) (failed map[T]error, err error) {
	failed = make(map[T]error)
	order := slices.Clone(things)
	for range n {
		for _, t := range order {
			if failed[t] != nil {
				continue
			}
			began := time.Now()
			s, err := measure(ctx, t)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				failed[t] = err
				fmt.Fprintf(os.Stderr, "%s: %v: %v\n", name, t, err)
				continue
			}
			fmt.Fprintf(os.Stderr, "%s: %v: %.0f operations/s, %.0f MB/s (%.1f s)\n", name, t, s.Ops, s.Rate/1e6,
				time.Since(began).Seconds())
		}
		slices.Reverse(order)
	}
	return failed, nil
}

// Metric is what of a sample is compared.
type Metric struct {
	Unit  string
	Scale float64 // of the unit
	Less  bool    // is better
	Of    func(*Sample) float64
}

// Row is a line of the table: a ratio, or without peer a number.
type Row struct {
	Measure, Against string
	Experiment       string
	Metric           Metric
	Ours, Peer       []Variant // the fastest of each counts
	Also             []Variant // ours, beside it
	// Wanted is what the ratio, or the number, must be at least; at most where less
	// is better. A ratio of which 0 is wanted is for information.
	Wanted float64
}

// Text tells a row from others.
func (r *Row) Text() string { return r.Measure + " against " + r.Against }

// Variants are all of a row.
func (r *Row) Variants() []Variant { return slices.Concat(r.Ours, r.Peer, r.Also) }

// Side is one side of a row.
type Side struct {
	By    Variant `json:"by"`
	Value float64 `json:"value"` // median of the rounds, in the row's unit
	// Ratio is to the peer, of what is measured beside a row.
	Ratio float64 `json:"ratio,omitempty"`
}

// Result is a row that was measured. Ratio is the median of the rounds' ratios of ours
// to the peer's, Min and Max the least and the largest of them; all three are 0 where
// there is no peer.
type Result struct {
	Measure string  `json:"measure"`
	Against string  `json:"against,omitempty"`
	Unit    string  `json:"unit,omitempty"`
	Less    bool    `json:"less_is_better,omitempty"`
	Ours    *Side   `json:"ours,omitempty"`
	Peer    *Side   `json:"peer,omitempty"`
	Also    []Side  `json:"also,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"`
	Min     float64 `json:"min_ratio,omitempty"`
	Max     float64 `json:"max_ratio,omitempty"`
	Wanted  float64 `json:"wanted"`
	Reached bool    `json:"reached"`
	// Missing says why there is nothing to compare.
	Missing string `json:"missing,omitempty"`
}

// Result compares what was measured.
func (r *Row) Result(all map[Variant]*Taken) Result {
	x := Result{Measure: r.Measure, Against: r.Against, Unit: r.Metric.Unit, Less: r.Metric.Less, Wanted: r.Wanted}
	ours, missing := r.Metric.best(r.Ours, all)
	if missing != "" {
		x.Missing = missing
		return x
	}
	x.Ours = r.Metric.side(ours, all)
	if len(r.Peer) == 0 {
		x.Reached = x.within(x.Ours.Value)
		return x
	}
	peer, missing := r.Metric.best(r.Peer, all)
	if missing != "" {
		x.Missing = missing
		return x
	}
	x.Peer = r.Metric.side(peer, all)
	q := r.Metric.ratios(all[ours].Samples, all[peer].Samples)
	if len(q) == 0 {
		x.Missing = "the peer took nothing that could be measured"
		return x
	}
	x.Ratio, x.Min, x.Max = Middle(q), slices.Min(q), slices.Max(q)
	x.Reached = x.within(x.Ratio)
	for _, v := range r.Also {
		if all[v] == nil || len(all[v].Samples) == 0 {
			continue
		}
		s := r.Metric.side(v, all)
		if q := r.Metric.ratios(all[v].Samples, all[peer].Samples); len(q) > 0 {
			s.Ratio = Middle(q)
		}
		x.Also = append(x.Also, *s)
	}
	return x
}

// within reports whether a value is as good as wanted.
func (x *Result) within(v float64) bool {
	if x.Less {
		return v <= x.Wanted
	}
	return v >= x.Wanted
}

// best is the variant with the best median, or why there is none.
func (m *Metric) best(vs []Variant, all map[Variant]*Taken) (best Variant, missing string) {
	at := 0.
	for _, v := range vs {
		t := all[v]
		if t == nil { // the run is older than the row, or of some rows alone
			t = &Taken{Err: "not in this run"}
		}
		if len(t.Samples) == 0 {
			missing = t.Err
			continue
		}
		x := Middle(m.values(t.Samples))
		if best == "" || m.Less == (x < at) && x != at {
			best, at = v, x
		}
	}
	if best != "" {
		missing = ""
	}
	return best, missing
}

func (m *Metric) side(v Variant, all map[Variant]*Taken) *Side {
	return &Side{By: v, Value: Middle(m.values(all[v].Samples)) * m.Scale}
}

func (m *Metric) values(s []Sample) []float64 {
	out := make([]float64, len(s))
	for i := range s {
		out[i] = m.Of(&s[i])
	}
	return out
}

// ratios of ours to the peer's in each round that both have.
func (m *Metric) ratios(ours, peer []Sample) []float64 {
	var q []float64
	for i := range min(len(ours), len(peer)) {
		if p := m.Of(&peer[i]); p > 0 {
			q = append(q, m.Of(&ours[i])/p)
		}
	}
	return q
}

// Middle is the median; 0 of nothing.
func Middle(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
