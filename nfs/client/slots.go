package client

import (
	"context"
	"sync"
)

// slot is an entry of a session's slot table. It belongs to one request at a time.
type slot struct {
	id      uint32
	seq     uint32 // of the request that has it, or of the next one
	highest uint32 // slot in use when the request took it
	busy    bool
}

// slots is a session's slot table as the client sees it (RFC 8881 section 2.10.6.1):
// as many requests as it has slots are under way at once, and further ones wait. The
// slots used are as few as there are requests at a time, so that the server needs to
// remember no more.
type slots struct {
	tokens chan struct{} // one for each free slot

	mu   sync.Mutex
	all  []slot
	free []*slot // the last one is taken first
}

func newSlots(n uint32) *slots {
	t := &slots{all: make([]slot, n), tokens: make(chan struct{}, n)}
	for i := int(n) - 1; i >= 0; i-- {
		t.all[i] = slot{id: uint32(i), seq: 1}
		t.free = append(t.free, &t.all[i])
		t.tokens <- struct{}{}
	}
	return t
}

// take waits for a free slot. ended is closed when the session is lost.
func (t *slots) take(ctx context.Context, ended <-chan struct{}) (*slot, error) {
	select {
	case <-t.tokens:
	case <-ended:
		return nil, errSessionLost
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	s.busy = true
	for i := len(t.all) - 1; i >= 0; i-- {
		if t.all[i].busy {
			s.highest = uint32(i)
			break
		}
	}
	return s, nil
}

// done gives a slot back whose request the server has executed.
func (t *slots) done(s *slot) { t.put(s, 1) }

// unused gives a slot back whose request the server has not executed.
func (t *slots) unused(s *slot) { t.put(s, 0) }

func (t *slots) put(s *slot, step uint32) {
	t.mu.Lock()
	s.seq += step // 32 bits, and round again
	s.busy = false
	t.free = append(t.free, s)
	t.mu.Unlock()
	t.tokens <- struct{}{}
}
