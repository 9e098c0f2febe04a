package rpcrdma

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/rstored/rstored/rdma"
)

// pool is the memory of all connections of a Listener: one arena, registered
// once and for local use only. The blocks for bulk data have a budget of their
// own, so that they never take the room of message buffers. Its methods may be
// called from any goroutine.
type pool struct {
	arena *rdma.Arena
	mr    rdma.MR
	lkey  uint32
	limit int // of used

	mu   sync.Mutex
	used int // bytes in bulk blocks that are out
	// waiting are woken, once, when a bulk block comes back.
	waiting []func()
}

// blockSize is how much memory a block of n bytes takes; 0 for no block at all.
func blockSize(n int) int {
	if n <= 0 {
		return 0
	}
	return rdma.ArenaBlockMin << bits.Len(uint(n-1)/rdma.ArenaBlockMin)
}

// newPool makes room for bulk blocks of limit bytes and for message buffers.
func newPool(pd rdma.PD, limit, messages int) (*pool, error) {
	arena, err := rdma.NewArena(limit + messages)
	if err != nil {
		return nil, err
	}
	mr, err := pd.Register(arena.Bytes(), rdma.LocalWrite)
	if err != nil {
		arena.Close()
		return nil, fmt.Errorf("registering %d bytes for bulk data: %w", limit, err)
	}
	return &pool{arena: arena, mr: mr, lkey: mr.LKey(), limit: limit}, nil
}

// alloc returns a block of n bytes, or nil if there is none to be had now.
func (p *pool) alloc(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.get(n)
}

// allocBoth returns two blocks, either of which may be of 0 bytes, or neither.
// In that case wake is called once, on the goroutine that gives a block back.
func (p *pool) allocBoth(n, m int, wake func()) (a, b []byte, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a = p.get(n); a != nil || n == 0 {
		if b = p.get(m); b != nil || m == 0 {
			return a, b, true
		}
		p.put(a)
	}
	p.waiting = append(p.waiting, wake)
	return nil, nil, false
}

// get is alloc with mu held.
func (p *pool) get(n int) []byte {
	size := blockSize(n)
	if n <= 0 || p.used+size > p.limit {
		return nil
	}
	b := p.arena.Alloc(n)
	if b != nil {
		p.used += size
	}
	return b
}

// put takes a block back with mu held.
func (p *pool) put(b []byte) {
	if b != nil {
		p.used -= blockSize(len(b))
		p.arena.Free(b)
	}
}

// free takes a block back, as long as it was given out.
func (p *pool) free(b []byte) {
	if b == nil {
		return
	}
	p.mu.Lock()
	p.put(b)
	waiting := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	for _, wake := range waiting {
		wake()
	}
}

// inUse is the memory in bulk blocks that are out.
func (p *pool) inUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// close deregisters the memory and gives it back to the system. No block may
// be out, and no request that names one under way.
func (p *pool) close() error {
	p.mr.Close()
	return p.arena.Close()
}
