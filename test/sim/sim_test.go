// Package simtest runs everything between a client's call and a server's store
// over the simulated network: nfs/client, rpcrdma, the RDMA devices and the
// engines below them, on a clock that is virtual for all of them.
//
// Each world lives in a bubble of testing/synctest. Its driver turns the devices
// while every other goroutine waits, and lets the clock of the bubble and that
// of the network move together to the next moment at which something happens.
// So minutes of timeouts take no time, and a hang is known as soon as it happens.
//
// A seed decides what the clients do and which faults the network has. The
// order in which goroutines of one moment run is the scheduler's, so that a
// replay meets the same faults at nearly, not exactly, the same packets.
package simtest

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

const (
	port    = 20049
	hosts   = 2 // of clients
	workers = 2 // of each client

	// virtualMax bounds a world in its own time, giveUp each call in it. A
	// call that took longer than replies are kept could be executed twice.
	virtualMax = 6 * time.Hour
	giveUp     = 5 * time.Minute
	closeMax   = 10 * time.Minute
	quiet      = 4 * time.Minute
)

// doneAll is more operations than there are.

const doneAll = 1 << 40

// addr is the server's address for 0, that of client n-1 otherwise. Where bits
// are flipped it is of IPv6: over IPv4 a socket does not see the identification
// that the ICRC covers, so that one flip in some ten thousands is taken for another
// identification and passes.
func (w *world) addr(n int) netip.Addr {
	if w.f.net.Corrupt > 0 {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(10 + n)})
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + n)})
}

// cuts are moments in which the network is silent.
type cuts struct {
	n    int           // how many
	long time.Duration // each
	// executed: the cut comes when a call that changes something was executed
	// and its reply has not left yet, otherwise anywhere.
	executed bool
}

// fault is a row of the table.
type fault struct {
	name  string
	net   sim.Config
	cuts  cuts
	ops   int // of each worker
	trace func(sim.Stats) uint64
	// lives: no connection may be lost. dies: some must be.
	lives, dies bool
}

var faults = []fault{
	{name: "none", ops: 60, trace: func(s sim.Stats) uint64 { return s.Delivered }, lives: true},
	{name: "loss-1", net: sim.Config{Loss: 0.01}, ops: 60, trace: lost, lives: true},
	{name: "loss-5", net: sim.Config{Loss: 0.05}, ops: 50, trace: lost, lives: true},
	{name: "loss-20", net: sim.Config{Loss: 0.20}, ops: 30, trace: lost},
	{
		name: "duplicates", net: sim.Config{Duplicate: 0.10}, ops: 60,
		trace: func(s sim.Stats) uint64 { return s.Duplicated }, lives: true,
	},
	{
		name: "reordering", net: sim.Config{Reorder: 0.05, Jitter: 5 * rdma.Microsecond}, ops: 40,
		trace: func(s sim.Stats) uint64 { return s.Held }, lives: true,
	},
	{
		name: "corruption", net: sim.Config{Corrupt: 0.03}, ops: 60, trace: func(s sim.Stats) uint64 { return s.Corrupted },
		lives: true,
	},
	{
		name: "congestion", net: sim.Config{Bandwidth: 1 << 30, QueueBytes: 256 << 10}, ops: 60,
		trace: func(s sim.Stats) uint64 { return s.QueueDrops },
	},
	{
		name: "all", ops: 40, trace: func(s sim.Stats) uint64 { return min(s.Lost, s.Duplicated, s.Held, s.Corrupted) },
		net: sim.Config{Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.01, Jitter: 5 * rdma.Microsecond},
	},
	{name: "cut-3s", cuts: cuts{n: 8, long: 3 * time.Second}, ops: 60, trace: lost, lives: true},
	{name: "cut-90s", cuts: cuts{n: 6, long: 90 * time.Second}, ops: 60, trace: lost, dies: true},
	{name: "cut-executed", cuts: cuts{n: 6, long: 90 * time.Second, executed: true}, ops: 60, trace: lost, dies: true},
	{
		name: "cut-all", ops: 40, trace: lost, dies: true,
		net:  sim.Config{Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.01, Jitter: 5 * rdma.Microsecond},
		cuts: cuts{n: 4, long: 90 * time.Second, executed: true},
	},
}

func lost(s sim.Stats) uint64 { return s.Lost }

// seeds are the one of RSTORED_SEED or n random ones.
func seeds(t *testing.T, n int) []uint64 {
	t.Helper()
	if s := os.Getenv("RSTORED_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("RSTORED_SEED: %v", err)
		}
		return []uint64{seed}
	}
	list := make([]uint64, n)
	for i := range list {
		list[i] = rand.Uint64()
	}
	return list
}

// TestFaults runs random programs against a model over a network with faults.
func TestFaults(t *testing.T) {
	n := 6
	if testing.Short() {
		n = 1
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			for _, seed := range seeds(t, n) {
				if t.Failed() {
					break
				}
				synctest.Test(t, func(t *testing.T) { run(t, f, seed) })
			}
		})
	}
}

// world is a server, its clients and the network between them.
type world struct {
	t     *testing.T
	f     fault
	start time.Time // of the bubble's clock, when the network's was at base
	base  rdma.Time
	net   *sim.Network
	links []*sim.Link
	devs  []*roce.Device
	wake  chan struct{} // something was submitted to a device
	rnd   *rand.Rand    // of the cuts

	maxConns int
	memory   int // for the server's connections; 0: the default
	log      *slog.Logger
	srv      *rpc.Server
	listener *rpcrdma.Listener
	clients  []*client.Client

	// done counts the operations of each client's programs, and is doneAll when
	// they have ended.
	done     [hosts]atomic.Int64
	doneThen [hosts]int64 // at the end of the last cut
	cutsLeft int
	cutAt    uint64    // packets sent
	executed uint64    // calls that change something, when cutAt was reached; 0 before
	healAt   rdma.Time // 0 while the network is whole
	steps    int
}

// wakingLink tells the driver when a device has work, where a socket would
// interrupt its loop's sleep.
type wakingLink struct {
	*sim.Link
	c chan struct{}
}

func (l wakingLink) Wake() {
	select {
	case l.c <- struct{}{}:
	default:
	}
}

func newWorld(t *testing.T, f fault, seed uint64) *world {
	w := &world{
		t: t, f: f, start: time.Now(), net: sim.New(f.net), wake: make(chan struct{}, 1),
		rnd: rand.New(rand.NewPCG(seed, 1)), cutsLeft: f.cuts.n, maxConns: 64,
	}
	w.base, w.log = w.net.Now(), logger(t)
	return w
}

func run(t *testing.T, f fault, seed uint64) {
	t.Logf("RSTORED_SEED=%d", seed)
	f.net.Seed = seed
	w := newWorld(t, f, seed)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := w.open()
	if err != nil {
		t.Fatal(err)
	}
	w.plan()
	err = w.drive(virtualMax, func() error { return w.work(ctx, seed) })
	if err != nil {
		t.Errorf("RSTORED_SEED=%d: %v", seed, err)
	}
	if errors.Is(err, errStuck) {
		buf := make([]byte, 1<<20)
		t.Logf("%s", buf[:runtime.Stack(buf, true)])
	}
	w.report(seed)
	cancel()
	w.heal()
	if err := w.close(); err != nil {
		t.Errorf("RSTORED_SEED=%d: closing: %v", seed, err)
	}
}

// logger shows what the daemon would log when a single seed is replayed.
func logger(t *testing.T) *slog.Logger {
	if os.Getenv("RSTORED_SEED") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// device opens the device of an address.
func (w *world) device(n int) (*roce.Device, error) {
	l, err := w.net.Open(w.addr(n))
	if err != nil {
		return nil, err
	}
	// Devices are asked for words by any goroutine, the network's source is
	// the driver's.
	rnd := rand.New(rand.NewPCG(w.f.net.Seed, uint64(100+n)))
	d, err := roce.NewWithLink(l, roce.Config{Random: rnd.Uint32, Logger: w.log, Wrap: func(_ int, l link.Link) link.Link {
		return wakingLink{l.(*sim.Link), w.wake}
	}})
	if err != nil {
		return nil, err
	}
	w.links, w.devs = append(w.links, l), append(w.devs, d)
	return d, nil
}
