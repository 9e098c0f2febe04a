package main

import (
	"fmt"

	"github.com/rstored/rstored/test/bench/compare"
)

// The variants.
const (
	perftest compare.Variant = "perftest rxe verbs"
	verbs    compare.Variant = "rstorectl rxe verbs"
	soft     compare.Variant = "rstorectl udp soft"
)

// What is the same for all of them.
const (
	mtu     = 4200 // of the interfaces
	pathMTU = 4096
	depth   = 128 // requests under way where bandwidth is measured
)

// experiment is what is measured.
type experiment struct {
	name    string
	op      string // as both programs have it: write, read, send
	latency bool
	bytes   int
	n       int // messages
}

func experiments() (all []experiment) {
	for _, op := range []string{"write", "read", "send"} {
		all = append(all,
			experiment{op: op, bytes: 64 << 10, n: 1000},
			experiment{op: op, bytes: 1 << 20, n: 200})
	}
	for _, op := range []string{"send", "write"} {
		all = append(all, experiment{op: op, latency: true, bytes: 64, n: 1000})
	}
	for i := range all {
		e := &all[i]
		e.name = fmt.Sprintf("%s-%s-%d", e.op, e.kind(), e.bytes)
	}
	return all
}

func (e *experiment) kind() string {
	if e.latency {
		return "lat"
	}
	return "bw"
}

var (
	rate = compare.Metric{Unit: "MiB/s", Scale: 1. / (1 << 20), Of: func(s *compare.Sample) float64 { return s.Rate }}
	p50  = compare.Metric{Unit: "µs", Scale: 1e6, Less: true, Of: func(s *compare.Sample) float64 { return s.P50 }}
	p99  = compare.Metric{Unit: "µs", Scale: 1e6, Less: true, Of: func(s *compare.Sample) float64 { return s.P99 }}
)

func rows() (all []compare.Row) {
	names := map[string]string{"write": "WRITE", "read": "READ", "send": "SEND"}
	for _, e := range experiments() {
		row := func(measure string, m compare.Metric) {
			all = append(all, compare.Row{
				Measure: measure, Against: "perftest", Experiment: e.name, Metric: m,
				Ours: []compare.Variant{verbs}, Peer: []compare.Variant{perftest}, Also: []compare.Variant{soft}, Wanted: 1,
			})
		}
		switch {
		case e.latency:
			row(fmt.Sprintf("%s of %d bytes, median latency", names[e.op], e.bytes), p50)
			row(fmt.Sprintf("%s of %d bytes, 99th percentile", names[e.op], e.bytes), p99)
		case e.bytes < 1<<20:
			row(fmt.Sprintf("%s of %d KiB, bandwidth", names[e.op], e.bytes>>10), rate)
		default:
			row(fmt.Sprintf("%s of %d MiB, bandwidth", names[e.op], e.bytes>>20), rate)
		}
	}
	return all
}
