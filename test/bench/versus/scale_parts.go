package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/test/bench/compare"
)

// perfOf runs rstorectl perf for as long as a measurement takes. each is the number of queue
// pairs, which have -n messages each.
func (m *scaler) perfOf(ctx context.Context, p point, addr string, mtu, each int, args []string) (compare.Sample,
	error,
) {
	ctx, cancel := context.WithTimeout(ctx, 10*m.took+patience)
	defer cancel()
	if m.iters[p] == 0 {
		few := max(4, 256/each)
		s, err := m.rstorectl(ctx, addr, mtu, few, args)
		if err != nil {
			return s, err
		}
		m.iters[p] = int(min(max(s.Ops*m.took.Seconds()/float64(each), float64(few)), 5e6))
	}
	return m.rstorectl(ctx, addr, mtu, m.iters[p], args)
}

func transportOf(ctx context.Context, m *scaler, p point) (r reading, err error) {
	srv := m.daemon(ctx, p.Shards, false)
	if srv.err != nil {
		return r, srv.err
	}
	args := []string{
		map[string]string{opWrite: "write", opRead: "read"}[p.Op], "bw", "-s", strconv.Itoa(sizeRDMA), "-q",
		strconv.Itoa(p.X),
	}
	at := shardsHost(p.Shards)
	if m.iters[p] == 0 { // this is not part of the server's processor time
		if _, err := m.perfOf(ctx, p, at, 4096, p.X, args); err != nil {
			return r, err
		}
	}
	before, err := compare.CPU(srv.pid())
	if err != nil {
		return r, err
	}
	if r.Sample, err = m.perfOf(ctx, p, at, 4096, p.X, args); err != nil {
		return r, err
	}
	after, err := compare.CPU(srv.pid())
	n := float64(m.iters[p] * p.X)
	r.Server = after - before
	r.PerOp = r.Server / n
	r.PerGiB = r.PerOp / sizeRDMA * (1 << 30)
	r.ByPeer = r.Client / n / sizeRDMA * (1 << 30)
	return r, err
}

// packetsOf measures what a packet of X bytes takes of the whole host.
func packetsOf(ctx context.Context, m *scaler, p point) (r reading, err error) {
	far, addr := m.get(ctx, "perf"), perfAddr
	if p.Op == opWriteCut || p.Op == opReadCut {
		far, addr = m.far(ctx), farAddr
	}
	if far.err != nil {
		return r, far.err
	}
	args, mtu, packets := []string{"write", "bw", "-s", strconv.Itoa(sizeRDMA)}, p.X, sizeRDMA/max(p.X, 1)
	switch p.Op {
	case opRead, opReadCut:
		args[0] = "read"
	case opSend:
		args, mtu, packets = []string{"send", "bw", "-s", strconv.Itoa(p.X), "-t", "64"}, 4096, 1
	}
	if m.iters[p] == 0 {
		if _, err := m.perfOf(ctx, p, addr, mtu, 1, args); err != nil {
			return r, err
		}
	}
	before, err := compare.HostCPU()
	if err != nil {
		return r, err
	}
	if r.Sample, err = m.perfOf(ctx, p, addr, mtu, 1, args); err != nil {
		return r, err
	}
	after, err := compare.HostCPU()
	r.Packet = (after - before) / float64(m.iters[p]*packets)
	r.Ops *= float64(packets)
	return r, err
}

// load runs a program that makes load, and looks at the server's memory before, when all
// connections are there, and at the end.
func (m *scaler) load(ctx context.Context, srv *server, clients int, args []string) (r reading, err error) {
	if srv.err != nil {
		return r, srv.err
	}
	before, err := anonymousOf(srv.pid())
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*m.took+patience)
	defer cancel()
	var idle, busy int64
	l, used, err := m.watch(ctx, args, func(line string) (now float64, err error) {
		if line != "connected" {
			now, err = compare.CPU(srv.pid())
		}
		at := map[string]*int64{"connected": &idle, "end": &busy}[line]
		if at != nil && err == nil {
			*at, err = anonymousOf(srv.pid())
		}
		return now, err
	})
	if err != nil {
		return r, err
	}
	if r.Sample, err = l.Sample(used); err != nil {
		return r, err
	}
	r.Jain, r.Memory = l.Jain, float64(max(0, busy-before))
	if clients > 0 {
		r.Idle, r.Busy = float64(max(0, idle-before))/float64(clients), r.Memory/float64(clients)
	}
	return r, nil
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func blocksOf(ctx context.Context, m *scaler, p point) (reading, error) {
	op := map[string]string{opRead: "random-read", opWrite: "random-write"}[p.Op]
	depth := min(max(inFlight/p.X, callsLeast), callsMost)
	return m.load(ctx, m.daemon(ctx, p.Shards, false), 0, []string{
		m.bin("load"), m.scaleURL(p.Shards), op, strconv.Itoa(p.X), strconv.Itoa(depth), seconds(m.took),
		strconv.Itoa(fileSize),
	})
}

func clientsOf(ctx context.Context, m *scaler, p point) (reading, error) {
	size := map[string]int{opRead4K: 4 << 10, opRead64K: 64 << 10}[p.Op]
	return m.load(ctx, m.daemon(ctx, p.Shards, true), p.X, []string{
		m.bin("load"), "many", fmt.Sprintf("%s:%d", shardsHost(p.Shards), portRDMA), m.export("scale", "memory"),
		"random-read",
		strconv.Itoa(size), strconv.Itoa(p.X), strconv.Itoa(clientDepth), seconds(2 * m.took), strconv.Itoa(fileSize),
	})
}

func directoriesOf(ctx context.Context, m *scaler, p point) (r reading, err error) {
	how := map[string]struct {
		op    string
		depth int
	}{opList: {"readdir", 1}, opLookup: {"lookup", 32}, opCreate: {"create", 16}}[p.Op]
	srv := m.daemon(ctx, p.Shards, true)
	dir := fmt.Sprintf("entries-%d", p.X)
	if srv.err == nil {
		if err := entries(filepath.Join(m.export("scale", "memory"), dir), p.X); err != nil {
			return r, err
		}
	}
	return m.load(ctx, srv, 0, []string{
		m.bin("load"), m.scaleURL(p.Shards), fmt.Sprintf("%s:%s:%d", how.op, dir, p.X), "1", strconv.Itoa(how.depth),
		seconds(m.took), strconv.Itoa(fileSize),
	})
}

// entries makes a directory of n empty files, unless it is there.
func entries(dir string, n int) error {
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for i := range n {
		if err := unix.Mknodat(fd, fmt.Sprintf("name-%06d", i), unix.S_IFREG|0o644, 0); err != nil {
			return err
		}
	}
	return nil
}

// far returns rstorectl perf in a network namespace of its own, behind interfaces that have
// the kernel cut what is longer than a packet; they do not merge it again.
func (m *scaler) far(ctx context.Context) *server {
	const name = "far"
	if r := m.running[name]; r != nil {
		return r
	}
	r := &server{name: name}
	m.running[name] = r
	for _, args := range [][]string{
		{"ip", "netns", "add", name},
		{"ip", "link", "add", "near", "mtu", "9000", "type", "veth", "peer", "name", name, "mtu", "9000", "netns", name},
		{"ip", "addr", "add", nearAddr + "/24", "dev", "near"},
		{"ip", "-n", name, "addr", "add", farAddr + "/24", "dev", name},
		{"ethtool", "-K", "near", "gso", "off", "tx-udp-segmentation", "off", "gro", "off"},
		{"ip", "netns", "exec", name, "ethtool", "-K", name, "gso", "off", "tx-udp-segmentation", "off", "gro", "off"},
		{"ip", "link", "set", "near", "up"},
		{"ip", "-n", name, "link", "set", name, "up"},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			r.err = fmt.Errorf("%v: %w: %s", args, err, compare.FirstLine(out))
			return r
		}
	}
	r = m.launch(name, "ip", "netns", "exec", name, m.bin("rstorectl"), "perf", "serve", "--quiet", farAddr)
	m.running[name] = r
	if r.err == nil {
		r.err = m.retry(ctx, r, m.bin("rstorectl"), "perf", "send", "lat", farAddr, "-n", "1")
	}
	return r
}
