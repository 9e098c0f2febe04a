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
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
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

// openServer makes the server.
func (w *world) openServer() error {
	table := nfs.NewTable(nil)
	if err := table.Add(&nfs.Export{
		ID: 1, Pseudo: "/data", FS: memfs.New(memfs.Options{RootMode: 0o777}),
		Clients: []nfs.ClientRule{
			{CIDR: netip.MustParsePrefix("192.0.2.0/24"), Squash: nfs.NoRootSquash},
			{CIDR: netip.MustParsePrefix("2001:db8::/32"), Squash: nfs.NoRootSquash},
		},
	}); err != nil {
		return err
	}
	w.srv = rpc.NewServer(rpc.ServerConfig{
		Programs: nfs3.Programs(nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("a secret of thirty-two bytes ...."))}),
		Workers:  4,
	})
	dev, err := w.device(0)
	if err != nil {
		return err
	}
	w.listener, err = rpcrdma.Serve(dev, port, w.srv,
		rpcrdma.Config{MaxConns: w.maxConns, Memory: w.memory, Logger: w.log})
	return err
}

// open builds the world.
func (w *world) open() error {
	if err := w.openServer(); err != nil {
		return err
	}
	for i := range hosts {
		dev, err := w.device(i + 1)
		if err != nil {
			return err
		}
		w.clients = append(w.clients, client.New(client.Config{
			Peer: "the server", GiveUp: giveUp, Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "sim"},
			Dial: func(ctx context.Context) (rpc.Client, error) {
				return rpcrdma.Dial(ctx, dev, netip.AddrPortFrom(w.addr(0), port), rpcrdma.ClientConfig{Logger: w.log})
			},
		}))
	}
	return nil
}

// work runs all programs to their ends.
func (w *world) work(ctx context.Context, seed uint64) error {
	errs := make([]error, hosts*workers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			p := newProgram(ctx, w.clients[i%hosts], rand.New(rand.NewPCG(seed, uint64(1000+i))), fmt.Sprintf("worker%d", i))
			errs[i] = p.run(w.f.ops, func() { w.done[i%hosts].Add(1) })
			w.done[i%hosts].Add(doneAll / workers)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

var errStuck = errors.New("nothing happens any more")

// drive runs f on a goroutine and turns the world until f has returned.
func (w *world) drive(limit time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	end := w.now() + rdma.Time(limit)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		synctest.Wait()
		select {
		case err := <-done:
			return err
		default:
		}
		w.steps++
		now := w.now()
		if now >= end {
			return fmt.Errorf("%w, or it takes longer than %v", errStuck, limit)
		}
		w.cut(now)
		w.net.Advance(now)
		next := w.healAt
		sooner := func(at rdma.Time) {
			if at != 0 && (next == 0 || at < next) {
				next = at
			}
		}
		for i, d := range w.devs {
			if err := d.Turn(); err != nil {
				return fmt.Errorf("device %d: %w", i, err)
			}
		}
		for i, d := range w.devs {
			sooner(d.Deadline()) // negative: at once
			if w.links[i].Arrived() > 0 {
				sooner(now)
			}
		}
		sooner(w.net.Next())
		// A turn takes a while, which also keeps the steps of a burst few. With
		// no deadline at all only a call's own timers can go on, or nothing.
		const turn = rdma.Microsecond
		wait := max(next-now, turn)
		if next == 0 {
			wait = end - now
		}
		timer.Reset(time.Duration(wait))
		select {
		case <-timer.C:
		case <-w.wake:
		case err := <-done:
			return err
		}
	}
}

// now is the bubble's time on the network's scale.
func (w *world) now() rdma.Time { return w.base + rdma.Time(time.Since(w.start)) }

// plan chooses after how many packets the next cut comes.
func (w *world) plan() {
	for i := range w.done {
		w.doneThen[i] = w.done[i].Load()
	}
	w.cutAt = w.net.Stats.Sent + 50 + w.rnd.Uint64N(1500)
	w.executed = 0
}

// cut begins and ends cuts. It is called before the devices send.
func (w *world) cut(now rdma.Time) {
	if w.healAt != 0 {
		if now >= w.healAt {
			w.heal()
			w.plan()
		}
		return
	}
	if w.cutsLeft == 0 || w.net.Stats.Sent < w.cutAt {
		return
	}
	for i := range w.done {
		// One that retries more and more slowly has not noticed yet that it
		// could go on; cut again it would give up, as it should.
		if n := w.done[i].Load(); n == w.doneThen[i] && n < doneAll {
			return
		}
	}
	if w.f.cuts.executed {
		n := w.changes() + 1
		if w.executed == 0 {
			w.executed = n
		}
		if n == w.executed {
			return
		}
	}
	w.cutsLeft--
	w.healAt = now + rdma.Time(w.f.cuts.long)
	w.log.Info("cut")
	w.cutAll(true)
}

func (w *world) heal() {
	w.healAt = 0
	w.log.Info("healed")
	w.cutAll(false)
}

func (w *world) cutAll(on bool) {
	for i := range hosts {
		w.net.Cut(w.addr(0), w.addr(i+1), on)
	}
}

// changes counts the calls so far that must not be executed twice.
func (w *world) changes() (n uint64) {
	for _, p := range w.srv.Stats().Procs {
		switch p.Procedure {
		case "CREATE", "MKDIR", "REMOVE", "RMDIR", "RENAME", "LINK":
			n += p.Calls
		}
	}
	return n
}

// report holds what the network and the server saw against what the row says.
func (w *world) report(seed uint64) {
	var again uint64
	for _, p := range w.srv.Stats().Procs {
		again += p.Retransmits
	}
	conns := w.listener.Stats().Connections
	w.t.Logf("%v in %d steps, %d connections of which %d are left, %d calls answered from the reply cache, %+v",
		time.Since(w.start), w.steps, conns, len(w.listener.Conns()), again, w.net.Stats)
	if w.t.Failed() {
		return
	}
	fail := func(format string, args ...any) {
		w.t.Errorf("RSTORED_SEED=%d: "+format, append([]any{seed}, args...)...)
	}
	if w.f.trace(w.net.Stats) == 0 {
		fail("the network had no faults")
	}
	if w.f.cuts.n > 0 && w.cutsLeft == w.f.cuts.n {
		fail("the network was never cut")
	}
	if w.f.lives && conns != hosts {
		fail("%d connections for %d clients: some were lost", conns, hosts)
	}
	if w.f.dies && conns <= hosts {
		fail("no connection was lost")
	}
	if w.f.cuts.executed && again == 0 {
		fail("no call was answered from the reply cache")
	}
}

// close ends the world and looks for what it left behind.
func (w *world) close() error {
	err := w.drive(closeMax, func() error {
		// A server that was only waiting when the network was cut has to find
		// out by itself which clients are gone.
		time.Sleep(quiet)
		var errs []error
		if n := len(w.listener.Conns()); n > hosts {
			errs = append(errs, fmt.Errorf("the server still has %d connections of %d clients after %v of silence", n, hosts,
				quiet))
		}
		for _, c := range w.clients {
			errs = append(errs, c.Close())
		}
		errs = append(errs, w.listener.Close())
		w.srv.Close()
		return errors.Join(errs...)
	})
	if n := w.listener.Stats().MemoryInUse; err == nil && n != 0 {
		err = fmt.Errorf("the listener still holds %d bytes of bulk memory", n)
	}
	for i, d := range w.devs {
		if s := d.Stats(); err == nil && (s.QPs != 0 || s.Regions != 0) {
			err = fmt.Errorf("device %d still has %d QPs and %d memory regions", i, s.QPs, s.Regions)
		}
		err = errors.Join(err, d.Close())
	}
	return err
}
