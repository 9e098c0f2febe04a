package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/rdma/verbs"
)

// output is a buffer whose lines can be waited for.
type output struct {
	lines chan string
	rest  []byte
}

func (o *output) Write(b []byte) (int, error) {
	o.rest = append(o.rest, b...)
	for {
		i := bytes.IndexByte(o.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		select {
		case o.lines <- string(o.rest[:i]):
		default:
		}
		o.rest = o.rest[i+1:]
	}
}

// perfServer runs 'perf serve' with further flags until the test ends, and returns its
// address.
func perfServer(t *testing.T, args ...string) string {
	t.Helper()
	addr := fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	ctx, cancel := context.WithCancel(context.Background())
	out := &output{lines: make(chan string, 100)}
	root := Root(&cli.Globals{Out: out, Err: out})
	root.SetArgs(append([]string{"perf", "serve", addr}, args...))
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for {
		select {
		case line := <-out.lines:
			if strings.Contains(line, "waiting for measurements") {
				return addr
			}
		case err := <-ended:
			ended <- nil
			t.Fatal(err)
		}
	}
}

func perfRun(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	root := Root(&cli.Globals{Out: &o, Err: &e})
	root.SetArgs(append([]string{"perf"}, args...))
	code = cli.Run(root, &e)
	return code, o.String(), e.String()
}

// TestPerfJSON: every operation in every direction; the sums are those of the parts.
func TestPerfJSON(t *testing.T) {
	addr := perfServer(t)
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }
	for _, op := range []string{"write", "read", "send", "atomic"} {
		for _, way := range [][]string{{"bw"}, {"bw", "-b", "-q", "2"}, {"lat"}} {
			args := append(append([]string{op}, way...), addr, "-n", "20", "-o", "json")
			want := uint64(20)
			if op != "atomic" {
				args = append(args, "-s", "3000")
			}
			if len(way) > 1 {
				want *= 2 // queue pairs
			}
			if way[0] == "bw" {
				args = append(args, "-t", "4")
			}
			code, out, errOut := perfRun(args...)
			var r struct {
				Test, Server, Provider string
				Results                []struct {
					Bytes, Iterations uint64
					Peak              *float64       `json:"bw_peak_mib_s"`
					Average           float64        `json:"bw_average_mib_s"`
					Rate              float64        `json:"msg_rate_mpps"`
					Sent              *perfDirection `json:"client_posted"`
					Back              *perfDirection `json:"server_posted"`
					Typical           *float64       `json:"t_typical_us"`
					Max               float64        `json:"t_max_us"`
				}
			}
			if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil || len(r.Results) != 1 {
				t.Errorf("%q: %d, %v\n%s%s", args, code, err, out, errOut)
				continue
			}
			x := r.Results[0]
			size := uint64(3000)
			if op == "atomic" {
				size = 8
			}
			if r.Provider != "soft" || r.Test != op+" "+way[0] || !strings.HasPrefix(r.Server, addr) || x.Bytes != size ||
				x.Iterations != want {
				t.Errorf("%q: %s", args, out)
			}
			if way[0] == "lat" {
				if x.Typical == nil || x.Max < *x.Typical || x.Sent != nil || x.Peak != nil {
					t.Errorf("%q: %s", args, out)
				}
				continue
			}
			average, rate := 0.0, 0.0
			for i, d := range []*perfDirection{x.Sent, x.Back} {
				if (d != nil) != (i == 0 || len(way) > 1) {
					t.Errorf("%q: %s", args, out)
				} else if d != nil {
					if d.Iterations != want || d.Bytes != want*size || !near(d.Average, float64(d.Bytes)/mib/d.ElapsedUS*1e6) {
						t.Errorf("%q: %+v", args, d)
					}
					average += d.Average
					rate += float64(d.Iterations) / d.ElapsedUS
				}
			}
			if !near(x.Average, average) || !near(x.Rate, rate) || x.Peak == nil || x.Typical != nil {
				t.Errorf("%q: %s", args, out)
			}
		}
	}
}

// TestPerfTable: the columns are where scripts for perftest look for them.
func TestPerfTable(t *testing.T) {
	addr := perfServer(t)
	for _, c := range []struct {
		args          []string
		header        string
		fields, lines int
	}{
		{
			[]string{"write", "bw", "-n", "5", "-a", "-t", "2"},
			"#bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps]", 5, 23,
		},
		{
			[]string{"send", "lat", "-n", "5"},
			"#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] 99% percentile[usec] 99.9% " +
				"percentile[usec]", 9, 1,
		},
		{[]string{"read", "lat", "-D", "1"}, "#bytes #iterations t_avg[usec] tps average", 4, 1},
	} {
		for _, quiet := range []bool{false, true} {
			args := append(c.args, addr)
			if quiet {
				args = append(args, "--quiet")
			}
			code, out, errOut := perfRun(args...)
			_, table, found := strings.Cut(out, strings.Repeat("-", 87)+"\n")
			if code != 0 || found == quiet {
				t.Errorf("%q: %d\n%s%s", args, code, out, errOut)
				continue
			}
			if quiet {
				table = out
			}
			lines := strings.Split(strings.TrimSpace(table), "\n")
			if got := strings.Join(strings.Fields(lines[0]), " "); got != c.header || len(lines) != c.lines+1 {
				t.Errorf("%q:\n%s", args, out)
			}
			for i, l := range lines[1:] {
				f := strings.Fields(l)
				if len(f) != c.fields || f[0] != fmt.Sprint(2<<i) && c.lines > 1 {
					t.Errorf("%q: %q", args, l)
				}
			}
		}
	}
}

// TestPerfErrors: what makes no sense, and what the server refuses in its words.
func TestPerfErrors(t *testing.T) {
	absent := "none has the address" // of loopback
	if err := verbs.Available(); err != nil {
		absent = err.Error()
	}
	addr := perfServer(t, "--max-size", "4096", "--max-qps", "2")
	closed := perfServer(t, "--client", "10.0.0.0/8")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"write bw " + addr + " -s 4097", cli.ExitFailed, "a size of 4097; the most here is 4096"},
		{"write bw " + addr + " -s 64 -q 3", cli.ExitFailed, "queue pairs: 3; the most here is 2"},
		{"write bw " + closed + " -s 64", cli.ExitFailed, "may not measure here"},
		{"write bw " + addr + " -p 18516", cli.ExitFailed, "start 'rstorectl perf serve' there"},
		{"write lat " + addr + " -b", cli.ExitUsage, "unknown shorthand flag: 'b'"},
		{"write bw " + addr + " -s 0", cli.ExitUsage, "a size of 0 bytes"},
		{"write bw " + addr + " -m 1500", cli.ExitUsage, "not one of 256"},
		{"write bw " + addr + " -t 0", cli.ExitUsage, "a queue depth of 0"},
		{"write bw " + addr + " -D -1", cli.ExitUsage, "iterations"},
		{"atomic bw " + addr + " -A XOR", cli.ExitUsage, "XOR"},
		{"atomic bw " + addr + " -s 16", cli.ExitUsage, "unknown shorthand flag: 's'"},
		{"write bw", cli.ExitUsage, "accepts 1 arg"},
		{"write sideways", cli.ExitUsage, "unknown command"},
		{"write bw " + addr + " --provider hardware", cli.ExitUsage, "unknown RDMA provider"},
		{"write bw " + addr + " --busy-poll", cli.ExitUsage, "the stack in user space sleeps"},
		{"serve soft://127.0.0.9 --busy-poll", cli.ExitUsage, "the stack in user space sleeps"},
		{"write bw " + addr + " --provider verbs", cli.ExitFailed, absent},
		{"serve verbs://127.0.0.1", cli.ExitFailed, absent},
		{"serve soft://mlx5_0", cli.ExitUsage, "name an address"},
		{"serve localhost", cli.ExitUsage, "not an IP address"},
		{"serve 127.0.0.1 --client example.org", cli.ExitUsage, "example.org"},
		{"serve 127.0.0.1 --max-size 1", cli.ExitUsage, "max_size"},
		{"serve " + addr, cli.ExitFailed, "set perf: in its configuration"},
	} {
		code, out, errOut := perfRun(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(errOut, c.says) {
			t.Errorf("%q: %d\n%s%s", c.args, code, out, errOut)
		}
	}
}
