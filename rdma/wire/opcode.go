package wire

import "fmt"

// Opcode is the BTH opcode: the transport class in the top three bits and the operation below
// (IBTA 9.2.1). The table infos says for each opcode which extended headers it has; Parse and
// AppendHeaders follow it, so a new opcode is one row.
type Opcode uint8

// Opcodes of the classes RC and UD, and of congestion notification (annex A17.9.3). The
// values 0x15 and 0x18 to 0x1f are reserved in RC; a peer that sends one gets a NAK "invalid
// request".
const (
	SendFirst      Opcode = 0x00
	SendMiddle     Opcode = 0x01
	SendLast       Opcode = 0x02
	SendLastImm    Opcode = 0x03
	SendOnly       Opcode = 0x04
	SendOnlyImm    Opcode = 0x05
	WriteFirst     Opcode = 0x06
	WriteMiddle    Opcode = 0x07
	WriteLast      Opcode = 0x08
	WriteLastImm   Opcode = 0x09
	WriteOnly      Opcode = 0x0a
	WriteOnlyImm   Opcode = 0x0b
	ReadRequest    Opcode = 0x0c
	ReadRespFirst  Opcode = 0x0d
	ReadRespMiddle Opcode = 0x0e
	ReadRespLast   Opcode = 0x0f
	ReadRespOnly   Opcode = 0x10
	Acknowledge    Opcode = 0x11
	AtomicAck      Opcode = 0x12
	CompareSwap    Opcode = 0x13
	FetchAdd       Opcode = 0x14
	SendLastInv    Opcode = 0x16
	SendOnlyInv    Opcode = 0x17
	UDSendOnly     Opcode = 0x64
	UDSendOnlyImm  Opcode = 0x65
	CNP            Opcode = 0x81
)

// Shape says what an opcode's packet looks like and what role it plays.
type Shape uint16

// Bits of a Shape. A packet that both starts and ends its message is an "only" packet.
const (
	Request Shape = 1 << iota
	Response
	Starts  // first or only packet of its message
	Ends    // last or only packet of its message
	Payload // carries payload
	HasRETH
	HasAETH
	HasImm
	HasIETH
	HasDETH
	HasAtomic
	HasAtomicAck
	ClassSend  // a SEND of any kind
	ClassWrite // an RDMA WRITE of any kind
	ClassRead  // a READ request or response
)

type info struct {
	name  string
	shape Shape
	len   uint8 // BTH and extended headers; 0 = unknown opcode
}

const (
	only        = Starts | Ends
	writeImmLen = BTHLen + RETHLen + ImmLen
)

var infos = [256]info{
	SendFirst:      {"SEND_FIRST", Request | Starts | Payload | ClassSend, BTHLen},
	SendMiddle:     {"SEND_MIDDLE", Request | Payload | ClassSend, BTHLen},
	SendLast:       {"SEND_LAST", Request | Ends | Payload | ClassSend, BTHLen},
	SendLastImm:    {"SEND_LAST_IMM", Request | Ends | Payload | HasImm | ClassSend, BTHLen + ImmLen},
	SendOnly:       {"SEND_ONLY", Request | only | Payload | ClassSend, BTHLen},
	SendOnlyImm:    {"SEND_ONLY_IMM", Request | only | Payload | HasImm | ClassSend, BTHLen + ImmLen},
	WriteFirst:     {"WRITE_FIRST", Request | Starts | Payload | HasRETH | ClassWrite, BTHLen + RETHLen},
	WriteMiddle:    {"WRITE_MIDDLE", Request | Payload | ClassWrite, BTHLen},
	WriteLast:      {"WRITE_LAST", Request | Ends | Payload | ClassWrite, BTHLen},
	WriteLastImm:   {"WRITE_LAST_IMM", Request | Ends | Payload | HasImm | ClassWrite, BTHLen + ImmLen},
	WriteOnly:      {"WRITE_ONLY", Request | only | Payload | HasRETH | ClassWrite, BTHLen + RETHLen},
	WriteOnlyImm:   {"WRITE_ONLY_IMM", Request | only | Payload | HasRETH | HasImm | ClassWrite, writeImmLen},
	ReadRequest:    {"READ_REQUEST", Request | only | HasRETH | ClassRead, BTHLen + RETHLen},
	ReadRespFirst:  {"READ_RESPONSE_FIRST", Response | Starts | Payload | HasAETH | ClassRead, BTHLen + AETHLen},
	ReadRespMiddle: {"READ_RESPONSE_MIDDLE", Response | Payload | ClassRead, BTHLen},
	ReadRespLast:   {"READ_RESPONSE_LAST", Response | Ends | Payload | HasAETH | ClassRead, BTHLen + AETHLen},
	ReadRespOnly:   {"READ_RESPONSE_ONLY", Response | only | Payload | HasAETH | ClassRead, BTHLen + AETHLen},
	Acknowledge:    {"ACKNOWLEDGE", Response | only | HasAETH, BTHLen + AETHLen},
	AtomicAck:      {"ATOMIC_ACKNOWLEDGE", Response | only | HasAETH | HasAtomicAck, BTHLen + AETHLen + AtomicAckLen},
	CompareSwap:    {"COMPARE_SWAP", Request | only | HasAtomic, BTHLen + AtomicLen},
	FetchAdd:       {"FETCH_ADD", Request | only | HasAtomic, BTHLen + AtomicLen},
	SendLastInv:    {"SEND_LAST_INV", Request | Ends | Payload | HasIETH | ClassSend, BTHLen + IETHLen},
	SendOnlyInv:    {"SEND_ONLY_INV", Request | only | Payload | HasIETH | ClassSend, BTHLen + IETHLen},
	UDSendOnly:     {"UD_SEND_ONLY", Request | only | Payload | HasDETH, BTHLen + DETHLen},
	UDSendOnlyImm:  {"UD_SEND_ONLY_IMM", Request | only | Payload | HasDETH | HasImm, BTHLen + DETHLen + ImmLen},
	CNP:            {"CNP", only | Payload, BTHLen},
}

// Known reports whether the opcode is one of the constants.
func (o Opcode) Known() bool { return infos[o].len != 0 }

// Is reports whether the opcode's shape has all bits of s.
func (o Opcode) Is(s Shape) bool { return infos[o].shape&s == s }

// HeaderLen is the length of BTH and extended headers, 0 for unknown opcodes.
func (o Opcode) HeaderLen() int { return int(infos[o].len) }

// IsRC reports whether the opcode belongs to the reliable connection class.
func (o Opcode) IsRC() bool { return o < 0x20 && infos[o].len != 0 }

// ReservedRC reports whether the opcode is in the range of the reliable connection class but has
// no meaning there.
func (o Opcode) ReservedRC() bool { return o < 0x20 && infos[o].len == 0 }

// String is the name of the opcode in the specification.
func (o Opcode) String() string {
	if n := infos[o].name; n != "" {
		return n
	}
	return fmt.Sprintf("OPCODE_%#02x", uint8(o))
}
