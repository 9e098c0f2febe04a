package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/measure"
	"github.com/rstored/rstored/cmd/internal/otlp"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// traceQueue is how many calls a trace may be behind.
const traceQueue = 4096

// traces are the requests that watch calls. While there is one, calls retain their arguments, and
// the goroutines that serve calls describe them.
type traces struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*tracing]
}

type tracing struct {
	client netip.Addr // only this one, if valid
	calls  chan control.TraceCall
	missed atomic.Uint64
}

// Trace implements control.Backend.
func (d *Daemon) Trace(ctx context.Context, client netip.Addr, w io.Writer, flush func() error) error {
	t := &tracing{client: client, calls: make(chan control.TraceCall, traceQueue)}
	d.changeTraces(func(l []*tracing) []*tracing { return append(l, t) })
	defer d.changeTraces(func(l []*tracing) []*tracing {
		return slices.DeleteFunc(l, func(o *tracing) bool { return o == t })
	})
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-t.calls:
			c.Missed = t.missed.Swap(0)
			if enc.Encode(&c) != nil || flush() != nil {
				return nil // the reader has hung up
			}
		}
	}
}

func (d *Daemon) changeTraces(change func([]*tracing) []*tracing) {
	x := &d.traces
	x.mu.Lock()
	defer x.mu.Unlock()
	var list []*tracing
	if old := x.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	list = change(list)
	x.list.Store(&list)
	d.RPC.Trace(len(list) > 0)
	d.hookTraces(len(list) > 0)
}

// hookTraces makes the recorder call traced and the tracer if either wants calls, and nothing
// otherwise. Call with traces.mu held.
func (d *Daemon) hookTraces(watched bool) {
	switch sampled := d.otlp.On(); {
	case watched && sampled:
		d.Recorder.Trace(func(c *rpc.Call, s rpc.Served, row int) {
			d.otlp.Observe(c, s, row)
			d.traced(c, s, row)
		})
	case watched:
		d.Recorder.Trace(d.traced)
	case sampled:
		d.Recorder.Trace(d.otlp.Observe)
	default:
		d.Recorder.Trace(nil)
	}
}

// applyOTLP traces calls as the configuration says.
func (d *Daemon) applyOTLP(cfg *config.Config) error {
	x := &d.traces
	x.mu.Lock()
	defer x.mu.Unlock()
	err := d.otlp.Configure(otlp.Settings{Endpoint: cfg.OTLP.Endpoint, Sample: cfg.OTLP.Sample, CA: cfg.OTLP.CA})
	if err != nil {
		err = fmt.Errorf("otlp: %w", err)
	}
	list := x.list.Load()
	d.hookTraces(list != nil && len(*list) > 0)
	return err
}

// traced passes a call to the traces that want it.
func (d *Daemon) traced(c *rpc.Call, s rpc.Served, row int) {
	client := c.Peer.Addr.Addr().Unmap()
	var call *control.TraceCall
	for _, t := range *d.traces.list.Load() {
		if t.client.IsValid() && t.client != client {
			continue
		}
		if call == nil {
			x := d.Recorder.Describe(c, &s, row, time.Now())
			call = &control.TraceCall{SlowCall: slowCall(&x), UID: c.Cred.UID, Arguments: arguments(c)}
		}
		select {
		case t.calls <- *call:
		default:
			t.missed.Add(1)
		}
	}
}

// arguments describes the arguments of a call.
func arguments(c *rpc.Call) string {
	d, ok := c.Arguments()
	switch {
	case !ok:
		return ""
	case c.Prog == nfs3.Program && c.Vers == nfs3.Version:
		return nfs3.Describe(c.Proc, d)
	case c.Prog == nfs3.MountProgram:
		return nfs3.DescribeMount(c.Proc, d)
	case c.Prog == nfs3.ACLProgram:
		return nfs3.DescribeACL(c.Proc, d)
	case c.Prog == nfs4.Program && c.Vers == nfs4.Version && c.Proc == nfs4.ProcCompound:
		return nfs4.Describe(d)
	}
	return ""
}

// slowCall is a call as the control interface shows it.
func slowCall(s *measure.SlowCall) control.SlowCall {
	return control.SlowCall{
		Ended: s.Ended, Client: s.Client.String(), Transport: s.Transport.String(),
		Operation: s.Program + "." + s.Operation, Export: s.Export,
		XID: fmt.Sprintf("%#08x", s.XID), Status: s.Status, BytesIn: s.In, BytesOut: s.Out,
		TookUS: s.Took.Microseconds(), QueueUS: s.Queue.Microseconds(), RDMAUS: s.RDMA.Microseconds(),
		StoreUS: s.Store.Microseconds(),
	}
}
