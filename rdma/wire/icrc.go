package wire

import (
	"encoding/binary"
	"net/netip"
)

// The invariant CRC of RoCEv2 (IBTA annex A17) is the CRC-32 of IEEE 802.3 over the packet
// from the IP header on, preceded by eight bytes of ones in place of the LRH, which RoCE does not
// have. Fields that routers change count as all ones: they are marked # below. The four bytes of
// the ICRC follow the pad, least significant byte first.
//
// IPv4 and UDP:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   4   |   5   |###### TOS ####|         Total length          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|        Identification         |0|D|0|    Fragment offset      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|###### TTL ####| Protocol = 17 |####### Header checksum #######|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                        Source address                         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Destination address                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|          Source port          |    Destination port = 4791    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|            Length             |######### Checksum ############|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// The first eight bytes of IPv6; both addresses and UDP follow:
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   6   |# Traffic class|############ Flow label ###############|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|        Payload length         |  Next = 17    |## Hop limit ##|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// Of the BTH, byte 4 (FECN, BECN, reserved) counts as ones. The rest of the packet is covered as
// it is sent.

const (
	// lrhLen is the number of bytes of ones in front.
	lrhLen = 8
	// crcPoly is the reflected polynomial.
	crcPoly = 0xedb88320

	ip4Len = 20
	ip6Len = 40
	udpLen = 8

	// datagramMax is the longest UDP payload: lengths are 16 bits wide.
	datagramMax = 1<<16 - 1 - udpLen - ip4Len

	// FlagsDF is the flags and fragment offset word of every packet we send.
	FlagsDF = 0x4000
)

// Flow is the part of the IP and UDP headers that the ICRC covers and that is the same for all
// packets of a connection. Both addresses are of one family; IPv4 may be in its mapped form. No
// packet verifies against a flow of mixed or missing addresses. A Flow has scratch space: one
// goroutine uses it at a time.
type Flow struct {
	Src, Dst netip.Addr
	SrcPort  uint16
	TOS      uint8 // DSCP and ECN to send with; not covered by the ICRC
	// NoICRC means that both ends have agreed to send 0 in the place of the ICRC.
	NoICRC bool

	// prefix is the ones, the masked IP and UDP headers, and then the first bytes of the
	// packet. The headers are built once and patched for each packet.
	prefix [crcHead]byte
	n      int // bytes of IP and UDP headers, 0 = not built
	// src and dst are the addresses that prefix was built for. Src and Dst are exported and
	// may change, so begin compares them.
	src, dst netip.Addr
}

// build fills prefix with the masked IP and UDP headers, lengths and ID zero.
func (f *Flow) build() {
	f.src, f.dst = f.Src, f.Dst
	for i := range lrhLen {
		f.prefix[i] = 0xff
	}
	b := f.prefix[lrhLen:]
	clear(b)
	if from, to := f.Src.Unmap(), f.Dst.Unmap(); from.Is4() && to.Is4() {
		src, dst := from.As4(), to.As4()
		b[0], b[1] = 0x45, 0xff
		binary.BigEndian.PutUint16(b[6:], FlagsDF)
		b[8], b[9] = 0xff, 17
		b[10], b[11] = 0xff, 0xff
		copy(b[12:], src[:])
		copy(b[16:], dst[:])
		f.n = ip4Len + udpLen
	} else {
		src, dst := f.Src.As16(), f.Dst.As16()
		b[0], b[1], b[2], b[3] = 0x6f, 0xff, 0xff, 0xff
		b[6], b[7] = 17, 0xff
		copy(b[8:], src[:])
		copy(b[24:], dst[:])
		f.n = ip6Len + udpLen
	}
	binary.BigEndian.PutUint16(b[f.n-6:], Port)
	b[f.n-2], b[f.n-1] = 0xff, 0xff
}

// begin returns the CRC over the IP and UDP headers, hdr (BTH and extended headers) and payload.
// size is the length of the datagram, BTH to ICRC. The headers and the first bytes of payload are
// gathered in prefix, so that one pass goes over all. That pass copies payload to dst, as far as
// dst has room.
func (f *Flow) begin(id uint16, size int, hdr, payload, dst []byte) uint32 {
	if f.n == 0 || f.src != f.Src || f.dst != f.Dst {
		f.build()
	}
	b := f.prefix[lrhLen:]
	if f.n == ip4Len+udpLen {
		binary.BigEndian.PutUint16(b[2:], uint16(ip4Len+udpLen+size))
		binary.BigEndian.PutUint16(b[4:], id)
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(udpLen+size))
	}
	binary.BigEndian.PutUint16(b[f.n-8:], f.SrcPort)
	binary.BigEndian.PutUint16(b[f.n-4:], uint16(udpLen+size))
	at := f.n + copy(b[f.n:], hdr[:BTHLen])
	b[f.n+4] = 0xff
	ext := hdr[BTHLen:]
	n := copy(b[at:], ext)
	if n < len(ext) {
		copy(dst, payload)
		return crcUpdate(crcUpdate(crcOf(&f.prefix, nil, nil), ext[n:]), payload)
	}
	at += n
	n = copy(b[at:], payload)
	dst = dst[copy(dst, payload[:n]):]
	if at+n < len(b) {
		return crcShort(0, f.prefix[:lrhLen+at+n])
	}
	return crcOf(&f.prefix, payload[n:], dst)
}

// HasICRC reports whether the ICRC of a datagram of at least ICRCLen bytes is not 0. A peer without
// an agreement to send 0 sends it once in 2^32 packets.
func HasICRC(dgram []byte) bool {
	return binary.LittleEndian.Uint32(dgram[len(dgram)-ICRCLen:]) != 0
}

var padding [4]byte

// ICRC computes the ICRC of a packet that is sent with IPv4 identification id and DF set (IPv6
// has no identification). hdr is BTH and extended headers; payload and pad zero bytes follow it.
// The caller writes the result in little-endian order. ICRC does not allocate.
func (f *Flow) ICRC(id uint16, hdr []byte, payload [][]byte, pad int) uint32 {
	size := len(hdr) + pad + ICRCLen
	for _, p := range payload {
		size += len(p)
	}
	var first []byte
	if len(payload) > 0 {
		first = payload[0]
	}
	c := f.begin(id, size, hdr, first, nil)
	if len(payload) > 1 {
		for _, p := range payload[1:] {
			c = crcUpdate(c, p)
		}
	}
	if pad > 0 {
		c = crcShort(c, padding[:pad])
	}
	return c
}

// VerifyICRC checks the ICRC of a received datagram (BTH to ICRC). f has the addresses and the
// source port of the sender.
//
// The ICRC covers the IPv4 identification, and a UDP socket does not show it. The caller passes a
// guess: 0 for a datagram that came alone, k for segment k of a run that the kernel coalesced,
// because segmentation offload numbers the segments from 0.
//
//   - ok and exact: all 32 bits matched for guess.
//   - ok, not exact: the ICRC is right for the identification id, with DF set or clear. Any
//     16-bit identification can be explained this way, so only 15 of the 32 bits were checked.
//   - IPv6 has no identification and is always exact.
func VerifyICRC(f *Flow, dgram []byte, guess uint16) (ok, exact bool, id uint16) {
	return VerifyCopy(f, dgram, guess, nil)
}

// VerifyCopy is VerifyICRC that also copies the bytes behind the BTH to dst, as far as dst has
// room. Copy and check are one pass over the datagram. If the datagram is wrong, dst has its bytes
// all the same: the caller lets nobody rely on dst before ok.
func VerifyCopy(f *Flow, dgram []byte, guess uint16, dst []byte) (ok, exact bool, id uint16) {
	n := len(dgram) - ICRCLen
	if n < BTHLen || len(dgram) > datagramMax {
		return false, false, 0
	}
	c := f.begin(guess, len(dgram), dgram[:BTHLen], dgram[BTHLen:n], dst)
	diff := c ^ binary.LittleEndian.Uint32(dgram[n:])
	if diff == 0 {
		return true, true, guess
	}
	if f.n != ip4Len+udpLen {
		return false, false, 0
	}
	// The CRC is linear. diff is therefore the CRC of a string that is zero except where the
	// real header differs from the assumed one: the identification and the flags word, bytes
	// 4..7 of the IP header. Running the register backwards over all bytes behind byte 3
	// recovers that difference. Trying all 65536 identifications would cost as many CRCs.
	w := rewind(diff, ip4Len+udpLen+n-4)
	if flags := w >> 16; flags != 0 && flags != FlagsDF>>8 {
		return false, false, 0
	}
	return true, false, guess ^ (uint16(w&0xff)<<8 | uint16(w>>8&0xff))
}

// rewind runs the CRC register back through n zero bytes, n < 2^16: it
// multiplies by x^-8n modulo the polynomial.
func rewind(reg uint32, n int) uint32 {
	return mulmod(reg, mulmod(backPages[n>>8&0xff], backBytes[n&0xff]))
}

// backBytes[i] is x^-8i and backPages[i] is x^-8*256*i modulo the polynomial, bit-reflected. A
// multiplication by them takes a register back over i and over 256 i zero bytes.
var backBytes, backPages = func() (b, p [256]uint32) {
	const one = 1 << 31
	b[0], p[0] = one, one
	for i := 1; i < len(b); i++ {
		b[i] = backByte(b[i-1])
	}
	page := backByte(b[255])
	for i := 1; i < len(p); i++ {
		p[i] = mulmod(p[i-1], page)
	}
	return b, p
}()

// backByte runs the CRC register back through one zero byte. The polynomial's top bit is set, so
// the top bit of a register shows whether the last step subtracted the polynomial.
func backByte(reg uint32) uint32 {
	for range 8 {
		if reg>>31 != 0 {
			reg = (reg^crcPoly)<<1 | 1
		} else {
			reg <<= 1
		}
	}
	return reg
}

// mulmodGo multiplies two bit-reflected polynomials modulo the CRC polynomial. It does not branch
// on the operands: they look random, and mispredicted branches would cost more than the work.
func mulmodGo(a, b uint32) uint32 {
	var p uint32
	for range 32 {
		p ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crcPoly&-(b&1)
	}
	return p
}
