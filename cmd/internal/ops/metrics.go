package ops

import (
	"slices"
	"strconv"
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

// Loop says how long a packet loop took to answer.
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

// Metric describes a metric of the daemon.
type Metric struct {
	Name   string
	Type   string // counter, gauge, histogram
	Labels []string
	Help   string
}

const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

func labels(l ...string) []string { return l }

// catalog is every metric but those of devices, of the process and of the Go runtime.
var catalog = []Metric{
	{"rstored_build_info", gauge, labels("version", "revision", "goversion"), "Version of the program; always 1."},
	{"rstored_start_time_seconds", gauge, nil, "Start time of the daemon, in seconds since 1970."},
	{"rstored_draining", gauge, nil, "1 while the daemon stops."},
	{"rstored_exports", gauge, labels("state"), "Exports by state: served, or not opened because of an error."},
	{"rstored_ports", gauge, labels("transport", "state"), "Ports by state: listening, or with an error."},

	{"rstored_config_drift", gauge, labels("kind"), "Exports and ports that differ from the written configuration, as in 'rstorectl drift'; kind unreadable is 1 while the configuration cannot be read."},

	{"rstored_rpc_duration_seconds", histogram, labels("program", "operation", "transport"), "Time from the arrival of a call to its reply, including RDMA READs of its data. A compound of version 4 counts as the operation that it was sent for."},
	{"rstored_rpc_received_bytes_total", counter, labels("program", "operation", "transport"), "Bytes of arguments, including bulk data."},
	{"rstored_rpc_sent_bytes_total", counter, labels("program", "operation", "transport"), "Bytes of replies, including bulk data."},
	{"rstored_rpc_failures_total", counter, labels("program", "operation", "status"), "Calls whose status is not OK. Many are normal answers, such as NOENT of a LOOKUP."},
	{"rstored_rpc_retransmits_total", counter, labels("program", "operation"), "Repeated calls that were recognized and not executed again."},
	{"rstored_rpc_queue_duration_seconds", histogram, nil, "Time that calls waited for a worker. Calls that need no worker are not included."},
	{"rstored_rpc_fetch_duration_seconds", histogram, nil, "Time that calls over RDMA waited for memory and for their data by RDMA READ. Calls without data to fetch are not included."},
	{"rstored_rpc_queue_length", gauge, nil, "Calls that wait for a worker."},
	{"rstored_rpc_workers", gauge, labels("state"), "Workers by state: busy or idle."},
	{"rstored_rpc_worker_calls_total", counter, nil, "Calls that workers have served."},
	{"rstored_nfs4_operations_total", counter, labels("operation"), "Operations of version 4 that were started; a compound has several."},

	{"rstored_export_duration_seconds", histogram, labels("export", "kind", "transport"), "Time from the arrival of a call about an export to its reply. kind is read, write or meta."},
	{"rstored_export_received_bytes_total", counter, labels("export", "kind", "transport"), "Bytes of arguments of calls about an export."},
	{"rstored_export_sent_bytes_total", counter, labels("export", "kind", "transport"), "Bytes of replies about an export."},
	{"rstored_export_failures_total", counter, labels("export", "kind", "transport"), "Calls about an export whose status is not OK."},
	{"rstored_store_duration_seconds", histogram, labels("export", "operation"), "Duration of a call of an export's store. READs that are served from memory at once are not included."},
	{"rstored_store_size_bytes", gauge, labels("export"), "Size of the file system of an export."},
	{"rstored_store_free_bytes", gauge, labels("export"), "Free bytes of the file system of an export."},
	{"rstored_store_available_bytes", gauge, labels("export"), "Free bytes of the file system that are available to users."},
	{"rstored_store_files", gauge, labels("export"), "Most files of the file system; 0 without a limit."},
	{"rstored_store_free_files", gauge, labels("export"), "Free inodes of the file system."},

	{"rstored_client_duration_seconds", histogram, labels("client", "transport"), "Time from the arrival of a client's call to its reply, in fewer buckets. Clients beyond ops_clients are 'other'."},
	{"rstored_client_received_bytes_total", counter, labels("client", "transport"), "Bytes of arguments of a client's calls."},
	{"rstored_client_sent_bytes_total", counter, labels("client", "transport"), "Bytes of replies to a client."},
	{"rstored_client_failures_total", counter, labels("client", "transport"), "A client's calls whose status is not OK."},
	{"rstored_connections", gauge, labels("transport"), "Connections of clients."},
	{"rstored_client_addresses", gauge, nil, "Client addresses with connections."},
	{"rstored_connections_refused_total", counter, labels("reason"), "Refused connections by reason: clients, connections_per_client, connections, memory, descriptors."},

	{"rstored_rdma_written_bytes_total", counter, nil, "Bytes sent by RDMA WRITE: what clients read."},
	{"rstored_rdma_read_bytes_total", counter, nil, "Bytes fetched by RDMA READ: what clients wrote."},
	{"rstored_rdma_lent_bytes_total", counter, nil, "Bytes sent by RDMA WRITE from the page cache without a copy."},
	{"rstored_rdma_inline_bytes_total", counter, nil, "Bytes inside RPC-over-RDMA messages, both directions."},
	{"rstored_rdma_messages_total", counter, labels("type"), "RPC-over-RDMA messages by type."},
	{"rstored_rdma_credits", gauge, nil, "Credits granted to all connections."},
	{"rstored_rdma_credits_in_use", gauge, nil, "Calls in progress on RDMA connections."},
	{"rstored_rdma_memory_in_use_bytes", gauge, nil, "Registered memory of calls in progress."},
	{"rstored_rdma_memory_bytes", gauge, labels("use"), "Registered memory by use: messages (receives of connections) and bulk (data of calls in progress)."},
	{"rstored_rdma_memory_limit_bytes", gauge, nil, "Limit of registered memory for messages and bulk data together."},
	{"rstored_rdma_memory_waiting_connections", gauge, nil, "Connections with a call that waits for bulk memory."},
	{"rstored_rdma_queue_pairs", gauge, labels("device", "type", "state"), "Queue pairs by type and state."},
	{"rstored_rdma_send_queue_length", gauge, labels("device"), "Work requests in the send queues."},
	{"rstored_rdma_device_info", gauge, labels("device", "provider", "kernel_device", "speaks"), "Open RDMA devices by provider: soft or verbs; for verbs the kernel's name, and what it speaks; always 1."},
	{"rstored_rdma_completions_failed_total", counter, labels("device", "status"), "Work requests that a device of the kernel completed with an error, by status."},
	{"rstored_rdma_waiting_ports", gauge, nil, "Addresses and devices of ports that wait for an RDMA device of the kernel."},
	{"rstored_rdma_loop_response_seconds", gauge, labels("device", "loop"), "Response time of a packet loop to the latest probe."},
	{"rstored_tcp_bytes_total", counter, nil, "Bytes over TCP, both directions."},

	{"rstored_tls_connections", gauge, labels("xprtsec"), "Connections over TCP by protection: none, tls, or mtls with a verified certificate."},
	{"rstored_tls_handshakes_total", counter, labels("result"), "TLS handshakes by result: tls, mtls, or the reason of the failure."},
	{"rstored_tls_certificate_not_after_seconds", gauge, labels("file"), "When the certificate, or one of its chain, expires, and the last authority of clients, in seconds since 1970."},
	{"rstored_tls_certificate_loads_total", counter, labels("result"), "Sets of certificate files that were taken, OK, and that could not be used, failed."},

	{"rstored_errors_total", counter, labels("kind"), "What went wrong, by kind, as 'rstorectl stats' has it; statuses of NFS are in rstored_rpc_failures_total."},
	{"rstored_events_total", counter, labels("kind"), "What was not as usual, but not wrong, by kind."},

	{"rstored_grace_active", gauge, labels("protocol"), "1 while clients may reclaim what they had before a restart: nfs4 or nlm."},
	{"rstored_grace_waiting_clients", gauge, nil, "Clients of version 4 that the grace period waits for."},
	{"rstored_nfs4_clients", gauge, labels("state"), "Clients of version 4: confirmed, unconfirmed, or expired (silent for longer than the lease)."},
	{"rstored_nfs4_sessions", gauge, nil, "Sessions."},
	{"rstored_nfs4_session_slots_busy", gauge, nil, "Requests that sessions execute."},
	{"rstored_nfs4_opens", gauge, nil, "Files that clients of version 4 have open, for each open-owner."},
	{"rstored_nfs4_lock_owners", gauge, nil, "Lock-owners of version 4, for each file."},
	{"rstored_nfs4_delegations", gauge, nil, "Files that are delegated."},
	{"rstored_nfs4_delegations_revoked", gauge, nil, "Delegations that were taken away, and that their clients have not given up."},
	{"rstored_nfs4_memory_bytes", gauge, nil, "Memory of the state of clients of version 4."},
	{"rstored_nfs4_memory_limit_bytes", gauge, nil, "The most that may be: the setting nfs4_memory."},
	{"rstored_nfs4_copies", gauge, nil, "Copies that go on after their replies."},
	{"rstored_locks", gauge, labels("state"), "Byte-range locks of all protocols that are held, and that are waited for."},

	{"rstored_audit_events_total", counter, labels("event"), "Events of the audit log."},
	{"rstored_audit_dropped_total", counter, nil, "Events that were not written to the audit log, because there were too many."},

	{"rstored_otlp_traces_total", counter, labels("result"), "Calls that were drawn for traces: sent, dropped because too many waited, or failed because the collector did not take them."},
}

// clientBounds are the buckets of the histograms of clients: every third of the others.
const clientStep = 3

// deviceGauges are counters of devices that go down, too.
var deviceGauges = []string{"QPs", "Regions", "Link.RcvBufBytes", "Link.SndBufBytes"}

// Names of the counters of devices of the kernel begin with KernelCounter, those of their completions with
// an error with KernelFailed.
const (
	KernelCounter = "Verbs."
	KernelFailed  = KernelCounter + "Failed."
)

// deviceMetric is the metric of a counter of roce.Stats, or of verbs.Stats.
func deviceMetric(counterName string) Metric {
	m := Metric{Name: "rstored_rdma_device_" + snake(counterName), Type: counter, Labels: labels("device"), Help: "Counter " + counterName + " of an RDMA device."}
	if slices.Contains(deviceGauges, counterName) {
		m.Type = gauge
	} else {
		m.Name += "_total"
	}
	return m
}

// snake turns RC.TxBytesSend into rc_tx_bytes_send. Runs of capital letters are a word, and end
// where one in small letters begins.
func snake(s string) string {
	var b strings.Builder
	r := []rune(s)
	for i, c := range r {
		switch {
		case c == '.':
			b.WriteByte('_')
			continue
		case unicode.IsUpper(c) && i > 0 && r[i-1] != '.' && (!unicode.IsUpper(r[i-1]) || i+1 < len(r) && unicode.IsLower(r[i+1]) && string(r[i:min(i+2, len(r))]) != "Ps"):
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// Catalog lists the metrics of the daemon itself; those of the process and of the Go runtime,
// process_... and go_..., are the usual ones.
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

// NewCollector makes a collector of the daemon's metrics. What it shows is read when it is
// asked for.
func NewCollector(state func() State) prometheus.Collector {
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

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := &scrape{collector: c, State: c.state(), ch: ch}
	s.daemon()
	s.calls()
	s.rdma()
	s.nfs()
}

func (s *scrape) daemon() {
	s.put("rstored_build_info", 1, s.Build.Version, s.Build.Revision, s.Build.Go)
	s.put("rstored_start_time_seconds", float64(s.Started.UnixNano())/1e9)
	s.put("rstored_draining", truth(s.Draining))
	bad := 0
	for _, e := range s.Exports {
		if e.Error != "" {
			bad++
		}
	}
	s.put("rstored_exports", float64(len(s.Exports)-bad), "served")
	s.put("rstored_exports", float64(bad), "failed")
	for _, t := range []string{control.TransportRDMA, control.TransportTCP, control.TransportPortmap, control.TransportPerf, control.TransportOps, control.TransportControl} {
		good, bad := 0, 0
		for _, p := range s.Ports {
			switch {
			case p.Transport != t:
			case p.Error != "":
				bad++
			default:
				good++
			}
		}
		s.put("rstored_ports", float64(good), t, "listening")
		s.put("rstored_ports", float64(bad), t, "failed")
	}
	s.tls()
	drift := map[string]int{"export": 0, "port": 0, "unreadable": min(len(s.Drift.Problems), 1)}
	for _, c := range s.Drift.Changes {
		drift[c.Kind]++
	}
	for k, n := range drift {
		s.put("rstored_config_drift", float64(n), k)
	}
	for k, n := range s.Audit {
		s.put("rstored_audit_events_total", float64(n), k)
	}
	s.put("rstored_audit_dropped_total", float64(s.AuditLost))
	s.put("rstored_otlp_traces_total", float64(s.Traces.Sent), "sent")
	s.put("rstored_otlp_traces_total", float64(s.Traces.Dropped), "dropped")
	s.put("rstored_otlp_traces_total", float64(s.Traces.Failed), "failed")
	for k, n := range s.Stats.Errors {
		if !strings.HasPrefix(k, "nfs_status_") {
			s.put("rstored_errors_total", float64(n), k)
		}
	}
	for k, n := range s.Stats.Events {
		s.put("rstored_events_total", float64(n), k)
	}
}

// tls shows nothing where there is no TLS.
func (s *scrape) tls() {
	if s.TLS == nil {
		return
	}
	n := map[string]int{"none": 0, "tls": 0, "mtls": 0}
	for _, c := range s.Conns {
		if c.XprtSec != "" {
			n[c.XprtSec]++
		}
	}
	for k, n := range n {
		s.put("rstored_tls_connections", float64(n), k)
	}
	c := &s.TLS.Counts
	s.put("rstored_tls_handshakes_total", float64(c.Handshakes-c.Mutual), "tls")
	s.put("rstored_tls_handshakes_total", float64(c.Mutual), "mtls")
	for k, n := range c.Failed {
		s.put("rstored_tls_handshakes_total", float64(n), k)
	}
	s.put("rstored_tls_certificate_not_after_seconds", float64(s.TLS.NotAfter.Unix()), s.TLS.Certificate)
	if t := s.TLS.ClientCANotAfter; t != nil {
		s.put("rstored_tls_certificate_not_after_seconds", float64(t.Unix()), s.TLS.ClientCA)
	}
	s.put("rstored_tls_certificate_loads_total", float64(s.TLS.Loads), "OK")
	s.put("rstored_tls_certificate_loads_total", float64(s.TLS.Failures), "failed")
}

func (s *scrape) calls() {
	for _, o := range s.Recorder.Operations() {
		l := []string{o.Program, o.Name, o.Transport.String()}
		s.hist("rstored_rpc_duration_seconds", &o.Sums, 1, l...)
		s.put("rstored_rpc_received_bytes_total", float64(o.In), l...)
		s.put("rstored_rpc_sent_bytes_total", float64(o.Out), l...)
	}
	for _, f := range s.Recorder.Failures() {
		s.put("rstored_rpc_failures_total", float64(f.Count), f.Program, f.Operation, f.Status)
	}
	for name, p := range s.Stats.Procs {
		program, operation, _ := strings.Cut(name, ".")
		if p.Retransmits > 0 {
			s.put("rstored_rpc_retransmits_total", float64(p.Retransmits), program, operation)
		}
		if program == "nfs4" && operation != "NULL" && operation != "COMPOUND" {
			s.put("rstored_nfs4_operations_total", float64(p.Calls), operation)
		}
	}
	queue, fetch := s.Recorder.Queue(), s.Recorder.Fetch()
	s.hist("rstored_rpc_queue_duration_seconds", &queue, 1)
	s.hist("rstored_rpc_fetch_duration_seconds", &fetch, 1)
	s.put("rstored_rpc_queue_length", float64(s.Workers.Queued))
	s.put("rstored_rpc_workers", float64(s.Workers.Busy), "busy")
	s.put("rstored_rpc_workers", float64(s.Workers.Workers-s.Workers.Busy), "idle")
	s.put("rstored_rpc_worker_calls_total", float64(s.Workers.Done))
	for _, x := range s.Recorder.Exports() {
		l := []string{x.Export, x.Kind.String(), x.Transport.String()}
		s.hist("rstored_export_duration_seconds", &x.Sums, 1, l...)
		s.put("rstored_export_received_bytes_total", float64(x.In), l...)
		s.put("rstored_export_sent_bytes_total", float64(x.Out), l...)
		s.put("rstored_export_failures_total", float64(x.Failed), l...)
	}
	for _, x := range s.Recorder.Stores() {
		s.hist("rstored_store_duration_seconds", &x.Sums, 1, x.Export, x.Op.String())
	}
	for _, v := range s.Volumes {
		s.put("rstored_store_size_bytes", float64(v.Size), v.Export)
		s.put("rstored_store_free_bytes", float64(v.Free), v.Export)
		s.put("rstored_store_available_bytes", float64(v.Available), v.Export)
		s.put("rstored_store_files", float64(v.Files), v.Export)
		s.put("rstored_store_free_files", float64(v.FilesFree), v.Export)
	}
	for _, x := range s.Recorder.Clients() {
		l := []string{x.Client, x.Transport.String()}
		s.hist("rstored_client_duration_seconds", &x.Sums, clientStep, l...)
		s.put("rstored_client_received_bytes_total", float64(x.In), l...)
		s.put("rstored_client_sent_bytes_total", float64(x.Out), l...)
		s.put("rstored_client_failures_total", float64(x.Failed), l...)
	}
}

func (s *scrape) rdma() {
	conns := map[string]int{control.TransportRDMA: 0, control.TransportTCP: 0}
	credits, used := 0, 0
	for _, c := range s.Conns {
		conns[c.Transport]++
		if c.RDMA != nil {
			credits += c.RDMA.Credits
			used += c.RDMA.InUse
		}
	}
	for t, n := range conns {
		s.put("rstored_connections", float64(n), t)
	}
	s.put("rstored_rdma_credits", float64(credits))
	s.put("rstored_rdma_credits_in_use", float64(used))
	s.put("rstored_rdma_memory_in_use_bytes", float64(s.Stats.Memory.Bulk))
	s.put("rstored_rdma_memory_bytes", float64(s.Stats.Memory.Messages), "messages")
	s.put("rstored_rdma_memory_bytes", float64(s.Stats.Memory.Bulk), "bulk")
	s.put("rstored_rdma_memory_limit_bytes", float64(s.Stats.Memory.Limit))
	s.put("rstored_rdma_memory_waiting_connections", float64(s.Stats.Memory.Waiting))
	s.put("rstored_client_addresses", float64(s.Stats.Addresses))
	for k, n := range s.Stats.Refused {
		s.put("rstored_connections_refused_total", float64(n), k)
	}
	s.put("rstored_rdma_written_bytes_total", float64(s.Stats.RDMAWriteBytes))
	s.put("rstored_rdma_read_bytes_total", float64(s.Stats.RDMAReadBytes))
	s.put("rstored_rdma_lent_bytes_total", float64(s.Stats.LentBytes))
	s.put("rstored_rdma_inline_bytes_total", float64(s.Stats.InlineBytes))
	s.put("rstored_tcp_bytes_total", float64(s.Stats.TCPBytes))
	for k, n := range s.Stats.Messages {
		s.put("rstored_rdma_messages_total", float64(n), k)
	}
	type group struct{ device, kind, state string }
	pairs, queued := make(map[group]int), make(map[string]int)
	for _, q := range s.QPs {
		pairs[group{q.Device, q.Type, q.State}]++
		queued[q.Device] += q.SendQueued
	}
	for g, n := range pairs {
		s.put("rstored_rdma_queue_pairs", float64(n), g.device, g.kind, g.state)
	}
	for d, counters := range s.Stats.Devices {
		s.put("rstored_rdma_send_queue_length", float64(queued[d]), d)
		for name, n := range counters {
			if status, ok := strings.CutPrefix(name, KernelFailed); ok {
				s.put("rstored_rdma_completions_failed_total", float64(n), d, status)
				continue
			}
			s.put(deviceMetric(name).Name, float64(n), d)
		}
	}
	for _, d := range s.Devices {
		s.put("rstored_rdma_device_info", 1, d.Name, d.Provider, d.Kernel, d.Speaks)
	}
	waiting := 0
	for _, p := range s.Ports {
		waiting += len(p.Waiting)
	}
	s.put("rstored_rdma_waiting_ports", float64(waiting))
	for _, l := range s.Loops {
		if l.OK {
			s.put("rstored_rdma_loop_response_seconds", l.Took.Seconds(), l.Device, strconv.Itoa(l.Loop))
		}
	}
}

func (s *scrape) nfs() {
	s.put("rstored_grace_active", truth(s.Grace.NFS4Until != nil), "nfs4")
	s.put("rstored_grace_active", truth(s.Grace.NLMUntil != nil), "nlm")
	s.put("rstored_grace_waiting_clients", float64(len(s.Grace.Waiting)))
	states := map[string]int{"confirmed": 0, "unconfirmed": 0, "expired": 0}
	var opens, owners, delegations, revoked, copies, busy int
	for _, c := range s.Clients {
		switch {
		case !c.Confirmed:
			states["unconfirmed"]++
		case c.Expired:
			states["expired"]++
		default:
			states["confirmed"]++
		}
		opens += c.Opens
		owners += c.Locks
		delegations += c.Delegations
		revoked += c.Revoked
		copies += c.Copies
	}
	for _, x := range s.Sessions {
		busy += x.Busy
	}
	for k, n := range states {
		s.put("rstored_nfs4_clients", float64(n), k)
	}
	s.put("rstored_nfs4_sessions", float64(len(s.Sessions)))
	s.put("rstored_nfs4_session_slots_busy", float64(busy))
	s.put("rstored_nfs4_opens", float64(opens))
	s.put("rstored_nfs4_lock_owners", float64(owners))
	s.put("rstored_nfs4_delegations", float64(delegations))
	s.put("rstored_nfs4_delegations_revoked", float64(revoked))
	s.put("rstored_nfs4_memory_bytes", float64(s.Stats.NFS4Memory.Bytes))
	s.put("rstored_nfs4_memory_limit_bytes", float64(s.Stats.NFS4Memory.Limit))
	s.put("rstored_nfs4_copies", float64(copies))
	s.put("rstored_locks", float64(s.LocksHeld), "held")
	s.put("rstored_locks", float64(s.LocksWaiting), "waiting")
}
