package nfs4

import (
	"math/bits"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Bitmap is a bitmap4 of the attributes that have numbers here, 0 to 95. Attribute n is bit n%32 of
// word n/32, where bit 0 is the least significant one (RFC 8881 section 3.2):
//
//	+-------+----------------+----------------+----------------+
//	| count | 31 ...       0 | 63 ...      32 | 95 ...      64 |
//	+-------+----------------+----------------+----------------+
//
// The values of the attributes follow in ascending order of their numbers, without any tag. A
// server and a client that disagree about one bit misread every value behind it.
//
// The zero value is the empty bitmap. A Bitmap is a value: copies are independent.
type Bitmap [3]uint32

// BitmapOf is the bitmap of the attributes with these numbers.
func BitmapOf(attrs ...int) (b Bitmap) {
	for _, n := range attrs {
		b.set(n)
	}
	return b
}

// Has reports whether attribute n is in the bitmap. n is a number of this package, below 96. A
// number from the wire never gets here: DecodeBitmap drops the bits of further words.
func (b *Bitmap) Has(n int) bool { return b[n/32]&(1<<(n%32)) != 0 }

func (b *Bitmap) set(n int) { b[n/32] |= 1 << (n % 32) }

func (b *Bitmap) clear(n int) { b[n/32] &^= 1 << (n % 32) }

func (b Bitmap) and(o Bitmap) Bitmap {
	for i := range b {
		b[i] &= o[i]
	}
	return b
}

func (b Bitmap) without(o Bitmap) Bitmap {
	for i := range b {
		b[i] &^= o[i]
	}
	return b
}

func (b Bitmap) or(o Bitmap) Bitmap {
	for i := range b {
		b[i] |= o[i]
	}
	return b
}

func (b Bitmap) empty() bool { return b == Bitmap{} }

// Each calls f for every attribute in the bitmap, in ascending order: the order on the wire.
func (b Bitmap) Each(f func(n int)) {
	for i, w := range b {
		for ; w != 0; w &= w - 1 {
			f(i*32 + bits.TrailingZeros32(w))
		}
	}
}

// DecodeBitmap reads a bitmap4. more says that bits are set that Bitmap has no room for: attributes
// of later minor versions. No object here has them. GETATTR leaves them out of its reply, and
// SETATTR refuses them (ATTRNOTSUPP).
//
// A bitmap4 has no bound of its own (RFC 8881 section 3.2). The count comes from the peer, so it is
// compared with the bytes of the message before the loop: otherwise a message of 4 bytes could make
// the server count to 2^32. The product is 64 bits wide, because 4*n overflows 32.
func DecodeBitmap(d *xdr.Decoder) (b Bitmap, more bool) {
	n := d.Uint32()
	if 4*uint64(n) > uint64(d.Remaining()) {
		d.Fail(xdr.ErrShort)
		return b, false
	}
	for i := range n {
		w := d.Uint32()
		if i < uint32(len(b)) {
			b[i] = w
		} else if w != 0 {
			more = true
		}
	}
	return b, more
}

// Encode appends a bitmap4 without zero words at its end. The empty bitmap is a count of 0.
func (b Bitmap) Encode(e *xdr.Encoder) {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	e.Uint32(uint32(n))
	for _, w := range b[:n] {
		e.Uint32(w)
	}
}

// bitmapLen is the most that Encode appends, in bytes. A client's own bitmap4 may be longer.
const bitmapLen = 4 + 3*4
