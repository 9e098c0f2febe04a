package cm

import (
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// Lengths of private data.
const (
	REQPrivateLen = 92
	REPPrivateLen = 196
	REJPrivateLen = 148
	REJInfoLen    = 72
	// ConnPrivateLen is the part of a REQ's private data that RDMA-CM leaves to its user.
	ConnPrivateLen = REQPrivateLen - IPHeaderLen
)

// servicePrefix is the service ID of the RDMA-CM port space TCP, without the port.
const servicePrefix = 0x0000000001060000

// ServiceID is the service ID of a port.
func ServiceID(port uint16) uint64 { return servicePrefix | uint64(port) }

// ServicePort is the port of a service ID; ok is false for other services.
func ServicePort(id uint64) (port uint16, ok bool) {
	return uint16(id), id&^0xffff == servicePrefix
}

// Path is one path of a REQ. RoCE has no subnet manager: only addresses, traffic class, hop limit
// and ACK timeout have a meaning there.
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

// REQ asks for a connection (IBTA 12.6.5). PSN is the first PSN that the receiver of the REQ sends.
//
//	byte   0 local communication ID       44 starting PSN, CM timeout, retry count
//	       5 vendor ID                    48 P_Key
//	       8 service ID                   50 path MTU, RNR retry count, CM retries, SRQ
//	      16 GUID                         52 primary path: LIDs, GIDs, flow label, rate,
//	      28 Q_Key                           traffic class, hop limit, SL, ACK timeout
//	      32 QPN, responder resources     96 alternate path, in the same form
//	      39 initiator depth             140 private data
//	      43 CM timeout, transport type
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
	Alternate          bool // there is an alternate path; nothing else of it is read
	Private            [REQPrivateLen]byte
}

// fields lists the fields of a REQ. Those that are missing are reserved, or for other transports.
func (r *REQ) fields(c coder) {
	bits(c, 0, 0, 32, &r.LocalID)
	bits(c, 5, 0, 24, &r.Vendor)
	bits(c, 8, 0, 64, &r.ServiceID)
	bits(c, 16, 0, 64, &r.GUID)
	bits(c, 28, 0, 32, &r.QKey)
	bits(c, 32, 0, 24, &r.QPN)
	bits(c, 35, 0, 8, &r.ResponderResources)
	bits(c, 39, 0, 8, &r.InitiatorDepth)
	bits(c, 43, 0, 5, &r.RemoteCMTimeout)
	bits(c, 43, 5, 2, &r.Transport)
	c.flag(43, 7, &r.FlowControl)
	bits(c, 44, 0, 24, &r.PSN)
	bits(c, 47, 0, 5, &r.LocalCMTimeout)
	bits(c, 47, 5, 3, &r.RetryCount)
	bits(c, 48, 0, 16, &r.PKey)
	bits(c, 50, 0, 4, &r.MTU)
	bits(c, 50, 5, 3, &r.RNRRetryCount)
	bits(c, 51, 0, 4, &r.MaxCMRetries)
	c.flag(51, 4, &r.SRQ)
	bits(c, 51, 5, 3, &r.ExtendedTransport)
	p := &r.Primary
	bits(c, 52, 0, 16, &p.LocalLID)
	bits(c, 54, 0, 16, &p.RemoteLID)
	c.gid(56, &p.LocalGID)
	c.gid(72, &p.RemoteGID)
	bits(c, 88, 0, 20, &p.FlowLabel)
	bits(c, 91, 2, 6, &p.Rate)
	bits(c, 92, 0, 8, &p.TrafficClass)
	bits(c, 93, 0, 8, &p.HopLimit)
	bits(c, 94, 0, 4, &p.SL)
	c.flag(94, 4, &p.SubnetLocal)
	bits(c, 95, 0, 5, &p.AckTimeout)
	if !c.put { // bytes 96 to 131 are LIDs and GIDs of the alternate path
		r.Alternate = [36]byte(c.body[96:]) != [36]byte{}
	}
	c.bytes(140, r.Private[:])
}

// ParseREQ reads a REQ.
func ParseREQ(b []byte) (r REQ) { r.fields(decoder(b)); return r }

// Encode makes the MAD of a REQ, without an alternate path.
func (r *REQ) Encode(h Header) []byte { return encode(AttrREQ, h, r.fields) }

// REP accepts a connection (IBTA 12.6.8). PSN is the first PSN that the receiver of the REP sends.
//
//	byte   0 local communication ID       20 starting PSN
//	       4 remote communication ID      24 responder resources, initiator depth
//	       8 Q_Key                        26 target ACK delay, failover, flow control
//	      12 QPN                          27 RNR retry count, SRQ
//	   15, 19, 23 vendor ID               28 GUID
//	                                      36 private data
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

// FailoverUnsupported answers a REQ with an alternate path (IBTA 12.6.8, failover accepted).
const FailoverUnsupported = 1

// fields lists the fields of a REP.
func (r *REP) fields(c coder) {
	bits(c, 0, 0, 32, &r.LocalID)
	bits(c, 4, 0, 32, &r.RemoteID)
	bits(c, 8, 0, 32, &r.QKey)
	bits(c, 12, 0, 24, &r.QPN)
	high, middle, low := uint8(r.Vendor>>16), uint8(r.Vendor>>8), uint8(r.Vendor)
	bits(c, 15, 0, 8, &high)
	bits(c, 19, 0, 8, &middle)
	bits(c, 23, 0, 8, &low)
	r.Vendor = uint32(high)<<16 | uint32(middle)<<8 | uint32(low)
	bits(c, 20, 0, 24, &r.PSN)
	bits(c, 24, 0, 8, &r.ResponderResources)
	bits(c, 25, 0, 8, &r.InitiatorDepth)
	bits(c, 26, 0, 5, &r.TargetAckDelay)
	bits(c, 26, 5, 2, &r.Failover)
	c.flag(26, 7, &r.FlowControl)
	bits(c, 27, 0, 3, &r.RNRRetryCount)
	c.flag(27, 3, &r.SRQ)
	bits(c, 28, 0, 64, &r.GUID)
	c.bytes(36, r.Private[:])
}

// ParseREP reads a REP.
func ParseREP(b []byte) (r REP) { r.fields(decoder(b)); return r }

// Encode makes the MAD of a REP.
func (r *REP) Encode(h Header) []byte { return encode(AttrREP, h, r.fields) }

// The message that an MRA or a REJ is about (IBTA 12.6.6 and 12.6.7).
const (
	OfREQ   uint8 = 0
	OfREP   uint8 = 1
	OfOther uint8 = 2 // a REJ: no message in particular
)

// guidLen is the length of the additional information of a REJ for a timeout: the GUID of its
// sender.
const guidLen = 8

// REJ refuses or gives up a connection (IBTA 12.6.7).
//
//	byte   0 local communication ID, 0 if the sender has none
//	       4 remote communication ID
//	       8 message that is rejected     12 additional information
//	       9 length of the information    84 private data
//	      10 reason
type REJ struct {
	LocalID, RemoteID uint32
	Message           uint8 // what is rejected: OfREQ, OfREP or OfOther
	InfoLen           uint8 // bytes of Info that are used; 7 bits
	Reason            Reason
	Info              [REJInfoLen]byte
	Private           [REJPrivateLen]byte
}

// fields lists the fields of a REJ.
func (r *REJ) fields(c coder) {
	bits(c, 0, 0, 32, &r.LocalID)
	bits(c, 4, 0, 32, &r.RemoteID)
	bits(c, 8, 0, 2, &r.Message)
	bits(c, 9, 0, 7, &r.InfoLen)
	bits(c, 10, 0, 16, &r.Reason)
	c.bytes(12, r.Info[:])
	c.bytes(84, r.Private[:])
}

// ParseREJ reads a REJ.
func ParseREJ(b []byte) (r REJ) { r.fields(decoder(b)); return r }

// Encode makes the MAD of a REJ.
func (r *REJ) Encode(h Header) []byte { return encode(AttrREJ, h, r.fields) }

// mtu is the path MTU code that a REJ for InvalidMTU suggests, or 0 if it suggests none. It is a
// byte: the code alone, or the code in the upper half, as in a REQ.
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

// MRA asks for more time (IBTA 12.6.6).
//
//	byte   0 local communication ID
//	       4 remote communication ID
//	       8 message that is acknowledged
//	       9 service timeout
//	      10 private data
type MRA struct {
	LocalID, RemoteID uint32
	Message           uint8 // OfREQ, OfREP, or 2 for a LAP
	Timeout           uint8 // 5 bits
}

// fields lists the fields of an MRA. Its private data is not read.
func (r *MRA) fields(c coder) {
	bits(c, 0, 0, 32, &r.LocalID)
	bits(c, 4, 0, 32, &r.RemoteID)
	bits(c, 8, 0, 2, &r.Message)
	bits(c, 9, 0, 5, &r.Timeout)
}

// ParseMRA reads an MRA.
func ParseMRA(b []byte) (r MRA) { r.fields(decoder(b)); return r }

// Encode makes the MAD of an MRA.
func (r *MRA) Encode(h Header) []byte { return encode(AttrMRA, h, r.fields) }

// IDs is the body of RTU and DREP, and with QPN that of DREQ (IBTA 12.6.9 to 12.6.11).
//
//	byte   0 local communication ID      8 RTU, DREP: private data
//	       4 remote communication ID       DREQ: remote QPN; 12 private data
type IDs struct {
	LocalID, RemoteID uint32
	QPN               uint32 // DREQ: the QPN of its receiver
}

// fields lists the fields of an RTU, DREQ or DREP. Their private data is not read.
func (r *IDs) fields(c coder) {
	bits(c, 0, 0, 32, &r.LocalID)
	bits(c, 4, 0, 32, &r.RemoteID)
	bits(c, 8, 0, 24, &r.QPN)
}

// ParseIDs reads an RTU, DREQ or DREP.
func ParseIDs(b []byte) (r IDs) { r.fields(decoder(b)); return r }

// Encode makes the MAD of an RTU, DREQ or DREP, as h.Attr says.
func (r IDs) Encode(h Header) []byte {
	if h.Attr != AttrDREQ {
		r.QPN = 0
	}
	return encode(h.Attr, h, r.fields)
}

// apUnsupported is the AP status of a host without alternate paths (IBTA 12.8.2).
const apUnsupported = 2

// apr makes the MAD of an APR, the answer to a LAP (IBTA 12.8.2): alternate paths are not
// supported.
//
//	byte   0 local communication ID      9 AP status
//	       4 remote communication ID    12 additional information
//	       8 length of the information  84 private data
func (r IDs) apr(h Header) []byte {
	h.Attr = AttrAPR
	b := r.Encode(h)
	b[bodyAt+9] = apUnsupported
	return b
}
