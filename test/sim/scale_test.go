package simtest

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestTenThousandConnections: ten thousand clients are connected to one server and
// say nothing, and a thousand more work all the time; for half an hour. The server's
// probes find all of them there, and everyone's calls are answered.
func TestTenThousandConnections(t *testing.T) {
	idle, active, rounds := 10_000, 1000, 8
	if testing.Short() {
		idle, active, rounds = 1000, 100, 5
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fault{net: sim.Config{Seed: 1, Bandwidth: 10 << 30, QueueBytes: 16 << 20}}, 1)
		w.maxConns, w.memory = idle+active, 2<<30 // a quarter of it for messages
		const hosts = 11
		if err := w.openServer(); err != nil {
			t.Fatal(err)
		}
		for i := range hosts {
			if _, err := w.device(i + 1); err != nil {
				t.Fatal(err)
			}
		}
		conns := make([]*rpcrdma.Client, idle+active)
		defer func() {
			for _, c := range conns {
				if c != nil {
					_ = c.Close()
				}
			}
			if err := w.close(); err != nil {
				t.Error(err)
			}
		}()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		begin := time.Now()
		if err := w.drive(time.Hour, func() error {
			return each(len(conns), hosts, func(i int) (err error) {
				conns[i], err = rpcrdma.Dial(context.Background(), w.devs[1+i%hosts], netip.AddrPortFrom(w.addr(0), port),
					rpcrdma.ClientConfig{Credits: 4})
				return err
			})
		}); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		t.Logf("%d connections after %v of virtual time; %d KiB of heap each, both sides together", len(conns),
			time.Since(begin),
			(after.HeapAlloc-before.HeapAlloc)/1024/uint64(len(conns)))
		null := func(i int) error {
			return conns[i].Call(context.Background(), &rpc.Request{XID: uint32(i), Prog: nfs3.Program, Vers: nfs3.Version})
		}
		for range rounds {
			if err := w.drive(time.Hour, func() error {
				time.Sleep(30 * time.Minute / time.Duration(rounds))
				return each(active, active, func(i int) error { return null(idle + i) })
			}); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(w.listener.Conns()); n != len(conns) {
			t.Errorf("%d of %d connections are left", n, len(conns))
		}
		// And the idle ones are of use, all at once.
		if err := w.drive(time.Hour, func() error { return each(idle, idle, null) }); err != nil {
			t.Fatal(err)
		}
	})
}

// each runs f for 0 to n-1 on some goroutines and returns the first error.
func each(n, goroutines int, f func(i int) error) error {
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g; i < n && errs[g] == nil; i += goroutines {
				if err := f(i); err != nil {
					errs[g] = fmt.Errorf("connection %d: %w", i, err)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
