package rdma

import (
	"fmt"
	"net/netip"
)

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
	// Signaled requests a completion on success. Failures always complete.
	Signaled SendFlags = 1 << iota
	// Fence delays the request until earlier READs and atomics have completed.
	Fence
	// Solicited sets the solicited-event bit at the peer, see CQ.Arm.
	Solicited
	// Inline copies the data of a SEND or RDMA WRITE when it is posted, at most
	// QPCaps.MaxInline bytes. The buffers are the caller's again when PostSend returns, and need
	// not be registered. A device may refuse it with ErrUnsupported for a SEND with invalidate.
	Inline
	// DelayAck says that the completion of a SEND or RDMA WRITE is not urgent. A device in user
	// space then requests an acknowledgement only for one of several such messages, or some
	// milliseconds after the last of them. Other devices ignore the flag.
	DelayAck
)

// SGE is one element of a gather or scatter list: Buf must lie wholly inside of the memory region
// named by LKey. The bytes belong to the device from the post to the completion that covers the
// request.
type SGE struct {
	Buf  []byte
	LKey uint32
}

// SendWR is a send work request. Devices copy the struct and the elements of the SGL at post time;
// they use the memory of the SGEs in place.
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
	AH         *AH    // on a UD queue pair: the destination

	// Volatile is not nil if others can change or truncate the memory of a SEND or RDMA WRITE
	// while it is sent. Only a VolatileSender accepts it.
	Volatile Volatile
}

// Volatile is the owner of memory that others can change or truncate while it is sent, such as the
// mapped pages of a file. Reading truncated memory faults.
type Volatile interface {
	// Copy copies src, a part of the memory, to dst, which has the same length, without a fault.
	// If it fails the message is not delivered. It is called on the loop.
	Copy(dst, src []byte) error
}

// VolatileSender is a Device that accepts SendWR.Volatile. If the data changes between the checksum
// and the transmission of a packet, the receiver drops the packet, and the retransmission is sent
// from a copy. If reading faults, the packet is sent from a copy at once.
type VolatileSender interface {
	SendsVolatile() bool
}

// AH is the destination of a datagram: address handle, queue pair number and Q_Key of a UD send
// (IBTA 11.4.1.1). Devices copy it at post time.
type AH struct {
	Remote netip.Addr
	QPN    uint32
	QKey   uint32 // with bit 31 set, the Q_Key of the sending queue pair is meant
	// TrafficClass is the DSCP to send with, in its upper six bits.
	TrafficClass uint8
}

// Bind describes the memory that an OpBindMW or OpReg opens. The request is executed in the order
// of the send queue, when all requests before it have completed; Fence is implied. If it cannot
// be executed, it fails with MWBindErr. A Limited device may instead refuse it at post time with
// ErrInvalidWR, and likewise an OpLocalInv of an unknown key.
type Bind struct {
	// MW is the unbound window of an OpBindMW.
	MW MW
	// MR is, for OpBindMW, the region that the window is bound to; it allows WindowBind. For
	// OpReg it is a region of PD.AllocMR without memory.
	MR MR
	// Buf is a part of the region's memory (OpBindMW), or the memory to register (OpReg). Its
	// remote address is MR.Addr() plus the offset in the region.
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
	GRH     WCFlags = 1 // the first GRHLen bytes of the receive are the datagram's IP header
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
// the IP header (IBTA annex A17.4.5.2): all of an IPv6 one, or 20 bytes of zero and an IPv4 one.
const GRHLen = 40

// GRHAddrs reads the addresses of a datagram from the first GRHLen bytes of its receive. They are
// invalid if there is no IP header.
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
