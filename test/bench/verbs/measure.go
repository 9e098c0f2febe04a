package main

import (
	"bytes"
	"context"
	_ "embed" // for the script
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rstored/rstored/test/bench/compare"
	"github.com/rstored/rstored/test/guest"
)

//go:embed script.sh
var script string

// Addresses beside the guests' own, which are those of rxe0.
const (
	verbsServer = "10.99.0.3"
	softClient  = "10.99.0.4"
	softServer  = "10.99.0.5"
)

// firstPort is that of perftest's first run. Each has another: what was is not in the way.
const firstPort = 18600

// pollingPort is that of the server that polls.
const pollingPort = 18516

// measure boots the guests and takes the rounds of what is asked for.
func measure(ctx context.Context, o *options, runner *guest.Runner, r *report) error {
	var wanted []experiment
	for _, e := range experiments() {
		if slices.ContainsFunc(rows(),
			func(w compare.Row) bool { return w.Experiment == e.name && o.rows.MatchString(w.Text()) }) {
			wanted = append(wanted, e)
		}
	}
	if len(wanted) == 0 {
		return errors.New("no row matches")
	}
	return runner.Run(ctx, &guest.Case{
		Name: "bench", Script: script, Guests: 2, Wires: 2, MTU: mtu, MemMB: 1200, Quiet: true, Timeout: 30 * time.Minute,
		Env: map[string]string{
			"MTU": strconv.Itoa(mtu), "MHZ": megahertz(), "VERBS_SERVER": verbsServer, "POLLING_PORT": strconv.Itoa(pollingPort),
			"SOFT_SERVER": softServer, "SOFT_CLIENT": softClient,
		},
		Host: func(ctx context.Context, run *guest.Run) error {
			b, err := os.ReadFile(filepath.Join(runner.Bin, "rstorectl"))
			if err == nil {
				err = os.WriteFile(filepath.Join(run.Share, "rstorectl"), b, 0o755)
			}
			if err = errors.Join(err, run.Tell("programs")); err != nil {
				return err
			}
			m := &measurer{run: run, n: make(map[string]int)}
			if r.Host.Versions["perftest"], err = m.version(ctx, "perftest"); err != nil {
				return err
			}
			if r.Host.Versions["rdma-core"], err = m.version(ctx, "rdma-core"); err != nil {
				return err
			}
			for _, v := range wanted[0].variants() { // which does not count: programs are read for the first time
				if _, err := m.sample(ctx, &wanted[0], v); err != nil {
					return fmt.Errorf("%s: %w", v, err)
				}
			}
			for _, e := range wanted {
				all, err := compare.Rounds(ctx, o.rounds, e.name, e.variants(),
					func(ctx context.Context, v compare.Variant) (compare.Sample, error) { return m.sample(ctx, &e, v) })
				if err != nil {
					return err
				}
				r.Measured[e.name] = all
			}
			return m.end()
		},
	})
}

// megahertz is the frequency that the host tells.
func megahertz() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "cpu MHz" {
			return strings.TrimSpace(v)
		}
	}
	return "2000.000"
}

// measurer has the guests run programs.
type measurer struct {
	run  *guest.Run
	n    map[string]int // jobs of each guest until now
	port int            // runs of perftest until now
}

// sample measures one experiment of one variant.
func (m *measurer) sample(ctx context.Context, e *experiment, v compare.Variant) (s compare.Sample, err error) {
	if v == perftestPolls || v == perftestWaits {
		return m.perftest(ctx, e, v)
	}
	command := fmt.Sprintf("/mnt/rstorectl perf %s %s -o json -s %d -n %d", e.op, e.kind(), e.bytes, e.n)
	if !e.latency {
		command += " -t " + strconv.Itoa(depth)
	}
	switch v {
	case soft:
		command = "ip netns exec r " + command + " --provider soft " + softServer
	case verbsWaits:
		command += " --provider verbs " + verbsServer
	case verbsPolls:
		command += " --provider verbs --busy-poll "
		if e.twoSided() { // else perftest's server waits for the end of it, too
			command += "-p " + strconv.Itoa(pollingPort) + " "
		}
		command += verbsServer
	}
	out, err := m.job(ctx, "a", command)
	if err != nil {
		return s, err
	}
	return parsePerf(out, e)
}

// errClock is of a run of perftest that has not found out how fast its clock is, as happens where
// it does not have a processor for itself while it begins: what it prints is nothing then.
var errClock = errors.New("perftest could not calibrate its clock")

// attempts are as many runs as perftest has for a sample.
const attempts = 6

// perftest measures one experiment with it.
func (m *measurer) perftest(ctx context.Context, e *experiment, v compare.Variant) (s compare.Sample, err error) {
	for range attempts {
		if s, err = m.ends(ctx, e, v); !errors.Is(err, errClock) {
			break
		}
	}
	return s, err
}

// ends runs the two ends of perftest.
func (m *measurer) ends(ctx context.Context, e *experiment, v compare.Variant) (s compare.Sample, err error) {
	port := firstPort + m.port
	m.port++
	command := fmt.Sprintf("ib_%s_%s -d rxe0 -x 1 -F -p %d -s %d -n %d", e.op, e.kind(), port, e.bytes, e.n)
	if !e.latency {
		// A completion for each message, as we have it.
		command += " -Q 1 -t " + strconv.Itoa(depth)
	}
	if v == perftestWaits {
		command += " -e"
	}
	if _, err := m.job(ctx, "b", command+" >/run/host/keep.perftest.log 2>&1 &\nlistening "+
		strconv.Itoa(port)); err != nil {
		return s, err
	}
	out, err := m.job(ctx, "a", command+" "+verbsServer)
	if err != nil {
		return s, err
	}
	if _, err := m.job(ctx, "b", "wait $!"); err != nil {
		return s, err
	}
	return parsePerftest(out, e)
}

// version is that of a package in the guests.
func (m *measurer) version(ctx context.Context, name string) (string, error) {
	out, err := m.job(ctx, "a", "dpkg-query -W -f '${Version}' "+name)
	return string(out), err
}

// job has a guest run a command, and returns what it prints.
func (m *measurer) job(ctx context.Context, who, command string) ([]byte, error) {
	n := who + "." + strconv.Itoa(m.n[who])
	m.n[who]++
	if err := os.WriteFile(filepath.Join(m.run.Share, "job."+n), []byte(command+"\n"), 0o644); err != nil {
		return nil, err
	}
	if err := m.run.Tell(n); err != nil {
		return nil, err
	}
	if err := m.run.Await(ctx, "ran."+n); err != nil {
		return nil, err
	}
	out, err := os.ReadFile(filepath.Join(m.run.Share, "out."+n))
	if err != nil {
		return nil, err
	}
	rc, err := os.ReadFile(filepath.Join(m.run.Share, "rc."+n))
	if err != nil {
		return nil, err
	}
	if status := strings.TrimSpace(string(rc)); status != "0" {
		return nil, fmt.Errorf("%s: exit status %s: %s", command, status, bytes.TrimSpace(out))
	}
	return out, nil
}

// end lets both guests end.
func (m *measurer) end() error {
	err := m.run.Tell("done")
	for _, who := range []string{"a", "b"} {
		err = errors.Join(err, m.run.Tell(who+"."+strconv.Itoa(m.n[who])))
	}
	return err
}

// parsePerf reads what rstorectl perf prints as JSON.
func parsePerf(out []byte, e *experiment) (s compare.Sample, err error) {
	var r struct {
		MTU     int `json:"path_mtu"`
		Results []struct {
			Bytes   int     `json:"bytes"`
			Average float64 `json:"bw_average_mib_s"`
			Mpps    float64 `json:"msg_rate_mpps"`
			Typical float64 `json:"t_typical_us"`
			P99     float64 `json:"percentile_99_us"`
		} `json:"results"`
	}
	if i := bytes.IndexByte(out, '{'); i > 0 {
		out = out[i:]
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return s, fmt.Errorf("rstorectl: %w: %s", err, compare.FirstLine(out))
	}
	if len(r.Results) != 1 || r.Results[0].Bytes != e.bytes {
		return s, fmt.Errorf("rstorectl: %d results, %s", len(r.Results), compare.FirstLine(out))
	}
	x := r.Results[0]
	return sample(e, r.MTU, x.Average, x.Mpps, x.Typical, x.P99)
}

// parsePerftest reads what perftest prints.
func parsePerftest(out []byte, e *experiment) (s compare.Sample, err error) {
	if bytes.Contains(out, []byte("Correlation coefficient")) {
		return s, errClock
	}
	m := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) > 2 && f[0] == "Mtu" {
			// " Mtu             : 4096[B]"
			if m, err = strconv.Atoi(strings.TrimSuffix(f[2], "[B]")); err != nil {
				return s, fmt.Errorf("perftest: %w", err)
			}
		}
		if len(f) < 5 || f[0] != strconv.Itoa(e.bytes) {
			continue
		}
		var v []float64
		for _, x := range f {
			if strings.HasSuffix(x, "nan") || strings.HasSuffix(x, "inf") {
				return s, errClock // without a word
			}
			d, err := strconv.ParseFloat(x, 64)
			if err != nil {
				return s, fmt.Errorf("perftest: %w", err)
			}
			v = append(v, d)
		}
		if !e.latency {
			// bytes, iterations, peak, average, messages
			return sample(e, m, v[3], v[4], 0, 0)
		}
		if len(v) < 9 {
			return s, fmt.Errorf("perftest: %s", strings.TrimSpace(line))
		}
		// bytes, iterations, least, most, typical, average, deviation, 99 %, 99.9 %
		return sample(e, m, 0, 0, v[4], v[7])
	}
	return s, fmt.Errorf("perftest printed no result: %s", bytes.TrimSpace(out))
}

// sample takes MiB/s and millions of messages, or microseconds, of one path MTU.
func sample(e *experiment, path int, rate, mpps, typical, p99 float64) (s compare.Sample, err error) {
	if path != pathMTU {
		return s, fmt.Errorf("measured with a path MTU of %d", path)
	}
	if e.latency {
		s = compare.Sample{P50: typical / 1e6, P99: p99 / 1e6, Ops: 1e6 / typical}
	} else {
		s = compare.Sample{Rate: rate * (1 << 20), Ops: mpps * 1e6}
	}
	bad := func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) || v <= 0 }
	if e.latency && (bad(typical) || bad(p99)) || !e.latency && (bad(rate) || bad(mpps)) {
		return s, fmt.Errorf("%s: %g MiB/s, %g Mpps, %g and %g µs", e.name, rate, mpps, typical, p99)
	}
	return s, nil
}
