package cm

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// MADLen is the length of a management datagram.
const MADLen = 256

// QKey is the Q_Key of QP1.
const QKey = 0x80010000

// Fields of the common MAD header (IBTA 13.4.3), and offsets in it.
const (
	baseVersion  = 1
	classCM      = 7
	classVersion = 2
	methodSend   = 3

	offTID  = 8
	offAttr = 16
	offMod  = 20
	bodyAt  = 24
)

// Attr is the attribute ID of a MAD: which CM message it is.
type Attr uint16

// CM messages (IBTA 12.6).
const (
	AttrREQ     Attr = 0x10
	AttrMRA     Attr = 0x11
	AttrREJ     Attr = 0x12
	AttrREP     Attr = 0x13
	AttrRTU     Attr = 0x14
	AttrDREQ    Attr = 0x15
	AttrDREP    Attr = 0x16
	AttrSIDRREQ Attr = 0x17
	AttrSIDRREP Attr = 0x18
	AttrLAP     Attr = 0x19
	AttrAPR     Attr = 0x1a
)

// Lengths of private data.
const (
	REQPrivateLen = 92
	REPPrivateLen = 196
	REJPrivateLen = 148
	REJInfoLen    = 72
	// IPHeaderLen is the part of a REQ's private data that RDMA-CM uses for
	// the addresses; ConnPrivateLen is what it leaves to its user.
	IPHeaderLen    = 36
	ConnPrivateLen = REQPrivateLen - IPHeaderLen
)

// servicePrefix is the service ID of the RDMA-CM port space TCP, without port.
const servicePrefix = 0x0000000001060000

// ServiceID is the service ID of a port.
func ServiceID(port uint16) uint64 { return servicePrefix | uint64(port) }

// ServicePort is the port of a service ID; ok is false for other services.
func ServicePort(id uint64) (port uint16, ok bool) {
	return uint16(id), id&^0xffff == servicePrefix
}

// Errors of decoding.
var (
	ErrMAD      = errors.New("cm: not a MAD of the communication management class")
	ErrIPHeader = errors.New("cm: private data without a valid RDMA-CM address header")
)

// Header is what precedes every message.
type Header struct {
	TID  uint64
	Attr Attr
	Mod  uint32 // attribute modifier; REQ and REP carry ECE options in it
}

// ParseHeader checks and reads the common header of a CM MAD.
func ParseHeader(b []byte) (h Header, err error) {
	if len(b) != MADLen || b[0] != baseVersion || b[1] != classCM || b[2] != classVersion || b[3] != methodSend {
		return h, ErrMAD
	}
	h.TID = binary.BigEndian.Uint64(b[offTID:])
	h.Attr = Attr(binary.BigEndian.Uint16(b[offAttr:]))
	h.Mod = binary.BigEndian.Uint32(b[offMod:])
	return h, nil
}

// newMAD makes a MAD with an empty body.
func newMAD(h Header) []byte {
	b := make([]byte, MADLen)
	b[0], b[1], b[2], b[3] = baseVersion, classCM, classVersion, methodSend
	binary.BigEndian.PutUint64(b[offTID:], h.TID)
	binary.BigEndian.PutUint16(b[offAttr:], uint16(h.Attr))
	binary.BigEndian.PutUint32(b[offMod:], h.Mod)
	return b
}

// Path is one path of a REQ.
type Path struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID netip.Addr // IPv4 as such, not as mapped
	FlowLabel           uint32     // 20 bits
	Rate                uint8      // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // 5 bits
}

// REQ asks for a connection (IBTA 12.6.5).
type REQ struct {
	LocalID            uint32
	Vendor             uint32 // 24 bits, for ECE
	ServiceID          uint64
	GUID               uint64
	QKey               uint32
	QPN                uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	RemoteCMTimeout    uint8 // 5 bits
	Transport          uint8 // 2 bits, 0 = RC
	FlowControl        bool
	PSN                uint32
	LocalCMTimeout     uint8 // 5 bits
	RetryCount         uint8 // 3 bits
	PKey               uint16
	MTU                uint8 // code
	RNRRetryCount      uint8 // 3 bits
	MaxCMRetries       uint8 // 4 bits
	SRQ                bool
	ExtendedTransport  uint8 // 3 bits
	Primary            Path
	Alternate          bool // there is an alternate path, of which nothing else is read
	Private            [REQPrivateLen]byte
}

// ParseREQ reads a REQ.
func ParseREQ(b []byte) (r REQ) {
	p := b[bodyAt:]
	r.LocalID = be32(p[0:])
	r.Vendor = be24(p[5:])
	r.ServiceID = binary.BigEndian.Uint64(p[8:])
	r.GUID = binary.BigEndian.Uint64(p[16:])
	r.QKey = be32(p[28:])
	r.QPN, r.ResponderResources = be24(p[32:]), p[35]
	r.InitiatorDepth = p[39]
	r.RemoteCMTimeout, r.Transport, r.FlowControl = p[43]>>3, p[43]>>1&3, p[43]&1 != 0
	r.PSN = be24(p[44:])
	r.LocalCMTimeout, r.RetryCount = p[47]>>3, p[47]&7
	r.PKey = binary.BigEndian.Uint16(p[48:])
	r.MTU, r.RNRRetryCount = p[50]>>4, p[50]&7
	r.MaxCMRetries, r.SRQ, r.ExtendedTransport = p[51]>>4, p[51]&8 != 0, p[51]&7
	r.Primary = Path{
		LocalLID: binary.BigEndian.Uint16(p[52:]), RemoteLID: binary.BigEndian.Uint16(p[54:]),
		LocalGID: gidAddr(p[56:72]), RemoteGID: gidAddr(p[72:88]),
		FlowLabel: be32(p[88:]) >> 12, Rate: p[91] & 0x3f, TrafficClass: p[92], HopLimit: p[93],
		SL: p[94] >> 4, SubnetLocal: p[94]&8 != 0, AckTimeout: p[95] >> 3,
	}
	r.Alternate = be32(p[96:]) != 0 || [32]byte(p[100:]) != [32]byte{} // LIDs, GIDs
	copy(r.Private[:], p[140:])
	return r
}

// Encode makes the MAD of a REQ, without an alternate path.
func (r *REQ) Encode(h Header) []byte {
	h.Attr = AttrREQ
	b := newMAD(h)
	p := b[bodyAt:]
	put32(p[0:], r.LocalID)
	put24(p[5:], r.Vendor)
	binary.BigEndian.PutUint64(p[8:], r.ServiceID)
	binary.BigEndian.PutUint64(p[16:], r.GUID)
	put32(p[28:], r.QKey)
	put24(p[32:], r.QPN)
	p[35], p[39] = r.ResponderResources, r.InitiatorDepth
	p[43] = r.RemoteCMTimeout<<3 | r.Transport&3<<1 | bit(r.FlowControl, 1)
	put24(p[44:], r.PSN)
	p[47] = r.LocalCMTimeout<<3 | r.RetryCount&7
	binary.BigEndian.PutUint16(p[48:], r.PKey)
	p[50] = r.MTU<<4 | r.RNRRetryCount&7
	p[51] = r.MaxCMRetries<<4 | bit(r.SRQ, 8) | r.ExtendedTransport&7
	a := &r.Primary
	binary.BigEndian.PutUint16(p[52:], a.LocalLID)
	binary.BigEndian.PutUint16(p[54:], a.RemoteLID)
	putGID(p[56:72], a.LocalGID)
	putGID(p[72:88], a.RemoteGID)
	put32(p[88:], a.FlowLabel<<12)
	p[91] |= a.Rate & 0x3f
	p[92], p[93] = a.TrafficClass, a.HopLimit
	p[94] = a.SL<<4 | bit(a.SubnetLocal, 8)
	p[95] = a.AckTimeout << 3
	copy(p[140:], r.Private[:])
	return b
}

// REP accepts a connection (IBTA 12.6.8).
type REP struct {
	LocalID, RemoteID  uint32
	QKey               uint32
	QPN                uint32
	Vendor             uint32 // 24 bits, for ECE
	PSN                uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	TargetAckDelay     uint8 // 5 bits
	Failover           uint8 // 2 bits, 0 or FailoverUnsupported
	FlowControl        bool
	RNRRetryCount      uint8 // 3 bits
	SRQ                bool
	GUID               uint64
	Private            [REPPrivateLen]byte
}

// FailoverUnsupported is what a REP says to a REQ with an alternate path (IBTA 12.7.30).
const FailoverUnsupported = 1

// ParseREP reads a REP.
func ParseREP(b []byte) (r REP) {
	p := b[bodyAt:]
	r.LocalID, r.RemoteID, r.QKey = be32(p[0:]), be32(p[4:]), be32(p[8:])
	r.QPN = be24(p[12:])
	r.Vendor = uint32(p[15])<<16 | uint32(p[19])<<8 | uint32(p[23])
	r.PSN = be24(p[20:])
	r.ResponderResources, r.InitiatorDepth = p[24], p[25]
	r.TargetAckDelay, r.Failover, r.FlowControl = p[26]>>3, p[26]>>1&3, p[26]&1 != 0
	r.RNRRetryCount, r.SRQ = p[27]>>5, p[27]&0x10 != 0
	r.GUID = binary.BigEndian.Uint64(p[28:])
	copy(r.Private[:], p[36:])
	return r
}

// Encode makes the MAD of a REP.
func (r *REP) Encode(h Header) []byte {
	h.Attr = AttrREP
	b := newMAD(h)
	p := b[bodyAt:]
	put32(p[0:], r.LocalID)
	put32(p[4:], r.RemoteID)
	put32(p[8:], r.QKey)
	put24(p[12:], r.QPN)
	p[15], p[19], p[23] = uint8(r.Vendor>>16), uint8(r.Vendor>>8), uint8(r.Vendor)
	put24(p[20:], r.PSN)
	p[24], p[25] = r.ResponderResources, r.InitiatorDepth
	p[26] = r.TargetAckDelay<<3 | r.Failover&3<<1 | bit(r.FlowControl, 1)
	p[27] = r.RNRRetryCount<<5 | bit(r.SRQ, 0x10)
	binary.BigEndian.PutUint64(p[28:], r.GUID)
	copy(p[36:], r.Private[:])
	return b
}

// What an MRA or a REJ is about (IBTA 12.6.6 and 12.6.7).
const (
	OfREQ   uint8 = 0
	OfREP   uint8 = 1
	OfOther uint8 = 2 // a REJ: no message in particular
)

// guidLen is the length of the additional information of a REJ for a timeout:
// the GUID of its sender.
const guidLen = 8

// REJ refuses or gives up a connection (IBTA 12.6.7).
type REJ struct {
	LocalID, RemoteID uint32
	Message           uint8 // what is rejected: OfREQ, OfREP or OfOther
	InfoLen           uint8 // bytes of Info that are used; 7 bits
	Reason            Reason
	Info              [REJInfoLen]byte
	Private           [REJPrivateLen]byte
}

// ParseREJ reads a REJ.
func ParseREJ(b []byte) (r REJ) {
	p := b[bodyAt:]
	r.LocalID, r.RemoteID = be32(p[0:]), be32(p[4:])
	r.Message, r.InfoLen = p[8]>>6, p[9]>>1
	r.Reason = Reason(binary.BigEndian.Uint16(p[10:]))
	copy(r.Info[:], p[12:])
	copy(r.Private[:], p[84:])
	return r
}

// mtu is the path MTU code that a REJ for InvalidMTU suggests, or 0 if it suggests none. It is a byte: the code
// alone, or the code in the upper half, as in a REQ.
func (r *REJ) mtu() uint8 {
	code := r.Info[0]
	if code&0xf == 0 {
		code >>= 4
	}
	if r.InfoLen == 0 || rdma.MTUFromCode(code) == 0 {
		return 0
	}
	return code
}

func (r *REJ) suggestMTU(code uint8) { r.InfoLen, r.Info[0] = 1, code }

// Encode makes the MAD of a REJ.
func (r *REJ) Encode(h Header) []byte {
	h.Attr = AttrREJ
	b := newMAD(h)
	p := b[bodyAt:]
	put32(p[0:], r.LocalID)
	put32(p[4:], r.RemoteID)
	p[8], p[9] = r.Message<<6, r.InfoLen<<1
	binary.BigEndian.PutUint16(p[10:], uint16(r.Reason))
	copy(p[12:84], r.Info[:])
	copy(p[84:], r.Private[:])
	return b
}

// MRA asks for more time (IBTA 12.6.6).
type MRA struct {
	LocalID, RemoteID uint32
	Message           uint8 // OfREQ, OfREP, or 2 for a LAP
	Timeout           uint8 // 5 bits
}

// ParseMRA reads an MRA.
func ParseMRA(b []byte) MRA {
	p := b[bodyAt:]
	return MRA{LocalID: be32(p), RemoteID: be32(p[4:]), Message: p[8] >> 6, Timeout: p[9] >> 3}
}

// Encode makes the MAD of an MRA.
func (r *MRA) Encode(h Header) []byte {
	h.Attr = AttrMRA
	b := newMAD(h)
	p := b[bodyAt:]
	put32(p, r.LocalID)
	put32(p[4:], r.RemoteID)
	p[8], p[9] = r.Message<<6, r.Timeout<<3
	return b
}

// IDs is the body of RTU and DREP, and with QPN that of DREQ.
type IDs struct {
	LocalID, RemoteID uint32
	QPN               uint32 // DREQ: the QPN of its receiver
}

// ParseIDs reads an RTU, DREQ or DREP.
func ParseIDs(b []byte) IDs {
	p := b[bodyAt:]
	return IDs{LocalID: be32(p), RemoteID: be32(p[4:]), QPN: be24(p[8:])}
}

// Encode makes the MAD of an RTU, DREQ or DREP, as h.Attr says.
func (r *IDs) Encode(h Header) []byte {
	b := newMAD(h)
	p := b[bodyAt:]
	put32(p, r.LocalID)
	put32(p[4:], r.RemoteID)
	if h.Attr == AttrDREQ {
		put24(p[8:], r.QPN)
	}
	return b
}

// apUnsupported is the AP status of a host without alternate paths (IBTA 12.8.2).
const apUnsupported = 2

// apr makes the MAD of the answer to a LAP: alternate paths are not supported.
func (r *IDs) apr(h Header) []byte {
	h.Attr = AttrAPR
	b := r.Encode(h)
	b[bodyAt+9] = apUnsupported
	return b
}

// IPHeader is how RDMA-CM says in the private data of a REQ or SIDR REQ who connects to whom.
type IPHeader struct {
	Src netip.AddrPort
	Dst netip.Addr
}

// ParseIPHeader reads it from the private data.
func ParseIPHeader(p []byte) (h IPHeader, err error) {
	if len(p) < IPHeaderLen || p[0] != 0 {
		return h, ErrIPHeader
	}
	port := binary.BigEndian.Uint16(p[2:])
	switch p[1] >> 4 {
	case 4:
		h.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(p[16:20])), port)
		h.Dst = netip.AddrFrom4([4]byte(p[32:36]))
	case 6:
		h.Src = netip.AddrPortFrom(netip.AddrFrom16([16]byte(p[4:20])), port)
		h.Dst = netip.AddrFrom16([16]byte(p[20:36]))
	default:
		return h, ErrIPHeader
	}
	return h, nil
}

// Put writes the header to the start of p.
func (h *IPHeader) Put(p []byte) {
	clear(p[:IPHeaderLen])
	binary.BigEndian.PutUint16(p[2:], h.Src.Port())
	if h.Dst.Is4() {
		src, dst := h.Src.Addr().As4(), h.Dst.As4()
		p[1] = 0x40
		copy(p[16:20], src[:])
		copy(p[32:36], dst[:])
		return
	}
	src, dst := h.Src.Addr().As16(), h.Dst.As16()
	p[1] = 0x60
	copy(p[4:20], src[:])
	copy(p[20:36], dst[:])
}

// gidAddr is the address of a RoCEv2 GID.
func gidAddr(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)).Unmap() }

func putGID(b []byte, a netip.Addr) {
	if a.IsValid() {
		g := a.As16()
		copy(b, g[:])
	}
}

func bit(v bool, b uint8) uint8 {
	if v {
		return b
	}
	return 0
}

func be32(b []byte) uint32     { return binary.BigEndian.Uint32(b) }
func put32(b []byte, v uint32) { binary.BigEndian.PutUint32(b, v) }
func be24(b []byte) uint32     { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
func put24(b []byte, v uint32) { b[0], b[1], b[2] = uint8(v>>16), uint8(v>>8), uint8(v) }
