package mount

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metric is a metric of a mount whose process has answered.
type metric struct {
	name, help string
	counter    bool
	value      func(m *Mount) float64
}

// metrics are the metrics of each mount. A mount without a process has only the metric up.
var metrics = []metric{
	{
		"connections_total", "Connections to the server that were made.", true,
		func(m *Mount) float64 { return float64(m.Client.Connections) },
	},
	{
		"resent_calls_total", "Calls that were sent again over a new connection.", true,
		func(m *Mount) float64 { return float64(m.Client.Resent) },
	},
	{
		"reclaimed_total", "Opens and locks that were reclaimed after restarts of the server.", true,
		func(m *Mount) float64 { return float64(m.Client.Reclaimed + m.Client.Relocked) },
	},
	{
		"read_bytes_total", "Bytes that programs have read.", true,
		func(m *Mount) float64 { return float64(m.FS.BytesRead) },
	},
	{
		"written_bytes_total", "Bytes that programs have written.", true,
		func(m *Mount) float64 { return float64(m.FS.BytesWritten) },
	},
	{
		"failed_writes_total", "Writes to the server that failed for good: data was lost.", true,
		func(m *Mount) float64 { return float64(m.FS.LostWrites) },
	},
	{
		"repeated_writes_total", "Writes that a restart of the server made necessary again.", true,
		func(m *Mount) float64 { return float64(m.FS.Rewrites) },
	},
	{
		"stalled_writes_total", "Writes of programs that waited for buffers.", true,
		func(m *Mount) float64 { return float64(m.FS.Stalled) },
	},
	{
		"invalidated_total", "Files that another client had changed.", true,
		func(m *Mount) float64 { return float64(m.FS.Invalidated) },
	},
	{
		"delegations", "Delegations that the mount has.", false,
		func(m *Mount) float64 { return float64(m.Client.Delegations) },
	},
	{
		"recalled_delegations_total", "Delegations that the server has recalled.", true,
		func(m *Mount) float64 { return float64(m.Client.Recalled) },
	},
	{
		"lost_delegations_total", "Delegations that the server has ended without a return.", true,
		func(m *Mount) float64 { return float64(m.Client.LostDelegations) },
	},
	{"open_files", "Open files and directories.", false, func(m *Mount) float64 { return float64(m.FS.OpenFiles) }},
	{
		"free_buffer_bytes", "Buffers for data that are not used.", false,
		func(m *Mount) float64 { return float64(m.FS.FreeMemory) },
	},
}

const metricPrefix = "rstored_mount_"

// collector makes metrics of mounts. No server registers it: each file has the mounts of one
// moment.
type collector []Mount

// Describe implements prometheus.Collector. It describes nothing, so Prometheus checks nothing.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	labels := []string{"directory", "source"}
	send := func(name, help string, counter bool, v float64, labels []string, values ...string) {
		kind := prometheus.GaugeValue
		if counter {
			kind = prometheus.CounterValue
		}
		d := prometheus.NewDesc(metricPrefix+name, help, labels, nil)
		ch <- prometheus.MustNewConstMetric(d, kind, v, values...)
	}
	for i := range c {
		m := &c[i]
		up := 0.
		if m.State == stateOK {
			up = 1
		}
		send("up", "Whether the server of the mount answers.", false, up, labels, m.Dir, m.Source)
		if m.FS == nil || m.Client == nil {
			continue
		}
		for _, x := range metrics {
			send(x.name, x.help, x.counter, x.value(m), labels, m.Dir, m.Source)
		}
		by := []string{"directory", "source", "operation"}
		for _, o := range m.FS.Ops {
			send("operations_total", "Operations of the kernel.", true, float64(o.Calls), by, m.Dir, m.Source, o.Name)
			send("operation_failures_total", "Operations of the kernel that failed.", true, float64(o.Failed), by, m.Dir,
				m.Source, o.Name)
			send("operation_seconds_total", "Time of the operations of the kernel together.", true,
				o.Time.Seconds(), by, m.Dir, m.Source, o.Name)
		}
	}
}

// writeMetrics replaces a file with the metrics of mounts, in the form that the textfile collector
// of Prometheus' node_exporter reads.
func writeMetrics(name string, all []Mount) error {
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(collector(all)); err != nil {
		return err
	}
	return prometheus.WriteToTextfile(name, r)
}
