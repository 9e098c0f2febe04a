package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestMiddle(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{5, 1}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 100, 2, 1}, 3}} {
		in := slices.Clone(c.in)
		if got := middle(in); got != c.want {
			t.Errorf("the median of %v is %v, want %v", c.in, got, c.want)
		}
		if !slices.Equal(in, c.in) {
			t.Errorf("%v was changed to %v", c.in, in)
		}
	}
}

func TestParseStat(t *testing.T) {
	const tail = " S 1 42 42 0 -1 4194560 100 200 0 0 150 50 7 3 20 0 9 0 12345 1000 200 18446744073709551615"
	for _, c := range []struct {
		name, in string
		want     float64
		bad      bool
	}{
		{"plain", "42 (rstored)" + tail, 2.1, false},
		{"a name with spaces and parentheses", "42 (a) b (c)" + tail, 2.1, false},
		{"cut off", "42 (rstored) S 1 42", 0, true},
		{"no name", "42 rstored S 1", 0, true},
		{"no number", "42 (rstored)" + strings.Replace(tail, "150", "x", 1), 0, true},
	} {
		got, err := parseStat([]byte(c.in))
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

// TestProc: what the kernel says of this process can be read, and processor time grows
// when it is used.
func TestProc(t *testing.T) {
	before, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for after, x := before, 1.; after == before; {
		for range 1 << 20 {
			x = math.Sqrt(x + 1)
		}
		if after, err = cpuOf(os.Getpid()); err != nil || x == 0 {
			t.Fatal(err)
		}
	}
	if n, err := pssOf(os.Getpid()); err != nil || n < 1<<16 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

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
	const line = "BenchmarkNFS/rdma/READ/1024KiB/16-in-flight-2   \t 3000\t 289 ns/op\t 3.5 MB/s\t 0.6 of-tcp\t 2100 B/op\t      14 allocs/op\n"
	if got, err := parseAllocs([]byte("goos: linux\n" + line + "PASS\n")); got != 14 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, in := range []string{"", "PASS\n", line + line} {
		if got, err := parseAllocs([]byte(in)); err == nil {
			t.Errorf("%v of %q", got, in)
		}
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
	l, used, err := follow(strings.NewReader("begin\nend\n"+`{"ops":10,"bytes":2147483648,"seconds":2,"p50":0.5}`+"\n"), cpu)
	if err != nil || used != 4.5 {
		t.Fatalf("%v seconds, %v", used, err)
	}
	s, err := l.sample(used)
	if want := (sample{Rate: 1 << 30, Ops: 5, P50: 0.5, Server: 4.5, PerGiB: 2.25, PerOp: 0.45}); s != want || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	none := func(string) (float64, error) { return 0, nil }
	for _, in := range []string{"", "begin\n", "begin\nend\nnonsense\n", `{"ops":1}`} {
		if l, _, err := follow(strings.NewReader(in), none); err == nil {
			t.Errorf("%q: %+v", in, l)
		}
	}
	if s, err := (&load{Seconds: 1}).sample(1); err == nil {
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

// samples have the given rates.
func samples(rates ...float64) *taken {
	t := &taken{}
	for _, r := range rates {
		t.Samples = append(t.Samples, sample{Rate: r, PerGiB: r})
	}
	return t
}

func TestResult(t *testing.T) {
	up := row{measure: "m", against: "p", metric: metric{unit: "B/s", scale: 1, of: rate.of}, ours: []variant{rdma}, peer: ganesha, wanted: 2}
	down := up
	down.metric, down.wanted = perGiB, 0.5
	for _, c := range []struct {
		name          string
		row           row
		all           map[variant]*taken
		ratio, lo, hi float64
		peer          variant
		reached       bool
		missing       string
	}{
		// The ratio is that of the rounds, not that of the medians.
		{"the faster client", up, map[variant]*taken{rdma: samples(10, 30, 20), gan: samples(5, 10, 4), ganLibnfs: samples(1, 2, 1)}, 3, 2, 5, gan, true, ""},
		{"not reached", up, map[variant]*taken{rdma: samples(19), gan: samples(5), ganLibnfs: samples(10)}, 1.9, 1.9, 1.9, ganLibnfs, false, ""},
		{"less is better", down, map[variant]*taken{rdma: samples(2), gan: samples(5), ganLibnfs: samples(4)}, 0.5, 0.5, 0.5, ganLibnfs, true, ""},
		{"a client is missing", up, map[variant]*taken{rdma: samples(20), gan: samples(5), ganLibnfs: {Err: "libnfs is not installed"}}, 4, 4, 4, gan, true, ""},
		{"the peer is missing", up, map[variant]*taken{rdma: samples(20), gan: {Err: "not installed"}, ganLibnfs: {Err: "not installed"}}, 0, 0, 0, "", false, "not installed"},
		{"ours failed", up, map[variant]*taken{rdma: {Err: "refused"}, gan: samples(1), ganLibnfs: samples(1)}, 0, 0, 0, "", false, "refused"},
		{"the peer's was too little to measure", down, map[variant]*taken{rdma: samples(2), gan: samples(0), ganLibnfs: samples(0)}, 0, 0, 0, "", false, "the peer took nothing that could be measured"},
	} {
		x := c.row.result(c.all)
		by := variant("")
		if x.Peer != nil && c.missing == "" {
			by = x.Peer.By
		}
		if x.Ratio != c.ratio || x.Min != c.lo || x.Max != c.hi || by != c.peer || x.Reached != c.reached || x.Missing != c.missing {
			t.Errorf("%s: %+v", c.name, x)
		}
		if c.missing == "refused" && (&report{Rows: []result{x}}).failed() == nil {
			t.Errorf("%s: the run passes", c.name)
		} else if c.missing == "not installed" && (&report{Rows: []result{x}}).failed() != nil {
			t.Errorf("%s: the run fails", c.name)
		}
	}
	number := row{measure: "m", metric: kib, ours: []variant{rdma}, wanted: 64}
	for _, c := range []struct {
		bytes   float64
		reached bool
	}{{65536, true}, {65537, false}} {
		if x := number.result(map[variant]*taken{rdma: {Samples: []sample{{Value: c.bytes}}}}); x.Reached != c.reached {
			t.Errorf("%+v", x)
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
		if _, ok := names[r.experiment]; !ok {
			t.Errorf("%s: there is no experiment %q", r.text(), r.experiment)
		}
		names[r.experiment] = true
		if key := r.text() + r.metric.unit; seen[key] {
			t.Errorf("%s is there twice", r.text())
		} else {
			seen[key] = true
		}
		for _, v := range slices.Concat(r.ours, r.peer, r.also) {
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

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		in   float64
		want string
	}{{0, "0"}, {1234.6, "1235"}, {12.34, "12.3"}, {10, "10"}, {64, "64"}, {1.234, "1.23"}, {2, "2"}, {0.7, "0.7"}, {0.0123, "0.012"}} {
		if got := number(c.in); got != c.want {
			t.Errorf("%v is %q, want %q", c.in, got, c.want)
		}
	}
}

// TestReport: what was measured is in all forms of the results.
func TestReport(t *testing.T) {
	r := &report{
		Host:   hostInfo{Cores: 2, Kernel: "6.1.0", Disk: "ext4", Versions: map[string]string{"nfs-ganesha": "4.3-2"}, Ganesha: string(ganeshaConfig("/a", "/b"))},
		Rounds: 5, Seconds: 2,
		Rows: []result{
			{Measure: "READ", Against: "Ganesha", Unit: "MB/s", Ours: &side{By: rdma, Value: 2000}, Peer: &side{By: ganLibnfs, Value: 800}, Also: []side{{By: tcp, Value: 900, Ratio: 1.125}}, Ratio: 2.5, Min: 2.25, Max: 3, Wanted: 2, Reached: true},
			{Measure: "latency", Against: "UDP", Unit: "us", Less: true, Ours: &side{By: verbs, Value: 20}, Peer: &side{By: barePing, Value: 10}, Ratio: 2, Min: 2, Max: 2, Wanted: 1.5},
			{Measure: "memory", Unit: "KiB", Less: true, Ours: &side{By: rdma, Value: 12.2}, Wanted: 64, Reached: true},
			{Measure: "WRITE", Against: "Ganesha", Unit: "MB/s", Ours: &side{By: rdma, Value: 1}, Wanted: 2, Missing: "nfs-ganesha is not installed"},
		},
	}
	var md, js, text, svg bytes.Buffer
	for _, err := range []error{r.markdown(&md), r.json(&js), r.plot(&svg)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.text(&text)
	for _, want := range []string{
		"| READ | Ganesha, libnfs | 2000 MB/s; over TCP 900 MB/s (1.12) | 800 MB/s | 2.5 (2.25 to 3) | ≥ 2 | yes |",
		"| latency | UDP | 20 us | 10 us | 2 (2 to 2) | ≤ 1.5 | no |",
		"| memory |  | 12.2 KiB | - |  | ≤ 64 KiB | yes |",
		"| WRITE | Ganesha | 1 MB/s | - | not measured: nfs-ganesha is not installed | ≥ 2 | - |",
		"nfs-ganesha 4.3-2", "Path = /b;", "median of 5 rounds of 2 s",
	} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("%q is missing in\n%s", want, md.String())
		}
	}
	if !strings.Contains(text.String(), "nfs-ganesha is not installed") || strings.Count(text.String(), "\n") != 2+len(r.Rows) {
		t.Errorf("the text is\n%s", text.String())
	}
	var back report
	if err := json.Unmarshal(js.Bytes(), &back); err != nil || len(back.Rows) != len(r.Rows) || *back.Rows[0].Peer != *r.Rows[0].Peer {
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
