package wire

import "hash/crc32"

// The CRC-32 of IEEE 802.3 of a packet: the same as hash/crc32 computes, in one pass over the
// headers, which are gathered in a block, and the payload. hash/crc32 keeps one accumulator of 64
// bytes and waits for each multiplication; here four of them (or eight of 16 bytes, where the
// processor has no AVX-512) are folded side by side. The method is that of Intel's paper "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction".

// crcHead is the length of the block in front, in bytes.
const crcHead = 128

// crcOf returns the CRC of head and then p. It copies p to dst, as far as dst has room; where the
// processor allows it, the copy is made in the pass of the CRC.
func crcOf(head *[crcHead]byte, p, dst []byte) uint32 {
	c, n, copied, ok := crcBlocks(0, head, p, dst)
	if !ok {
		c = crc32.Update(0, crc32.IEEETable, head[:])
	}
	copy(dst[copied:], p[copied:])
	return crcShort(c, p[n:])
}

// crcUpdate returns the CRC of what c is the CRC of and then p.
func crcUpdate(c uint32, p []byte) uint32 {
	if len(p) >= crcHead {
		if next, n, _, ok := crcBlocks(c, (*[crcHead]byte)(p), p[crcHead:], nil); ok {
			c, p = next, p[crcHead+n:]
		}
	}
	return crcShort(c, p)
}

func crcShort(c uint32, p []byte) uint32 {
	if len(p) == 0 {
		return c
	}
	return crc32.Update(c, crc32.IEEETable, p)
}
