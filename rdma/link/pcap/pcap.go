package pcap

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/rstored/rstored/rdma/wire"
)

// The pcap file format, with times in nanoseconds, and packets that begin with an IP header. The
// file header, little-endian:
//
//	byte   0 magic               8 zone, accuracy of times: 0
//	       4 major version      16 longest packet
//	       6 minor version      20 link type
//
// The header of a packet's record:
//
//	byte   0 seconds             8 bytes in the file
//	       4 nanoseconds        12 bytes on the wire
const (
	magic        = 0xa1b23c4d
	major        = 2
	minor        = 4
	snapLen      = 1 << 16
	linkTypeRaw  = 101
	fileHdrLen   = 24
	recordHdrLen = 16
)

// FileHeader is the beginning of a file.
func FileHeader() []byte {
	b := make([]byte, fileHdrLen)
	le := binary.LittleEndian
	le.PutUint32(b, magic)
	le.PutUint16(b[4:], major)
	le.PutUint16(b[6:], minor)
	le.PutUint32(b[16:], snapLen)
	le.PutUint32(b[20:], linkTypeRaw)
	return b
}

// FirstRecords returns the first n records of b, and how many of the n are missing.
func FirstRecords(b []byte, n int) (first []byte, missing int) {
	at := 0
	for ; n > 0 && at < len(b); n-- {
		at += recordHdrLen + int(binary.LittleEndian.Uint32(b[at+8:]))
	}
	return b[:at], n
}

// Fields of the IP and UDP headers.
const (
	ipv4Len      = 20
	ipv6Len      = 40
	udpLen       = 8
	protoUDP     = 17
	ipTTL        = 64
	ipv4Version  = 0x45 // version 4, five words
	ipv6Version  = 6 << 4
	ipDontFrag   = 0x4000
	checksumZero = 0xffff // how UDP spells a checksum of zero
)

// AppendRecord appends a packet, from the BTH to the ICRC, with the IP and UDP headers of f. If
// snap is not 0, it cuts the packet off after so many bytes. The socket does not know the IPv4
// identification, but the ICRC covers it, so it follows from the ICRC.
func AppendRecord(b []byte, at time.Time, f *wire.Flow, dgram []byte, snap int) []byte {
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
	be.PutUint16(u[2:], wire.Port)
	be.PutUint16(u[4:], uint16(udpLen+len(dgram)))
	if dst.Is6() {
		ip[0], ip[1] = ipv6Version|f.TOS>>4, f.TOS<<4
		be.PutUint16(ip[4:], uint16(udpLen+len(dgram)))
		ip[6], ip[7] = protoUDP, ipTTL
		copy(ip[8:24], src.AsSlice())
		copy(ip[24:40], dst.AsSlice())
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
		copy(ip[12:16], src.AsSlice())
		copy(ip[16:20], dst.AsSlice())
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
