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

func (o Op) String() string {
	switch o {
	case Write:
		return "write"
	case Read:
		return "read"
	case Send:
		return "send"
	case FetchAdd:
		return "fetch and add"
	case CompareSwap:
		return "compare and swap"
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

func (o Op) known() bool { return o >= Write && o <= CompareSwap }

// Atomic reports whether the messages of the operation have AtomicSize bytes.
func (o Op) Atomic() bool { return o == FetchAdd || o == CompareSwap }

// AtomicSize is the size of an atomic operation in bytes.
const AtomicSize = 8

// plan is what a test asks of the two ends of a connection.
type plan struct {
	op            Op
	latency       bool
	bidirectional bool
	size          int // bytes of the largest message
	depth         int // messages under way at once, on each queue pair
	qps           int
}

// underWay is the number of bytes that an end posts ahead on all queue pairs of a run.
// More would not be faster, but a test for a duration would end late, and msgAlive, which
// queues behind them, come late, where the network is slow.
const underWay = 64 << 20

// window is how many messages of n bytes are under way at once.
func (p *plan) window(n int) int { return max(1, min(p.depth, underWay/(n*p.qps))) }

// pingPong: the server answers each message by one of its own.
func (p *plan) pingPong() bool { return p.latency && (p.op == Write || p.op == Send) }

// posts reports whether an end posts messages of the test.
func (p *plan) posts(server bool) bool { return !server || p.bidirectional || p.pingPong() }

// target reports whether an end's memory is where messages go to or come from.
func (p *plan) target(server bool) bool { return server || p.bidirectional || p.pingPong() }

// access is what the peer of an end may do to its memory.
func (p *plan) access() rdma.Access {
	switch {
	case p.op == Write:
		return rdma.LocalWrite | rdma.RemoteWrite
	case p.op == Read:
		return rdma.LocalWrite | rdma.RemoteRead
	case p.op.Atomic():
		return rdma.LocalWrite | rdma.RemoteAtomic
	}
	return rdma.LocalWrite
}

// request is the operation of a message's work request. The server of a test of latency
// has to notice that it was written to, and memory does not call back: so WRITE has an
// immediate there, as with --write_with_imm of ib_write_lat.
func (p *plan) request() rdma.SendOp {
	switch p.op {
	case Write:
		if p.latency {
			return rdma.OpWriteImm
		}
		return rdma.OpWrite
	case Read:
		return rdma.OpRead
	case FetchAdd:
		return rdma.OpFetchAdd
	case CompareSwap:
		return rdma.OpCompareSwap
	default:
		return rdma.OpSend
	}
}

// Sizes of queues.
const (
	// controlDepth is the room of each queue for the messages of this package, which
	// are two for a size and one every few seconds.
	controlDepth = 8
	// receiveDepth is how many receives an end has that messages of the test consume,
	// as with perftest. More than the peer has under way, so that it never finds the
	// receiver not ready.
	receiveDepth = 512
	// pingDepth is the send queue in tests of latency: more than the one message that
	// is under way, because its completion may come after the answer to it.
	pingDepth = 64
	// pingSignal is how many of these messages have one completion, at the last of them: the answer tells as much, and
	// a completion of its own would wake the loop once more for each.
	pingSignal = pingDepth / 4
)

// queues are the depths of an end's queues.
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
