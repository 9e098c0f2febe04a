package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/test/bench/compare"
)

// output is fio's, without what nobody reads.
const output = `note: both iodepth >= 1 and synchronous I/O engine are selected
{
  "fio version" : "fio-3.33",
  "jobs" : [ {
    "jobname" : "j", "error" : 0,
    "read" : { "io_bytes" : 0, "total_ios" : 0, "runtime" : 0, "clat_ns" : { "N" : 0 } },
    "write" : { "io_bytes" : 209715200, "total_ios" : 200, "runtime" : 2500,
      "clat_ns" : { "percentile" : { "50.000000" : 40000000, "99.000000" : 120000000 } } }
  } ]
}
`

func TestParse(t *testing.T) {
	l, err := parse([]byte(output))
	if want := (compare.Load{Ops: 200, Bytes: 200 << 20, Seconds: 2.5, P50: 0.04, P99: 0.12}); err != nil || l != want {
		t.Errorf("%+v, %v", l, err)
	}
	reads := strings.NewReplacer(`"read"`, `"write"`, `"write"`, `"read"`).Replace(output)
	if l, err := parse([]byte(reads)); err != nil || l.Ops != 200 {
		t.Errorf("of reads: %+v, %v", l, err)
	}
	for _, bad := range []string{"", "fio: no such file", "{}", strings.Replace(output, `"error" : 0`, `"error" : 5`, 1)} {
		if l, err := parse([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, l)
		}
	}
}

// TestRows: each has a name of its own and its experiment, and says what it is.
func TestRows(t *testing.T) {
	names := make(map[string]bool)
	for _, e := range experiments() {
		if names[e.name] || e.measure == "" || e.metric.Of == nil {
			t.Errorf("%+v", e)
		}
		names[e.name] = true
	}
	seen, all := make(map[string]bool), make(map[string]map[string]bool)
	for _, r := range rows() {
		if seen[r.Measure] || !names[r.Experiment] {
			t.Errorf("%s: twice, or without the experiment %q", r.Measure, r.Experiment)
		}
		seen[r.Measure] = true
		places := all[r.Experiment]
		if places == nil {
			places = make(map[string]bool)
			all[r.Experiment] = places
		}
		for _, v := range r.Variants() {
			_, where, _ := v.Split()
			places[place(v)] = true
			if v != knfsd && place(v) != where {
				t.Errorf("%s is measured at %s", v, place(v))
			}
		}
	}
	for _, e := range experiments() {
		if len(all[e.name]) != len(e.variants()) {
			t.Errorf("%s is measured at %v", e.name, all[e.name])
		}
	}
	if len(seen) != 3*len(names) {
		t.Errorf("%d rows of %d experiments", len(seen), len(names))
	}
}

// TestMerge: what was measured before stays, what is measured again takes its place, and the
// rows are in their order whatever was measured first.
func TestMerge(t *testing.T) {
	taken := func(ours, peer float64) map[compare.Variant]*compare.Taken {
		one := func(rate float64) *compare.Taken {
			return &compare.Taken{Samples: []compare.Sample{{Rate: rate * 1e6, PerGiB: 1 / rate}}}
		}
		return map[compare.Variant]*compare.Taken{inGuest: one(ours), knfsd: one(peer), onHost: one(2 * ours)}
	}
	o := &options{rounds: 1, took: time.Second, rows: regexp.MustCompile("")}
	o.JSON = filepath.Join(t.TempDir(), "results.json")
	if err := newReport(o).Recall(o.JSON); err != nil {
		t.Fatalf("the first run: %v", err)
	}
	write := func(r *report) {
		r.compare()
		f, err := os.Create(o.JSON)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := compare.JSON(f, compare.Runs{compare.ProcessorName(): &r.Report}); err != nil {
			t.Fatal(err)
		}
	}
	before := newReport(o)
	before.Measured["3-memory-write"] = taken(10, 20)
	before.Measured["4.2-disk-read"] = taken(1, 1)
	write(before)
	now := newReport(o)
	if err := now.Recall(o.JSON); err != nil {
		t.Fatal(err)
	}
	now.Measured["3-memory-read"] = taken(30, 20)
	now.Measured["3-memory-write"] = taken(40, 20)
	write(now)
	var got []float64
	for _, x := range now.Rows {
		if x.Unit == "MB/s" {
			got = append(got, x.Ratio)
		}
	}
	if want := []float64{3, 1.5, 4, 2, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("%v instead of %v", got, want)
	}
	o.rounds = 2
	if err := newReport(o).Recall(o.JSON); err == nil {
		t.Error("rounds of another number were merged")
	}
}
