package eventloop

// Batch collects values during a turn of a loop and hands them out together. It keeps two slices,
// so that it allocates nothing once they have grown. The zero value is empty.
type Batch[T any] struct{ values, spare []T }

// Add adds a value.
func (b *Batch[T]) Add(v T) { b.values = append(b.values, v) }

// Len is the number of values that were added and not taken.
func (b *Batch[T]) Len() int { return len(b.values) }

// Values are the values that were added and not taken. The slice is valid until the next Add or
// Take.
func (b *Batch[T]) Values() []T { return b.values }

// Take empties the batch and returns the values that were in it, in order. The slice is valid until
// the next Take, which drops its references. Values that are added meanwhile are for the next Take.
// (An iterator would allocate where its loop is not inlined.)
func (b *Batch[T]) Take() []T {
	values := b.values
	clear(b.spare)
	b.values, b.spare = b.spare[:0], values
	return values
}
