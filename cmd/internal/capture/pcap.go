package capture

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/rstored/rstored/rdma/wire"
)

// The pcap file format, with times in nanoseconds and packets that begin with
// an IP header.
const (
	pcapMagic    = 0xa1b23c4d
	pcapMajor    = 2
	pcapMinor    = 4
	pcapSnapLen  = 1 << 16
	linkTypeRaw  = 101
	fileHdrLen   = 24
	recordHdrLen = 16
)

func fileHeader() []byte {
	b := make([]byte, fileHdrLen)
	le := binary.LittleEndian
	le.PutUint32(b, pcapMagic)
	le.PutUint16(b[4:], pcapMajor)
	le.PutUint16(b[6:], pcapMinor)
	le.PutUint32(b[16:], pcapSnapLen)
	le.PutUint32(b[20:], linkTypeRaw)
	return b
}

// IP and UDP, as much as RoCEv2 needs of them.
const (
	ipv4Len      = 20
	ipv6Len      = 40
	udpLen       = 8
	protoUDP     = 17
	ipTTL        = 64
	ipv4Version  = 0x45 // version 4, five words
	ipv6Version  = 6 << 4
	ipDontFrag   = 0x4000
	rocePort     = 4791
	checksumZero = 0xffff // how UDP spells a checksum of zero
)

// appendRecord appends a packet with the IP and UDP headers it travelled in, its first
// snap bytes only unless that is 0.
// The IPv4 identification is not known here, but the packet's own checksum
// covers it and so tells it.
func appendRecord(b []byte, at time.Time, f *wire.Flow, dgram []byte, snap int) []byte {
	src, dst := f.Src.Unmap(), f.Dst.Unmap()
	ipLen := ipv4Len
	if dst.Is6() {
		ipLen = ipv6Len
	}
	size := ipLen + udpLen + len(dgram)
	start := len(b)
	b = slices.Grow(b, recordHdrLen+size)[:start+recordHdrLen+ipLen+udpLen]
	rec, ip := b[start:start+recordHdrLen], b[start+recordHdrLen:start+recordHdrLen+ipLen]
	u := b[start+recordHdrLen+ipLen:]
	clear(b[start:])
	le, be := binary.LittleEndian, binary.BigEndian
	le.PutUint32(rec, uint32(at.Unix()))
	le.PutUint32(rec[4:], uint32(at.Nanosecond()))
	le.PutUint32(rec[8:], uint32(size))
	le.PutUint32(rec[12:], uint32(size))
	be.PutUint16(u, f.SrcPort)
	be.PutUint16(u[2:], rocePort)
	be.PutUint16(u[4:], uint16(udpLen+len(dgram)))
	if dst.Is6() {
		ip[0], ip[1] = ipv6Version|f.TOS>>4, f.TOS<<4
		be.PutUint16(ip[4:], uint16(udpLen+len(dgram)))
		ip[6], ip[7] = protoUDP, ipTTL
		copyAddr(ip[8:24], src)
		copyAddr(ip[24:40], dst)
		sum := fold(sum16(sum16(sum16(protoUDP+uint32(udpLen+len(dgram)), ip[8:]), u), dgram))
		if sum = ^sum; sum == 0 {
			sum = checksumZero
		}
		be.PutUint16(u[6:], sum)
	} else {
		_, _, id := wire.VerifyICRC(f, dgram, 0)
		ip[0], ip[1] = ipv4Version, f.TOS
		be.PutUint16(ip[2:], uint16(size))
		be.PutUint16(ip[4:], id)
		be.PutUint16(ip[6:], ipDontFrag)
		ip[8], ip[9] = ipTTL, protoUDP
		copyAddr(ip[12:16], src)
		copyAddr(ip[16:20], dst)
		be.PutUint16(ip[10:], ^fold(sum16(0, ip)))
		// The UDP checksum stays 0, not used.
	}
	b = append(b, dgram...)
	if snap > 0 && snap < size {
		le.PutUint32(b[start+8:], uint32(snap))
		b = b[:start+recordHdrLen+snap]
	}
	return b
}

func copyAddr(to []byte, a netip.Addr) { copy(to, a.AsSlice()) }

// sum16 adds b as 16-bit words to a sum (RFC 1071).
func sum16(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
