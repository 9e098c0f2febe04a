package cm

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Every CM message is a management datagram (MAD) of 256 bytes (IBTA 13.4.3): the payload of one UD
// packet from QP1 to QP1, big-endian.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	| BaseVersion=1 |  MgmtClass=7  | ClassVersion=2|  Method=3     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|           Status = 0          |       ClassSpecific = 0       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                        Transaction ID                         |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         Attribute ID          |           reserved            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Attribute modifier                       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Message (232 bytes, messages.go)             |
//
// REQ and DREQ choose a transaction ID, and the other messages of the exchange repeat it. A
// receiver matches messages to connections by communication IDs, not by transaction IDs.
const (
	baseVersion  = 1
	classCM      = 7
	classVersion = 2
	methodSend   = 3

	bodyAt = 24 // offset of the message

	// MADLen is the length of a management datagram.
	MADLen = 256
	// QKey is the Q_Key of QP1.
	QKey = 0x80010000
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

// Errors of decoding.
var (
	ErrMAD      = errors.New("cm: not a MAD of the communication management class")
	ErrIPHeader = errors.New("cm: private data without a valid RDMA-CM address header")
)

// Header is the common header of a MAD.
type Header struct {
	TID  uint64
	Attr Attr
	Mod  uint32 // attribute modifier; REQ and REP carry ECE options in it
}

// ParseHeader checks and reads the common header of a CM MAD. Anybody can send to QP1: after an
// error the datagram is counted and dropped, never answered.
func ParseHeader(b []byte) (h Header, err error) {
	if len(b) != MADLen || [4]byte(b) != [...]byte{baseVersion, classCM, classVersion, methodSend} {
		return h, ErrMAD
	}
	h.fields(coder{body: b})
	return h, nil
}

func (h *Header) fields(c coder) {
	bits(c, 8, 0, 64, &h.TID)
	bits(c, 16, 0, 16, &h.Attr)
	bits(c, 20, 0, 32, &h.Mod)
}

// encode makes the MAD of a message. Reserved fields are zero.
func encode(a Attr, h Header, message func(coder)) []byte {
	b := make([]byte, MADLen)
	copy(b, []byte{baseVersion, classCM, classVersion, methodSend})
	h.Attr = a
	h.fields(coder{b, true})
	message(coder{b[bodyAt:], true})
	return b
}

// decoder reads the message of a MAD, whose length ParseHeader has checked.
func decoder(mad []byte) coder { return coder{body: mad[bodyAt:]} }

// coder moves fields between a struct and the bytes of a message, so that one list of fields both
// encodes and decodes it.
type coder struct {
	body []byte
	put  bool // into body; otherwise out of it
}

// bits moves an unsigned field of width bits. at is its byte, and bit its first bit in that byte,
// counted from the most significant one, as in the tables of the specification. Encoding drops the
// bits of *v above width.
//
//	byte      43                44
//	          0 1 2 3 4 5 6 7   0 1 ...
//	REQ       CM timeout |TT|F  starting PSN     bits(c, 43, 0, 5, ...), bits(c, 43, 5, 2, ...)
func bits[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c coder, at, bit, width int, v *T) {
	b := c.body[at : at+(bit+width+7)/8]
	behind := len(b)*8 - bit - width // bits of the last byte that belong to the next field
	mask := uint64(1)<<width - 1
	var w uint64
	for _, x := range b {
		w = w<<8 | uint64(x)
	}
	if !c.put {
		*v = T(w >> behind & mask)
		return
	}
	w = w&^(mask<<behind) | uint64(*v)&mask<<behind
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte(w)
		w >>= 8
	}
}

// flag moves a field of one bit.
func (c coder) flag(at, bit int, v *bool) {
	var n uint8
	if c.put && *v {
		n = 1
	}
	bits(c, at, bit, 1, &n)
	*v = n != 0
}

// bytes moves len(v) bytes.
func (c coder) bytes(at int, v []byte) {
	if c.put {
		copy(c.body[at:], v)
	} else {
		copy(v, c.body[at:])
	}
}

// gid moves the address of a RoCEv2 GID: an IPv6 address, or an IPv4 address in its mapped form.
func (c coder) gid(at int, a *netip.Addr) {
	switch g := (*[16]byte)(c.body[at:]); {
	case !c.put:
		*a = netip.AddrFrom16(*g).Unmap()
	case a.IsValid():
		*g = a.As16()
	}
}

// IPHeader begins the private data of a REQ or SIDR REQ of RDMA-CM: who connects to whom. The port
// of the destination is in the service ID.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  Version = 0  |IP=4/6 |   0   |          Source port          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Source address (16 bytes; IPv4: 12 zeros and 4 bytes)     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|              Destination address (in the same form)           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type IPHeader struct {
	Src netip.AddrPort
	Dst netip.Addr
}

// IPHeaderLen is the length of an IPHeader.
const IPHeaderLen = 36

// ParseIPHeader reads the header from the private data. The addresses are the peer's claim: the
// caller compares them with those of the packet.
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
	clear(p[:4])
	binary.BigEndian.PutUint16(p[2:], h.Src.Port())
	src, dst := h.Src.Addr().As16(), h.Dst.As16()
	copy(p[4:20], src[:])
	copy(p[20:36], dst[:])
	p[1] = 0x60
	if h.Dst.Is4() {
		p[1] = 0x40
		clear(p[4:16])
		clear(p[20:32])
	}
}
