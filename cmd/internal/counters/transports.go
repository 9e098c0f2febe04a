package counters

import (
	"slices"
	"strings"
	"sync"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/udp"
)

// Transports reads the counters of the transports. Those of transports that are gone
// are kept, so that no count ever goes back.
type Transports struct {
	mu   sync.Mutex
	rdma []*rpcrdma.Listener
	tcp  []*tcp.Listener
	udp  []*udp.Listener
	perf []*perf.Server
	past control.Stats // of the transports that are gone

	pastTLS tcp.Counters // likewise; of TLS alone
}

// drop takes a transport off its list, and keeps what it has counted.
func drop[T comparable](m *Transports, list *[]T, x T, keep func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(*list, x); i >= 0 {
		*list = slices.Delete(*list, i, i+1)
		keep()
	}
}

// AddRDMA has a listener of RPC-over-RDMA counted.
func (m *Transports) AddRDMA(l *rpcrdma.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rdma = append(m.rdma, l)
}

// AddTCP has a listener of TCP counted.
func (m *Transports) AddTCP(l *tcp.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tcp = append(m.tcp, l)
}

// DropRDMA removes a closed listener of RPC-over-RDMA. Its counts stay in the sums.
func (m *Transports) DropRDMA(l *rpcrdma.Listener) {
	drop(m, &m.rdma, l, func() { addRDMA(&m.past, l.Stats()) })
}

// DropTCP removes a closed listener of TCP. Its counts stay in the sums.
func (m *Transports) DropTCP(l *tcp.Listener) {
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

// AddUDP has a listener of UDP counted.
func (m *Transports) AddUDP(l *udp.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.udp = append(m.udp, l)
}

// DropUDP removes a closed listener of UDP. Its counts stay in the sums.
func (m *Transports) DropUDP(l *udp.Listener) {
	drop(m, &m.udp, l, func() { addUDP(&m.past, l.Counters()) })
}

// AddPerf has a server of measurements counted.
func (m *Transports) AddPerf(s *perf.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.perf = append(m.perf, s)
}

// DropPerf removes a closed server of measurements. Its counts stay in the sums.
func (m *Transports) DropPerf(s *perf.Server) {
	drop(m, &m.perf, s, func() { addPerf(&m.past, s.Counters()) })
}

// AddErrors adds errors that no listener counts, such as those of a device that was closed.
func (m *Transports) AddErrors(faults map[string]uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.past.Errors == nil {
		m.past.Messages, m.past.Errors = make(map[string]uint64), make(map[string]uint64)
	}
	Add(m.past.Errors, faults)
}

// Sum adds up what all transports counted.
func (m *Transports) Sum() control.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := control.Stats{
		Messages: make(map[string]uint64), Errors: make(map[string]uint64),
		RDMAWriteBytes: m.past.RDMAWriteBytes, RDMAReadBytes: m.past.RDMAReadBytes,
		LentBytes: m.past.LentBytes, InlineBytes: m.past.InlineBytes, TCPBytes: m.past.TCPBytes,
	}
	Add(s.Messages, m.past.Messages)
	Add(s.Errors, m.past.Errors)
	for _, l := range m.rdma {
		addRDMA(&s, l.Stats())
	}
	for _, l := range m.tcp {
		addTCP(&s, l.Counters())
	}
	for _, l := range m.udp {
		addUDP(&s, l.Counters())
	}
	for _, l := range m.perf {
		addPerf(&s, l.Counters())
	}
	return s
}

// Clients lists the connections of all transports.
func (m *Transports) Clients() []control.Client {
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
	Add(s.Messages, from.Messages)
	Add(s.Errors, from.Errors)
}

func addTCP(s *control.Stats, from tcp.Counters) {
	s.TCPBytes += from.BytesIn + from.BytesOut
	if s.Errors == nil {
		s.Messages, s.Errors = make(map[string]uint64), make(map[string]uint64)
	}
	Add(s.Errors, map[string]uint64{
		"tcp_refused": from.Refused, "tcp_bad_records": from.BadRecords, "tcp_write_errors": from.WriteErrors,
		"tcp_slow_client": from.SlowClients, "tcp_paused": from.Paused,
	})
	for why, n := range from.Failed() {
		Add(s.Errors, map[string]uint64{"tls_" + why: n})
	}
}

func addUDP(s *control.Stats, from udp.Counters) {
	if s.Errors == nil {
		s.Messages, s.Errors = make(map[string]uint64), make(map[string]uint64)
	}
	Add(s.Errors, map[string]uint64{
		"udp_malformed": from.Malformed, "udp_denied": from.Denied, "udp_unanswered": from.Unanswered,
		"udp_withheld": from.Withheld, "udp_write_errors": from.WriteErrors,
	})
}

// addPerf adds what went wrong with measurements.
func addPerf(s *control.Stats, from *perf.Counters) {
	if s.Errors == nil {
		s.Messages, s.Errors = make(map[string]uint64), make(map[string]uint64)
	}
	for _, k := range perf.Kinds {
		Add(s.Errors, map[string]uint64{"perf_" + string(k): from.Of(k)})
	}
}

// Add adds counts to a map, leaving zeros out.
func Add(to, from map[string]uint64) {
	for k, n := range from {
		if n != 0 {
			to[k] += n
		}
	}
}

// TLS sums up what the transports counted.
func (m *Transports) TLS() (sum control.TLSCounts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum.Failed = make(map[string]uint64)
	addTLS(&sum, &m.pastTLS)
	for _, l := range m.tcp {
		n := l.Counters()
		addTLS(&sum, &n)
	}
	return sum
}

func addTLS(sum *control.TLSCounts, n *tcp.Counters) {
	sum.Probes += n.TLSProbes
	sum.Handshakes += n.TLSHandshakes
	sum.Mutual += n.TLSMutual
	Add(sum.Failed, n.Failed())
}
