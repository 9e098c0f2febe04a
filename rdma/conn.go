package rdma

import (
	"net/netip"
)

// ConnParams are what one side proposes or accepts for a connection (the REQ
// and REP fields of IB CM that a consumer chooses).
type ConnParams struct {
	PrivateData        []byte // at most 56 bytes in a REQ, 196 in a REP
	ResponderResources uint8  // READs we serve at once
	InitiatorDepth     uint8  // READs we start at once
	RetryCount         uint8
	RNRRetryCount      uint8
}

// ConnEventKind is the kind of a connection event, after RDMA-CM.
type ConnEventKind uint8

// Connection events.
const (
	EventEstablished  ConnEventKind = iota + 1
	EventRejected                   // active side: the peer answered REJ
	EventUnreachable                // no answer to REQ or REP
	EventDisconnected               // DREQ, local disconnect done, or QP failure
)

// ConnEvent is what a Conn reports.
type ConnEvent struct {
	Kind        ConnEventKind
	PrivateData []byte // of the REP or REJ; valid during the callback
	Reason      uint16 // REJ reason
	Err         error  // why, in words, for EventRejected/Unreachable/Disconnected
	// Negotiated values, at EventEstablished.
	ResponderResources uint8
	InitiatorDepth     uint8
	PathMTU            MTU
}

// Conn is one RDMA-CM connection and its QP. Methods on the loop only.
type Conn interface {
	Loop() Loop
	QP() QP
	Local() netip.AddrPort
	Remote() netip.AddrPort
	// PKey is our key of the partition that the connection is in (IBTA 10.9).
	PKey() uint16
	// Disconnect moves the QP to ERR (flushing its requests), tells the peer by
	// DREQ, and reports EventDisconnected. Calling it again does nothing.
	Disconnect()
	// Close releases connection and QP. No callback follows it.
	Close()
}

// Quiescer is a Conn that can be handed over to another process, whose Device is a Restorer. Its
// methods are called on the loop.
type Quiescer interface {
	// Quiescent reports whether nothing is in flight: no work request except receives, no message
	// of the peer, and no completion that was not polled.
	Quiescent() bool
}

// Restorer is a Device that restores connections which another process has handed over. A
// connection is known by the number of its QP. Its methods are called before the loops run, by
// one goroutine.
type Restorer interface {
	// Restorable returns the loop of the connection, or nil if none of that number was handed over.
	Restorable(qpn uint32) Loop
	// RestoreConn restores the connection, with the effect of ConnRequest.Accept.
	RestoreConn(qpn uint32, qp QPConfig, prepare func(Conn) error, on func(Conn, ConnEvent)) (Conn, error)
}

// ConnRequest is an incoming REQ, handed to the listener's callback on the
// loop that would own the connection. Answer it exactly once, at once or later
// on the same loop.
type ConnRequest interface {
	Loop() Loop
	Local() netip.AddrPort
	Remote() netip.AddrPort
	PrivateData() []byte // ULP part, valid until answered
	// ResponderResources and InitiatorDepth are the peer's offer.
	ResponderResources() uint8
	InitiatorDepth() uint8
	PathMTU() MTU
	// PKey is our key of the partition that the peer asks for.
	PKey() uint16
	// Accept creates the QP (in RTS, receives may be posted through prepare
	// before the REP leaves) and answers REP. on gets the connection's events.
	Accept(qp QPConfig, p ConnParams, prepare func(Conn) error, on func(Conn, ConnEvent)) (Conn, error)
	// Reject answers REJ with an IBTA reason code (28 = consumer).
	Reject(reason uint16, private []byte)
}

// Annotated is a Conn or ConnRequest of a device that records post-mortems. If the connection or
// the request ends badly, or if its user ended it, note is called once, on its loop and after the
// last event.
type Annotated interface {
	Annotate(note func() Note)
}

// Outcome is how a connection, or the request for one, ended. It is part of a post-mortem.
type Outcome string

// Outcomes. Those of a user are only recorded if its Note says why.
const (
	Refused     Outcome = "refused"       // we rejected the request
	Rejected    Outcome = "rejected"      // the peer rejected our request, or our answer
	Unreachable Outcome = "unreachable"   // the peer did not answer our REQ
	Unconfirmed Outcome = "not confirmed" // the peer did not answer our REP
	Broken      Outcome = "broken"        // the queue pair failed
	Dropped     Outcome = "dropped"       // the user of the connection ended it
)

// Note is what the user of a connection adds to the post-mortem.
type Note struct {
	// Why the user refused or ended the connection; empty if it did not, or if that was normal.
	Why string
	// Detail is for the reader of the post-mortem.
	Detail any
}

// Listener accepts connections on one service port.
type Listener interface {
	Addr() netip.AddrPort
	Close() error
}

// DialParams describe an outgoing connection.
type DialParams struct {
	Remote netip.AddrPort
	QP     QPConfig
	Params ConnParams
	PKey   uint16 // partition, by either membership; 0 is the first of the device's table
	// DSCP is what the packets of the connection have in the IP header, in both directions, 1 to
	// 63. 0 is the device's default: none in user space, a setting of the host on devices of the
	// kernel.
	DSCP uint8
	// Prepare posts receives before the REQ leaves.
	Prepare func(Conn) error
	// On receives the connection's events on the loop.
	On func(Conn, ConnEvent)
}

// UDQKey is the default Q_Key of datagrams between users of RDMA-CM.
const UDQKey = 0x01234567

// SIDRStatus is the status of a service ID resolution (SIDR, IBTA 12.11.2).
type SIDRStatus uint8

// Statuses that a service refuses with.
const (
	SIDRReject SIDRStatus = 2
	SIDRNoQP   SIDRStatus = 3
)

// UDRequest is a SIDR_REQ: a peer asks for the queue pair that serves datagrams on a port. The user
// answers exactly once, at once or later on its loop. No connection results from it.
type UDRequest interface {
	Loop() Loop
	Local() netip.AddrPort
	Remote() netip.AddrPort
	PrivateData() []byte // ULP part, 180 bytes
	// PKey is our key of the partition that the peer asks for.
	PKey() uint16
	// Accept names a queue pair, which is in RTR or RTS, and its Q_Key. private is at
	// most 136 bytes.
	Accept(qpn, qkey uint32, private []byte) error
	// Reject refuses.
	Reject(why SIDRStatus, private []byte)
}

// UDAddress is the answer to a service ID resolution.
type UDAddress struct {
	AH          AH     // valid if Err is nil
	PKey        uint16 // of the requested partition
	PrivateData []byte
	Err         error // why there is no address
}

// ResolveParams describe a service ID resolution.
type ResolveParams struct {
	Remote      netip.AddrPort
	PrivateData []byte // at most 180 bytes
	PKey        uint16 // partition, by either membership; 0 is the first of the device's table
	// On receives the answer, once, on the loop.
	On func(UDAddress)
}
