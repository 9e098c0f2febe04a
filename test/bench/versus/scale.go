package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/rstored/rstored/test/bench/compare"
)

// point is one thing that is measured while something grows to X.
type point struct {
	Op     string `json:"op"`
	Shards int    `json:"shards,omitempty"` // of the server's device
	X      int    `json:"x"`
}

// String is the point in the log.
func (p point) String() string { return fmt.Sprintf("%s, %d shards, %d", p.Op, p.Shards, p.X) }

// reading is what one measurement of a point gave.
type reading struct {
	compare.Sample
	Packet float64 `json:"host_cpu_seconds_per_packet,omitempty"` // of all processes and the kernel
	ByPeer float64 `json:"client_cpu_seconds_per_gib,omitempty"`
	Jain   float64 `json:"jain,omitempty"`
	// Memory that is not of files, in bytes: by which the server grew, in all; and for each
	// connection while they do nothing, and at work.
	Memory float64 `json:"server_memory,omitempty"`
	Idle   float64 `json:"memory_of_idle_connection,omitempty"`
	Busy   float64 `json:"memory_of_connection,omitempty"`
	Cores  float64 `json:"server_cores,omitempty"` // that the server kept busy
}

// grown is a point that was measured, once in each round.
type grown struct {
	point
	Readings []reading `json:"readings,omitempty"`
	Err      string    `json:"error,omitempty"`
}

// middle is the median of a value.
func (g *grown) middle(of func(*reading) float64) float64 {
	v := make([]float64, len(g.Readings))
	for i := range g.Readings {
		v[i] = of(&g.Readings[i])
	}
	return compare.Middle(v)
}

// partRun is a part that was measured, and where: parts can be measured at different times.
type partRun struct {
	Host    compare.Host `json:"host"`
	Rounds  int          `json:"rounds"`
	Seconds float64      `json:"seconds"`
	Points  []grown      `json:"points"`
}

// scaling is what is known of all parts, by their names.
type scaling map[string]*partRun

// part is a question: how something depends on what grows.
type part struct {
	name, title, about string
	axis               string // what X is
	needs              int    // processors
	points             []point
	columns            []column
	run                func(ctx context.Context, m *scaler, p point) (reading, error)
}

// column is a number of a table. One with an axis is drawn as well.
type column struct {
	title string
	scale float64
	of    func(*reading) float64
	log   bool   // the axis is logarithmic
	axis  string // nothing is not drawn
}

// grid is all of ops with all of shards and all of xs.
func grid(ops []string, shards, xs []int) (ps []point) {
	for _, op := range ops {
		for _, s := range shards {
			for _, x := range xs {
				ps = append(ps, point{op, s, x})
			}
		}
	}
	return ps
}

// Operations of the parts.
const (
	opWrite     = "WRITE"
	opRead      = "READ"
	opSend      = "SEND of one packet"
	opWriteCut  = "WRITE, cut by the kernel"
	opReadCut   = "READ, cut by the kernel"
	opRead4K    = "READ 4 KiB"
	opRead64K   = "READ 64 KiB"
	opRead1M    = "NFS READ 1 MiB"
	opList      = "READDIRPLUS"
	opLookup    = "LOOKUP"
	opCreate    = "CREATE and REMOVE"
	clientDepth = 4        // calls of each of many clients
	inFlight    = 16 << 20 // bytes of READ and WRITE
	callsMost   = 32       // that are under way, too
	callsLeast  = 16
	sizeRDMA    = 1 << 20 // of a message of the transport
)

func parts() []part {
	var (
		both   = []int{1, 2}
		gbs    = column{title: "GB/s", scale: 1e-9, of: func(r *reading) float64 { return r.Rate }, axis: "GB/s"}
		server = column{
			title: "server CPU s/GiB", scale: 1, of: func(r *reading) float64 { return r.PerGiB },
			axis: "server CPU s/GiB",
		}
		client = column{title: "client CPU s/GiB", scale: 1, of: func(r *reading) float64 { return r.ByPeer }}
		opsPer = column{title: "/s", scale: 1, of: func(r *reading) float64 { return r.Ops }, axis: "operations/s"}
		perOp  = column{
			title: "server CPU us each", scale: 1e6, of: func(r *reading) float64 { return r.PerOp }, log: true,
			axis: "server CPU us each",
		}
		p50 = column{title: "median us", scale: 1e6, of: func(r *reading) float64 { return r.P50 }}
		p99 = column{title: "p99 us", scale: 1e6, of: func(r *reading) float64 { return r.P99 }}
	)
	plain := func(c column) column { c.axis = ""; return c }
	logOps := opsPer
	logOps.log = true
	return []part{
		{
			name: "transport", title: "Queue pairs", axis: "queue pairs",
			about: "RDMA WRITE and READ of 1 MiB by `rstorectl perf`, by as many queue pairs, path MTU 4096. The server is " +
				"rstored; the client has one loop.",
			points:  grid([]string{opWrite, opRead}, both, []int{1, 2, 4, 16, 64}),
			columns: []column{gbs, server, client},
			run:     transportOf,
		},
		{
			name: "packets", title: "Packets", axis: "bytes of a packet",
			about: "RDMA WRITE and READ of 1 MiB with smaller path MTUs, and SENDs of one packet, 64 under way. On loopback " +
				"64 KiB go through the kernel as " +
				"one, as with a network card that cuts them (UDP segmentation offload) and merges them again; \"cut by the " +
				"kernel\" is between two namespaces without: " +
				"the kernel cuts, and each packet is received by itself. Processor time is that of the whole host, both ends " +
				"and what the kernel does between them.",
			points: slices.Concat(grid([]string{opWrite, opRead, opWriteCut, opReadCut}, []int{0}, []int{512, 1024, 2048, 4096}),
				grid([]string{opSend}, []int{0}, []int{64, 1024, 4096})),
			columns: []column{
				{title: "packets/s", scale: 1, of: func(r *reading) float64 { return r.Ops }},
				gbs,
				{
					title: "CPU us of a packet, both ends", scale: 1e6, of: func(r *reading) float64 { return r.Packet },
					axis: "CPU us of a packet, both ends",
				},
			},
			run: packetsOf,
		},
		{
			name: "blocks", title: "Block sizes", axis: "bytes of a block",
			about: "Random READs and WRITEs of NFS version 3 over RDMA, a file of 256 MiB in tmpfs, 16 MiB in flight, but at " +
				"most 32 calls. The longest call is of 1 MiB, of the server " +
				"and of the client: larger blocks are calls one after the other, 16 blocks at a time.",
			points: grid([]string{opRead, opWrite}, both,
				[]int{512, 4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20}),
			columns: []column{plain(opsPer), gbs, perOp, server, p50, p99},
			run:     blocksOf,
		},
		{
			name: "clients", title: "Clients", axis: "clients",
			about: fmt.Sprintf("Random READs over RDMA by as many connections with a queue pair each, of one process, from "+
				"up to eight addresses, %d calls of each at a time. The server is fresh each time, "+
				"and measured for twice as long. Fairness is Jain's index: 1 is as much for everyone.", clientDepth),
			points: grid([]string{opRead4K, opRead64K}, both, []int{1, 10, 100, 1000}),
			columns: []column{
				opsPer, plain(perOp),
				{title: "fairness", scale: 1, of: func(r *reading) float64 { return r.Jain }},
				p50, p99,
				{title: "KiB of an idle client", scale: 1. / 1024, of: func(r *reading) float64 { return r.Idle }},
				{
					title: "KiB of a client at work", scale: 1. / 1024, of: func(r *reading) float64 { return r.Busy }, log: true,
					axis: "KiB of a client at work",
				},
			},
			run: clientsOf,
		},
		{
			name: "directories", title: "Directories", axis: "entries",
			about: "READDIRPLUS of the whole directory, one call at a time, in entries, and how long a whole one takes if it " +
				"ends in time; LOOKUP of random names, 32 in flight; CREATE and REMOVE of another name, 16 in flight, as one. " +
				"Over RDMA, " +
				"in tmpfs. The server is fresh each time; its memory is what it grew by in this time.",
			points: grid([]string{opList, opLookup, opCreate}, both, []int{10, 100, 1000, 10_000, 100_000, 1_000_000}),
			columns: []column{
				logOps, plain(perOp), p50, p99,
				{
					title: "MiB of the server", scale: 1. / (1 << 20), of: func(r *reading) float64 { return r.Memory },
					axis: "MiB of the server",
				},
			},
			run: directoriesOf,
		},
		{
			name: "cores", title: "Processors", axis: "clients",
			about: "A server with a processor for each shard, and as many clients on two other processors each: RDMA WRITE " +
				"and READ of 1 MiB by `rstorectl perf` with four queue pairs, random READs of NFS version 3 by a process " +
				"with four connections of 8 calls each.",
			needs: shardsMost * (1 + clientCores),
			points: slices.DeleteFunc(grid([]string{opWrite, opRead, opRead1M, opRead4K}, []int{1, 2, shardsMost},
				[]int{1, 2, shardsMost}),
				func(p point) bool { return p.X != p.Shards }),
			columns: []column{
				plain(opsPer), gbs, server,
				{title: "busy processors of the server", scale: 1, of: func(r *reading) float64 { return r.Cores }},
			},
			run: coresOf,
		},
	}
}

// wantedParts are those whose names match.
func wantedParts(re *regexp.Regexp) ([]part, error) {
	ps := slices.DeleteFunc(parts(), func(p part) bool { return !re.MatchString(p.name) })
	if len(ps) == 0 {
		return nil, errors.New("no part matches")
	}
	return ps, nil
}

// scaler makes the measurements of the parts.
type scaler struct {
	*servers
	took  time.Duration
	iters map[point]int // of rstorectl perf
}

// measureScaling measures the parts that are asked for.
func measureScaling(ctx context.Context, o *options, s *servers) (scaling, error) {
	ps, err := wantedParts(o.scale)
	if err != nil {
		return nil, err
	}
	m := &scaler{servers: s, took: o.took, iters: make(map[point]int)}
	measured := make(scaling)
	for _, p := range ps {
		if runtime.NumCPU() < p.needs {
			fmt.Fprintf(os.Stderr, "%s is left out: it needs %d processors\n", p.name, p.needs)
			continue
		}
		r := &partRun{Rounds: o.rounds, Seconds: o.took.Seconds()}
		measured[p.name] = r
		for _, x := range p.points {
			r.Points = append(r.Points, grown{point: x})
		}
		all := make([]*grown, len(r.Points))
		for i := range all {
			all[i] = &r.Points[i]
		}
		failed, err := compare.Turns(ctx, o.rounds, p.name, all, func(ctx context.Context, g *grown) (compare.Sample, error) {
			x, err := p.run(ctx, m, g.point)
			if err == nil {
				g.Readings = append(g.Readings, x)
			}
			return x.Sample, err
		})
		if err != nil {
			return nil, err
		}
		for g, err := range failed {
			g.Err, g.Readings = err.Error(), nil
		}
		r.Host.Describe(filepath.Join(o.stage, "bin"))
	}
	return measured, nil
}

// merge has what is measured take the place of what was, by part.
func (s scaling) merge(file string) error {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) || file == "" {
		return nil
	}
	before := make(scaling)
	if err == nil {
		err = json.Unmarshal(b, &before)
	}
	if err != nil {
		return fmt.Errorf("what was measured before: %w", err)
	}
	for _, p := range parts() {
		if r := before[p.name]; r != nil && s[p.name] == nil {
			s[p.name] = r
		}
	}
	return nil
}

// Failed is an error if a point could not be measured.
func (s scaling) Failed() error {
	for _, p := range parts() {
		if s[p.name] == nil {
			continue
		}
		for _, g := range s[p.name].Points {
			if g.Err != "" {
				return fmt.Errorf("%s: %v: %s", p.name, g.point, g.Err)
			}
		}
	}
	return nil
}

// shardsHost is the address of the daemon with as many shards.
func shardsHost(shards int) string { return fmt.Sprintf("127.0.1.%d", shards) }

// daemon returns rstored with as many shards, a new one if fresh. All of them serve one
// directory.
func (m *scaler) daemon(ctx context.Context, shards int, fresh bool) *server {
	name := fmt.Sprintf("rstored-%d", shards)
	if r := m.running[name]; r != nil {
		if !fresh || r.err != nil {
			return r
		}
		r.kill()
	}
	dir, at := m.export("scale", "memory"), shardsHost(shards)
	r := &server{name: name}
	if _, err := os.Stat(dir); err != nil {
		r.err = fill(dir, 0)
	}
	if r.err == nil {
		r = m.launch(
			name, m.bin("rstored"), "--state-dir", filepath.Join(m.dir, "state-"+name), "--control",
			filepath.Join(m.dir, "control-"+name), "--log-level", "warn",
			"--shards", strconv.Itoa(shards), "--rdma-listen", fmt.Sprintf("%s:%d", at, portRDMA), "--tcp-listen=",
			"--perf-listen", at+":18515", "--perf-clients", "*", "--perf-max-qps", "64", "--perf-max-connections", "128",
			"--perf-max-memory", strconv.Itoa(1<<30),
			"--export", fmt.Sprintf("%s=%s(rw,no_root_squash)", dir, dir),
		)
	}
	if r.err == nil {
		r.err = m.retry(ctx, r, m.bin("load"), m.scaleURL(shards), "getattr", "1", "1", "0.01", strconv.Itoa(fileSize))
	}
	if r.err != nil {
		r.err = fmt.Errorf("%w\n%s", r.err, m.lastWords(name))
		r.kill()
		r.cmd = nil
	}
	m.running[name] = r
	return r
}

func (m *scaler) scaleURL(shards int) string {
	return fmt.Sprintf("nfs+rdma://%s:%d%s", shardsHost(shards), portRDMA, m.export("scale", "memory"))
}

// Addresses of the two ends of a pair of virtual interfaces.
const (
	nearAddr = "10.77.0.1"
	farAddr  = "10.77.0.2"
)
