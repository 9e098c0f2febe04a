package simtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing/synctest"
	"time"

	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

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
