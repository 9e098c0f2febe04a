package ops

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
)

// Standby is a daemon that waits for the lease, at the time of a scrape.
type Standby struct {
	Build  cli.Build
	Holder string        // the node that had the lease last
	Since  time.Time     // when the daemon began to wait
	Lag    time.Duration // since it saw a renewal of the lease
	Term   time.Duration
}

type standbyCollector struct {
	*collector
	standby func() Standby
}

// NewStandbyCollector makes a collector of the metrics of a daemon that waits. It reads them at
// each scrape.
func NewStandbyCollector(standby func() Standby) prometheus.Collector {
	return &standbyCollector{newCollector(nil), standby}
}

// Collect implements prometheus.Collector.
func (c *standbyCollector) Collect(ch chan<- prometheus.Metric) {
	s, x := &scrape{collector: c.collector, ch: ch}, c.standby()
	s.put("rstored_build_info", 1, x.Build.Version, x.Build.Revision, x.Build.Go)
	s.put("rstored_ha_lease_seconds", x.Term.Seconds())
	s.put("rstored_ha_since_seconds", seconds(x.Since), control.RoleStandby)
	s.put("rstored_ha_lag_seconds", x.Lag.Seconds(), x.Holder)
}
