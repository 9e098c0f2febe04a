package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/test/bench/compare"
)

const (
	shardsMost  = 4
	clientCores = 2 // processors of a process of the clients, beside the one of its shard
)

// coresOf measures a server that has a processor for each shard, with as many clients: processes
// with processors of their own, each with four queue pairs or connections.
func coresOf(ctx context.Context, m *scaler, p point) (r reading, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*m.took+patience)
	defer cancel()
	var srv *server
	if err := onProcessors(0, p.Shards, func() { srv = m.daemon(ctx, p.Shards, true) }); err != nil {
		return r, err
	}
	if srv.err != nil {
		return r, srv.err
	}
	took := max(time.Second, m.took.Round(time.Second)) // that of rstorectl perf is in whole seconds
	type result struct {
		compare.Sample
		err error
	}
	results := make(chan result)
	for i := range p.X {
		go func() {
			var s result
			err := onProcessors(p.Shards+i*clientCores, clientCores, func() { s.Sample, s.err = m.coresClient(ctx, p, took) })
			s.err = errors.Join(err, s.err)
			results <- s
		}()
	}
	for range p.X {
		s := <-results
		err = errors.Join(err, s.err)
		r.Rate += s.Rate
		r.Ops += s.Ops
		r.Server = max(r.Server, s.Server)
	}
	r.Cores = r.Server / took.Seconds()
	if r.Rate > 0 {
		r.PerGiB = r.Cores / r.Rate * (1 << 30)
		r.PerOp = r.Cores / r.Ops
	}
	return r, err
}

// coresClient is one of the clients. Its Server is the processor time of the server while it
// measured: the clients do so at the same time.
func (m *scaler) coresClient(ctx context.Context, p point, took time.Duration) (s compare.Sample, err error) {
	at, srv := shardsHost(p.Shards), m.daemon(ctx, p.Shards, false)
	cpu := func(string) (float64, error) { return compare.CPU(srv.pid()) }
	if size := map[string]int{opRead4K: 4 << 10, opRead1M: 1 << 20}[p.Op]; size > 0 {
		l, used, err := m.watch(ctx, []string{
			m.bin("load"), "many", fmt.Sprintf("%s:%d", at, portRDMA), m.export("scale", "memory"), "random-read",
			strconv.Itoa(size), "4", "8", seconds(took), strconv.Itoa(fileSize),
		}, cpu)
		if err != nil {
			return s, err
		}
		return l.Sample(used)
	}
	before, err := cpu("begin")
	if err != nil {
		return s, err
	}
	s, err = m.rstorectl(ctx, at, 4096, 1, []string{
		map[string]string{opWrite: "write", opRead: "read"}[p.Op], "bw", "-s", strconv.Itoa(sizeRDMA), "-q", "4",
		"-D", strconv.Itoa(int(took.Seconds())),
	})
	if err != nil {
		return s, err
	}
	after, err := cpu("end")
	s.Server = after - before
	return s, err
}

// onProcessors has the processes that f starts run on n processors from the first on.
func onProcessors(first, n int, f func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	for cpu, seen := 0, 0; seen < min(first+n, before.Count()); cpu++ {
		if !before.IsSet(cpu) {
			continue
		}
		if seen >= first {
			set.Set(cpu)
		}
		seen++
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return err
	}
	f()
	return unix.SchedSetaffinity(0, &before)
}
