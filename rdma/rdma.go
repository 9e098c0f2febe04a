// Package rdma is the verbs vocabulary of rstored: memory regions, queue
// pairs, work requests, completions, connection events, and the contract that
// a provider of RDMA fulfils. It holds types only and does no IO.
//
// Two providers are foreseen behind this contract: rdma/roce, a RoCEv2 stack
// in user space, and rdma/verbs, rdma-core and its hardware.
//
// # Concurrency
//
// Every QP, CQ and connection belongs to one Loop for life. Their methods are
// to be called on that loop only: from a callback the provider makes, or from
// a function given to Loop.Submit. Nothing on the packet path takes a lock.
// Code that lives on ordinary goroutines uses Loop.Submit, or the blocking
// calls of package rdma/endpoint. Device, PD and MR methods may be called from
// any goroutine.
package rdma

import (
	"errors"
	"fmt"
	"net/netip"
)

// Time is a reading of a monotonic clock in nanoseconds. Its origin is
// arbitrary; only differences mean anything. Zero means "no time" where a
// deadline is asked for.
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

// Access says what may be done to a memory region, locally and by the peer.
// The bits are those of the verbs API.
type Access uint32

// Access flags. Remote write and remote atomic require local write.
const (
	LocalWrite   Access = 1
	RemoteWrite  Access = 2
	RemoteRead   Access = 4
	RemoteAtomic Access = 8
	WindowBind   Access = 16 // memory windows may be bound to the region
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

// SendOp is the operation of a send work request.
type SendOp uint8

// The send operations.
const (
	OpSend SendOp = iota
	OpSendImm
	OpSendInv // SEND with invalidate of SendWR.InvRKey at the peer
	OpWrite
	OpWriteImm
	OpRead
	OpCompareSwap
	OpFetchAdd
	OpLocalInv // invalidates the local region or window whose R_Key is SendWR.InvRKey
	OpBindMW   // binds the memory window SendWR.Bind.MW under the key SendWR.RKey
	OpReg      // registers memory for SendWR.Bind.MR under the key SendWR.RKey
)

// SendFlags modify a send work request.
type SendFlags uint8

// Send flags.
const (
	// Signaled asks for a completion on success. Failures always complete.
	Signaled SendFlags = 1 << iota
	// Fence holds the request until earlier READs and atomics completed.
	Fence
	// Solicited sets the solicited-event bit at the peer, see CQ.Arm.
	Solicited
	// Inline copies the data of a SEND or RDMA WRITE when it is posted, at most
	// QPCaps.MaxInline bytes: the buffers are the caller's again when PostSend returns,
	// and need not be registered. A device may refuse it with ErrUnsupported for a SEND that invalidates.
	Inline
)

// SGE is one element of a gather or scatter list: Buf must lie wholly inside
// the memory region named by LKey. The bytes belong to the provider from the
// post until the completion that covers the request.
type SGE struct {
	Buf  []byte
	LKey uint32
}

// SendWR is a send work request. Providers copy the struct and the SGL
// elements at post time; the memory that the SGEs name is used in place.
type SendWR struct {
	ID    uint64
	Op    SendOp
	Flags SendFlags
	SGL   []SGE

	Imm        uint32 // OpSendImm, OpWriteImm
	InvRKey    uint32 // OpSendInv, OpLocalInv
	RemoteAddr uint64 // RDMA and atomic operations
	RKey       uint32 // RDMA and atomic operations
	Compare    uint64 // OpCompareSwap
	SwapAdd    uint64 // OpCompareSwap: swap value; OpFetchAdd: addend
	Bind       *Bind  // OpBindMW, OpReg
	AH         *AH    // on a UD queue pair: where to

	// Volatile, if not nil, says that the data of a SEND or RDMA WRITE is memory that
	// others change or take away while it is sent. For devices that are a VolatileSender.
	Volatile Volatile
}

// Volatile is who owns memory that is sent while others change it, such as pages of a
// file, and take it away: touching it is a fault then.
type Volatile interface {
	// Copy copies src, a part of the memory, to dst, of the same length, as it is now, and
	// without a fault. It fails if src cannot be had at all; what it belongs to is not
	// delivered then. It is called on the loop.
	Copy(dst, src []byte) error
}

// VolatileSender is a Device that takes SendWR.Volatile. Packets whose data has changed
// between their checksum and their way out are lost, and sent again from a copy; where a fault
// is met, there is a copy at once.
type VolatileSender interface {
	SendsVolatile() bool
}

// AH says where a datagram goes: the address handle, number and Q_Key of a UD send
// (IBTA 11.4.1.1). Providers copy it at post time.
type AH struct {
	Remote netip.Addr
	QPN    uint32
	QKey   uint32 // with bit 31 set, the Q_Key of the sending queue pair is meant
	// TrafficClass is the DSCP to send with, in its upper six bits.
	TrafficClass uint8
}

// Bind is what a work request opens, and how. It takes effect in the order of the send
// queue, when what was posted before has completed; Fence is implied. What cannot be opened
// fails the request with MWBindErr; a device that is Limited may refuse it when it is posted,
// with ErrInvalidWR, and likewise an OpLocalInv of a key that names nothing.
type Bind struct {
	// MW is the window (OpBindMW), which must not be bound.
	MW MW
	// MR is the region that the window is bound to, which allows WindowBind; or
	// (OpReg) the region of PD.AllocMR that gets the memory, and must have none.
	MR MR
	// Buf is the memory: a part of the region, or what is to be registered. It may be
	// named as MR.Addr() and the offset in the region from then on.
	Buf    []byte
	Access Access
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}

// Status is the status of a completion. The numbers are those of ibv_wc_status.
type Status uint8

// Completion statuses.
const (
	Success        Status = 0
	LocLenErr      Status = 1
	LocQPOpErr     Status = 2
	LocProtErr     Status = 4
	WRFlushErr     Status = 5
	MWBindErr      Status = 6
	BadRespErr     Status = 7
	LocAccessErr   Status = 8
	RemInvReqErr   Status = 9
	RemAccessErr   Status = 10
	RemOpErr       Status = 11
	RetryExcErr    Status = 12
	RNRRetryExcErr Status = 13
	FatalErr       Status = 19
	GeneralErr     Status = 21
)

func (s Status) String() string {
	switch s {
	case Success:
		return "success"
	case LocLenErr:
		return "local length error"
	case LocQPOpErr:
		return "local QP operation error"
	case LocProtErr:
		return "local protection error"
	case WRFlushErr:
		return "work request flushed"
	case MWBindErr:
		return "memory window bind error"
	case BadRespErr:
		return "bad response"
	case LocAccessErr:
		return "local access error"
	case RemInvReqErr:
		return "remote invalid request error"
	case RemAccessErr:
		return "remote access error"
	case RemOpErr:
		return "remote operation error"
	case RetryExcErr:
		return "transport retry counter exceeded"
	case RNRRetryExcErr:
		return "RNR retry counter exceeded"
	case FatalErr:
		return "fatal error"
	case GeneralErr:
		return "general error"
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// WCOp says what kind of request a completion is for (ibv_wc_opcode).
type WCOp uint8

// Completion opcodes.
const (
	WCSend        WCOp = 0
	WCWrite       WCOp = 1
	WCRead        WCOp = 2
	WCCompareSwap WCOp = 3
	WCFetchAdd    WCOp = 4
	WCBindMW      WCOp = 5
	WCLocalInv    WCOp = 6
	WCReg         WCOp = 64
	WCRecv        WCOp = 128
	WCRecvWithImm WCOp = 129 // RDMA WRITE with immediate
)

var wcOpNames = map[WCOp]string{
	WCSend: "SEND", WCWrite: "WRITE", WCRead: "READ", WCCompareSwap: "COMPARE_SWAP", WCFetchAdd: "FETCH_ADD",
	WCBindMW: "BIND_MW", WCLocalInv: "LOCAL_INV", WCReg: "REG_MR", WCRecv: "RECV", WCRecvWithImm: "RECV_WITH_IMM",
}

func (o WCOp) String() string {
	if s := wcOpNames[o]; s != "" {
		return s
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// WCFlags qualify a completion.
type WCFlags uint8

// Completion flags.
const (
	GRH     WCFlags = 1 // the first GRHLen bytes of the receive are where the datagram came from
	WithImm WCFlags = 2 // Imm is valid
	WithInv WCFlags = 8 // InvRKey was invalidated by the peer's SEND
	// WithEvent says that the peer set the solicited-event bit.
	WithEvent WCFlags = 128
)

// WC is a work completion.
type WC struct {
	ID      uint64
	QPN     uint32
	ByteLen uint32 // receives, READs and atomics: bytes placed
	Imm     uint32
	InvRKey uint32
	SrcQPN  uint32 // UD receives: the sender
	Status  Status
	Op      WCOp
	Flags   WCFlags
}

// GRHLen is the number of bytes in front of the payload in a UD receive. In RoCEv2 they hold
// the IP header (IBTA annex A17.4.3.2): all of an IPv6 one, or 20 bytes of zero and an IPv4 one.
const GRHLen = 40

// GRHAddrs reads the addresses of a datagram from the first GRHLen bytes of its receive;
// they are invalid if there is no IP header.
func GRHAddrs(b []byte) (src, dst netip.Addr) {
	switch {
	case len(b) < GRHLen:
	case b[0]>>4 == 6:
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	case b[20]>>4 == 4:
		src, dst = netip.AddrFrom4([4]byte(b[32:36])), netip.AddrFrom4([4]byte(b[36:40]))
	}
	return src, dst
}

// QPCaps bound a queue pair.
type QPCaps struct {
	MaxSendWR  int
	MaxRecvWR  int
	MaxSendSGE int
	MaxRecvSGE int
	MaxInline  int // bytes of a request with the flag Inline
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

// Limits say what a device offers. Numbers that are 0 are not known.
type Limits struct {
	QPs, CQs, SRQs, MRs, PDs, MWs int // objects at once
	WRs                           int // of a queue
	SGEs                          int // of a request
	CQEs                          int // of a completion queue
	Inline                        int // bytes
	RdAtomic                      int // READs and atomics of a queue pair under way, in either direction
	RegionBytes                   uint64

	Atomics      bool // OpCompareSwap, OpFetchAdd
	Datagrams    bool // queue pairs of type UD
	Windows      bool // PD.AllocMW, OpBindMW
	FastRegions  bool // PD.AllocMR, OpReg
	PeerInval    bool // the peer's SEND with invalidate may name a region of PD.Register
	Immediate    bool // OpSendImm, OpWriteImm
	ResizableCQs bool
	Drains       bool // StateSQD
	// Acknowledged: a WRITE or SEND completes when the peer's device has it. Otherwise, over iWARP, it
	// does when it is on its way, and what goes wrong with it later ends the connection.
	Acknowledged bool
	// NotReady: a SEND that finds no receive waits for one. Otherwise it may end the connection.
	NotReady      bool
	Unconnected   bool // CreateQP and QP.Modify: users may connect queue pairs by themselves
	Solicited     bool // CQ.Arm for solicited completions alone; otherwise it is for any
	RejectReasons bool // ConnRequest.Reject carries reasons other than 28
	ServiceQKeys  bool // UDRequest.Accept takes Q_Keys other than UDQKey
	SendErrors    bool // a failed send of datagrams leaves its queue pair in SQE, not in ERR
	LongLost      bool // a datagram that is longer than the receive is lost; otherwise it fails the receive, and the queue pair with it
	EventFlags    bool // completions have WithEvent
	// ReadRights: a peer's READ is refused of a region without RemoteRead. Otherwise all that is registered in its domain may be read.
	ReadRights bool
}

// Limited is a Device that offers less than all of this contract, or has bounds of its own. What
// it does not offer fails with ErrUnsupported.
type Limited interface {
	Limits() Limits
}

// LimitsOf is what a device offers.
func LimitsOf(d Device) Limits {
	if l, ok := d.(Limited); ok {
		return l.Limits()
	}
	return Limits{
		Atomics: true, Datagrams: true, Windows: true, FastRegions: true, PeerInval: true, Immediate: true, ResizableCQs: true,
		RejectReasons: true, ServiceQKeys: true, SendErrors: true, LongLost: true, EventFlags: true, ReadRights: true,
		Drains: true, Acknowledged: true, NotReady: true, Unconnected: true, Solicited: true,
	}
}

// Loop is the single thread of execution that owns a set of QPs.
type Loop interface {
	// Submit runs fn on the loop, after what was submitted before it. It may
	// be called from any goroutine, including the loop's own, never blocks,
	// and reports false if the loop has ended (fn then never runs).
	Submit(fn func()) bool
	// Now is the time of the loop's current turn.
	Now() Time
	// After runs fn on the loop once d nanoseconds have passed. To be called
	// on the loop. Calling the returned function cancels it.
	After(d Time, fn func()) (cancel func())
}

// Yielder is a Loop that gives way to others.
type Yielder interface {
	// Yield has the loop let goroutines that can run do so at the end of its turn, before
	// it sleeps: what they submit is then one batch and need not wake it. To be called on
	// the loop, by who has just told goroutines of something that they wait for.
	Yield()
}

// MR is a registered memory region. The region's remote address of byte 0 is
// Addr; a peer names bytes as (RKey, Addr+offset).
type MR interface {
	LKey() uint32
	RKey() uint32
	Addr() uint64
	Bytes() []byte
	// Invalidate ends remote access and gives the region a fresh R_Key, valid
	// for the next use. The old key is refused from this call on.
	Invalidate() (newRKey uint32)
	// Window opens a part of the region, buf, under an R_Key of its own until the
	// window is closed. Nothing is pinned anew, so it costs less than Register: it
	// is for memory that is registered once and opened to a peer piece by piece (a
	// type 2 memory window, IBTA 10.6.7.2.3). Close windows before their region.
	Window(buf []byte, access Access) (MR, error)
	// Close deregisters the region. Packets in flight that name it are refused.
	Close()
}

// Reregisterer is an MR that can be given other memory, as ibv_rereg_mr does: what opens and
// closes memory to a peer all the time keeps its regions.
type Reregisterer interface {
	MR
	// Reregister lets go of the region's memory and takes buf in its place, with fresh R_Key and
	// address. The old R_Key is refused from this call on. Without buf the region has no R_Key
	// until the next call. After an error it is as without buf. A region that memory windows may
	// be bound to (WindowBind) is not reregistered. Of one region, to be called by one goroutine
	// at a time, and not while a work request names its memory.
	Reregister(buf []byte, access Access) error
}

// MW is a memory window of type 2B (IBTA 10.6.7.2.3): it opens a part of a region to the
// peer of one queue pair, under a key of its own, from the completion of an OpBindMW until an
// OpLocalInv or the peer's SEND with invalidate. Methods may be called from any goroutine.
type MW interface {
	// RKey is the key under which the window is bound; 0 when it is not.
	RKey() uint32
	// Rekey draws the key for the next OpBindMW, which takes no other. A key that has
	// ended does not come again soon.
	Rekey() uint32
	// Close ends the window.
	Close()
}

// FastMR is a region whose memory comes and goes by work requests: from the completion of
// an OpReg until an OpLocalInv of its R_Key or the peer's SEND with invalidate, after
// which both its keys are refused. Meanwhile Bytes is what was registered.
type FastMR interface {
	MR
	// Rekey draws the R_Key for the next OpReg, which takes no other.
	Rekey() uint32
}

// PD is a protection domain.
type PD interface {
	// Register makes buf usable by work requests and, as access says, by the
	// peers of the QPs in the domain. buf must not be moved or unmapped until
	// Close: use memory from an Arena.
	Register(buf []byte, access Access) (MR, error)
	// AllocMW makes a memory window that is not bound yet.
	AllocMW() (MW, error)
	// AllocMR makes a region without memory for at most so many bytes.
	AllocMR(most int) (FastMR, error)
	Close()
}

// DMABufRegisterer is a PD that may register memory which is another device's, such as a GPU's,
// and which the processor need not be able to reach. ErrUnsupported if the device cannot.
type DMABufRegisterer interface {
	PD
	// RegisterDMABuf registers len(names) bytes from offset on of the dma-buf fd, which the caller may close
	// then. names is address space that stands for them: Bytes is names, its parts name the memory in
	// SGEs and Binds, and its addresses are the remote ones. It stays the caller's, who keeps it mapped until Close. It
	// may be a mapping of the dma-buf, or one without any access (PROT_NONE), which faults when it is touched.
	// offset and the address of names are the same modulo the size of a page. No memory windows can be bound to it:
	// WindowBind is refused with ErrUnsupported.
	RegisterDMABuf(fd int, offset uint64, names []byte, access Access) (MR, error)
}

// CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(dst) completions into dst, oldest first.
	Poll(dst []WC) int
	// Arm asks for one event, for the next completion that is added (IBTA 11.4.2.2): any,
	// or one that is solicited, which are receives of messages that the peer marked so and
	// completions with an error. Only a CQ made with CQOptions.Armed needs it. Poll
	// once more after Arm, or a completion that came before it may be missed.
	Arm(solicited bool)
	// Resize changes the number of completions that the queue holds. ErrInvalidWR when
	// more than that are in it, or the provider holds less.
	Resize(depth int) error
	// Close ends the queue: its user is not called any more. The device lets go of it when the
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
	// Armed calls OnEvent only when Arm has asked for it, once for each time.
	Armed bool
}

// SRQ is a shared receive queue: the queue pairs that are made with it take their receives
// from it, each when the first packet of a message comes. Completions are on the queue
// pairs' own RecvCQ. On the loop only.
type SRQ interface {
	// PostRecv queues receives in order: all or none.
	PostRecv(wrs []RecvWR) error
	// Arm asks for one call of SRQConfig.OnLimit when fewer than limit receives are left.
	Arm(limit int)
	// Len is the number of receives that no message has taken yet.
	Len() int
	// Close ends the queue; receives that are left never complete. ErrInvalidWR while
	// queue pairs use it.
	Close() error
}

// SRQConfig describes a shared receive queue to create.
type SRQConfig struct {
	PD      PD
	MaxWR   int
	MaxSGE  int
	OnLimit func() // called on the loop, see SRQ.Arm
}

// QPEvent is something that happens to a queue pair beside completions (IBTA 11.6.3).
type QPEvent uint8

// Events of a queue pair.
const (
	// SQDrained: in SQD, every request that was begun has completed.
	SQDrained QPEvent = iota + 1
	// LastWQEReached: in ERR, no receive of the SRQ completes on the queue pair any more.
	LastWQEReached
)

// QPType is the transport service of a queue pair.
type QPType uint8

// The types of queue pairs.
const (
	// RC is a reliable connection.
	RC QPType = iota
	// UD is unreliable datagrams: SEND and SEND with immediate of one packet, at most the
	// device's path MTU, each to where its SendWR.AH says. A longer one completes and is
	// not sent (IBTA C10-93.1.1). A datagram is lost without a word that carries another
	// Q_Key, finds no receive, or is longer than the receive less GRHLen (Limits.LongLost).
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

// Movable is a Conn that another process can go on with, if its Device is an Heir there.
// Methods on the loop only.
type Quiescer interface {
	// Still reports whether nothing is under way: no work request, receives apart, no
	// message of the peer, no completion that was not polled.
	Quiescent() bool
}

// Heir is a Device that goes on with connections that another process has handed over, each
// known by the number of its QP. Its methods are to be called before the loops run, by one goroutine.
type Restorer interface {
	// Inherited is the loop that the connection will live on, nil if there is none of that number.
	Restorable(qpn uint32) Loop
	// Inherit takes the connection over, as Accept would have made it.
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

// Annotated is what the Conns and ConnRequests of a provider are that keeps
// post-mortems. When the connection or the request has ended badly, or its user
// ended it, note is called once, on its loop and after the last event.
type Annotated interface {
	Annotate(note func() Note)
}

// Outcome is how a connection, or the request for one, came to its end, in a post-mortem.
type Outcome string

// Outcomes. Those of a user are only recorded if its Note says why.
const (
	Refused     Outcome = "refused"       // we rejected the request
	Rejected    Outcome = "rejected"      // the peer rejected our request, or our answer
	Unreachable Outcome = "unreachable"   // the peer did not answer our request
	Unconfirmed Outcome = "not confirmed" // the peer did not answer our answer
	Broken      Outcome = "broken"        // the queue pair failed
	Dropped     Outcome = "dropped"       // the user of the connection ended it
)

// Note is what the user of a connection adds to the post-mortem.
type Note struct {
	// Why the user refused or ended the connection; empty if it did not, or did
	// in the ordinary course of things.
	Why string
	// Detail is for who reads the post-mortem.
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
	// DSCP is what the packets of the connection have in the IP header, in both directions, 1 to 63. 0 is the
	// device's default: none in user space, a setting of the host on devices of the kernel.
	DSCP uint8
	// Prepare posts receives before the REQ leaves.
	Prepare func(Conn) error
	// On receives the connection's events on the loop.
	On func(Conn, ConnEvent)
}

// DSCPMax is the largest DSCP: it has six bits.
const DSCPMax = 63

// UDQKey is the Q_Key of datagrams that RDMA-CM's users take unless they agree on another.
const UDQKey = 0x01234567

// SIDRStatus says what became of a question for a queue pair (IBTA 12.11.2).
type SIDRStatus uint8

// Statuses that a service refuses with.
const (
	SIDRReject SIDRStatus = 2
	SIDRNoQP   SIDRStatus = 3
)

// UDRequest is a host's question which queue pair serves datagrams on a port. Answer it
// exactly once, at once or later on its loop. Nothing is known of what its sender does next.
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

// UDAddress is the answer to a question for a queue pair.
type UDAddress struct {
	AH          AH     // valid if Err is nil
	PKey        uint16 // of the partition that was asked for
	PrivateData []byte
	Err         error // why there is none
}

// ResolveParams describe a question for a queue pair.
type ResolveParams struct {
	Remote      netip.AddrPort
	PrivateData []byte // at most 180 bytes
	PKey        uint16 // partition, by either membership; 0 is the first of the device's table
	// On receives the answer, once, on the loop.
	On func(UDAddress)
}

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
	// ListenUD calls accept, on one of the loops, for each question which queue pair serves
	// datagrams on the port. The ports are others than those of Listen.
	ListenUD(port uint16, accept func(UDRequest)) (Listener, error)
	// ResolveUD asks for the queue pair that serves datagrams on a port of another host.
	// The question is repeated until it is answered or given up. Calling cancel abandons
	// it: On is not called after that. On the loop only, as is cancel.
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
