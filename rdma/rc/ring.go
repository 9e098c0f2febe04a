package rc

// ring is a queue that grows by doubling and keeps the memory of its elements.
type ring[T any] struct {
	v    []T // power-of-two length
	head uint32
	tail uint32
}

func (r *ring[T]) len() int { return int(r.tail - r.head) }

// push makes room at the end and returns it, with whatever an earlier element
// left there.
func (r *ring[T]) push() *T {
	if r.len() == len(r.v) {
		v := make([]T, max(8, 2*len(r.v)))
		for i := range r.len() {
			v[i] = *r.at(i)
		}
		r.tail -= r.head
		r.head, r.v = 0, v
	}
	r.tail++
	return r.at(r.len() - 1)
}

func (r *ring[T]) at(i int) *T { return &r.v[(r.head+uint32(i))&uint32(len(r.v)-1)] }
func (r *ring[T]) front() *T   { return r.at(0) }
func (r *ring[T]) pop()        { r.head++ }

func (r *ring[T]) drain(dst []T) int {
	n := min(len(dst), r.len())
	for i := range n {
		dst[i] = *r.at(0)
		r.pop()
	}
	return n
}
