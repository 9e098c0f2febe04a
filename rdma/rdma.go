package rdma

import (
	"errors"
	"net/netip"
)

// Time is a reading of a monotonic clock in nanoseconds. Its origin is arbitrary; only differences
// are meaningful. As a deadline, zero means "none".
type Time int64

// Earlier is the earlier of two deadlines.
func Earlier(a, b Time) Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Microsecond, Millisecond and Second are durations in the unit of Time.
const (
	Microsecond Time = 1000
	Millisecond      = 1000 * Microsecond
	Second           = 1000 * Millisecond
)

// MTU is a path MTU in bytes: 256, 512, 1024, 2048 or 4096 (IBTA 9.2, the
// payload of one packet).
type MTU uint32

// Code is the wire code of the MTU, 1 to 5, or 0 if it is none of the five.
func (m MTU) Code() uint8 {
	for c := uint8(1); c <= 5; c++ {
		if MTU(128)<<c == m {
			return c
		}
	}
	return 0
}

// MTUFromCode is the MTU of a wire code, or 0 for an unknown code.
func MTUFromCode(c uint8) MTU {
	if c < 1 || c > 5 {
		return 0
	}
	return MTU(128) << c
}

// Limits describe the resources and features of a device. Numbers that are 0 are unknown.
type Limits struct {
	QPs, CQs, SRQs, MRs, PDs, MWs int // objects at once
	WRs                           int // of a queue
	SGEs                          int // of a request
	CQEs                          int // of a completion queue
	Inline                        int // bytes
	RdAtomic                      int // READs and atomics of a queue pair in flight, in either direction
	RegionBytes                   uint64

	Atomics     bool // OpCompareSwap, OpFetchAdd
	Datagrams   bool // queue pairs of type UD
	Windows     bool // PD.AllocMW, OpBindMW
	FastRegions bool // PD.AllocMR, OpReg
	PeerInval   bool // the peer's SEND with invalidate may name a region of PD.Register

	// IWARP says that the transport is iWARP (RFC 5040), not one of IBTA:
	//   - there is no immediate data;
	//   - a WRITE or SEND completes when it is sent, and a later failure ends the connection;
	//   - a SEND that finds no receive may end the connection;
	//   - only the connection manager connects queue pairs;
	//   - CQ.Arm for solicited completions makes an event for any.
	IWARP bool
}

// Limited is a Device that implements less than all of this contract, or has bounds of its own.
// What it does not implement fails with ErrUnsupported.
type Limited interface {
	Limits() Limits
}

// LimitsOf returns the limits of a device. A device that is not Limited implements everything.
func LimitsOf(d Device) Limits {
	if l, ok := d.(Limited); ok {
		return l.Limits()
	}
	return Limits{Atomics: true, Datagrams: true, Windows: true, FastRegions: true, PeerInval: true}
}

// Loop is the single thread of execution that owns a set of QPs.
type Loop interface {
	// Submit runs fn on the loop, after the functions submitted before it. It never blocks and
	// may be called from any goroutine, including the loop's own. It reports false if the loop
	// has ended; fn then never runs.
	Submit(fn func()) bool
	// Now is the time of the loop's current turn.
	Now() Time
	// After runs fn on the loop once d nanoseconds have passed. It is called on the loop.
	// Calling the returned function cancels it.
	After(d Time, fn func()) (cancel func())
}

// Yielder is a Loop that can yield the processor to other goroutines.
type Yielder interface {
	// Yield makes the loop yield to runnable goroutines at the end of its turn, before it sleeps.
	// What they submit then is one batch and need not wake the loop. It is called on the loop,
	// after waking goroutines that wait for a result.
	Yield()
}

// DSCPMax is the largest DSCP: it has six bits.
const DSCPMax = 63

// Device is an open RDMA device (or software port) of a provider.
type Device interface {
	// Loops lists the device's loops; objects are created on one of them.
	Loops() []Loop
	AllocPD() (PD, error)
	// CreateCQ makes a CQ that belongs to the loop.
	CreateCQ(l Loop, o CQOptions) (CQ, error)
	// CreateSRQ makes a shared receive queue for queue pairs of the loop. On the loop only.
	CreateSRQ(l Loop, c SRQConfig) (SRQ, error)
	// CreateQP makes an unconnected QP in RESET, for users who exchange
	// addresses themselves. On the loop only.
	CreateQP(l Loop, c QPConfig) (QP, error)
	// Dial starts a connection on the loop. The outcome arrives at p.On.
	// On the loop only.
	Dial(l Loop, p DialParams) (Conn, error)
	// Listen calls accept, on the owning loop, for each REQ for the port.
	Listen(port uint16, accept func(ConnRequest)) (Listener, error)
	// ListenUD calls accept, on one of the loops, for each SIDR_REQ for the port. Its ports are
	// separate from those of Listen.
	ListenUD(port uint16, accept func(UDRequest)) (Listener, error)
	// ResolveUD asks another host for the queue pair that serves datagrams on a port. The SIDR_REQ
	// is retransmitted until it is answered or times out. cancel abandons it; On is not called
	// after that. ResolveUD and cancel are called on the loop.
	ResolveUD(l Loop, p ResolveParams) (cancel func(), err error)
	// Addr is the address the device sends from.
	Addr() netip.Addr
	Close() error
}

// Errors of the verbs contract.
var (
	ErrBadTransition = errors.New("rdma: illegal queue pair state transition")
	ErrQueueFull     = errors.New("rdma: work queue full")
	ErrInvalidWR     = errors.New("rdma: invalid work request")
	ErrClosed        = errors.New("rdma: closed")
	ErrNoResources   = errors.New("rdma: out of resources")
	ErrUnsupported   = errors.New("rdma: not offered by the device")
	ErrRemoved       = errors.New("rdma: the device was removed")
	ErrAddrChanged   = errors.New("rdma: the network interface has another link address (failover of a bond)")
)
