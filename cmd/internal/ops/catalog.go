package ops

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

func metric(name, kind string, labels []string, help string) Metric {
	return Metric{name, kind, labels, help}
}

// catalog is every metric but those of devices, of the process and of the Go runtime.
var catalog = []Metric{
	metric("rstored_build_info", gauge, labels("version", "revision", "goversion"), "Version of the program; always 1."),
	metric("rstored_start_time_seconds", gauge, nil, "Start time of the daemon, in seconds since 1970."),
	metric("rstored_draining", gauge, nil, "1 while the daemon stops."),
	metric("rstored_ha_epoch", gauge, labels("node"),
		"Claims of the lease on a shared state directory so far, by any node; node is the one that serves. Without "+
			"ha_lease the metrics rstored_ha_... are missing. A standby has those that name it, and no others."),
	metric("rstored_ha_renewed_seconds", gauge, nil, "Time since the begin of the last renewal of the lease."),
	metric("rstored_ha_slowest_renewal_seconds", gauge, nil,
		"Duration of the slowest renewal of the lease since the start. The lease is lost at ha_lease."),
	metric("rstored_ha_lease_seconds", gauge, nil, "Setting ha_lease. Also of a standby."),
	metric("rstored_ha_since_seconds", gauge, labels("role"),
		"When this node began to serve, or as a standby to wait, in seconds since 1970. Role is serving or standby."),
	metric("rstored_ha_lag_seconds", gauge, labels("holder"),
		"Of a standby: time since it saw the holder of the lease renew it. It looks eight times in each ha_lease, and sees "+
			"four renewals. More than ha_lease means that nobody serves, or that this node cannot read the state directory."),
	metric("rstored_exports", gauge, labels("state"), "Exports by state: served, or not opened because of an error."),
	metric("rstored_ports", gauge, labels("transport", "state"), "Ports by state: listening, or with an error."),

	metric("rstored_config_drift", gauge, labels("kind"),
		"Exports and ports that differ from the written configuration, as in 'rstorectl drift'; kind unreadable is 1 "+
			"while the configuration cannot be read."),

	metric("rstored_rpc_duration_seconds", histogram, labels("program", "operation", "transport"),
		"Time from the arrival of a call to its reply, including RDMA READs of its data. A compound of version 4 counts "+
			"as the operation that it was sent for."),
	metric("rstored_rpc_received_bytes_total", counter, labels("program", "operation", "transport"),
		"Bytes of arguments, including bulk data."),
	metric("rstored_rpc_sent_bytes_total", counter, labels("program", "operation", "transport"),
		"Bytes of replies, including bulk data."),
	metric("rstored_rpc_failures_total", counter, labels("program", "operation", "status"),
		"Calls whose status is not OK. Many are normal answers, such as NOENT of a LOOKUP."),
	metric("rstored_rpc_retransmits_total", counter, labels("program", "operation"),
		"Repeated calls that were recognized and not executed again."),
	metric("rstored_rpc_queue_duration_seconds", histogram, nil,
		"Time that calls waited for a worker. Calls that need no worker are not included."),
	metric("rstored_rpc_fetch_duration_seconds", histogram, nil,
		"Time that calls over RDMA waited for memory and for their data by RDMA READ. Calls without data to fetch are "+
			"not included."),
	metric("rstored_rpc_queue_length", gauge, nil, "Calls that wait for a worker."),
	metric("rstored_rpc_workers", gauge, labels("state"), "Workers by state: busy or idle."),
	metric("rstored_rpc_worker_calls_total", counter, nil, "Calls that workers have served."),
	metric("rstored_nfs4_operations_total", counter, labels("operation"),
		"Operations of version 4 that were started; a compound has several."),

	metric("rstored_export_duration_seconds", histogram, labels("export", "kind", "transport"),
		"Time from the arrival of a call about an export to its reply. kind is read, write or meta."),
	metric("rstored_export_received_bytes_total", counter, labels("export", "kind", "transport"),
		"Bytes of arguments of calls about an export."),
	metric("rstored_export_sent_bytes_total", counter, labels("export", "kind", "transport"),
		"Bytes of replies about an export."),
	metric("rstored_export_failures_total", counter, labels("export", "kind", "transport"),
		"Calls about an export whose status is not OK."),
	metric("rstored_store_duration_seconds", histogram, labels("export", "operation"),
		"Duration of a call of an export's store. READs that are served from memory at once are not included."),
	metric("rstored_store_size_bytes", gauge, labels("export"), "Size of the file system of an export."),
	metric("rstored_store_free_bytes", gauge, labels("export"), "Free bytes of the file system of an export."),
	metric("rstored_store_available_bytes", gauge, labels("export"),
		"Free bytes of the file system that are available to users."),
	metric("rstored_store_files", gauge, labels("export"), "Most files of the file system; 0 without a limit."),
	metric("rstored_store_free_files", gauge, labels("export"), "Free inodes of the file system."),

	metric("rstored_client_duration_seconds", histogram, labels("client", "transport"),
		"Time from the arrival of a client's call to its reply, in fewer buckets. Clients beyond ops_clients are 'other'."),
	metric("rstored_client_received_bytes_total", counter, labels("client", "transport"),
		"Bytes of arguments of a client's calls."),
	metric("rstored_client_sent_bytes_total", counter, labels("client", "transport"), "Bytes of replies to a client."),
	metric("rstored_client_failures_total", counter, labels("client", "transport"),
		"A client's calls whose status is not OK."),
	metric("rstored_connections", gauge, labels("transport"), "Connections of clients."),
	metric("rstored_client_addresses", gauge, nil, "Client addresses with connections."),
	metric("rstored_connections_refused_total", counter, labels("reason"),
		"Refused connections by reason: clients, connections_per_client, connections, memory, descriptors."),

	metric("rstored_rdma_written_bytes_total", counter, nil, "Bytes sent by RDMA WRITE: what clients read."),
	metric("rstored_rdma_read_bytes_total", counter, nil, "Bytes fetched by RDMA READ: what clients wrote."),
	metric("rstored_rdma_lent_bytes_total", counter, nil, "Bytes sent by RDMA WRITE from the page cache without a copy."),
	metric("rstored_rdma_inline_bytes_total", counter, nil, "Bytes inside RPC-over-RDMA messages, both directions."),
	metric("rstored_rdma_messages_total", counter, labels("type"), "RPC-over-RDMA messages by type."),
	metric("rstored_rdma_credits", gauge, nil, "Credits granted to all connections."),
	metric("rstored_rdma_credits_in_use", gauge, nil, "Calls in progress on RDMA connections."),
	metric("rstored_rdma_memory_in_use_bytes", gauge, nil, "Registered memory of calls in progress."),
	metric("rstored_rdma_memory_bytes", gauge, labels("use"),
		"Registered memory by use: messages (receives of connections) and bulk (data of calls in progress)."),
	metric("rstored_rdma_memory_limit_bytes", gauge, nil,
		"Limit of registered memory for messages and bulk data together."),
	metric("rstored_rdma_memory_waiting_connections", gauge, nil, "Connections with a call that waits for bulk memory."),
	metric("rstored_rdma_queue_pairs", gauge, labels("device", "type", "state"), "Queue pairs by type and state."),
	metric("rstored_rdma_send_queue_length", gauge, labels("device"), "Work requests in the send queues."),
	metric("rstored_rdma_device_info", gauge, labels("device", "provider", "kernel_device", "speaks"),
		"Open RDMA devices by provider: soft or verbs; for verbs the kernel's name, and what it speaks; always 1."),
	metric("rstored_rdma_completions_failed_total", counter, labels("device", "status"),
		"Work requests that a device of the kernel completed with an error, by status."),
	metric("rstored_rdma_waiting_ports", gauge, nil,
		"Addresses and devices of ports that wait for an RDMA device of the kernel."),
	metric("rstored_rdma_loop_response_seconds", gauge, labels("device", "loop"),
		"Response time of a packet loop to the latest probe."),
	metric("rstored_tcp_bytes_total", counter, nil, "Bytes over TCP, both directions."),

	metric("rstored_tls_connections", gauge, labels("xprtsec"),
		"Connections over TCP by protection: none, tls, or mtls with a verified certificate."),
	metric("rstored_tls_handshakes_total", counter, labels("result"),
		"TLS handshakes by result: tls, mtls, or the reason of the failure."),
	metric("rstored_tls_certificate_not_after_seconds", gauge, labels("file"),
		"When the certificate, or one of its chain, expires, and the last authority of clients, in seconds since 1970."),
	metric("rstored_tls_certificate_loads_total", counter, labels("result"),
		"Sets of certificate files that were taken, OK, and that could not be used, failed."),

	metric("rstored_errors_total", counter, labels("kind"),
		"What went wrong, by kind, as 'rstorectl stats' has it; statuses of NFS are in rstored_rpc_failures_total."),
	metric("rstored_events_total", counter, labels("kind"), "What was not as usual, but not wrong, by kind."),

	metric("rstored_grace_active", gauge, labels("protocol"),
		"1 while clients may reclaim what they had before a restart: nfs4 or nlm."),
	metric("rstored_grace_waiting_clients", gauge, nil, "Clients of version 4 that the grace period waits for."),
	metric("rstored_cluster_node_serves", gauge, labels("node"),
		"Servers of the cluster: 1 if the server serves, 0 if it is lost and its clients reclaim."),
	metric("rstored_cluster_grace_active", gauge, nil,
		"1 while this server grants nothing new: clients of any server may reclaim, or the cluster cannot be reached."),
	metric("rstored_cluster_state_age_seconds", gauge, nil, "Time since this server has read the state of the cluster."),
	metric("rstored_nfs4_clients", gauge, labels("state"),
		"Clients of version 4: confirmed, unconfirmed, or expired (silent for longer than the lease)."),
	metric("rstored_nfs4_sessions", gauge, nil, "Sessions."),
	metric("rstored_nfs4_session_slots_busy", gauge, nil, "Requests that sessions execute."),
	metric("rstored_nfs4_opens", gauge, nil, "Files that clients of version 4 have open, for each open-owner."),
	metric("rstored_nfs4_lock_owners", gauge, nil, "Lock-owners of version 4, for each file."),
	metric("rstored_nfs4_delegations", gauge, nil, "Files that are delegated."),
	metric("rstored_nfs4_delegations_revoked", gauge, nil,
		"Delegations that were taken away, and that their clients have not given up."),
	metric("rstored_nfs4_memory_bytes", gauge, nil, "Memory of the state of clients of version 4."),
	metric("rstored_nfs4_memory_limit_bytes", gauge, nil, "The most that may be: the setting nfs4_memory."),
	metric("rstored_mapped_bytes", gauge, nil,
		"Page cache that is mapped to be lent to RDMA. What of it is in memory counts as resident memory of the process."),
	metric("rstored_mapped_limit_bytes", gauge, nil, "The most that may be: the setting mapped_memory."),
	metric("rstored_process_own_bytes", gauge, nil,
		"Resident memory of the process without the page cache that it lends."),
	metric("rstored_nfs4_copies", gauge, nil, "Copies that go on after their replies."),
	metric("rstored_locks", gauge, labels("state"),
		"Byte-range locks of all protocols that are held, and that are waited for."),

	metric("rstored_audit_events_total", counter, labels("event"), "Events of the audit log."),
	metric("rstored_audit_dropped_total", counter, nil,
		"Events that were not written to the audit log, because there were too many."),

	metric("rstored_otlp_traces_total", counter, labels("result"),
		"Calls that were drawn for traces: sent, dropped because too many waited, or failed because the collector did "+
			"not take them."),
}
