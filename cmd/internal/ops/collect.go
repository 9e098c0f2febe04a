package ops

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rstored/rstored/cmd/internal/control"
)

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// seconds is a time in seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// each puts a metric for each value of its only label.
func each[N int | uint64](s *scrape, name string, values map[string]N) {
	for label, n := range values {
		s.put(name, float64(n), label)
	}
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
	s.put("rstored_start_time_seconds", seconds(s.Started))
	s.put("rstored_draining", truth(s.Draining))
	if l := s.Lease; l != nil {
		s.put("rstored_ha_epoch", float64(l.Epoch), l.Node)
		s.put("rstored_ha_renewed_seconds", l.Renewed.Seconds())
		s.put("rstored_ha_slowest_renewal_seconds", l.Slowest.Seconds())
		s.put("rstored_ha_lease_seconds", l.Term.Seconds())
		s.put("rstored_ha_since_seconds", seconds(time.Now().Add(-l.Held)), control.RoleServing)
	}
	bad := 0
	for _, e := range s.Exports {
		if e.Error != "" {
			bad++
		}
	}
	s.put("rstored_exports", float64(len(s.Exports)-bad), "served")
	s.put("rstored_exports", float64(bad), "failed")
	for _, t := range control.Transports {
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
	each(s, "rstored_config_drift", drift)
	each(s, "rstored_audit_events_total", s.Audit)
	s.put("rstored_audit_dropped_total", float64(s.AuditLost))
	s.put("rstored_otlp_traces_total", float64(s.Traces.Sent), "sent")
	s.put("rstored_otlp_traces_total", float64(s.Traces.Dropped), "dropped")
	s.put("rstored_otlp_traces_total", float64(s.Traces.Failed), "failed")
	for k, n := range s.Stats.Errors {
		if !strings.HasPrefix(k, "nfs_status_") {
			s.put("rstored_errors_total", float64(n), k)
		}
	}
	each(s, "rstored_events_total", s.Stats.Events)
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
	each(s, "rstored_tls_connections", n)
	c := &s.TLS.Counts
	s.put("rstored_tls_handshakes_total", float64(c.Handshakes-c.Mutual), "tls")
	s.put("rstored_tls_handshakes_total", float64(c.Mutual), "mtls")
	each(s, "rstored_tls_handshakes_total", c.Failed)
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
	each(s, "rstored_connections", conns)
	s.put("rstored_rdma_credits", float64(credits))
	s.put("rstored_rdma_credits_in_use", float64(used))
	s.put("rstored_rdma_memory_in_use_bytes", float64(s.Stats.Memory.Bulk))
	s.put("rstored_rdma_memory_bytes", float64(s.Stats.Memory.Messages), "messages")
	s.put("rstored_rdma_memory_bytes", float64(s.Stats.Memory.Bulk), "bulk")
	s.put("rstored_rdma_memory_limit_bytes", float64(s.Stats.Memory.Limit))
	s.put("rstored_rdma_memory_waiting_connections", float64(s.Stats.Memory.Waiting))
	s.put("rstored_client_addresses", float64(s.Stats.Addresses))
	each(s, "rstored_connections_refused_total", s.Stats.Refused)
	s.put("rstored_rdma_written_bytes_total", float64(s.Stats.RDMAWriteBytes))
	s.put("rstored_rdma_read_bytes_total", float64(s.Stats.RDMAReadBytes))
	s.put("rstored_rdma_lent_bytes_total", float64(s.Stats.LentBytes))
	s.put("rstored_rdma_inline_bytes_total", float64(s.Stats.InlineBytes))
	s.put("rstored_tcp_bytes_total", float64(s.Stats.TCPBytes))
	each(s, "rstored_rdma_messages_total", s.Stats.Messages)
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
	if c := s.Cluster; c != nil {
		for _, n := range c.Nodes {
			s.put("rstored_cluster_node_serves", truth(!n.Lost), n.Node)
		}
		s.put("rstored_cluster_grace_active", truth(c.Grace))
		s.put("rstored_cluster_state_age_seconds", c.ReadSeconds)
	}
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
	each(s, "rstored_nfs4_clients", states)
	s.put("rstored_nfs4_sessions", float64(len(s.Sessions)))
	s.put("rstored_nfs4_session_slots_busy", float64(busy))
	s.put("rstored_nfs4_opens", float64(opens))
	s.put("rstored_nfs4_lock_owners", float64(owners))
	s.put("rstored_nfs4_delegations", float64(delegations))
	s.put("rstored_nfs4_delegations_revoked", float64(revoked))
	s.put("rstored_nfs4_memory_bytes", float64(s.Stats.NFS4Memory.Bytes))
	s.put("rstored_nfs4_memory_limit_bytes", float64(s.Stats.NFS4Memory.Limit))
	s.put("rstored_mapped_bytes", float64(s.Stats.Process.Mapped))
	s.put("rstored_mapped_limit_bytes", float64(s.Stats.Process.Limit))
	s.put("rstored_process_own_bytes", float64(s.Stats.Process.Own))
	s.put("rstored_nfs4_copies", float64(copies))
	s.put("rstored_locks", float64(s.LocksHeld), "held")
	s.put("rstored_locks", float64(s.LocksWaiting), "waiting")
}
