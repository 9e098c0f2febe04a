package eventloop

import "iter"

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

// Take empties the batch and returns the values that were in it, in order. Values that are added
// afterwards are for the next Take, which must not come before the loop over these has ended.
func (b *Batch[T]) Take() iter.Seq[T] {
	values := b.values
	b.values, b.spare = b.spare[:0], values
	return func(yield func(T) bool) {
		defer clear(values) // the spare slice retains nothing
		for _, v := range values {
			if !yield(v) {
				return
			}
		}
	}
}
