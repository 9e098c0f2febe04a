package wire

// Port is the UDP destination port of RoCEv2, in both directions.
const Port = 4791

// DefaultPKey is the default partition key with full membership.
const DefaultPKey = 0xffff

// PKeysMatch implements IBTA 10.9.3: the same partition, and at least one full member (top bit).
func PKeysMatch(a, b uint16) bool {
	const full = 0x8000
	return (a^b)&^uint16(full) == 0 && (a|b)&full != 0
}

// The two well-known queue pairs.
const (
	QP0 = 0 // subnet management; unused on RoCE
	QP1 = 1 // general services: CM
)

// Sizes of the headers in bytes.
const (
	BTHLen       = 12
	RETHLen      = 16
	AETHLen      = 4
	ImmLen       = 4
	IETHLen      = 4
	DETHLen      = 8
	AtomicLen    = 28
	AtomicAckLen = 8
	ICRCLen      = 4
	// CNPLen is the reserved block that follows the BTH of a CNP.
	CNPLen = 16
	// HeadersMax bounds BTH and extended headers of any packet.
	HeadersMax = BTHLen + AtomicLen
)

// A RoCEv2 packet is a UDP datagram (IBTA annex A17). Sizes in bytes:
//
//	IPv4 (20, no options) | UDP (8) | BTH (12) | extended headers | payload | pad | ICRC (4)
//	IPv6 (40)             |         |          | (0..28)          |         | 0..3|
//
// All fields are big-endian except the ICRC. The base transport header (IBTA 9.2):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|    OpCode     |S|M|Pad| TVer  |             P_Key             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|F|B| reserved  |               Destination QPN                 |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|A|  reserved   |                     PSN                       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
//	S: solicited event   M: MigReq   F: FECN   B: BECN   A: AckReq
//
// M is sent set, as Linux does, and ignored on receipt: there is no path migration on RoCE.
// The byte with F and B is not covered by the ICRC, because switches may change it.
const (
	bthSolicited = 0x80 // of byte 1
	bthMigReq    = 0x40
	bthPadShift  = 4
	bthVerMask   = 0x0f
	bthFECN      = 0x80 // of byte 4
	bthBECN      = 0x40
	bthAckReq    = 0x80 // of byte 8
)

// RETH is the RDMA extended transport header (IBTA 9.3): the remote memory of a READ request,
// or of an RDMA WRITE in its first packet.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Virtual Address (63..32)                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Virtual Address (31..0)                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             R_Key                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                          DMA Length                           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type RETH struct {
	VA   uint64
	RKey uint32
	// Len is the length of the whole message, not of the packet. A peer may claim up to
	// 4 GiB; more than 2^31 bytes is an invalid request (IBTA 9.7.4.1.6).
	Len uint32
}

// AETH is the ACK extended transport header (IBTA 9.3). It is in acknowledgements, and in the
// first, last and only packet of a READ response.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|0| T |  value  |                     MSN                       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
//	T: 0 ACK, value = credit count   1 RNR NAK, value = timer code   3 NAK, value = code
type AETH struct {
	Syndrome uint8
	MSN      uint32 // 24 bits: messages that the responder has completed (IBTA C9-148)
}

// AETH syndromes (IBTA 9.7.5.2): the type is in bits 6 and 5, the value below.
const (
	SyndromeAck       = 0x1f // ACK without end-to-end credits
	SyndromeRNR       = 0x20 // RNR NAK, or-ed with the timer code
	NAKSequence       = 0x60
	NAKInvalidRequest = 0x61
	NAKRemoteAccess   = 0x62
	NAKRemoteOp       = 0x63

	SyndromeTypeMask  = 0x60
	SyndromeTypeAck   = 0x00
	SyndromeTypeRNR   = 0x20
	SyndromeTypeNAK   = 0x60
	SyndromeValueMask = 0x1f
)

// DETH is the datagram extended transport header (IBTA 9.3) of UD packets. The receiving queue
// pair drops the datagram if the Q_Key is not its own.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             Q_Key                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   reserved    |                 Source QPN                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type DETH struct {
	QKey   uint32
	SrcQPN uint32
}

// Atomic is the atomic extended transport header (IBTA 9.3) of CompareSwap and FetchAdd.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Virtual Address (63..32)                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Virtual Address (31..0)                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             R_Key                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Swap or Add value (63..32)                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Swap or Add value (31..0)                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Compare value (63..32)                     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Compare value (31..0)                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Atomic struct {
	VA      uint64 // a multiple of 8, or the request is invalid
	RKey    uint32
	SwapAdd uint64
	Compare uint64
}

// The other extended headers have one field each (IBTA 9.3):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|              Original remote data (63..32)                    |  AtomicAckETH
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|              Original remote data (31..0)                     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
//	|                        Immediate data                         |  ImmDt
//
//	|                 R_Key to invalidate at the peer               |  IETH
//
// ImmDt is opaque to the transport. It is delivered in the completion of the receive.
// A packet with RETH and ImmDt (WRITE_ONLY_IMM) has them in this order; after a DETH likewise.
