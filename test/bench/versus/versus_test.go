package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/rstored/rstored/test/bench/compare"
)

func TestParsePSS(t *testing.T) {
	in := "00400000-7fff0000 ---p 00000000 00:00 0 [rollup]\nRss:  5000 kB\nPss:      1234 kB\nPss_Dirty: 99 kB\n"
	if got, err := parsePSS([]byte(in)); got != 1234<<10 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
	if _, err := parsePSS([]byte("Rss: 1 kB\n")); err == nil {
		t.Error("memory was found where there is none")
	}
}

func TestParseAllocs(t *testing.T) {
	const line = "BenchmarkNFS/rdma/READ/1024KiB/16-in-flight-2   \t 3000\t 289 ns/op\t 3.5 MB/s\t 0.6 of-tcp\t 2100 " +
		"B/op\t      14 allocs/op\n"
	if got, err := parseAllocs([]byte("goos: linux\n" + line + "PASS\n")); got != 14 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, in := range []string{"", "PASS\n", line + line} {
		if got, err := parseAllocs([]byte(in)); err == nil {
			t.Errorf("%v of %q", got, in)
		}
	}
}

// TestPSS: what the kernel says of this process's memory can be read.
func TestPSS(t *testing.T) {
	if n, err := pssOf(os.Getpid()); err != nil || n < 1<<16 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestFollow: the processor time is that between begin and end.
func TestFollow(t *testing.T) {
	times := []float64{3, 7.5}
	cpu := func(string) (float64, error) {
		x := times[0]
		times = times[1:]
		return x, nil
	}
	l, used, err := follow(strings.NewReader("begin\nend\n"+`{"ops":10,"bytes":2147483648,"seconds":2,"p50":0.5}`+"\n"),
		cpu)
	if err != nil || used != 4.5 {
		t.Fatalf("%v seconds, %v", used, err)
	}
	s, err := l.Sample(used)
	if want := (compare.Sample{Rate: 1 << 30, Ops: 5, P50: 0.5, Server: 4.5, PerGiB: 2.25, PerOp: 0.45}); s != want ||
		err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	none := func(string) (float64, error) { return 0, nil }
	for _, in := range []string{"", "begin\n", "begin\nend\nnonsense\n", `{"ops":1}`} {
		if l, _, err := follow(strings.NewReader(in), none); err == nil {
			t.Errorf("%q: %+v", in, l)
		}
	}
	if s, err := (&compare.Load{Seconds: 1}).Sample(1); err == nil {
		t.Errorf("of nothing: %+v", s)
	}
}

func TestParsePerf(t *testing.T) {
	bw := `{"results":[{"bytes":1048576,"bw_average_mib_s":2000,"msg_rate_mpps":0.002}]}`
	if s, err := parsePerf([]byte(bw)); err != nil || s.Rate != 2000<<20 || s.Ops != 2000 {
		t.Errorf("%+v, %v", s, err)
	}
	lat := `{"results":[{"bytes":64,"t_typical_us":25,"percentile_99_us":100,"transactions_per_second":15000}]}`
	if s, err := parsePerf([]byte(lat)); err != nil || s.P50 != 25e-6 || s.P99 != 100e-6 || s.Ops != 30000 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, in := range []string{"", "{}", `{"results":[{"bytes":64}]}`} {
		if s, err := parsePerf([]byte(in)); err == nil {
			t.Errorf("%q: %+v", in, s)
		}
	}
}

// TestRows: each row has its experiment, and each variant three words.
func TestRows(t *testing.T) {
	names := make(map[string]bool)
	for _, e := range experiments() {
		names[e.name] = false
	}
	seen := make(map[string]bool)
	for _, r := range rows() {
		if _, ok := names[r.Experiment]; !ok {
			t.Errorf("%s: there is no experiment %q", r.Text(), r.Experiment)
		}
		names[r.Experiment] = true
		if key := r.Text() + r.Metric.Unit; seen[key] {
			t.Errorf("%s is there twice", r.Text())
		} else {
			seen[key] = true
		}
		for _, v := range r.Variants() {
			if n := len(strings.Fields(string(v))); n != 3 {
				t.Errorf("%q has %d words", v, n)
			}
		}
	}
	for e, used := range names {
		if !used {
			t.Errorf("nothing needs the experiment %s", e)
		}
	}
}

// TestReport: what was measured is in all forms of the results.
func TestReport(t *testing.T) {
	r := &compare.Report{
		Host: compare.Host{
			Cores: 2, Kernel: "6.1.0", Disk: "ext4", Versions: map[string]string{"nfs-ganesha": "4.3-2"},
			Ganesha: string(ganeshaConfig("/a", "/b")),
		},
		Rounds: 5, Seconds: 2, Client: client, Beside: beside,
		Rows: []compare.Result{
			{
				Measure: "READ", Against: "Ganesha", Unit: "MB/s", Ours: &compare.Side{By: rdma, Value: 2000},
				Peer: &compare.Side{By: ganLibnfs, Value: 800}, Also: []compare.Side{{By: tcp, Value: 900, Ratio: 1.125}},
				Ratio: 2.5, Min: 2.25, Max: 3, Wanted: 2, Reached: true,
			},
			{
				Measure: "latency", Against: "UDP", Unit: "us", Less: true, Ours: &compare.Side{By: verbs, Value: 20},
				Peer: &compare.Side{By: barePing, Value: 10}, Ratio: 2, Min: 2, Max: 2, Wanted: 1.5,
			},
			{Measure: "memory", Unit: "KiB", Less: true, Ours: &compare.Side{By: rdma, Value: 12.2}, Wanted: 64, Reached: true},
			{
				Measure: "WRITE", Against: "Ganesha", Unit: "MB/s", Ours: &compare.Side{By: rdma, Value: 1}, Wanted: 2,
				Missing: "nfs-ganesha is not installed",
			},
		},
	}
	other := &compare.Report{Rounds: 3, Seconds: 1, Host: compare.Host{Cores: 4, Kernel: "6.2.0"}}
	for _, x := range r.Rows {
		x.Missing = "not in this run"
		other.Rows = append(other.Rows, x)
	}
	runs := compare.Runs{"a processor": r, "another": other}
	var md, js, text, svg bytes.Buffer
	page := &compare.Page{Title: "Compared", Client: client, Beside: beside}
	for _, err := range []error{runs.Markdown(&md, page), compare.JSON(&js, r), r.Plot(&svg)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.Text(&text)
	for _, want := range []string{
		"| READ | Ganesha | ≥ 2 | 2000 MB/s; over TCP 900 MB/s (1.12); 800 MB/s (libnfs): **2.5** (2.25 to 3) | not " +
			"measured: not in this run |",
		"| latency | UDP | ≤ 1.5 | 20 us; 10 us: 2 (2 to 2) | not measured: not in this run |",
		"| memory |  | ≤ 64 KiB | **12.2 KiB** | not measured: not in this run |",
		"| WRITE | Ganesha | ≥ 2 | not measured: nfs-ganesha is not installed | not measured: not in this run |",
		"nfs-ganesha 4.3-2", "median of 5 rounds of 2 s", "median of 3 rounds of 1 s",
		"a processor: 2 of 4 rows reached, 1 not reached, 1 not measured.",
		"another: 0 of 4 rows reached, 0 not reached, 4 not measured.",
	} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("%q is missing in\n%s", want, md.String())
		}
	}
	if !strings.Contains(text.String(), "nfs-ganesha is not installed") ||
		strings.Count(text.String(), "\n") != 3+len(r.Rows) {
		t.Errorf("the text is\n%s", text.String())
	}
	var back compare.Report
	if err := json.Unmarshal(js.Bytes(), &back); err != nil || len(back.Rows) != len(r.Rows) ||
		*back.Rows[0].Peer != *r.Rows[0].Peer {
		t.Errorf("%+v, %v", back, err)
	}
	for d := xml.NewDecoder(&svg); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
