package client

import (
	"context"
	"sync"
)

// slot is an entry of a session's slot table. One request occupies it at a time.
type slot struct {
	id      uint32
	seq     uint32 // sequence ID of the request that occupies it, or of the next one
	highest uint32 // sa_highest_slotid: the highest slot in use when the request took the slot
	busy    bool
}

// slots is the client's side of a session's slot table (RFC 8881 section 2.10.6.1). Each request in
// flight occupies a slot; further requests wait. A request takes the slot that was released last.
// So the client uses no more slots than it has requests in flight, and the server can shrink its
// reply cache.
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

// take waits for a free slot. ended is closed when the session is lost. The caller releases the
// slot by done or unused. If it does not know whether the server has executed the request, it calls
// session4.probeSlot.
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

// done releases a slot whose request the server has executed: the next request has the next
// sequence ID.
func (t *slots) done(s *slot) { t.put(s, 1) }

// unused releases a slot whose request the server has not executed: the sequence ID is used again.
func (t *slots) unused(s *slot) { t.put(s, 0) }

func (t *slots) put(s *slot, step uint32) {
	t.mu.Lock()
	s.seq += step // wraps around to 0 (section 2.10.6.1)
	s.busy = false
	t.free = append(t.free, s)
	t.mu.Unlock()
	t.tokens <- struct{}{}
}
