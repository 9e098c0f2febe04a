package compare

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Variants of the tests.
const (
	rdma      Variant = "rstored rdma go"
	gan       Variant = "ganesha tcp go"
	ganLibnfs Variant = "ganesha tcp libnfs"
)

func TestMiddle(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{5, 1}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 100, 2, 1}, 3}} {
		in := slices.Clone(c.in)
		if got := Middle(in); got != c.want {
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
		{"plain", "43 (rstored)" + tail, 2.1, false},
		{"a name with spaces and parentheses", "42 (a) b (c)" + tail, 2.1, false},
		{"cut off", "42 (rstored) S 1 42", 0, true},
		{"no name", "42 rstored S 1", 0, true},
		{"no number", "42 (rstored)" + strings.Replace(tail, "150", "x", 1), 0, true},
		{"no group", "42 (rstored)" + strings.Replace(tail, "42", "x", 2), 0, true},
	} {
		group, got, err := parseStat([]byte(c.in))
		if got != c.want || (err != nil) != c.bad || err == nil && group != 42 {
			t.Errorf("%s: group %d, %v, %v", c.name, group, got, err)
		}
	}
}

// TestCPU: what the kernel says of this process can be read, and processor time grows
// when it is used. That of its group is no less.
func TestCPU(t *testing.T) {
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	after := before
	for x := 1.; after == before; {
		for range 1 << 20 {
			x = math.Sqrt(x + 1)
		}
		if after, err = CPU(os.Getpid()); err != nil || x == 0 {
			t.Fatal(err)
		}
	}
	if all, err := GroupCPU(os.Getpid()); err != nil || all < after {
		t.Errorf("%v seconds of the group after %v of the process, %v", all, after, err)
	}
	if all, err := GroupCPU(0); err == nil {
		t.Errorf("nobody has used %v seconds", all)
	}
}

// TestGroupCPU: what a child uses that has not ended is counted with its group's.
func TestGroupCPU(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sh -c 'while :; do :; done'; :")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	for {
		all, err := GroupCPU(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		one, err := CPU(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if all > one {
			return
		}
	}
}

// TestRounds: the variants take turns, in the opposite order in every other round, and one
// that fails is not measured again.
func TestRounds(t *testing.T) {
	var order string
	all, err := Rounds(t.Context(), 3, "r", []Variant{"a x x", "b x x", "c x x"},
		func(_ context.Context, v Variant) (Sample, error) {
			order += string(v[0])
			if v[0] == 'b' && len(order) > 3 {
				return Sample{}, errors.New("gone")
			}
			return Sample{Ops: float64(len(order))}, nil
		})
	if err != nil || order != "abccbaac" {
		t.Errorf("%q, %v", order, err)
	}
	if b := all["b x x"]; b.Err != "gone" || b.Samples != nil || len(all["a x x"].Samples) != 3 {
		t.Errorf("%+v", all)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Rounds(ctx, 1, "r", []Variant{"a x x"}, func(context.Context, Variant) (Sample, error) {
		cancel()
		return Sample{}, nil
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// samples have the given rates.
func samples(rates ...float64) *Taken {
	t := &Taken{}
	for _, r := range rates {
		t.Samples = append(t.Samples, Sample{Rate: r, PerGiB: r})
	}
	return t
}

func TestResult(t *testing.T) {
	up := Row{
		Measure: "m", Against: "p",
		Metric: Metric{Unit: "B/s", Scale: 1, Of: func(s *Sample) float64 { return s.Rate }}, Ours: []Variant{rdma},
		Peer: []Variant{gan, ganLibnfs}, Wanted: 2,
	}
	down := up
	down.Metric, down.Wanted = Metric{
		Unit: "CPU s/GiB", Scale: 1, Less: true,
		Of: func(s *Sample) float64 { return s.PerGiB },
	}, 0.5
	for _, c := range []struct {
		name          string
		row           Row
		all           map[Variant]*Taken
		ratio, lo, hi float64
		peer          Variant
		reached       bool
		missing       string
	}{
		// The ratio is that of the rounds, not that of the medians.
		{"the faster client", up, map[Variant]*Taken{
			rdma: samples(10, 30, 20), gan: samples(5, 10, 4),
			ganLibnfs: samples(1, 2, 1),
		}, 3, 2, 5, gan, true, ""},
		{
			"not reached", up,
			map[Variant]*Taken{rdma: samples(19), gan: samples(5), ganLibnfs: samples(10)},
			1.9, 1.9, 1.9,
			ganLibnfs, false, "",
		},
		{
			"less is better", down,
			map[Variant]*Taken{rdma: samples(2), gan: samples(5), ganLibnfs: samples(4)},
			0.5, 0.5, 0.5,
			ganLibnfs, true, "",
		},
		{"a client is missing", up, map[Variant]*Taken{
			rdma: samples(20), gan: samples(5),
			ganLibnfs: {Err: "libnfs is not installed"},
		}, 4, 4, 4, gan, true, ""},
		{"the peer is missing", up, map[Variant]*Taken{
			rdma: samples(20), gan: {Err: "not installed"},
			ganLibnfs: {Err: "not installed"},
		}, 0, 0, 0, "", false, "not installed"},
		{
			"ours failed", up,
			map[Variant]*Taken{rdma: {Err: "refused"}, gan: samples(1), ganLibnfs: samples(1)},
			0, 0, 0, "",
			false, "refused",
		},
		{
			"the peer's was too little to measure", down,
			map[Variant]*Taken{rdma: samples(2), gan: samples(0), ganLibnfs: samples(0)},
			0, 0, 0, "", false,
			"the peer took nothing that could be measured",
		},
	} {
		x := c.row.Result(c.all)
		by := Variant("")
		if x.Peer != nil && c.missing == "" {
			by = x.Peer.By
		}
		if x.Ratio != c.ratio || x.Min != c.lo || x.Max != c.hi || by != c.peer || x.Reached != c.reached ||
			x.Missing != c.missing {
			t.Errorf("%s: %+v", c.name, x)
		}
		if c.missing == "refused" && (&Report{Rows: []Result{x}}).Failed() == nil {
			t.Errorf("%s: the run passes", c.name)
		} else if c.missing == "not installed" && (&Report{Rows: []Result{x}}).Failed() != nil {
			t.Errorf("%s: the run fails", c.name)
		}
	}
	kib := Row{Measure: "m", Metric: Metric{
		Unit: "KiB", Scale: 1. / 1024, Less: true,
		Of: func(s *Sample) float64 { return s.Value },
	}, Ours: []Variant{rdma}, Wanted: 64}
	for _, c := range []struct {
		bytes   float64
		reached bool
	}{{65536, true}, {65537, false}} {
		if x := kib.Result(map[Variant]*Taken{rdma: {Samples: []Sample{{Value: c.bytes}}}}); x.Reached != c.reached {
			t.Errorf("%+v", x)
		}
	}
}

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		in   float64
		want string
	}{
		{0, "0"},
		{1234.6, "1235"},
		{12.34, "12.3"},
		{10, "10"},
		{64, "64"},
		{1.234, "1.23"},
		{2, "2"},
		{0.7, "0.7"},
		{0.0123, "0.012"},
	} {
		if got := Number(c.in); got != c.want {
			t.Errorf("%v is %q, want %q", c.in, got, c.want)
		}
	}
}

func TestParseHostStat(t *testing.T) {
	got, err := parseHostStat([]byte("cpu  100 10 200 5000 60 7 3 50 0 0\ncpu0 1 2 3\n"))
	if got != 3.2 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, in := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu a 1 1 1 1 1 1 1 1"} {
		if got, err := parseHostStat([]byte(in)); err == nil {
			t.Errorf("%q: %v", in, got)
		}
	}
	if n, err := HostCPU(); n <= 0 || err != nil {
		t.Errorf("%v, %v", n, err)
	}
}

// TestWriteRuns: a run takes the place of the last one of its processor alone, and the page has
// the rows of today of all of them.
func TestWriteRuns(t *testing.T) {
	metric := Metric{Unit: "B/s", Scale: 1, Of: func(s *Sample) float64 { return s.Rate }}
	was := Row{
		Measure: "was", Against: "p", Experiment: "e", Metric: metric, Ours: []Variant{rdma}, Peer: []Variant{gan},
	}
	since := was
	since.Measure, since.Experiment, since.Wanted = "since", "f", 2
	was.Wanted = 1
	f := &Files{JSON: filepath.Join(t.TempDir(), "results.json")}
	var md strings.Builder
	page := func(rs Runs, _ io.Writer) error {
		rs.Again([]Row{was, since})
		md.Reset()
		none := func(Variant) string { return "" }
		return rs.Markdown(&md, &Page{Title: "T", Client: none, Beside: none})
	}
	run := func(processor string, ours float64, experiments ...string) {
		t.Helper()
		r := &Report{Host: Host{Processor: processor}, Rounds: 1, Measured: make(map[string]map[Variant]*Taken)}
		for _, e := range experiments {
			r.Measured[e] = map[Variant]*Taken{rdma: samples(ours), gan: samples(10)}
		}
		r.Client, r.Beside = func(Variant) string { return "" }, func(Variant) string { return "" }
		f.Markdown = filepath.Join(t.TempDir(), "page.md")
		if err := f.WriteRuns(r, page); err != nil {
			t.Fatal(err)
		}
	}
	run("A", 5, "e")
	run("B", 10, "e", "f")
	run("A", 20, "e")
	for _, want := range []string{
		"| measure | against | to reach | A | B |\n",
		"| was | p | ≥ 1 | 20 B/s; 10 B/s: **2** (2 to 2) | 10 B/s; 10 B/s: **1** (1 to 1) |\n",
		"| since | p | ≥ 2 | not measured: not in this run | 10 B/s; 10 B/s: 1 (1 to 1) |\n",
		"A: 1 of 2 rows reached, 0 not reached, 1 not measured.", "B: 1 of 2 rows reached, 1 not reached.",
	} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("no %q in\n%s", want, md.String())
		}
	}
}

func TestProcessorName(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{
			"processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\nmodel\t\t: 3\n",
			"AMD EPYC (family 26, model 2)",
		},
		{"model name\t: Cortex\n", "Cortex"},
		{"processor\t: 0\n", "unknown processor"},
	} {
		if got := processorName(c.in); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
