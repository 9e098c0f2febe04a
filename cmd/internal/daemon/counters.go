package daemon

import (
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/service"
	"github.com/rstored/rstored/nfs/nfs4"
)

// Clients implements control.Backend.
func (d *Daemon) Clients() []control.Client { return d.counters.Clients() }

// Stats implements control.Backend.
func (d *Daemon) Stats() control.Stats { return d.stats(true) }

// stats returns the counters. Those of the packet loops are optional, because every loop has to
// answer for them.
func (d *Daemon) stats(loops bool) control.Stats {
	s := d.counters.Sum()
	s.UptimeSeconds = int64(time.Since(d.started) / time.Second)
	s.Memory = d.ports.Memory()
	limiter := d.ports.Limiter.Stats()
	s.Addresses, s.Refused = limiter.Clients, make(map[string]uint64)
	counters.Add(s.Refused, limiter.Refused)
	counters.Add(s.Errors, map[string]uint64{"log_lines_suppressed": d.log.Suppressed()})
	d.AddStats(&s, d.ports.Portmap)
	if loops {
		s.Devices = d.devices.Stats(s.Errors)
	}
	s.Events = make(map[string]uint64)
	for _, k := range events {
		if n, ok := s.Errors[k]; ok {
			s.Events[k] = n
			delete(s.Errors, k)
		}
	}
	return s
}

// events are counters that their components have among the errors. They count waits, or packets
// that were under way when their connection ended.
var events = []string{
	"rdma_packet_of_unknown_qp",
	"nfs_reads_moved", "nfs_no_memory", "rpcrdma_waited_for_memory", "rpcrdma_waited_for_send_queue",
	"rpcrdma_waited_for_limit", "rpcrdma_credits_lowered_by_limit", "rpcrdma_credits_lowered_by_memory", "tcp_paused",
	nfs4.CountReplays, nfs4.CountRetriesWaited, nfs4.CountToWorkers,
	nfs4.CountCallbacks, nfs4.CountDelegations, nfs4.CountRecalls, nfs4.CountRecallWaits,
	nfs4.CountGetattrs, nfs4.CountUnpinned, nfs4.CountUnleased, nfs4.CountHostOpens, nfs4.CountRecallAny,
	nfs4.CountNotified, nfs4.CountDirNotified, nfs4.CountOffloads, nfs4.CountCancelled,
	nfs4.CountCopyNotified, nfs4.CountPulled,
	service.CountHostConflicts,
}
