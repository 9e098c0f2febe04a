package ops

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/measure"
	"github.com/rstored/rstored/cmd/internal/otlp"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// State is the daemon at the time of a scrape.
type State struct {
	Build    cli.Build
	Started  time.Time
	Draining bool
	Lease    *control.Lease   // nil if nodes do not share the state directory
	Cluster  *control.Cluster // nil if the server is alone
	Recorder *measure.Recorder
	Stats    control.Stats
	Exports  []control.Export
	Ports    []control.Port
	Devices  []control.Device
	Drift    control.Drift
	Conns    []control.Client
	QPs      []control.QP
	Workers  rpc.Load

	Clients                 []control.NFS4Client
	Sessions                []control.NFS4Session
	LocksHeld, LocksWaiting int
	Grace                   control.Grace

	Loops     []Loop
	Volumes   []Volume
	TLS       *control.TLS
	Audit     map[string]uint64
	AuditLost uint64
	Traces    otlp.Counts
}

// Loop is the response time of a packet loop.
type Loop struct {
	Device string
	Loop   int
	Took   time.Duration
	OK     bool
}

// Volume is the file system of an export.
type Volume struct {
	Export                                  string
	Size, Free, Available, Files, FilesFree uint64
}

// clientStep: the histograms of clients have every third bucket of the others.
const clientStep = 3

// deviceGauges are the counters of devices that can decrease.
var deviceGauges = []string{"QPs", "Regions", "Link.RcvBufBytes", "Link.SndBufBytes"}

// Names of the counters of devices of the kernel begin with KernelCounter, those of their
// completions with an error with KernelFailed.
const (
	KernelCounter = "Verbs."
	KernelFailed  = KernelCounter + "Failed."
)

// deviceMetric is the metric of a counter of roce.Stats, or of verbs.Stats.
func deviceMetric(counterName string) Metric {
	m := Metric{Name: "rstored_rdma_device_" + snake(counterName), Type: counter, Labels: labels(
		"device"), Help: deviceHelp[strings.TrimPrefix(counterName, KernelCounter)] + "."}
	if slices.Contains(deviceGauges, counterName) {
		m.Type = gauge
	} else {
		m.Name += "_total"
	}
	return m
}

// snake turns RC.TxBytesSend into rc_tx_bytes_send. A run of capital letters is a word; it ends
// before the capital that begins a word in small letters.
func snake(s string) string {
	var b strings.Builder
	r := []rune(s)
	for i, c := range r {
		if c == '.' {
			b.WriteByte('_')
			continue
		}
		if unicode.IsUpper(c) && i > 0 && r[i-1] != '.' {
			ends := i+1 < len(r) && unicode.IsLower(r[i+1]) && string(r[i:i+2]) != "Ps"
			if !unicode.IsUpper(r[i-1]) || ends {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// Catalog lists the metrics of the daemon itself, without those of the process and of the Go
// runtime (process_... and go_...).
func Catalog() []Metric {
	out := slices.Clone(catalog)
	new(roce.Stats).Each(func(name string, _ uint64) { out = append(out, deviceMetric(name)) })
	new(verbs.Stats).Each(func(name string, _ uint64) {
		if m := deviceMetric(name); !slices.ContainsFunc(out, func(o Metric) bool { return o.Name == m.Name }) {
			out = append(out, deviceMetric(KernelCounter+name))
		}
	})
	return out
}

type collector struct {
	state func() State
	descs map[string]*prometheus.Desc
	kinds map[string]prometheus.ValueType
}

// NewCollector makes a collector of the daemon's metrics. It reads them at each scrape.
func NewCollector(state func() State) prometheus.Collector { return newCollector(state) }

func newCollector(state func() State) *collector {
	c := &collector{state: state, descs: make(map[string]*prometheus.Desc), kinds: make(map[string]prometheus.ValueType)}
	for _, m := range Catalog() {
		c.descs[m.Name] = prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)
		c.kinds[m.Name] = prometheus.GaugeValue
		if m.Type == counter {
			c.kinds[m.Name] = prometheus.CounterValue
		}
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// scrape is one Collect.
type scrape struct {
	*collector
	State
	ch chan<- prometheus.Metric
}

func (s *scrape) put(name string, v float64, labels ...string) {
	m, err := prometheus.NewConstMetric(s.descs[name], s.kinds[name], v, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(s.descs[name], err)
	}
	s.ch <- m
}

// hist puts a histogram with every step-th of the buckets.
func (s *scrape) hist(name string, h *measure.Sums, step int, labels ...string) {
	bounds := make(map[float64]uint64, measure.Buckets)
	n := uint64(0)
	for i := range measure.Buckets - 1 {
		n += h.N[i]
		if i%step == 0 {
			bounds[measure.Bound(i).Seconds()] = n
		}
	}
	n += h.N[measure.Buckets-1]
	m, err := prometheus.NewConstHistogram(s.descs[name], n, h.Took.Seconds(), bounds, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(s.descs[name], err)
	}
	s.ch <- m
}
