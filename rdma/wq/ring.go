package wq

import "github.com/rstored/rstored/rdma"

// Ring is a queue that grows by doubling. It retains popped elements, with the memory that they
// refer to, for reuse by Push.
type Ring[T any] struct {
	v    []T // power-of-two length
	head uint32
	tail uint32
}

// Len is the number of elements.
func (r *Ring[T]) Len() int { return int(r.tail - r.head) }

// Push appends an element and returns it. It has the content of an earlier element, which the
// caller overwrites. The pointer is valid until the next Push.
func (r *Ring[T]) Push() *T {
	if r.Len() == len(r.v) {
		v := make([]T, max(8, 2*len(r.v)))
		for i := range r.Len() {
			v[i] = *r.At(i)
		}
		r.tail -= r.head
		r.head, r.v = 0, v
	}
	r.tail++
	return r.At(r.Len() - 1)
}

// At is element i; 0 is the oldest.
func (r *Ring[T]) At(i int) *T { return &r.v[(r.head+uint32(i))&uint32(len(r.v)-1)] }

// Front is the oldest element.
func (r *Ring[T]) Front() *T { return r.At(0) }

// Pop removes the oldest element. Its content stays readable until the next Push.
func (r *Ring[T]) Pop() { r.head++ }

// Drain moves elements into dst, oldest first.
func (r *Ring[T]) Drain(dst []T) int {
	n := min(len(dst), r.Len())
	for i := range n {
		dst[i] = *r.At(0)
		r.Pop()
	}
	return n
}

// Length is the number of bytes of a gather or scatter list.
func Length(sgl []rdma.SGE) (n uint64) {
	for _, s := range sgl {
		n += uint64(len(s.Buf))
	}
	return n
}

// At returns the n bytes of sgl from byte off on, or nil if they are not in one element.
func At(sgl []rdma.SGE, off, n uint32) []byte {
	for _, s := range sgl {
		if size := uint32(len(s.Buf)); off >= size {
			off -= size
		} else if n > size-off {
			return nil
		} else {
			return s.Buf[off : off+n : off+n]
		}
	}
	return nil
}

// Scatter copies p into sgl from byte off on, as far as there is room.
func Scatter(sgl []rdma.SGE, off uint32, p []byte) {
	at := int(off)
	for _, s := range sgl {
		if len(p) == 0 {
			return
		}
		if at >= len(s.Buf) {
			at -= len(s.Buf)
			continue
		}
		n := copy(s.Buf[at:], p)
		p, at = p[n:], 0
	}
}
