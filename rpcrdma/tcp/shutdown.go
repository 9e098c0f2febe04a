package tcp

import (
	"context"
	"time"
)

// Shutdown is Close, but first lets every connection finish the calls that it
// has read and deliver their replies, until ctx ends. A call that has arrived
// only in part is not served; its client sends it again when it comes back.
func (s *Listener) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	err := s.l.Close()
	for c := range s.conns {
		c.draining.Store(true)
		c.gate.open()
		_ = c.c.SetReadDeadline(time.Unix(1, 0)) // long past: wakes the reader
	}
	s.mu.Unlock()
	s.hold.end()
	drained := make(chan struct{})
	go func() {
		s.done.Wait()
		close(drained)
	}()
	select {
	case <-drained:
		return err
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.conns {
		c.end()
	}
	s.mu.Unlock()
	<-drained
	return err
}
