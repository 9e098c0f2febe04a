package exports

import (
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// slow is a store whose Commit takes until it is released.
type slow struct {
	blockstore.FS
	inside, release chan struct{}
	closed          bool
}

func (s *slow) Commit(*blockstore.Cred, blockstore.Handle, uint64, uint32) (blockstore.Wcc, error) {
	s.inside <- struct{}{}
	<-s.release
	if s.closed {
		return blockstore.Wcc{}, errors.New("the store was closed under the call")
	}
	return blockstore.Wcc{}, nil
}

func (s *slow) Close() error { s.closed = true; return nil }

// TestGate: Close waits for the call inside; later calls are turned away
// without waiting.
func TestGate(t *testing.T) {
	s := &slow{inside: make(chan struct{}), release: make(chan struct{})}
	g := newGate(s, nil)
	var _ blockstore.FS = g
	inner := make(chan error, 1)
	go func() {
		_, err := g.Commit(nil, blockstore.Handle{}, 0, 0)
		inner <- err
	}()
	<-s.inside
	ended := make(chan error, 1)
	go func() { ended <- g.Close() }()
	for g.refs.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := g.GetAttr(nil, blockstore.Handle{}); !errors.Is(err, blockstore.ErrStale) {
		t.Errorf("a call after Close: %v", err)
	}
	select {
	case <-ended:
		t.Error("Close did not wait")
	default:
	}
	close(s.release)
	if err := <-inner; err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil || !s.closed {
		t.Errorf("Close: %v, closed %v", err, s.closed)
	}
}
