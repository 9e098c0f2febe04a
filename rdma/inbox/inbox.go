// Package inbox is the way into a loop for other goroutines: functions wait in order until the loop's
// next turn. Providers of rdma.Device share it.
package inbox

import "sync"

// Inbox holds the functions that wait. The zero value is empty. Its methods may be called from any
// goroutine, Take by the loop's alone.
type Inbox struct {
	mu     sync.Mutex
	in     []func()
	spare  []func()
	closed bool
}

// Put reports whether fn was taken, and whether it is the first to wait: then the loop is to be woken.
func (b *Inbox) Put(fn func()) (taken, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false, false
	}
	b.in = append(b.in, fn)
	return true, len(b.in) == 1
}

// Take returns what waits. The slice is good until the next Take but one.
func (b *Inbox) Take() []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	fns := b.in
	b.in, b.spare = b.spare[:0], fns
	return fns
}

// Run takes what waits and runs it.
func (b *Inbox) Run() {
	fns := b.Take()
	for i, fn := range fns {
		fns[i] = nil
		fn()
	}
}

// Waits reports whether something waits.
func (b *Inbox) Waits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.in) > 0
}

// Close refuses what comes from now on and returns what waits.
func (b *Inbox) Close() []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.in
}
