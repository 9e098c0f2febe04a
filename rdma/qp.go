package rdma

import (
	"fmt"
	"net/netip"
)

// QPState is a state of a queue pair (IBTA 10.3.1).
type QPState uint8

// The states of a queue pair.
const (
	StateReset QPState = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateSQE
	StateErr
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("QPState(%d)", uint8(s))
}

// QPCaps bound a queue pair.
type QPCaps struct {
	MaxSendWR  int
	MaxRecvWR  int
	MaxSendSGE int
	MaxRecvSGE int
	MaxInline  int // bytes of a request with the flag Inline
}

// Check refuses queues, gather lists and inline data that exceed the limits of a device. Inline is
// always known.
func (l *Limits) Check(c *QPCaps) error {
	switch {
	case min(c.MaxSendWR, c.MaxRecvWR) < 0 || l.WRs > 0 && max(c.MaxSendWR, c.MaxRecvWR) > l.WRs:
		return fmt.Errorf("%w: queues of %d and %d requests; the most is %d", ErrInvalidWR, c.MaxSendWR, c.MaxRecvWR, l.WRs)
	case l.SGEs > 0 && max(c.MaxSendSGE, c.MaxRecvSGE) > l.SGEs:
		return fmt.Errorf("%w: requests of %d and %d elements; the most is %d", ErrInvalidWR, c.MaxSendSGE, c.MaxRecvSGE,
			l.SGEs)
	case c.MaxInline < 0 || c.MaxInline > l.Inline:
		return fmt.Errorf("%w: %d bytes inline; the most is %d", ErrInvalidWR, c.MaxInline, l.Inline)
	}
	return nil
}

// QPAttr carries the attributes of QP.Modify; which are read depends on the
// transition (IBTA 11.2.4.2 table). CM drives these for connected QPs.
type QPAttr struct {
	State         QPState
	Access        Access // remote operations allowed on the QP
	PKey          uint16
	QKey          uint32 // UD: what datagrams to the queue pair must carry
	LocalAddr     netip.Addr
	RemoteAddr    netip.Addr
	TrafficClass  uint8
	PathMTU       MTU
	DestQPN       uint32
	RQPSN         uint32 // first PSN expected from the peer
	SQPSN         uint32 // first PSN of our requests
	MaxRdAtomic   uint8  // READs and atomics we may have outstanding
	MaxDestRd     uint8  // READs and atomics the peer may have outstanding
	MinRNRTimer   uint8  // 5-bit code sent in our RNR NAKs
	AckTimeout    uint8  // 5-bit code: 4.096 us * 2^n, 0 = never
	RetryCount    uint8  // 0..7
	RNRRetryCount uint8  // 0..7, 7 = without end
}

// CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(dst) completions into dst, oldest first.
	Poll(dst []WC) int
	// Arm requests one event for the next completion that is added (IBTA 11.4.2.2). With solicited
	// set, only completions with an error and receives of messages with the solicited-event bit
	// count. Only a CQ with CQOptions.Armed needs it. After Arm the user polls once more, or a
	// completion from before it may be missed.
	Arm(solicited bool)
	// Resize changes the capacity of the queue. The error is ErrInvalidWR if more completions are
	// in it, or if the device's limit is less.
	Resize(depth int) error
	// Close closes the queue: OnEvent is not called any more. The device frees the queue when the
	// last queue pair that uses it is destroyed.
	Close()
}

// CQOptions say how a CQ behaves.
type CQOptions struct {
	// Depth is the number of completions the queue holds.
	Depth int
	// OnEvent is called on the loop, once per turn of the loop in which
	// completions were added. Poll until it returns 0.
	OnEvent func()
	// Armed makes the queue call OnEvent once for each Arm, and not otherwise.
	Armed bool
}

// SRQ is a shared receive queue. Its queue pairs take a receive from it when the first packet of a
// message arrives. The completions are on the queue pairs' own RecvCQ. On the loop only.
type SRQ interface {
	// PostRecv queues receives in order: all or none.
	PostRecv(wrs []RecvWR) error
	// Arm requests one call of SRQConfig.OnLimit when fewer than limit receives are left.
	Arm(limit int)
	// Len is the number of receives that no message has taken yet.
	Len() int
	// Close closes the queue. Its receives never complete. The error is ErrInvalidWR while queue
	// pairs use it.
	Close() error
}

// SRQConfig describes a shared receive queue to create.
type SRQConfig struct {
	PD      PD
	MaxWR   int
	MaxSGE  int
	OnLimit func() // called on the loop, see SRQ.Arm
}

// QPEvent is an asynchronous event of a queue pair (IBTA 11.6.3).
type QPEvent uint8

// Events of a queue pair.
const (
	// SQDrained: in SQD, all started requests have completed.
	SQDrained QPEvent = iota + 1
	// LastWQEReached: in ERR, no more receives of the SRQ will complete on the queue pair.
	LastWQEReached
)

// QPType is the transport service of a queue pair.
type QPType uint8

// The types of queue pairs.
const (
	// RC is a reliable connection.
	RC QPType = iota
	// UD is unreliable datagrams: a SEND, perhaps with immediate, of one packet of at most the
	// device's path MTU, to the destination SendWR.AH. A longer SEND completes and is not sent
	// (IBTA C10-93.1.1). A datagram is dropped silently if it has another Q_Key, if there is no
	// receive for it, or if it is longer than the receive less GRHLen. (On kernel devices such a
	// datagram fails the receive, and with it the queue pair.)
	UD
)

func (t QPType) String() string {
	switch t {
	case RC:
		return "RC"
	case UD:
		return "UD"
	}
	return fmt.Sprintf("QPType(%d)", uint8(t))
}

// QP is a queue pair.
type QP interface {
	Num() uint32
	State() QPState
	// Modify makes a transition; ErrBadTransition when it is not legal.
	Modify(a QPAttr) error
	// PostSend queues the requests in order as one list: all or none.
	// ErrQueueFull when they do not fit MaxSendWR.
	PostSend(wrs []SendWR) error
	// PostRecv queues receives in order: all or none.
	PostRecv(wrs []RecvWR) error
	// Destroy releases the QP without completions.
	Destroy()
}

// QPConfig describes a queue pair to create.
type QPConfig struct {
	Type   QPType // connections have RC
	PD     PD
	SendCQ CQ
	RecvCQ CQ
	Caps   QPCaps
	SRQ    SRQ // where receives are taken from; nil for a queue of the QP's own
	// OnEvent, if set, is called on the loop.
	OnEvent func(QPEvent)
}
