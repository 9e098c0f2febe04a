package wire

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Packet is one decoded RoCEv2 packet, BTH to payload; headers.go has the layout. Only the
// extended headers that the opcode has are meaningful: Parse leaves the others as they were.
// Payload aliases the datagram and excludes the pad, so a Packet is valid as long as the
// datagram's buffer.
type Packet struct {
	Src, Dst netip.Addr
	ECN      uint8 // the two ECN bits of the IP header

	Op        Opcode
	Solicited bool
	MigReq    bool
	AckReq    bool
	FECN      bool
	BECN      bool
	Pad       uint8
	PKey      uint16
	DestQPN   uint32
	PSN       PSN

	RETH      RETH
	AETH      AETH
	Imm       uint32
	InvRKey   uint32
	DETH      DETH
	Atomic    Atomic
	AtomicAck uint64
	Payload   []byte
	Placed    bool // the payload is where it belongs already; Parse clears it
}

// Errors of Packet.Parse. The caller counts and drops the datagram. Only after ErrOpcode is
// there more to do: a reserved opcode of RC is answered with a NAK.
var (
	ErrTooShort = errors.New("wire: datagram shorter than its headers")
	ErrVersion  = errors.New("wire: unknown transport header version")
	ErrOpcode   = errors.New("wire: unknown opcode")
	ErrPad      = errors.New("wire: pad count does not fit the payload")
)

// DestQPN reads the destination QPN of a datagram of at least BTHLen bytes, before Parse: the
// receiver looks up the queue pair first.
func DestQPN(dgram []byte) uint32 { return be24(dgram[5:]) }

// Parse decodes a datagram (the UDP payload: BTH to ICRC) into p. It makes the checks of IBTA 9.6
// that need no connection state: length, TVer, opcode and pad count. It does not check the ICRC.
// Src, Dst and ECN are not changed: the caller sets them from the IP header. After ErrOpcode the
// fields of the BTH are set.
func (p *Packet) Parse(dgram []byte) error {
	if len(dgram) < BTHLen+ICRCLen {
		return ErrTooShort
	}
	if dgram[1]&bthVerMask != 0 {
		return ErrVersion
	}
	p.Op = Opcode(dgram[0])
	p.Solicited = dgram[1]&bthSolicited != 0
	p.MigReq = dgram[1]&bthMigReq != 0
	p.Pad = dgram[1] >> bthPadShift & 3
	p.PKey = binary.BigEndian.Uint16(dgram[2:])
	p.FECN = dgram[4]&bthFECN != 0
	p.BECN = dgram[4]&bthBECN != 0
	p.DestQPN = be24(dgram[5:])
	p.AckReq = dgram[8]&bthAckReq != 0
	p.PSN = PSN(be24(dgram[9:]))
	p.Placed = false
	n := p.Op.HeaderLen()
	if n == 0 {
		p.Payload = nil
		return ErrOpcode
	}
	if len(dgram) < n+ICRCLen {
		return ErrTooShort
	}

	// The length was checked against the opcode's headers, so no access below is out of
	// range. The order of the branches is the order of the headers on the wire (IBTA 9.3).
	h := dgram[BTHLen:]
	shape := infos[p.Op].shape
	if shape&HasDETH != 0 {
		p.DETH = DETH{QKey: binary.BigEndian.Uint32(h), SrcQPN: be24(h[5:])}
		h = h[DETHLen:]
	}
	if shape&HasRETH != 0 {
		p.RETH = RETH{
			VA: binary.BigEndian.Uint64(h), RKey: binary.BigEndian.Uint32(h[8:]), Len: binary.BigEndian.Uint32(h[12:]),
		}
		h = h[RETHLen:]
	}
	if shape&HasAtomic != 0 {
		p.Atomic = Atomic{
			VA: binary.BigEndian.Uint64(h), RKey: binary.BigEndian.Uint32(h[8:]),
			SwapAdd: binary.BigEndian.Uint64(h[12:]), Compare: binary.BigEndian.Uint64(h[20:]),
		}
	}
	if shape&HasAETH != 0 {
		p.AETH = AETH{Syndrome: h[0], MSN: be24(h[1:])}
		h = h[AETHLen:]
	}
	if shape&HasAtomicAck != 0 {
		p.AtomicAck = binary.BigEndian.Uint64(h)
	}
	if shape&HasImm != 0 {
		p.Imm = binary.BigEndian.Uint32(h)
	}
	if shape&HasIETH != 0 {
		p.InvRKey = binary.BigEndian.Uint32(h)
	}
	// A peer may set a pad count larger than what follows the headers, or send data with an
	// opcode that has none.
	body := dgram[n : len(dgram)-ICRCLen]
	if shape&Payload == 0 && (len(body) != 0 || p.Pad != 0) || int(p.Pad) > len(body) {
		return ErrPad
	}
	p.Payload = body[: len(body)-int(p.Pad) : len(body)-int(p.Pad)]
	return nil
}

// AppendHeaders appends BTH and the extended headers of p to b. Reserved bits and TVer are sent
// as zero.
func AppendHeaders(b []byte, p *Packet) []byte {
	b1 := p.Pad & 3 << bthPadShift
	if p.Solicited {
		b1 |= bthSolicited
	}
	if p.MigReq {
		b1 |= bthMigReq
	}
	var b4, b8 uint8
	if p.FECN {
		b4 |= bthFECN
	}
	if p.BECN {
		b4 |= bthBECN
	}
	if p.AckReq {
		b8 = bthAckReq
	}
	b = append(b, uint8(p.Op), b1, uint8(p.PKey>>8), uint8(p.PKey),
		b4, uint8(p.DestQPN>>16), uint8(p.DestQPN>>8), uint8(p.DestQPN),
		b8, uint8(p.PSN>>16), uint8(p.PSN>>8), uint8(p.PSN))
	shape := infos[p.Op].shape
	if shape&HasDETH != 0 {
		b = binary.BigEndian.AppendUint32(b, p.DETH.QKey)
		b = binary.BigEndian.AppendUint32(b, p.DETH.SrcQPN&PSNMask)
	}
	if shape&HasRETH != 0 {
		b = binary.BigEndian.AppendUint64(b, p.RETH.VA)
		b = binary.BigEndian.AppendUint32(b, p.RETH.RKey)
		b = binary.BigEndian.AppendUint32(b, p.RETH.Len)
	}
	if shape&HasAtomic != 0 {
		b = binary.BigEndian.AppendUint64(b, p.Atomic.VA)
		b = binary.BigEndian.AppendUint32(b, p.Atomic.RKey)
		b = binary.BigEndian.AppendUint64(b, p.Atomic.SwapAdd)
		b = binary.BigEndian.AppendUint64(b, p.Atomic.Compare)
	}
	if shape&HasAETH != 0 {
		b = append(b, p.AETH.Syndrome, uint8(p.AETH.MSN>>16), uint8(p.AETH.MSN>>8), uint8(p.AETH.MSN))
	}
	if shape&HasAtomicAck != 0 {
		b = binary.BigEndian.AppendUint64(b, p.AtomicAck)
	}
	if shape&HasImm != 0 {
		b = binary.BigEndian.AppendUint32(b, p.Imm)
	}
	if shape&HasIETH != 0 {
		b = binary.BigEndian.AppendUint32(b, p.InvRKey)
	}
	return b
}

func be24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
