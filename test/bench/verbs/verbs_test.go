package main

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/rstored/rstored/test/bench/compare"
)

const (
	bandwidth = `                    RDMA_Write BW Test
 Number of qps   : 1		Transport type : IB
 Mtu             : 4096[B]
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 1048576    200              272.31             256.50		   0.000257
`
	latency = `                    Send Latency Test
 Mtu             : 4096[B]
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 64      1000          29.46          120172.57      160.00   	       1638.21     	1117.96		30120.00 		105840.01
`
	ours = `{"path_mtu": 4096, "results": [{"bytes": 1048576, "iterations": 200, "bw_peak_mib_s": 300, ` +
		`"bw_average_mib_s": 256.5, "msg_rate_mpps": 0.000257}]}`
	oursLatency = `{"path_mtu": 4096, "results": [{"bytes": 64, "t_min_us": 30, "t_typical_us": 160, "t_avg_us": 200, ` +
		`"percentile_99_us": 30120}]}`
)

func TestParse(t *testing.T) {
	bw, lat := &experiment{bytes: 1 << 20}, &experiment{bytes: 64, latency: true}
	for _, c := range []struct {
		name  string
		parse func([]byte, *experiment) (compare.Sample, error)
		e     *experiment
		out   string
	}{
		{"perftest, bandwidth", parsePerftest, bw, bandwidth},
		{"perftest, latency", parsePerftest, lat, latency},
		{"rstorectl, bandwidth", parsePerf, bw, ours},
		{"rstorectl, latency", parsePerf, lat, oursLatency},
	} {
		s, err := c.parse([]byte(c.out), c.e)
		near := func(v, want float64) bool { return math.Abs(v-want) <= 1e-9*want }
		if c.e.latency && !(near(s.P50, 160e-6) && near(s.P99, 30120e-6)) ||
			!c.e.latency && !(s.Rate == 256.5*(1<<20) && near(s.Ops, 257)) || err != nil {
			t.Errorf("%s: %+v, %v", c.name, s, err)
		}
		for what, bad := range map[string]string{
			"nothing":          "",
			"another path MTU": strings.ReplaceAll(c.out, "4096", "1024"),
			"another size":     strings.NewReplacer("1048576", "65536", " 64 ", " 128 ", ": 64", ": 128").Replace(c.out),
			"zero":             strings.NewReplacer("256.5", "0.0", "160", "0").Replace(c.out),
			"no messages":      strings.NewReplacer("0.000257", "0.0", "160", "0").Replace(c.out),
		} {
			if s, err := c.parse([]byte(bad), c.e); err == nil {
				t.Errorf("%s, %s: %+v", c.name, what, s)
			}
		}
	}
	for _, bad := range []string{
		"Correlation coefficient r^2: 0.26 < 0.9\n" + latency,
		"Correlation coefficient r^2: 0.26 < 0.9\n",
	} {
		if _, err := parsePerftest([]byte(bad), lat); !errors.Is(err, errClock) {
			t.Errorf("%v", err)
		}
	}
	if s, err := parsePerftest([]byte(strings.NewReplacer("160.00", "inf", "1117.96", "-nan", "30120.00",
		"inf").Replace(latency)), lat); !errors.Is(err, errClock) {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestPage: each row has a line with likes beside each other, and says why where it has not.
func TestPage(t *testing.T) {
	r := &compare.Report{Rounds: 1, Measured: make(map[string]map[compare.Variant]*compare.Taken)}
	seen := make(map[string]bool)
	for i, w := range rows() {
		if seen[w.Measure] {
			t.Errorf("%s twice", w.Measure)
		}
		seen[w.Measure] = true
		all := make(map[compare.Variant]*compare.Taken)
		for v, x := range map[compare.Variant]float64{
			perftestPolls: 8, verbsPolls: 2, perftestWaits: 4, verbsWaits: 2,
			soft: 1,
		} {
			all[v] = &compare.Taken{Samples: []compare.Sample{{Rate: x * (1 << 20), Ops: x, P50: x / 1e6, P99: x / 1e6}}}
		}
		if i == 0 {
			all[perftestPolls] = &compare.Taken{Err: "it is broken"}
		}
		if r.Measured[w.Experiment] == nil || i == 0 {
			r.Measured[w.Experiment] = all
		}
	}
	if len(seen) != 19 {
		t.Errorf("%d rows", len(seen))
	}
	var b bytes.Buffer
	if err := page(compare.Runs{"a processor": r}, &b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| WRITE of 64 bytes, messages, polling | perftest | ≥ 1 | not measured: it is broken |\n",
		"| SEND of 64 bytes, median latency, polling | perftest | ≤ 1 | 2 µs; 8 µs: **0.25** (0.25 to 0.25) |\n",
		"| WRITE of 64 bytes, median latency, polling | perftest | ≤ 1.5 | 2 µs; soft 1 µs (0.12); 8 µs: **0.25** (0.25 to " +
			"0.25) |\n",
		"| WRITE of 1 MiB, bandwidth, polling | perftest | ≥ 1 | 2 MiB/s; soft 1 MiB/s (0.12); 8 MiB/s: 0.25 (0.25 " +
			"to 0.25) |",
		"| SEND of 64 bytes, 99th percentile, events | perftest --events | ≤ 1 | 2 µs; soft 1 µs (0.25); 4 µs: **0.5** " +
			"(0.5 to 0.5) |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
