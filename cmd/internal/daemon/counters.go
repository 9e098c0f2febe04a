package daemon

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// counters reads the counters of the transports. Those of transports that are gone
// are kept, so that no count ever goes back.
type counters struct {
	mu   sync.Mutex
	rdma []*rpcrdma.Listener
	tcp  []*tcp.Listener
	perf []*perf.Server
	past control.Stats // of the transports that are gone

	pastTLS tcp.Counters // likewise; of TLS alone
}

// drop takes a transport off its list, and keeps what it has counted.
func drop[T comparable](m *counters, list *[]T, x T, keep func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(*list, x); i >= 0 {
		*list = slices.Delete(*list, i, i+1)
		keep()
	}
}

func (m *counters) addRDMA(l *rpcrdma.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rdma = append(m.rdma, l)
}

func (m *counters) addTCP(l *tcp.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tcp = append(m.tcp, l)
}

func (m *counters) dropRDMA(l *rpcrdma.Listener) {
	drop(m, &m.rdma, l, func() { addRDMA(&m.past, l.Stats()) })
}

func (m *counters) dropTCP(l *tcp.Listener) {
	drop(m, &m.tcp, l, func() {
		n, p := l.Counters(), &m.pastTLS
		addTCP(&m.past, n)
		p.TLSProbes, p.TLSHandshakes, p.TLSMutual = p.TLSProbes+n.TLSProbes, p.TLSHandshakes+n.TLSHandshakes,
			p.TLSMutual+n.TLSMutual
		for i := range n.TLSFailures {
			p.TLSFailures[i] += n.TLSFailures[i]
		}
	})
}

func (m *counters) addPerf(s *perf.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.perf = append(m.perf, s)
}

func (m *counters) dropPerf(s *perf.Server) {
	drop(m, &m.perf, s, func() { addPerf(&m.past, s.Counters()) })
}

func (m *counters) dropDevice(faults map[string]uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.past.Errors == nil {
		m.past.Messages, m.past.Errors = make(map[string]uint64), make(map[string]uint64)
	}
	addCounts(m.past.Errors, faults)
}

// deviceFaults are the counters of a device that tell of a peer, or of the network,
// doing what it should not. A NAK that was sent ended the connection, as did one that
// was received, but for those of sequence errors, which are how loss is repaired.
func deviceFaults(st *roce.Stats) map[string]uint64 {
	return map[string]uint64{
		"rdma_nak_invalid_request_sent":      st.RC.TxNAKInvalid,
		"rdma_nak_remote_access_sent":        st.RC.TxNAKAccess,
		"rdma_nak_remote_operation_sent":     st.RC.TxNAKOperation,
		"rdma_nak_invalid_request_received":  st.RC.RxNAKInvalid,
		"rdma_nak_remote_access_received":    st.RC.RxNAKAccess,
		"rdma_nak_remote_operation_received": st.RC.RxNAKOperation,
		"rdma_bad_response":                  st.RC.RxBadResponse,
		"rdma_retries_exceeded":              st.RC.RetryExceeded,
		"rdma_rnr_retries_exceeded":          st.RC.RNRRetryExceeded,
		"rdma_packet_of_other_peer":          st.RC.DropPeer,
		"rdma_packet_of_unknown_qp":          st.DropUnknownQPN,
		"rdma_packet_of_other_partition":     st.RC.DropPKey + st.UD.DropPKey + st.DropPKey,
		"rdma_packet_with_bad_icrc":          st.ICRCErrors,
		"rdma_packet_malformed": st.DropMalformed + st.DropVersion + st.DropOpcode +
			st.RC.DropOpcode + st.UD.DropOpcode,
		"rdma_packet_of_bad_gsi":         st.DropGSI + st.DropQKey,
		"cm_refused_after_access_errors": st.RefusedSuspects,
		"cm_malformed":                   st.CM.DropMalformed,
		"cm_full":                        st.CM.DropFull,
	}
}

// transports sums up what all transports counted.
func (m *counters) sum() control.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := control.Stats{
		Messages: make(map[string]uint64), Errors: make(map[string]uint64),
		RDMAWriteBytes: m.past.RDMAWriteBytes, RDMAReadBytes: m.past.RDMAReadBytes,
		LentBytes: m.past.LentBytes, InlineBytes: m.past.InlineBytes, TCPBytes: m.past.TCPBytes,
	}
	addCounts(s.Messages, m.past.Messages)
	addCounts(s.Errors, m.past.Errors)
	for _, l := range m.rdma {
		addRDMA(&s, l.Stats())
	}
	for _, l := range m.tcp {
		addTCP(&s, l.Counters())
	}
	for _, l := range m.perf {
		addPerf(&s, l.Counters())
	}
	return s
}

// clients lists the connections of all transports.
func (m *counters) clients() []control.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []control.Client{}
	for _, l := range m.rdma {
		for _, c := range l.Conns() {
			out = append(out, control.Client{
				Address: c.Remote.String(), Local: c.Local.String(), Transport: control.TransportRDMA, Since: c.Since,
				Calls: c.Calls,
				RDMA: &control.ClientRDMA{
					Credits: c.Credits, InUse: c.InUse, Memory: c.Memory, ReadDepth: c.ReadDepth, InlineIn: c.InlineIn,
					InlineOut:      c.InlineOut,
					RDMAWriteBytes: c.RDMAWriteBytes, RDMAReadBytes: c.RDMAReadBytes, RemoteInvalidation: c.RemoteInvalidation,
				},
			})
		}
	}
	for _, l := range m.tcp {
		for _, c := range l.Conns() {
			out = append(out, control.Client{
				Address: c.Remote.String(), Local: c.Local.String(),
				Transport: control.TransportTCP, Since: c.Since, Calls: c.Calls, XprtSec: c.Security.String(), Name: c.Name,
			})
		}
	}
	slices.SortFunc(out, func(a, b control.Client) int { return strings.Compare(a.Address, b.Address) })
	return out
}

func addRDMA(s *control.Stats, from rpcrdma.Stats) {
	s.RDMAWriteBytes += from.RDMAWriteBytes
	s.RDMAReadBytes += from.RDMAReadBytes
	s.LentBytes += from.LentBytes
	s.InlineBytes += from.InlineBytes
	if s.Messages == nil {
		s.Messages, s.Errors = make(map[string]uint64), make(map[string]uint64)
	}
	addCounts(s.Messages, from.Messages)
	addCounts(s.Errors, from.Errors)
}

func addTCP(s *control.Stats, from tcp.Counters) {
	s.TCPBytes += from.BytesIn + from.BytesOut
	if s.Errors == nil {
		s.Messages, s.Errors = make(map[string]uint64), make(map[string]uint64)
	}
	addCounts(s.Errors, map[string]uint64{
		"tcp_refused": from.Refused, "tcp_bad_records": from.BadRecords, "tcp_write_errors": from.WriteErrors,
		"tcp_slow_client": from.SlowClients, "tcp_paused": from.Paused,
	})
	for why, n := range from.Failed() {
		addCounts(s.Errors, map[string]uint64{"tls_" + why: n})
	}
}

// addPerf adds what went wrong with measurements.
func addPerf(s *control.Stats, from *perf.Counters) {
	if s.Errors == nil {
		s.Messages, s.Errors = make(map[string]uint64), make(map[string]uint64)
	}
	for _, k := range perf.Kinds {
		addCounts(s.Errors, map[string]uint64{"perf_" + string(k): from.Of(k)})
	}
}

// addCounts adds counts to a map, leaving zeros out.
func addCounts(to, from map[string]uint64) {
	for k, n := range from {
		if n != 0 {
			to[k] += n
		}
	}
}

// Clients implements control.Backend.
func (d *Daemon) Clients() []control.Client { return d.counters.clients() }

// Stats implements control.Backend.
func (d *Daemon) Stats() control.Stats { return d.stats(true) }

// stats are the counters, with or without those of the packet loops, which have to answer for
// them.
func (d *Daemon) stats(loops bool) control.Stats {
	s := d.counters.sum()
	s.UptimeSeconds = int64(time.Since(d.started) / time.Second)
	s.Memory, s.NFS4Memory = d.memoryNow(), d.nfs4Memory()
	limiter := d.connLimiter.Stats()
	s.Addresses, s.Refused = limiter.Clients, make(map[string]uint64)
	addCounts(s.Refused, limiter.Refused)
	addCounts(s.Errors, map[string]uint64{"log_lines_suppressed": d.log.Suppressed()})
	s.Procs = make(map[string]control.Proc)
	for _, srv := range []*rpc.Server{d.rpc, d.portmap} {
		st := srv.Stats()
		for _, p := range st.Procs {
			s.Procs[p.Program+"."+p.Procedure] = control.Proc{
				Calls: p.Calls, Errors: p.Errors, Retransmits: p.Retransmits, Nanoseconds: p.Nanoseconds,
				BytesIn: p.BytesIn, BytesOut: p.BytesOut,
			}
		}
		addCounts(s.Errors, st.Errors)
	}
	addCounts(s.Errors, d.faults.Snapshot())
	addCounts(s.Errors, d.nfs4.Faults())
	addCounts(s.Errors, d.hostLockCounts())
	addCounts(s.Errors, map[string]uint64{countControlRefused: d.controlRefused.Load()})
	for name, n := range d.nfs4.Ops() {
		s.Procs["nfs4."+name] = control.Proc{Calls: n}
	}
	delete(s.Errors, "nfs_status_OK")
	if loops {
		s.Devices = d.deviceCounters(s.Errors)
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

// events are counted among the errors of their rooms, but are only waits, or packets
// that were under way when their connection ended.
var events = []string{
	"rdma_packet_of_unknown_qp",
	"nfs_reads_moved", "nfs_no_memory", "rpcrdma_waited_for_memory", "rpcrdma_waited_for_send_queue",
	"rpcrdma_waited_for_limit", "rpcrdma_credits_lowered_by_limit", "rpcrdma_credits_lowered_by_memory", "tcp_paused",
	nfs4.CountReplays, nfs4.CountJoined, nfs4.CountMoved,
	nfs4.CountCallbacks, nfs4.CountDelegations, nfs4.CountRecalls, nfs4.CountRecallWaits,
	nfs4.CountAsked, nfs4.CountUnpinned, nfs4.CountUnleased, nfs4.CountHostOpens, nfs4.CountRecallAny,
	nfs4.CountOffloads, nfs4.CountCancelled,
	countHostConflicts,
}
