package wire

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var (
	hasAVX    = cpu.X86.HasAVX && cpu.X86.HasPCLMULQDQ
	hasAVX512 = hasAVX && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ
)

// crcTable has the multipliers of crc_amd64.s. Its rows, of 16 bytes: x^(D+32) and x^(D-32) for
// D = 2048, 1024, 512, 256 and 128; x^64; the polynomial and the quotient of x^64 by it; a mask of
// the low 32 bits. All but the mask have 33 bits, bit-reflected.
var crcTable = func() (t [8][2]uint64) {
	for i := range 5 {
		d := 2048 >> i
		t[i] = [2]uint64{uint64(power(d+32)) << 1, uint64(power(d-32)) << 1}
	}
	t[5][0] = uint64(power(64)) << 1
	t[6] = [2]uint64{crcPoly<<1 | 1, quotient()}
	t[7][0] = 1<<32 - 1
	return t
}()

// power returns x^n modulo the polynomial, bit-reflected.
func power(n int) uint32 {
	reg := uint32(1 << 31)
	for range n {
		reg = reg>>1 ^ crcPoly&-(reg&1)
	}
	return reg
}

// quotient divides x^64 by the polynomial, which has degree 32, and returns the 33 bits of the
// quotient, bit-reflected: x^32 is bit 0.
func quotient() uint64 {
	q := uint64(1)
	rest := uint32(crcPoly) // x^32 modulo the polynomial
	for i := 1; i <= 32; i++ {
		// The coefficient of x^31 in rest, which is bit 0, becomes that of x^(32-i) in q.
		q |= uint64(rest&1) << i
		rest = rest>>1 ^ crcPoly&-(rest&1)
	}
	return q
}

// crcAVX takes the CRC register reg over the 128 bytes at head and the n bytes at p, where n is a
// multiple of 16. If dst is not nil, it copies some of the bytes at p to dst, from the first on,
// and returns their number.
//
//go:noescape
func crcAVX(reg uint32, head, p *byte, n int, k *[8][2]uint64, dst *byte) (crc uint32, copied int)

// crcAVX512 is crcAVX with registers of 64 bytes.
//
//go:noescape
func crcAVX512(reg uint32, head, p *byte, n int, k *[8][2]uint64, dst *byte) (crc uint32, copied int)

//go:noescape
func mulmodAVX(a, b uint32, k *[8][2]uint64) uint32

// crcBlocks takes the CRC c over head and then over the blocks of 16 bytes that p has. It copies a
// part of them to dst, if dst has room for all. It returns the numbers of bytes of p that it has
// used and copied, or false if this processor cannot do it.
func crcBlocks(c uint32, head *[crcHead]byte, p, dst []byte) (crc uint32, n, copied int, ok bool) {
	n = len(p) &^ 15
	var to *byte
	if len(dst) >= n {
		to = unsafe.SliceData(dst)
	}
	switch {
	case hasAVX512:
		c, copied = crcAVX512(^c, &head[0], unsafe.SliceData(p), n, &crcTable, to)
	case hasAVX:
		c, copied = crcAVX(^c, &head[0], unsafe.SliceData(p), n, &crcTable, to)
	default:
		return c, 0, 0, false
	}
	return ^c, n, copied, true
}

// mulmod multiplies two bit-reflected polynomials modulo the CRC polynomial.
func mulmod(a, b uint32) uint32 {
	if hasAVX {
		return mulmodAVX(a, b, &crcTable)
	}
	return mulmodGo(a, b)
}
