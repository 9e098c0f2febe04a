package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// The invariant CRC of RoCEv2 is the CRC-32 of IEEE 802.3 over the packet from
// the IP header on, with the fields that routers change taken as all ones and
// eight bytes of ones in front in place of the absent LRH. Its four bytes go
// on the wire least significant first, behind the pad.

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

	// prefixLen is how much of a packet is gathered for the first step of the CRC, with
	// the ones: of short pieces each costs as much as of the hundred bytes. What follows of a
	// packet over IPv4 that has a BTH alone is whole steps of 16.
	prefixLen = 128

	// FlagsDF is the flags and fragment offset word of every packet we send.
	FlagsDF = 0x4000
)

// Flow is what the IP and UDP headers of a packet say, as far as the ICRC
// covers it. Both addresses are of one family, IPv4 also in its mapped form;
// nothing verifies against a flow of mixed or missing addresses. It holds
// scratch space, so it serves one goroutine at a time.
type Flow struct {
	Src, Dst netip.Addr
	SrcPort  uint16
	TOS      uint8 // DSCP and ECN to send with; not covered by the ICRC

	// prefix begins with the ones, and the IP and UDP headers; the BTH, and what else begins
	// the packet, is put behind them.
	prefix [prefixLen]byte
	n      int // bytes of IP and UDP headers, 0 = not built
	src    netip.Addr
	dst    netip.Addr
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

// begin is the CRC over the IP and UDP headers and the beginning of a datagram of size
// bytes: the BTH, and of the pieces behind it the first n bytes.
func (f *Flow) begin(id uint16, size int, hdr, payload []byte) (crc uint32, n int) {
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
	n = copy(b[at:], hdr[BTHLen:])
	if n == len(hdr)-BTHLen {
		n += copy(b[at+n:], payload)
	}
	return crc32.Update(0, crc32.IEEETable, f.prefix[:lrhLen+at+n]), n
}

var padding [4]byte

// ICRC computes the ICRC of a packet that is sent with IPv4 identification id
// and DF set (IPv6 has no identification). hdr is BTH and extended headers,
// payload follows it, then pad zero bytes. The result's little-endian bytes go
// on the wire. It does not allocate.
func (f *Flow) ICRC(id uint16, hdr []byte, payload [][]byte, pad int) uint32 {
	size := len(hdr) + pad + ICRCLen
	for _, p := range payload {
		size += len(p)
	}
	var first []byte
	if len(payload) > 0 {
		first = payload[0]
	}
	c, n := f.begin(id, size, hdr, first)
	if ext := hdr[BTHLen:]; n < len(ext) {
		c, n = crc32.Update(c, crc32.IEEETable, ext[n:]), 0
	} else {
		n -= len(ext)
	}
	for _, p := range payload {
		c, n = crc32.Update(c, crc32.IEEETable, p[n:]), 0
	}
	if pad > 0 {
		c = crc32.Update(c, crc32.IEEETable, padding[:pad])
	}
	return c
}

// VerifyICRC checks the ICRC of a received datagram (BTH to ICRC). f holds the
// addresses and the source port it came with.
//
// A UDP socket does not show the IPv4 identification, which the ICRC covers. like is what it
// probably is: 0, or for a datagram that came merged with others its place among
// them, as who sends them at once numbers them.
// ok with exact means that all 32 bits matched for that. ok
// without exact means that some identification, returned as id, explains the
// ICRC, with DF set or clear: 15 of the 32 bits were checked. IPv6 is always exact.
func VerifyICRC(f *Flow, dgram []byte, like uint16) (ok, exact bool, id uint16) {
	n := len(dgram) - ICRCLen
	if n < BTHLen || len(dgram) > datagramMax {
		return false, false, 0
	}
	c, k := f.begin(like, len(dgram), dgram[:BTHLen], dgram[BTHLen:n])
	if BTHLen+k < n {
		c = crc32.Update(c, crc32.IEEETable, dgram[BTHLen+k:n])
	}
	diff := c ^ binary.LittleEndian.Uint32(dgram[n:])
	if diff == 0 {
		return true, true, like
	}
	if f.n != ip4Len+udpLen {
		return false, false, 0
	}
	// The CRC is linear: the difference is the CRC register of the difference
	// in the identification, from what it is like, and the flags word, run through the bytes behind
	// them. Run it backwards to bytes 4..7 of the IP header.
	w := rewind(diff, ip4Len+udpLen+n-4)
	if flags := w >> 16; flags != 0 && flags != FlagsDF>>8 {
		return false, false, 0
	}
	return true, false, like ^ (uint16(w&0xff)<<8 | uint16(w>>8&0xff))
}

// rewind runs the CRC register back through n zero bytes, n < 2^16: it
// multiplies by x^-8n modulo the polynomial.
func rewind(reg uint32, n int) uint32 {
	return mulmod(reg, mulmod(backPages[n>>8&0xff], backBytes[n&0xff]))
}

// backBytes[i] is x^-8i and backPages[i] is x^-8*256*i modulo the polynomial,
// bit-reflected: what takes a register back through i, and 256 i, zero bytes.
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

// backByte runs the CRC register back through one zero byte. The polynomial's
// top bit is set, so the top bit of a register tells whether the step that
// led to it reduced.
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

// mulmod multiplies two bit-reflected polynomials modulo the CRC polynomial. It
// does not branch on the operands, which are as good as random.
func mulmod(a, b uint32) uint32 {
	var p uint32
	for range 32 {
		p ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crcPoly&-(b&1)
	}
	return p
}
