package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rstored/rstored/test/bench/compare"
)

// measurer makes measurements.
type measurer struct {
	*servers
	took   time.Duration
	files  int            // of the tree that is copied
	copied int            // how often something was
	iters  map[string]int // of rstorectl perf, by what is measured
	idle   float64        // the most that an idle mount took
}

// experiment is something that several variants do.
type experiment struct {
	name     string
	variants []compare.Variant // besides those of the rows
	run      func(ctx context.Context, m *measurer, v compare.Variant) (compare.Sample, error)
}

// nfs is an experiment of one kind of call.
func nfs(name, where, op string, size, depth int) experiment {
	return experiment{name: name, run: func(ctx context.Context, m *measurer, v compare.Variant) (compare.Sample, error) {
		server, carrier, client := v.Split()
		srv := m.get(ctx, server)
		if srv.err != nil {
			return compare.Sample{}, srv.err
		}
		args := []string{
			op, strconv.Itoa(size), strconv.Itoa(depth), strconv.FormatFloat(m.took.Seconds(), 'f', -1, 64),
			strconv.Itoa(sizeOf(where)),
		}
		if goClient(client) {
			args = append([]string{m.bin("load"), m.url(server, carrier, where)}, args...)
		} else {
			args = append([]string{m.bin("load-libnfs"), m.libnfsURL(server, where)}, args...)
		}
		if _, err := os.Stat(args[0]); err != nil {
			return compare.Sample{}, fmt.Errorf("%s is not installed", client)
		}
		return m.drive(ctx, srv, args, m.secured(client)...)
	}}
}

// goClient reports whether a client is ours: with AUTH_SYS, or with the flavor that is its name.
func goClient(client string) bool { return client == "go" || strings.HasPrefix(client, "krb5") }

// secured are the variables by which the Go client has its flavor.
func (s *servers) secured(client string) []string {
	if !strings.HasPrefix(client, "krb5") {
		return nil
	}
	return []string{"SEC=" + client, "KEYTAB=" + s.keytab()}
}

// drive runs a program that makes load. The server's processor time is that between
// the lines begin and end.
func (m *measurer) drive(ctx context.Context, srv *server, args []string, env ...string) (s compare.Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*m.took+patience)
	defer cancel()
	l, used, err := m.watch(ctx, args, func(string) (float64, error) {
		if srv == nil {
			return 0, nil
		}
		return compare.CPU(srv.pid())
	}, env...)
	if err != nil {
		return s, err
	}
	return l.Sample(used)
}

// watch runs a program that makes load; cpu is that of follow.
func (s *servers) watch(ctx context.Context, args []string, cpu func(line string) (float64, error), env ...string) (
	l compare.Load, used float64, err error,
) {
	cmd := s.command(ctx, args...)
	if len(env) > 0 {
		cmd.Env = append(os.Environ(), env...)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return l, 0, err
	}
	if err := cmd.Start(); err != nil {
		return l, 0, err
	}
	l, used, err = follow(out, cpu)
	if werr := cmd.Wait(); werr != nil {
		err = fmt.Errorf("%w: %s", werr, compare.FirstLine(stderr.Bytes()))
	}
	return l, used, err
}

// follow reads what a load says: connected, of many connections, begin, end, and what it
// measured. It returns that and what cpu, which is called at each of these lines, grew by between
// begin and end.
func follow(r io.Reader, cpu func(line string) (float64, error)) (l compare.Load, used float64, err error) {
	lines := bufio.NewScanner(r)
	seen := 0
	for lines.Scan() {
		switch line := lines.Text(); line {
		case "connected":
			if _, err := cpu(line); err != nil {
				return l, 0, err
			}
		case "begin", "end":
			now, err := cpu(line)
			if err != nil {
				return l, 0, err
			}
			used = now - used
			seen++
		default:
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				return l, 0, err
			}
		}
	}
	if seen != 2 {
		return l, 0, errors.New("the load did not say when it was measured")
	}
	return l, used, lines.Err()
}

// perf measures the transport: rstored's by rstorectl perf, or datagrams. kind and
// window are of the datagrams; args of rstorectl.
func perf(name string, size int, args ...string) experiment {
	return experiment{name: name, run: func(ctx context.Context, m *measurer, v compare.Variant) (compare.Sample, error) {
		server, kind, window := v.Split()
		if server == "udp" {
			return m.datagrams(ctx, kind, window)
		}
		if srv := m.get(ctx, "perf"); srv.err != nil {
			return compare.Sample{}, srv.err
		}
		args := append(args, "-s", strconv.Itoa(size))
		n := m.iters[name]
		if n == 0 { // how long does one take?
			const few = 256
			s, err := m.perf(ctx, few, args)
			if err != nil {
				return s, err
			}
			n = int(min(max(s.Ops*m.took.Seconds(), few), 5e6))
			m.iters[name] = n
		}
		return m.perf(ctx, n, args)
	}}
}

func (m *measurer) perf(ctx context.Context, n int, args []string) (s compare.Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*m.took+patience)
	defer cancel()
	return m.rstorectl(ctx, perfAddr, 4096, n, args)
}

// rstorectl runs rstorectl perf for n messages on each queue pair. What it used is that of the
// whole process.
func (s *servers) rstorectl(ctx context.Context, addr string, mtu, n int, args []string) (compare.Sample, error) {
	args = append([]string{
		s.bin("rstorectl"), "perf", args[0], args[1], addr, "-m", strconv.Itoa(mtu), "-o", "json", "-n",
		strconv.Itoa(n), "--icrc", // as the bare loop
	}, args[2:]...)
	cmd := s.command(ctx, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return compare.Sample{}, fmt.Errorf("%w: %s", err, compare.FirstLine(stderr.Bytes()))
	}
	x, err := parsePerf(out)
	x.Client = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return x, err
}

// parsePerf reads the JSON of rstorectl perf, in its units.
func parsePerf(b []byte) (s compare.Sample, err error) {
	var r struct {
		Results []struct {
			Average float64 `json:"bw_average_mib_s"`
			Rate    float64 `json:"msg_rate_mpps"`
			Typical float64 `json:"t_typical_us"`
			P99     float64 `json:"percentile_99_us"`
			PerSec  float64 `json:"transactions_per_second"`
		} `json:"results"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return s, err
	}
	if len(r.Results) != 1 {
		return s, fmt.Errorf("%d results", len(r.Results))
	}
	x := r.Results[0]
	s = compare.Sample{Rate: x.Average * (1 << 20), Ops: x.Rate * 1e6, P50: x.Typical / 1e6, P99: x.P99 / 1e6}
	if s.Ops == 0 {
		s.Ops = 2 * x.PerSec // one for each of the two ways
	}
	if s.Ops == 0 {
		return s, errors.New("nothing was measured")
	}
	return s, nil
}

// datagrams runs the two processes of the udp command.
func (m *measurer) datagrams(ctx context.Context, kind, window string) (compare.Sample, error) {
	far := m.launch("udp", m.bin("udp"), "serve", kind, udpAddr)
	if far.err != nil {
		return compare.Sample{}, far.err
	}
	defer far.kill()
	return m.drive(ctx, nil, []string{
		m.bin("udp"), kind, udpAddr, strconv.FormatFloat(m.took.Seconds(), 'f', -1, 64),
		window,
	})
}

// idleMounts is how many connections the memory of one is the mean of.
const idleMounts = 200

// idle measures what an idle mount over RDMA takes of the server's memory, in bytes.
func idle(ctx context.Context, m *measurer, _ compare.Variant) (s compare.Sample, err error) {
	srv := m.get(ctx, "rstored")
	if srv.err != nil {
		return s, srv.err
	}
	before, err := pssOf(srv.pid())
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := m.command(ctx, m.bin("load"), "idle", address(portRDMA), m.export("rstored", "memory"),
		strconv.Itoa(idleMounts))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return s, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return s, err
	}
	if lines := bufio.NewScanner(out); lines.Scan() && lines.Text() == "begin" {
		var after int64
		after, err = pssOf(srv.pid())
		// Of later rounds the memory is there already.
		m.idle = max(m.idle, float64(after-before)/idleMounts)
		s.Value = m.idle
	} else {
		err = errors.New("the connections did not come about")
	}
	stdin.Close()
	if werr := cmd.Wait(); werr != nil {
		err = fmt.Errorf("%w: %s", werr, compare.FirstLine(stderr.Bytes()))
	}
	return s, err
}

// allocations runs a Go benchmark and divides the allocations of an operation by n.
func allocations(program, bench string, n float64) func(context.Context, *measurer, compare.Variant) (compare.Sample,
	error) {
	return func(ctx context.Context, m *measurer, _ compare.Variant) (s compare.Sample, err error) {
		ctx, cancel := context.WithTimeout(ctx, 10*m.took+patience)
		defer cancel()
		// Enough operations that what is allocated once does not count.
		cmd := exec.CommandContext(ctx, m.bin(program), "-test.run", "^$", "-test.bench", bench, "-test.benchmem",
			"-test.benchtime", m.took.String())
		cmd.Dir = m.dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			return s, fmt.Errorf("%w: %s", err, compare.FirstLine(out))
		}
		a, err := parseAllocs(out)
		s.Value = a / n
		return s, err
	}
}

var allocs = regexp.MustCompile(`(?m)^Benchmark\S+\s.*\s([0-9.]+) allocs/op`)

// parseAllocs reads the output of a Go benchmark: the allocations of an operation.
func parseAllocs(b []byte) (float64, error) {
	m := allocs.FindAllSubmatch(b, -1)
	if len(m) != 1 {
		return 0, fmt.Errorf("%d benchmarks have run", len(m))
	}
	return strconv.ParseFloat(string(m[0][1]), 64)
}

// measureAll measures what the rows that are asked for need.
func measureAll(ctx context.Context, o *options, s *servers) (*compare.Report, error) {
	s.entries = o.entries
	m := &measurer{servers: s, took: o.took, files: o.files, iters: make(map[string]int)}
	r := &compare.Report{
		Rounds: o.rounds, Seconds: o.took.Seconds(),
		Measured: make(map[string]map[compare.Variant]*compare.Taken),
	}
	var wanted []compare.Row
	all, list := rows(), experiments()
	if o.ceph {
		all, list = cephRows(), cephExperiments()
	}
	for _, w := range all {
		if o.rows.MatchString(w.Text()) {
			wanted = append(wanted, w)
		}
	}
	if len(wanted) == 0 {
		return nil, errors.New("no row matches")
	}
	for _, e := range list {
		e.variants = nil
		for _, w := range wanted {
			if w.Experiment != e.name {
				continue
			}
			for _, v := range w.Variants() {
				if !slices.Contains(e.variants, v) {
					e.variants = append(e.variants, v)
				}
			}
		}
		if len(e.variants) == 0 {
			continue
		}
		all, err := compare.Rounds(ctx, o.rounds, e.name, e.variants,
			func(ctx context.Context, v compare.Variant) (compare.Sample, error) { return e.run(ctx, m, v) })
		if err != nil {
			return nil, err
		}
		r.Measured[e.name] = all
	}
	for _, w := range wanted {
		r.Rows = append(r.Rows, w.Result(r.Measured[w.Experiment]))
	}
	r.Host.Describe(filepath.Join(o.stage, "bin"))
	if !o.ceph {
		r.Host.Ganesha = string(ganeshaConfig("EXPORT"))
	}
	return r, nil
}
