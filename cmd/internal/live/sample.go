package live

import (
	"time"

	"github.com/rstored/rstored/cmd/internal/measure"
)

// NoServer is the state in a sample that has mounts alone.
const NoServer = "no server"

// Sample is what the daemon had counted at one time. Counters begin at zero with the process.
type Sample struct {
	Host    string    `json:"host"`
	Version string    `json:"version"`
	State   string    `json:"state"`   // running, degraded, draining or NoServer
	Started time.Time `json:"started"` // tells processes apart
	Taken   time.Time `json:"taken"`
	// UptimeNS is the time since Started in nanoseconds, by a clock that nobody sets.
	UptimeNS int64  `json:"uptime_ns"`
	Server   Server `json:"server"`
	// Silent are packet loops that do not answer. While there is one, nothing is known of devices and
	// queue pairs.
	Stalled int `json:"stalled_loops"`
	// RDMAWritten, RDMARead and TCP are bytes, as in 'rstorectl stats'; Errors is everything that
	// went wrong, Retransmits packets of all devices.
	RDMAWritten uint64 `json:"rdma_write_bytes"`
	RDMARead    uint64 `json:"rdma_read_bytes"`
	TCP         uint64 `json:"tcp_bytes"`
	Errors      uint64 `json:"errors"`
	Retransmits uint64 `json:"retransmits"`

	Operations []Point `json:"operations"`
	Exports    []Point `json:"exports"`
	Clients    []Point `json:"clients"`
	QPs        []QP    `json:"qps"`
	// Mounts are those of 'rstorectl mount' on the host of the command; the daemon knows none.
	Mounts []Mount `json:"-"`
}

// Mount is what a mount by FUSE has counted. Its counters begin at zero with its process.
type Mount struct {
	Directory string
	Source    string
	State     string
	PID       int
	Calls     uint64 // of the kernel
	Failed    uint64
	TookNS    uint64 // all calls together
	Read      uint64 // bytes that programs have read
	Written   uint64
}

// Server is what the daemon has at the moment.
type Server struct {
	RDMAConnections int `json:"rdma_connections"`
	TCPConnections  int `json:"tcp_connections"`
	// Clients are those of version 4 that are confirmed and not expired, with what they have.
	Clients      int `json:"nfs4_clients"`
	Sessions     int `json:"sessions"`
	SlotsBusy    int `json:"slots_busy"`
	Opens        int `json:"opens"`
	Delegations  int `json:"delegations"`
	LocksHeld    int `json:"locks_held"`
	LocksWaiting int `json:"locks_waiting"`
	// Grace: clients may reclaim what they had before a restart, at most until GraceUntil;
	// GraceWaiting counts clients of version 4 that may still reclaim.
	Grace        bool       `json:"grace"`
	GraceUntil   *time.Time `json:"grace_until,omitempty"`
	GraceWaiting int        `json:"grace_waiting"`
	// Memory is registered memory that calls hold, in bytes; Regions are registrations.
	Memory  uint64 `json:"memory_bytes"`
	Regions uint64 `json:"memory_regions"`
	// Credits are those of all RDMA connections, CreditsInUse calls in progress on them.
	Credits      int `json:"credits"`
	CreditsInUse int `json:"credits_in_use"`
	Workers      int `json:"workers"`
	WorkersBusy  int `json:"workers_busy"`
	Queued       int `json:"queued"` // calls that wait for a worker
	// Problems are exports and ports that are not served, in words.
	Problems []string `json:"problems"`
}

// Point is what was counted at a measuring point: an operation, an export or a client.
type Point struct {
	Name      string `json:"name"`
	Kind      string `json:"kind,omitempty"` // of exports: read, write, meta
	Transport string `json:"transport"`
	In        uint64 `json:"in_bytes"`  // arguments, bulk data included
	Out       uint64 `json:"out_bytes"` // replies, bulk data included
	Failed    uint64 `json:"failed"`    // calls whose status is not OK
	TookNS    uint64 `json:"took_ns"`   // from arrival to reply, all calls together
	// Took are calls by how long they took: the first in up to a microsecond, each further one in
	// up to twice as long. Zeros at the end are left out.
	Took []uint64 `json:"took"`
}

// QP is a queue pair.
type QP struct {
	QPN         uint32 `json:"qpn"`
	Type        string `json:"type"`
	State       string `json:"state"`
	Device      string `json:"device"`
	Remote      string `json:"remote"` // empty without a connection
	SendQueued  int    `json:"send_queued"`
	SendDepth   int    `json:"send_depth"`
	RTTUS       int64  `json:"rtt_us"` // 0 if none was measured
	In          uint64 `json:"in_bytes"`
	Out         uint64 `json:"out_bytes"`
	PacketsIn   uint64 `json:"in_packets"`
	PacketsOut  uint64 `json:"out_packets"`
	Retransmits uint64 `json:"retransmits"` // packets that were sent again
	NAKs        uint64 `json:"naks"`        // sequence errors that the peer reported
	RNRs        uint64 `json:"rnrs"`        // the peer was not ready to receive
}

// NewPoint makes a Point of what was recorded.
func NewPoint(name, kind, transport string, s *measure.Sums) Point {
	p := Point{
		Name: name, Kind: kind, Transport: transport, In: s.In, Out: s.Out, Failed: s.Failed,
		TookNS: uint64(s.Took),
	}
	n := measure.Buckets
	for n > 0 && s.N[n-1] == 0 {
		n--
	}
	p.Took = append(make([]uint64, 0, n), s.N[:n]...)
	return p
}
