package nfs4

import (
	"math/bits"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// bitmap is a bitmap4 of the attributes that have numbers here. Bit n is bit n%32 of
// word n/32.
type bitmap [3]uint32

func bits4(attrs ...int) (b bitmap) {
	for _, n := range attrs {
		b[n/32] |= 1 << (n % 32)
	}
	return b
}

func (b *bitmap) has(n int) bool { return b[n/32]&(1<<(n%32)) != 0 }

func (b *bitmap) clear(n int) { b[n/32] &^= 1 << (n % 32) }

func (b bitmap) and(o bitmap) bitmap {
	for i := range b {
		b[i] &= o[i]
	}
	return b
}

func (b bitmap) without(o bitmap) bitmap {
	for i := range b {
		b[i] &^= o[i]
	}
	return b
}

func (b bitmap) or(o bitmap) bitmap {
	for i := range b {
		b[i] |= o[i]
	}
	return b
}

func (b bitmap) empty() bool { return b == bitmap{} }

// each calls f for every bit that is set, in ascending order.
func (b bitmap) each(f func(n int)) {
	for i, w := range b {
		for ; w != 0; w &= w - 1 {
			f(i*32 + bits.TrailingZeros32(w))
		}
	}
}

// decodeBitmap reads a bitmap4. more says that bits are set that bitmap has no room for: attributes of later minor
// versions, which exist for no object here. A bitmap4 has no bound (RFC 8881 section 3.2) but the end of the message,
// which is looked for first: n is the peer's.
func decodeBitmap(d *xdr.Decoder) (b bitmap, more bool) {
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

// encode appends a bitmap4 without zero words at its end.
func (b bitmap) encode(e *xdr.Encoder) {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	e.Uint32(uint32(n))
	for _, w := range b[:n] {
		e.Uint32(w)
	}
}

// bitmapLen is the most that encode appends.
const bitmapLen = 4 + 3*4
