package main

import (
	"fmt"

	"github.com/rstored/rstored/test/bench/compare"
)

// The variants, each with how it waits for completions: it polls for them all the time, or sleeps
// until there is an event.
const (
	perftestPolls compare.Variant = "perftest rxe polling"
	perftestWaits compare.Variant = "perftest rxe events"
	verbsPolls    compare.Variant = "rstorectl rxe polling"
	verbsWaits    compare.Variant = "rstorectl rxe events"
	soft          compare.Variant = "rstorectl udp events"
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

// small is the size of messages that are counted, and not weighed.
const small = 64

func experiments() (all []experiment) {
	for _, op := range []string{"write", "read", "send"} {
		all = append(all,
			experiment{op: op, bytes: small, n: 5000},
			experiment{op: op, bytes: 64 << 10, n: 1000},
			experiment{op: op, bytes: 1 << 20, n: 200})
	}
	for _, op := range []string{"send", "read", "write"} {
		all = append(all, experiment{op: op, latency: true, bytes: small, n: 1000})
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

// events reports whether perftest can sleep in this experiment: "Events feature not available on
// WRITE verb", and ib_read_bw and ib_send_bw with 64 bytes stand still.
func (e *experiment) events() bool { return e.op != "write" && e.latency }

// twoSided reports whether the server has completions.
func (e *experiment) twoSided() bool { return e.op == "send" || e.latency && e.op == "write" }

// variants are those that an experiment has.
func (e *experiment) variants() []compare.Variant {
	if !e.events() {
		return []compare.Variant{perftestPolls, verbsPolls, soft}
	}
	return []compare.Variant{perftestPolls, verbsPolls, perftestWaits, verbsWaits, soft}
}

var (
	rate  = compare.Metric{Unit: "MiB/s", Scale: 1. / (1 << 20), Of: func(s *compare.Sample) float64 { return s.Rate }}
	count = compare.Metric{Unit: "/s", Scale: 1, Of: func(s *compare.Sample) float64 { return s.Ops }}
	p50   = compare.Metric{Unit: "µs", Scale: 1e6, Less: true, Of: func(s *compare.Sample) float64 { return s.P50 }}
	p99   = compare.Metric{Unit: "µs", Scale: 1e6, Less: true, Of: func(s *compare.Sample) float64 { return s.P99 }}
)

func rows() (all []compare.Row) {
	names := map[string]string{"write": "WRITE", "read": "READ", "send": "SEND"}
	for _, e := range experiments() {
		row := func(measure string, m compare.Metric) {
			polling := compare.Row{
				Measure: measure + ", polling", Against: "perftest", Experiment: e.name, Metric: m,
				Ours: []compare.Variant{verbsPolls}, Peer: []compare.Variant{perftestPolls}, Wanted: 1,
			}
			if measure == "WRITE of 64 bytes, median latency" {
				polling.Wanted = 1.5
			}
			if !e.events() { // soft, which always sleeps, is beside what there is
				polling.Also = []compare.Variant{soft}
				all = append(all, polling)
				return
			}
			all = append(all, polling, compare.Row{
				Measure: measure + ", events", Against: "perftest --events", Experiment: e.name, Metric: m,
				Ours: []compare.Variant{verbsWaits}, Peer: []compare.Variant{perftestWaits}, Also: []compare.Variant{soft},
				Wanted: 1,
			})
		}
		switch {
		case e.latency:
			row(fmt.Sprintf("%s of %d bytes, median latency", names[e.op], e.bytes), p50)
			row(fmt.Sprintf("%s of %d bytes, 99th percentile", names[e.op], e.bytes), p99)
		case e.bytes == small:
			row(fmt.Sprintf("%s of %d bytes, messages", names[e.op], e.bytes), count)
		case e.bytes < 1<<20:
			row(fmt.Sprintf("%s of %d KiB, bandwidth", names[e.op], e.bytes>>10), rate)
		default:
			row(fmt.Sprintf("%s of %d MiB, bandwidth", names[e.op], e.bytes>>20), rate)
		}
	}
	return all
}
