package xdr

import (
	"encoding/binary"
	"errors"
	"io"
)

// Errors of a Decoder.
var (
	ErrShort  = errors.New("xdr: message too short")
	ErrLength = errors.New("xdr: length exceeds its limit")
	ErrValue  = errors.New("xdr: value out of range")
)

var zeros [4]byte

// Pad is the number of zero bytes that follow n bytes of opaque data.
func Pad(n int) int { return -n & 3 }

// Padded is n with its pad bytes.
func Padded(n int) int { return n + Pad(n) }

// Decoder reads XDR from segments. Its error is sticky: after the first error every method returns
// zero values, and Err returns the error. Slices that it returns alias the segments. The zero
// Decoder is an empty message.
type Decoder struct {
	cur  []byte   // unread rest of the current segment
	rest [][]byte // segments after it
	off  int      // bytes consumed
	err  error

	bulk    []byte // an item that was moved out of the stream, see SetBulk
	hasBulk bool
}

// NewDecoder decodes one contiguous message.
func NewDecoder(b []byte) Decoder { return Decoder{cur: b} }

// NewSegmented decodes a message of several segments. The Decoder refers to segs. An item that
// crosses segments is copied into new memory.
func NewSegmented(segs [][]byte) Decoder {
	if len(segs) == 0 {
		return Decoder{}
	}
	return Decoder{cur: segs[0], rest: segs[1:]}
}

// SetBulk sets an item of opaque data whose bytes and padding are not in the stream, while its
// count word is. It belongs where Bulk is called, or behind the last byte of the stream.
func (d *Decoder) SetBulk(b []byte) { d.bulk, d.hasBulk = b, true }

// Bulk reads variable-length opaque data of at most limit bytes: the item of SetBulk, if there is
// one. Its length must be that of the count word.
func (d *Decoder) Bulk(limit int) []byte {
	if !d.hasBulk {
		return d.Opaque(limit)
	}
	n := d.Uint32()
	if d.err == nil && uint64(n) > uint64(limit) {
		d.err = ErrLength
	}
	if d.err == nil && int(n) != len(d.bulk) {
		d.err = ErrLength
	}
	if d.err != nil {
		return nil
	}
	b := d.bulk
	d.bulk, d.hasBulk = nil, false
	d.off += len(b) + Pad(len(b))
	return b
}

// unmoved appends the item of SetBulk to the stream.
func (d *Decoder) unmoved() {
	d.rest = append(d.rest[:len(d.rest):len(d.rest)], d.bulk, zeros[:Pad(len(d.bulk))])
	d.bulk, d.hasBulk = nil, false
}

// Err is the first error.
func (d *Decoder) Err() error { return d.err }

// Fail sets the sticky error unless one is set.
func (d *Decoder) Fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// Offset is the number of bytes consumed.
func (d *Decoder) Offset() int { return d.off }

// Remaining is the number of bytes not yet consumed.
func (d *Decoder) Remaining() int {
	n := len(d.cur)
	for _, s := range d.rest {
		n += len(s)
	}
	if d.hasBulk {
		n += len(d.bulk) + Pad(len(d.bulk))
	}
	return n
}

// take returns the next n bytes, aliased where they are contiguous. The result aliases a segment,
// and has no capacity beyond its end: an append by the caller cannot overwrite what follows.
func (d *Decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	for len(d.cur) == 0 && len(d.rest) > 0 {
		d.cur, d.rest = d.rest[0], d.rest[1:]
	}
	if n <= len(d.cur) {
		b := d.cur[:n:n]
		d.cur = d.cur[n:]
		d.off += n
		return b
	}
	if n > d.Remaining() {
		d.err = ErrShort
		return nil
	}
	if d.hasBulk {
		d.unmoved()
		return d.take(n)
	}
	b := make([]byte, 0, n) // no more than was received
	for len(b) < n {
		for len(d.cur) == 0 {
			d.cur, d.rest = d.rest[0], d.rest[1:]
		}
		k := min(n-len(b), len(d.cur))
		b = append(b, d.cur[:k]...)
		d.cur = d.cur[k:]
	}
	d.off += n
	return b
}

// Uint32 reads an unsigned integer.
func (d *Decoder) Uint32() uint32 {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// Int32 reads an integer.
func (d *Decoder) Int32() int32 { return int32(d.Uint32()) }

// Uint64 reads an unsigned hyper.
func (d *Decoder) Uint64() uint64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Bool reads a boolean; a word other than 0 and 1 is ErrValue.
func (d *Decoder) Bool() bool {
	v := d.Uint32()
	if v > 1 {
		d.Fail(ErrValue)
	}
	return v == 1
}

// Fixed reads n bytes of fixed-length opaque data and their padding.
func (d *Decoder) Fixed(n int) []byte {
	b := d.take(n)
	if p := Pad(n); p > 0 && d.err == nil {
		d.take(p)
	}
	if d.err != nil {
		return nil
	}
	return b
}

// Opaque reads variable-length opaque data of at most limit bytes. The limit is checked before
// anything is allocated. A length beyond the end of the message is ErrShort, so memory never
// grows with a length that the peer only claims.
func (d *Decoder) Opaque(limit int) []byte {
	n := d.Uint32()
	if d.err == nil && uint64(n) > uint64(limit) {
		d.err = ErrLength
	}
	if d.err != nil {
		return nil
	}
	return d.Fixed(int(n))
}

// String reads a string of at most limit bytes (a copy).
func (d *Decoder) String(limit int) string { return string(d.Opaque(limit)) }

// Next consumes and returns up to limit contiguous bytes, without a copy. At the end of the stream
// it returns nothing and sets no error. It stops before the item of SetBulk.
func (d *Decoder) Next(limit int) []byte {
	if d.err != nil {
		return nil
	}
	for len(d.cur) == 0 && len(d.rest) > 0 {
		d.cur, d.rest = d.rest[0], d.rest[1:]
	}
	return d.take(min(limit, len(d.cur)))
}

// Skip discards n bytes.
func (d *Decoder) Skip(n int) { d.take(n) }

// AppendRest appends everything not yet consumed to dst, and consumes it.
func (d *Decoder) AppendRest(dst []byte) []byte {
	if d.err != nil {
		return dst
	}
	if d.hasBulk {
		d.unmoved()
	}
	n := len(dst)
	dst = append(dst, d.cur...)
	for _, s := range d.rest {
		dst = append(dst, s...)
	}
	d.off += len(dst) - n
	d.cur, d.rest = nil, nil
	return dst
}

// WriteRest writes everything not yet consumed to w, and consumes it.
func (d *Decoder) WriteRest(w io.Writer) error {
	if d.err != nil {
		return d.err
	}
	if d.hasBulk {
		d.unmoved()
	}
	_, err := w.Write(d.cur)
	d.off += len(d.cur)
	for _, s := range d.rest {
		if err == nil {
			_, err = w.Write(s)
		}
		d.off += len(s)
	}
	d.cur, d.rest = nil, nil
	return err
}

// Ref is a piece of bulk data to which an Encoder refers. It belongs at offset At of the encoded
// bytes, and its XDR padding follows it. Its count word precedes it and is part of the encoded
// bytes.
type Ref struct {
	At   int
	Data []byte
}

// Encoder appends XDR to B. Its zero value is ready for use. Refs lists bulk data, in order.
type Encoder struct {
	B    []byte
	Refs []Ref
}

// Reset empties the encoder, and retains its memory.
func (e *Encoder) Reset() { e.B, e.Refs = e.B[:0], e.Refs[:0] }

// Uint32 appends an unsigned integer.
func (e *Encoder) Uint32(v uint32) { e.B = binary.BigEndian.AppendUint32(e.B, v) }

// Uint32s appends unsigned integers.
func (e *Encoder) Uint32s(v ...uint32) {
	for _, w := range v {
		e.Uint32(w)
	}
}

// Int32 appends an integer.
func (e *Encoder) Int32(v int32) { e.Uint32(uint32(v)) }

// Uint64 appends an unsigned hyper.
func (e *Encoder) Uint64(v uint64) { e.B = binary.BigEndian.AppendUint64(e.B, v) }

// Bool appends a boolean.
func (e *Encoder) Bool(v bool) {
	if v {
		e.Uint32(1)
	} else {
		e.Uint32(0)
	}
}

// Fixed appends fixed-length opaque data and its padding.
func (e *Encoder) Fixed(b []byte) {
	e.B = append(e.B, b...)
	e.B = append(e.B, zeros[:Pad(len(b))]...)
}

// Opaque appends variable-length opaque data.
func (e *Encoder) Opaque(b []byte) {
	e.Uint32(uint32(len(b)))
	e.Fixed(b)
}

// String appends a string.
func (e *Encoder) String(s string) {
	e.Uint32(uint32(len(s)))
	e.B = append(e.B, s...)
	e.B = append(e.B, zeros[:Pad(len(s))]...)
}

// Bulk appends variable-length opaque data by reference: the count word is encoded, and the
// transport moves the bytes later. data must not change until the transport has released it. Empty
// data is an item too, because it uses up the chunk that the peer offered for it.
func (e *Encoder) Bulk(data []byte) {
	e.Uint32(uint32(len(data)))
	e.Refs = append(e.Refs, Ref{At: len(e.B), Data: data})
}

// Truncate removes everything behind the first n bytes of B, references included.
func (e *Encoder) Truncate(n int) {
	e.B = e.B[:n]
	for len(e.Refs) > 0 && e.Refs[len(e.Refs)-1].At > n {
		e.Refs = e.Refs[:len(e.Refs)-1]
	}
}

// Len is the length of the whole message, bulk data and its padding included.
func (e *Encoder) Len() int {
	n := len(e.B)
	for _, r := range e.Refs {
		n += len(r.Data) + Pad(len(r.Data))
	}
	return n
}

// AppendFlat appends the whole message, bulk data in place, to dst.
func (e *Encoder) AppendFlat(dst []byte) []byte {
	at := 0
	for _, r := range e.Refs {
		dst = append(dst, e.B[at:r.At]...)
		dst = append(dst, r.Data...)
		dst = append(dst, zeros[:Pad(len(r.Data))]...)
		at = r.At
	}
	return append(dst, e.B[at:]...)
}
