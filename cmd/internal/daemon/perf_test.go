package daemon

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/roce"
)

// TestPerf: measurements are answered when and as the perf section says, which a reload
// changes, and the file service at the same address goes on.
func TestPerf(t *testing.T) {
	cfg := testConfig(t, t.TempDir()+"=/a")
	addr := netip.MustParseAddrPort(cfg.RDMAListen[0]).Addr()
	at := netip.AddrPortFrom(addr, config.PerfPort)
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	next := *cfg
	d, err := Start(cfg, func() (*config.Config, error) { c := next; return &c, c.Validate() }, log)
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)
	reload := func(change func(*config.Perf)) {
		t.Helper()
		change(&next.Perf)
		if err := d.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	measure := func(o perf.Options) (got []perf.Result, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err = perf.Run(ctx, dev, at, o, func(r perf.Result) { got = append(got, r) })
		return got, err
	}
	small := perf.Options{Op: perf.Write, Sizes: []int{4096}, Iterations: 50, Depth: 8, QPs: 2, Bidirectional: true}
	off := func(when string) {
		t.Helper()
		var c *perf.ConnectError
		if _, err := measure(small); !errors.As(err, &c) || cm.Reason(c.Reason) != cm.InvalidServiceID {
			t.Errorf("%s: %v", when, err)
		}
		if slices.ContainsFunc(d.Ports(), func(p control.Port) bool { return p.Transport == control.TransportPerf }) {
			t.Errorf("%s: %+v", when, d.Ports())
		}
	}
	refused := func(why string, o perf.Options) {
		t.Helper()
		var no *perf.RefusedError
		if _, err := measure(o); !errors.As(err, &no) || !strings.Contains(no.Why, why) {
			t.Errorf("%v; want a refusal: %s", err, why)
		}
	}

	off("by default")
	port := control.PortSpec{Transport: control.TransportPerf, Listen: at.String()}
	if _, err := d.AddPort(port); err == nil || !strings.Contains(err.Error(), "nobody may measure") {
		t.Errorf("a port for nobody: %v", err)
	}
	reload(func(p *config.Perf) { p.Listen, p.Clients = []string{at.String()}, []string{"127.0.0.0/8"} })
	if got, err := measure(small); err != nil || len(got) != 1 || got[0].Sent.Iterations != 100 ||
		got[0].Back.Iterations != 100 {
		t.Errorf("%+v, %v", got, err)
	}

	// A reload that changes nothing leaves a measurement alone, one that changes a
	// bound ends it.
	long, begun := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		o := small
		o.Sizes, o.Duration = slices.Repeat([]int{64}, 100_000), time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		long <- perf.Run(ctx, dev, at, o, func(perf.Result) {
			select {
			case begun <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-begun:
	case err := <-long:
		t.Fatal(err)
	}
	reload(func(*config.Perf) {})
	measuring := func(q control.QP) bool { return q.Local == at.String() && q.Remote != "" }
	if n := len(slices.DeleteFunc(d.QPs(), func(q control.QP) bool { return !measuring(q) })); n != small.QPs {
		t.Errorf("%d connections measure after a reload of the same configuration", n)
	}
	reload(func(p *config.Perf) { p.MaxQPs = 1 })
	if err := <-long; err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the measurement that was under way: %v", err)
	}
	refused("the most here is 1", small)
	reload(func(p *config.Perf) { p.Clients = []string{"10.0.0.0/8"} })
	refused("may not measure here", small)
	if e := d.Stats().Errors; e["perf_refused_limit"] == 0 || e["perf_refused_client"] == 0 {
		t.Errorf("counted %v", e)
	}
	measured := func() bool {
		return slices.ContainsFunc(d.PostMortems(),
			func(f control.PostMortem) bool { return strings.Contains(f.Reason, "may not measure here") })
	}
	if !measured() {
		t.Errorf("no post-mortem says why: %+v", d.PostMortems())
	}

	reload(func(p *config.Perf) { p.Listen = nil })
	off("after a reload without")
	if p := d.Ports(); len(p) != 2 || len(p[0].Addresses) != 1 || len(d.Devices()) != 1 {
		t.Errorf("the file service: %+v, devices %v", p, d.Devices())
	}
}
