package nfs4

import (
	"math/bits"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Bitmap is a bitmap4 of the attributes that have numbers here. Bit n is bit n%32 of
// word n/32.
type Bitmap [3]uint32

// BitmapOf is the bitmap of the attributes with these numbers.
func BitmapOf(attrs ...int) (b Bitmap) {
	for _, n := range attrs {
		b.set(n)
	}
	return b
}

// Has reports whether attribute n is in the bitmap.
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

// Each calls f for every attribute in the bitmap, in ascending order.
func (b Bitmap) Each(f func(n int)) {
	for i, w := range b {
		for ; w != 0; w &= w - 1 {
			f(i*32 + bits.TrailingZeros32(w))
		}
	}
}

// DecodeBitmap reads a bitmap4. more says that bits are set that Bitmap has no room for: attributes
// of later minor versions, which exist for no object here. A bitmap4 has no bound (RFC 8881 section
// 3.2) but the end of the message, which is looked for first: n is the peer's.
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

// Encode appends a bitmap4 without zero words at its end.
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

// bitmapLen is the most that Encode appends.
const bitmapLen = 4 + 3*4
