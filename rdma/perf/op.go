package perf

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// Op is the operation that is measured. The numbers are those of the wire.
type Op uint8

// The operations.
const (
	Write       Op = 1
	Read        Op = 2
	Send        Op = 3
	FetchAdd    Op = 4
	CompareSwap Op = 5
)

// ops has the properties of the operations: what a message needs at the peer, and its work request.
var ops = [...]struct {
	name   string
	access rdma.Access
	wr     rdma.SendOp
}{
	Write:       {"write", rdma.RemoteWrite, rdma.OpWrite},
	Read:        {"read", rdma.RemoteRead, rdma.OpRead},
	Send:        {"send", 0, rdma.OpSend},
	FetchAdd:    {"fetch and add", rdma.RemoteAtomic, rdma.OpFetchAdd},
	CompareSwap: {"compare and swap", rdma.RemoteAtomic, rdma.OpCompareSwap},
}

func (o Op) String() string {
	if o.known() {
		return ops[o].name
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

func (o Op) known() bool { return o >= Write && o <= CompareSwap }

// Atomic reports whether the messages of the operation have AtomicSize bytes.
func (o Op) Atomic() bool { return o == FetchAdd || o == CompareSwap }

// AtomicSize is the size of an atomic operation in bytes.
const AtomicSize = 8

// plan describes a test for the two ends of a connection.
type plan struct {
	op            Op
	latency       bool
	bidirectional bool
	size          int // bytes of the largest message
	depth         int // messages in flight on each queue pair
	qps           int
}

// inFlightMax bounds the bytes in flight on all queue pairs of a run. More would not be faster. On
// a slow network a test for a duration would end late, and msgAlive, which waits behind the bytes,
// would be late.
const inFlightMax = 64 << 20

// window is the number of messages of n bytes in flight on a queue pair.
func (p *plan) window(n int) int { return max(1, min(p.depth, inFlightMax/(n*p.qps))) }

// pingPong reports whether the server answers each message by a message.
func (p *plan) pingPong() bool { return p.latency && (p.op == Write || p.op == Send) }

// posts reports whether an end posts messages of the test.
func (p *plan) posts(server bool) bool { return !server || p.bidirectional || p.pingPong() }

// target reports whether messages of the peer use memory of an end.
func (p *plan) target(server bool) bool { return server || p.bidirectional || p.pingPong() }

// access is the access of the target.
func (p *plan) access() rdma.Access { return rdma.LocalWrite | ops[p.op].access }

// request is the operation of a message's work request. In a test of latency the server must notice
// an RDMA WRITE, so it has an immediate, as with --write_with_imm of ib_write_lat.
func (p *plan) request() rdma.SendOp {
	if p.op == Write && p.latency {
		return rdma.OpWriteImm
	}
	return ops[p.op].wr
}

// Sizes of queues.
const (
	// controlDepth is the part of each queue for the messages of this package: two for each size,
	// and one every few seconds.
	controlDepth = 8
	// receiveDepth is the number of receives for messages of the test, as in perftest. It is more
	// than the peer has in flight, so that it gets no RNR NAK.
	receiveDepth = 512
	// pingDepth is the part of the send queue in tests of latency. It is more than the one message
	// in flight, because the answer to a message can arrive before its completion.
	pingDepth = 64
	// pingSignal is the number of these messages that have one completion together. The answer
	// shows as much as a completion, and each completion would wake the loop once more.
	pingSignal = pingDepth / 4
)

// queues returns the depths of the queues of an end.
func (p *plan) queues(server bool) (sends, recvs int) {
	sends, recvs = controlDepth, controlDepth
	if p.posts(server) {
		sends += p.depth
		if p.latency {
			sends += pingDepth
		}
	}
	if p.pingPong() || p.op == Send && p.target(server) {
		recvs += max(receiveDepth, p.depth)
	}
	return sends, recvs
}
