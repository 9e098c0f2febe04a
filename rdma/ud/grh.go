package ud

import (
	"encoding/binary"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

const (
	ip4At    = 20 // of the IPv4 header in the GRH area
	udpLen   = 8
	protoUDP = 17
	hopLimit = 64
)

// putGRH writes the IP header of p, with traffic class tos, in the form of IBTA annex A17.4.5.2.
// A UDP socket does not show all fields: the identification is set to 0, the TTL to the usual 64.
//
//	          0                   20                                 40
//	IPv4:     | zero              | IPv4 header                      | payload
//	IPv6:     | IPv6 header                                          | payload
func putGRH(b *[rdma.GRHLen]byte, p *wire.Packet, tos uint8) {
	clear(b[:])
	n := udpLen + p.Op.HeaderLen() + len(p.Payload) + int(p.Pad) + wire.ICRCLen
	src, dst := p.Src.Unmap(), p.Dst.Unmap()
	if src.Is4() && dst.Is4() {
		h := b[ip4At:]
		from, to := src.As4(), dst.As4()
		h[0], h[1] = 0x45, tos
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)+n))
		binary.BigEndian.PutUint16(h[6:], wire.FlagsDF)
		h[8], h[9] = hopLimit, protoUDP
		copy(h[12:], from[:])
		copy(h[16:], to[:])
		binary.BigEndian.PutUint16(h[10:], headerSum(h))
		return
	}
	from, to := src.As16(), dst.As16()
	b[0], b[1] = 0x60|tos>>4, tos<<4
	binary.BigEndian.PutUint16(b[4:], uint16(n))
	b[6], b[7] = protoUDP, hopLimit
	copy(b[8:], from[:])
	copy(b[24:], to[:])
}

// headerSum is the checksum of an IPv4 header whose checksum field is 0.
func headerSum(h []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}
