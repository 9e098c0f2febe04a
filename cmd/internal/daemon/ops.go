package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/cmd/internal/ops"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// monitor has the state that the ops ports keep between two requests.
type monitor struct {
	pprof atomic.Bool
	end   chan struct{}
	ended sync.WaitGroup

	mu         sync.Mutex
	done       uint64    // calls that workers had served
	progressed time.Time // when that changed last, or there was nothing to do

	volumes volumes
	health  health
	feed    *ops.Feed // for the page
}

// Times of the monitor.
const (
	monitorTick = 10 * time.Second
	// rotateTicks are how many ticks there are between two rotations of the recorder.
	rotateTicks = 6
	// stuckTime is how long all workers may be busy without finishing a call. A disk that is slower
	// than that counts as dead.
	stuckTime = 2 * time.Minute
	// pingTime is how long a packet loop may take to answer. A turn is some milliseconds.
	pingTime = 2 * time.Second
	// volumeTime is how long a scrape waits for the sizes of file systems.
	volumeTime = time.Second
)

// start begins to watch a daemon that is complete.
func (w *monitor) start(d *Daemon) {
	w.end = make(chan struct{})
	w.progress(d.RPC.Load(), time.Now())
	go d.watchHealth(w.end)  // may wait for a file system
	go d.retryExports(w.end) // may wait for a file system for ever
	w.ended.Go(func() {
		w.feed.Tick()
		t := time.NewTicker(monitorTick)
		defer t.Stop()
		for n := 1; ; n++ {
			select {
			case now := <-t.C:
				w.progress(d.RPC.Load(), now)
				w.feed.Tick()
				if n%rotateTicks == 0 {
					d.Recorder.Rotate()
				}
			case <-w.end:
				return
			}
		}
	})
}

// newFeed makes the feed of the page, before the ops ports that answer from it.
func (w *monitor) newFeed(d *Daemon) {
	w.feed = ops.NewFeed(ops.Source{
		Sample: d.Sample, Slow: d.Slow, Volumes: func() []ops.Volume { return w.volumes.read(d) },
		Exports: func() []control.Export { return d.Exports() }, // of a Reconciler that is made later
	})
}

func (w *monitor) stop() {
	if w.end != nil {
		close(w.end)
		w.ended.Wait()
	}
}

// progress returns how long all workers have been busy without finishing a call. It compares the
// load with that of its last call.
func (w *monitor) progress(l rpc.Load, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.progressed.IsZero() || l.Done != w.done || l.Busy < l.Workers {
		w.done, w.progressed = l.Done, now
	}
	return now.Sub(w.progressed)
}

// serveOps answers Prometheus and health checks on a listener.
func (d *Daemon) serveOps(l net.Listener) (stop func(context.Context) error) {
	return ops.Serve(l, ops.Config{
		Gatherer: d.registry(), Live: d.live, Ready: d.ready,
		Profiles: d.monitor.pprof.Load, Feed: d.monitor.feed, Names: d.opsNames, Logger: d.log.Library("ops"),
	}).Close
}

// opsNames are the names that the ops ports are asked for by: what the host calls itself, and what
// the configuration says.
func (d *Daemon) opsNames() []string {
	names := slices.Clone(d.cfg.Load().OpsHosts)
	if h, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(h, ".")
		names = append(names, h, short)
	}
	return names
}

// opsState is the state that metrics show.
func (d *Daemon) opsState() ops.State {
	ctx, cancel := context.WithTimeout(context.Background(), pingTime)
	defer cancel()
	s := ops.State{
		Build: cli.ReadBuild(), Started: d.started, Draining: d.draining.Load(), Recorder: d.Recorder,
		Exports: d.Exports(), Ports: d.Ports(), Devices: d.Devices(), Drift: d.Drift(), Conns: d.Clients(),
		Workers: d.RPC.Load(),
		Clients: d.NFS4Clients(), Sessions: d.NFS4Sessions(), Grace: d.Grace(),
		Loops: d.devices.Ping(ctx), Volumes: d.monitor.volumes.read(d), Audit: d.audit.Counts(),
		Lease: d.lease(), AuditLost: d.audit.Dropped(), Traces: d.otlp.Counts(), TLS: d.tls.Status(),
	}
	if c, err := d.Cluster(); err == nil {
		s.Cluster = &c
	}
	s.LocksHeld, s.LocksWaiting = d.LockTable.Count()
	answer := true
	for _, l := range s.Loops {
		answer = answer && l.OK
	}
	if s.Stats = d.stats(answer); answer {
		s.QPs = d.QPs()
	}
	return s
}

// live are the checks whose failure only a restart repairs.
func (d *Daemon) live(ctx context.Context) []ops.Check {
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	var out []ops.Check
	for _, l := range d.devices.Ping(ctx) {
		c := ops.Check{Name: fmt.Sprintf("loop %s/%d", l.Device, l.Loop)}
		if !l.OK {
			c.Err = fmt.Errorf("no answer for %v", l.Took.Round(time.Millisecond))
		}
		out = append(out, c)
	}
	workers := ops.Check{Name: "workers"}
	load := d.RPC.Load()
	if idle := d.monitor.progress(load, time.Now()); idle > stuckTime {
		workers.Err = fmt.Errorf("all %d have been busy for %v without finishing a call, and %d wait", load.Workers,
			idle.Round(time.Second), load.Queued)
	}
	return append(out, workers)
}

var errDraining = errors.New("the daemon is stopping")

// ready are the checks of what clients need.
func (d *Daemon) ready(context.Context) []ops.Check {
	state := ops.Check{Name: "running"}
	if d.draining.Load() {
		state.Err = errDraining
	}
	out := []ops.Check{state}
	for _, e := range d.Exports() {
		c := ops.Check{Name: "export " + e.Pseudo}
		switch {
		case e.Error != "":
			c.Err = errors.New(e.Error)
		case e.Warning != "":
			c.Err, c.Serves = errors.New(e.Warning), true
		}
		out = append(out, c)
	}
	for _, p := range d.Ports() {
		c := ops.Check{Name: "port " + p.Transport + " " + p.Listen}
		switch {
		case p.Error != "":
			c.Err = errors.New(p.Error)
		case len(p.Addresses) == 0:
			c.Err = errors.New("not listening")
		}
		out = append(out, c)
	}
	return out
}

// volumes has the use of the file systems of exports. A file system that does not answer delays
// nothing, and is not asked again before it has answered.
type volumes struct {
	mu   sync.Mutex
	busy map[blockstore.FS]bool
}

// read asks all at once, and lists those that have answered in time.
func (v *volumes) read(d *Daemon) []ops.Volume {
	all := d.ExportSet.All()
	answers, asked := make(chan ops.Volume, len(all)), 0
	v.mu.Lock()
	if v.busy == nil {
		v.busy = make(map[blockstore.FS]bool)
	}
	for _, s := range all {
		if !s.Open() || v.busy[s.Store()] {
			continue
		}
		v.busy[s.Store()] = true
		asked++
		go func(fs blockstore.FS, e *exports.Export) {
			st, err := e.Volume()
			v.mu.Lock()
			delete(v.busy, fs)
			v.mu.Unlock()
			name := e.Pseudo
			if err != nil {
				name = ""
			}
			answers <- ops.Volume{
				Export: name, Size: st.TotalBytes, Free: st.FreeBytes, Available: st.AvailBytes,
				Files: st.TotalFiles, FilesFree: st.FreeFiles,
			}
		}(s.Store(), s)
	}
	v.mu.Unlock()
	var out []ops.Volume
	late := time.NewTimer(volumeTime)
	defer late.Stop()
	for range asked {
		select {
		case a := <-answers:
			if a.Export != "" {
				out = append(out, a)
			}
		case <-late.C:
			return out
		}
	}
	return out
}

// Ops implements control.Backend.
func (d *Daemon) Ops() control.Ops {
	o := control.Ops{Addresses: []string{}, Pprof: d.monitor.pprof.Load()}
	for _, p := range d.Ports() {
		if p.Transport == control.TransportOps {
			o.Addresses = append(o.Addresses, p.Addresses...)
		}
	}
	return o
}

// SetPprof implements control.Backend.
func (d *Daemon) SetPprof(on bool) { d.monitor.pprof.Store(on) }

// Slow implements control.Backend.
func (d *Daemon) Slow() []control.SlowCall {
	out := []control.SlowCall{}
	for _, s := range d.Recorder.Slow() {
		out = append(out, slowCall(&s))
	}
	return out
}

// auditAction records a request to the control interface, local or remote, in the audit log.
func (d *Daemon) auditAction(a control.Action) {
	who := []zap.Field{zap.Uint32("uid", a.Peer.UID), zap.Uint32("gid", a.Peer.GID), zap.Int32("pid", a.Peer.PID)}
	if a.Peer.Remote != "" {
		who = []zap.Field{
			zap.String("client", a.Peer.Remote), zap.String("subject", a.Peer.Subject),
			zap.String("serial", a.Peer.Serial),
		}
	}
	what := append(who, zap.String("method", a.Method), zap.String("request", a.Request), zap.Int("status", a.Status),
		zap.Any("old", a.Old), zap.Any("new", a.New))
	if a.Error != "" {
		what = append(what, zap.String("error", a.Error))
	}
	d.audit.Record("control", what...)
}
