package rpcrdma

import (
	"math/bits"
	"slices"

	"github.com/rstored/rstored/rdma"
)

// allocation is a request for bulk memory: for two blocks of n and m bytes. If there is no memory
// it waits in the queue of Memory.
//
//	reserve: allocBoth --memory--> blocks
//	             |
//	             | none
//	             v
//	          waiting --free of others: unlockAndWake--> have, wake --pump: claim--> blocks
//	             |                                          |
//	             +------------ cancel: the connection ends -+
type allocation struct {
	n, m int
	a, b []byte
	have bool   // a and b are allocated, and the allocation is not in the queue
	wake func() // called after that, on any goroutine, without mu
}

// blockSize is the size of the block for n bytes: a power of two, or 0 for no block.
func blockSize(n int) int {
	if n <= 0 {
		return 0
	}
	return rdma.ArenaBlockMin << bits.Len(uint(n-1)/rdma.ArenaBlockMin)
}

// alloc returns a block of n bytes for a call that is being served, or nil. It ignores the queue:
// the call holds other memory, and would hold it longer by waiting.
func (m *Memory) alloc(n int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.get(n)
}

// allocBoth allocates the two blocks of t; either may have 0 bytes. If it reports false, t is in
// the queue, and wake will be called when the blocks are allocated.
func (m *Memory) allocBoth(t *allocation) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == 0 && m.both(t) {
		return true
	}
	m.waiting = append(m.waiting, t)
	return false
}

// both allocates both blocks or none. The caller holds mu.
func (m *Memory) both(t *allocation) bool {
	if t.a = m.get(t.n); t.a != nil || t.n == 0 {
		if t.b = m.get(t.m); t.b != nil || t.m == 0 {
			return true
		}
		m.put(t.a)
	}
	t.a, t.b = nil, nil
	return false
}

// claim reports whether the blocks of t, which was in the queue, are allocated. After true
// the caller owns t.a and t.b, and sets have to false.
func (m *Memory) claim(t *allocation) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return t.have
}

// cancel removes t from the queue, and frees its blocks if it has them.
//
//	allocation                   cancel
//	waits in the queue           it leaves the queue
//	has its blocks (have)        the blocks are freed, for the next one
//	was claimed before           nothing: the slot owns the blocks, and drop frees them
func (m *Memory) cancel(t *allocation) {
	m.mu.Lock()
	if t.have {
		m.put(t.a)
		m.put(t.b)
		t.have = false
	}
	m.waiting = slices.DeleteFunc(m.waiting, func(w *allocation) bool { return w == t })
	m.unlockAndWake()
}

// get is alloc. The caller holds mu.
func (m *Memory) get(n int) []byte {
	size := blockSize(n)
	if n <= 0 || m.bulkUsed+size > m.bulk {
		return nil
	}
	b := m.arena.Alloc(n)
	if b != nil {
		m.bulkUsed += size
		m.note()
	}
	return b
}

// put frees a block. The caller holds mu.
func (m *Memory) put(b []byte) {
	if b != nil {
		m.bulkUsed -= blockSize(len(b))
		m.arena.Free(b)
	}
}

// unlockAndWake allocates blocks for the queue, in order, as far as there is memory.
// A large request at the head is not overtaken, or it might wait forever. The caller holds mu. wake
// is called without it, because it submits to a loop.
func (m *Memory) unlockAndWake() {
	var woken []*allocation
	for len(m.waiting) > 0 && m.both(m.waiting[0]) {
		t := m.waiting[0]
		m.waiting[0] = nil
		m.waiting = m.waiting[1:]
		t.have = true
		woken = append(woken, t)
	}
	m.mu.Unlock()
	for _, t := range woken {
		t.wake()
	}
}

// free frees a block and wakes the waiters for which there is memory now.
func (m *Memory) free(b []byte) {
	if b == nil {
		return
	}
	m.mu.Lock()
	m.put(b)
	m.unlockAndWake()
}

// inUse is the memory in allocated bulk blocks.
func (m *Memory) inUse() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bulkUsed
}
