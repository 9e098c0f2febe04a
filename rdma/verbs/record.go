package verbs

import (
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// Record is the failure record of a connection that ended badly, or of a REQ that we refused. The
// packets are the device's own, so it has work requests and events.
type Record struct {
	Outcome   rdma.Outcome
	Device    string // the kernel's name
	Transport Transport
	Software  bool // the device belongs to no bus, and its packets pass the host's firewall
	Local     netip.AddrPort
	Remote    netip.AddrPort
	Active    bool      // we asked for the connection
	Reason    uint16    // of the REJ (IBTA 12.6.7.2), 0 if there was none
	Err       error     // why, in words
	REQ       *REQ      // what the peer asked for, nil if we asked
	Note      rdma.Note // of the connection's user

	// Event is the last event of the connection manager about the connection, such as
	// RDMA_CM_EVENT_DISCONNECTED, with its status; empty if there was none.
	Event       string
	EventStatus int
	// Async is the last asynchronous event during the connection, such as IBV_EVENT_PORT_ERR, of
	// the queue pair, the device or its port. AsyncAt is its time. Async is empty if there was
	// none.
	Async   string
	AsyncAt rdma.Time

	PathMTUMax rdma.MTU // that the device's port carries

	// The rest is zero if there was no queue pair.
	Established   bool
	Age           rdma.Time
	LocalQPN      uint32
	RemoteQPN     uint32 // 0 if unknown
	PathMTU       rdma.MTU
	ReadsServed   uint8 // RDMA READs of the peer at once
	ReadsStarted  uint8 // ours
	AckTimeout    uint8 // code; 0 if unknown
	RetryCount    uint8
	RNRRetryCount uint8
	Summary       Summary
	// Recent are the last requests, oldest first, and Ended the time of the end on their clock.
	Recent []Request
	Ended  rdma.Time
}

// REQ are the fields of a REQ that librdmacm reports.
type REQ struct {
	QPN                uint32
	PathMTU            rdma.MTU
	ResponderResources uint8
	InitiatorDepth     uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	Private            []byte
}

// Summary has the counters of a queue pair for the failure record.
type Summary struct {
	Posted        uint64 // requests of the send queue
	PostedBytes   uint64
	Received      uint64 // messages
	ReceivedBytes uint64
	Flushed       uint64 // requests and receives that were flushed
	Outstanding   int    // requests neither completed nor flushed, according to the completions
	Oldest        rdma.Time
	Receives      int // posted, and not used by a message
	// Failed is the first request that failed by itself, and was not flushed; Status is Success if
	// none did.
	Failed Request
}

// Did is what happened to a request.
type Did uint8

// What happens to requests.
const (
	Posted   Did = iota // to the send queue
	Received            // a message, into a receive
	Failed              // completed with an error, flushed ones apart
)

// Request is a run of equal requests of a queue pair, one after the other.
type Request struct {
	At     rdma.Time // of the first
	Bytes  uint64
	Count  uint32
	Vendor uint32 // what the driver says of an error, in a code of its own
	Did    Did
	Op     rdma.WCOp
	Status rdma.Status
}

// recentMax bounds the runs of requests that a queue pair remembers.
const recentMax = 24

// recent are the last requests of a queue pair.
type recent struct {
	runs [recentMax]Request
	next uint32
}

// add adds a request to the last run, if it is like that, or begins a run.
func (r *recent) add(q Request) {
	if r.next > 0 {
		if k := &r.runs[(r.next-1)%recentMax]; k.Did == q.Did && k.Op == q.Op && k.Status == q.Status &&
			k.Vendor == q.Vendor {
			k.Count++
			k.Bytes += q.Bytes
			return
		}
	}
	q.Count = 1
	r.runs[r.next%recentMax] = q
	r.next++
}

// list returns the runs, oldest first.
func (r *recent) list() []Request {
	n := min(r.next, recentMax)
	out := make([]Request, 0, n)
	for i := r.next - n; i != r.next; i++ {
		out = append(out, r.runs[i%recentMax])
	}
	return out
}
