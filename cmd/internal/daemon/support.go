package daemon

import (
	"context"
	"errors"
	"io"
	"runtime/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/rstored/rstored/cmd/internal/ops"
)

// registry has all metrics.
func (d *Daemon) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(ops.NewCollector(d.opsState), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Metrics implements control.Backend.
func (d *Daemon) Metrics(w io.Writer) error {
	list, err := d.registry().Gather()
	enc := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range list {
		err = errors.Join(err, enc.Encode(f))
	}
	return err
}

// RecentLog implements control.Backend.
func (d *Daemon) RecentLog() []byte { return d.log.Recent() }

// Goroutines implements control.Backend.
func (d *Daemon) Goroutines(w io.Writer) error { return pprof.Lookup("goroutine").WriteTo(w, 1) }

// Profile implements control.Backend.
func (d *Daemon) Profile(ctx context.Context, w io.Writer) error {
	if err := pprof.StartCPUProfile(w); err != nil {
		return err // there is one already
	}
	<-ctx.Done()
	pprof.StopCPUProfile()
	return nil
}
