package eventloop

import "sync"

// Inbox is a queue of functions. The zero value is empty. Its methods may be called from any
// goroutine, except Take and Run: these are the loop's.
type Inbox struct {
	mu     sync.Mutex
	in     []func()
	spare  []func()
	closed bool
}

// Put queues fn, unless the Inbox is closed. If first is true, the queue was empty, and the caller
// wakes the loop.
func (b *Inbox) Put(fn func()) (queued, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false, false
	}
	b.in = append(b.in, fn)
	return true, len(b.in) == 1
}

// Take empties the queue and returns its functions. The slice is valid until the Take after the
// next.
func (b *Inbox) Take() []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	fns := b.in
	b.in, b.spare = b.spare[:0], fns
	return fns
}

// Run takes the queued functions and runs them in order.
func (b *Inbox) Run() {
	fns := b.Take()
	for i, fn := range fns {
		fns[i] = nil
		fn()
	}
}

// Waits reports whether the queue is not empty.
func (b *Inbox) Waits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.in) > 0
}

// Close makes Put refuse functions from now on, and returns those in the queue, which will not run.
func (b *Inbox) Close() []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.in
}
