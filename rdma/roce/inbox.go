package roce

import "sync"

// inbox is the way into a loop for other goroutines.
type inbox struct {
	mu     sync.Mutex
	in     []func()
	spare  []func()
	closed bool
}

// put reports whether fn was taken, and whether it is the first to wait.
func (b *inbox) put(fn func()) (taken, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false, false
	}
	b.in = append(b.in, fn)
	return true, len(b.in) == 1
}

// take returns what waits. The slice is good until the next take but one.
func (b *inbox) take() []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	fns := b.in
	b.in, b.spare = b.spare[:0], fns
	return fns
}

// waits reports whether something waits.
func (b *inbox) waits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.in) > 0
}

// close refuses what comes from now on and returns what waits.
func (b *inbox) close() []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.in
}

// Submit implements rdma.Loop.
func (s *shard) Submit(fn func()) bool {
	taken, first := s.inbox.put(fn)
	if first {
		s.link.Wake()
	}
	return taken
}

// drain runs what was submitted before this turn.
func (s *shard) drain() {
	fns := s.inbox.take()
	for i, fn := range fns {
		fns[i] = nil
		fn()
	}
}
