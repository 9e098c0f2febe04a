package rpcrdma

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
)

// Memory is the memory that any number of Listeners may share: one arena, registered with the
// device of each, for local use only, and the account of what is taken of it. Its methods may
// be called from any goroutine.
//
// A quarter of it is for messages: each connection has receives there, for every call that it
// was granted and some more. The rest is for bulk data of calls in progress, all that a call
// needs at once, so that no call that has some waits for more. Calls that find none wait in
// the order in which they came, so that every connection has its turn.
//
// While less than half of the memory for messages is taken, each connection gets as many credits
// as it uses. Beyond that an equal share for all (see credits) is the most that they get, and those who
// have more are brought down to it. So there is room left for the floors of new ones.
type Memory struct {
	arena    *rdma.Arena
	messages int // bytes for messages
	bulk     int // bytes for bulk data

	// pinned memory is set apart for the messages of each connection that there can be, so that long-lived
	// blocks of theirs are not scattered among those for bulk data.
	pinned     bool
	recvBlocks [][]byte // under mu; nil if not pinned
	backBlocks [][]byte
	most       int // connections that pinned memory is for

	// each is how many bytes of messages a connection may have while they are short, else 0.
	each atomic.Int64

	mu    sync.Mutex
	conns int // connections that have receives
	taken int // bytes of messages
	used  int // bytes in bulk blocks that are out
	// holders counts connections that have bulk blocks or wait for some.
	holders int
	waiting []*ticket
	// peak is the most that was taken and used together.
	peak int
}

// MemoryStats describe the use of a Memory. Sizes are in bytes.
type MemoryStats struct {
	// Limit is the budget, of which Messages are in receives, and Bulk in calls in progress. Peak
	// is the most that both had together.
	Limit, Messages, Bulk, Peak int
	// Connections have receives, and Waiting of them wait for bulk memory.
	Connections, Waiting int
	// Share is how many credits each connection may have when memory is short.
	Share int
}

// MemoryMin is the least memory of a Listener, in bytes: several of the longest calls, and
// messages.
const MemoryMin = 16 << 20

// messageShare is the part of the memory that is for messages: 1/messageShare.
const messageShare = 4

// Floors of a connection: what it gets in any case, or is refused.
const (
	// floorCredits is how many credits it has.
	floorCredits = 2
	// extraReceives are posted beyond the credits granted, or two for each if those are few, for
	// messages that use no credit and for the moments between a reply and its acknowledgement.
	extraReceives = 16
)

// receives is how many receives are posted for so many credits.
func receives(credits int) int { return credits + min(extraReceives, 2*credits) }

// creditsOf is for how many credits so many receives are enough, floorCredits at least.
func creditsOf(n int) int { return max(n-extraReceives, min(n, extraReceives*3/2)/3, floorCredits) }

// newMemory maps memory of limit bytes for connections whose receives are of at most block
// bytes each, for conns of them at most.
func newMemory(limit, block, conns int, pinned bool) (*Memory, error) {
	m := &Memory{messages: limit / messageShare, pinned: pinned}
	m.bulk = limit - m.messages
	each := blockSize(block) + blockSize(backwardMemory)
	if pinned {
		conns = max(min(conns, m.messages/each), 1)
	}
	// Each connection has addresses for as many receives as it may ever have. They take
	// no memory until they are used, unless the memory is pinned.
	arena, err := rdma.NewArena(m.bulk + each*conns)
	if err != nil {
		return nil, err
	}
	m.arena = arena
	if !pinned {
		return m, nil
	}
	m.most = conns
	for range conns {
		m.recvBlocks = append(m.recvBlocks, arena.Alloc(block))
	}
	for range conns {
		m.backBlocks = append(m.backBlocks, arena.Alloc(backwardMemory))
	}
	return m, nil
}

// NewMemory maps memory of limit bytes, MemoryMin at least, for Listeners with the Credits, the
// Inline and the Pinned of cfg. Those are closed before it is.
func NewMemory(limit int, cfg Config) (*Memory, error) {
	cfg = cfg.withDefaults()
	limit = max(limit, MemoryMin)
	return newMemory(limit, cfg.receiveMemory(), max(limit/messageShare/(receives(floorCredits)*cfg.Inline), 1), cfg.Pinned)
}

// block takes n bytes for messages from one of the lists of pinned memory, or from the arena; nil if
// there are none.
func (m *Memory) block(list *[][]byte, n int) []byte {
	if !m.pinned {
		return m.arena.Alloc(n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	last := len(*list) - 1
	if last < 0 || n > cap((*list)[last]) {
		return nil
	}
	b := (*list)[last][:n]
	*list = (*list)[:last]
	return b
}

// freeBlock takes back what block gave out.
func (m *Memory) freeBlock(list *[][]byte, b []byte) {
	if !m.pinned {
		m.arena.Free(b)
		return
	}
	m.mu.Lock()
	*list = append(*list, b)
	m.mu.Unlock()
}

// discard gives memory back to the system until it is used again. A device that has pinned it would go on
// with the pages of before.
func (m *Memory) discard(b []byte) {
	if !m.pinned {
		m.arena.Discard(b)
	}
}

// Close gives the memory back to the system.
func (m *Memory) Close() error { return m.arena.Close() }

// Stats describes the use of the memory, for connections with messages of inline bytes; 0 means
// those of a Config without.
func (m *Memory) Stats(inline int) MemoryStats {
	if inline == 0 {
		cfg := Config{}.withDefaults()
		inline = cfg.Inline
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return MemoryStats{
		Limit: m.messages + m.bulk, Messages: m.taken, Bulk: m.used, Peak: m.peak, Connections: m.conns, Waiting: len(m.waiting),
		Share: m.share(inline),
	}
}

// share is how many credits each connection has when three quarters of the memory for messages
// are divided equally.
func (m *Memory) share(inline int) int { return creditsOf(m.part() / inline) }

// part is the same in bytes.
func (m *Memory) part() int { return m.messages / 4 * 3 / max(m.conns, 1) }

// join takes the memory for the receives of a new connection, which wants so many credits, and
// says how many it gets: the floor once half of the memory is taken, and 0 if there is not even that.
func (m *Memory) join(want, inline int) (credits int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns++
	credits = want
	if m.taken+receives(credits)*inline > m.messages/2 {
		credits = min(want, floorCredits)
	}
	if n := receives(credits) * inline; m.taken+n <= m.messages {
		m.take(n)
		return credits
	}
	m.conns--
	return 0
}

// inherit takes n bytes for the receives of a connection that another process had, whether they are there or not. While
// too much is taken the connections are brought down to their shares.
func (m *Memory) inherit(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns++
	m.take(n)
}

// take takes n bytes for messages, or gives them back.
func (m *Memory) take(n int) {
	m.taken += n
	m.note()
	var each int
	if m.taken > m.messages/2 {
		each = m.part()
	}
	m.each.Store(int64(each))
}

func (m *Memory) note() { m.peak = max(m.peak, m.taken+m.used) }

// leave gives back n bytes of receives of a connection, the last.
func (m *Memory) leave(n int) {
	m.mu.Lock()
	m.conns--
	m.take(-n)
	m.mu.Unlock()
}

// allowed is the most credits that a connection with so many may have now.
func (m *Memory) allowed(credits, inline int) int {
	if each := m.each.Load(); each > 0 {
		return min(credits, creditsOf(int(each)/inline))
	}
	return credits
}

// grow takes n bytes for more receives of a connection, which has so many credits then, and reports
// whether it may.
func (m *Memory) grow(n, credits, inline int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken+n > m.messages/2 && (credits > m.share(inline) || m.taken+n > m.messages/4*3) {
		return false
	}
	m.take(n)
	return true
}

// settle takes n bytes for the receives of a connection that was established, and reports whether it
// may: not once half of the memory is taken, as most connections never use more than the floor.
func (m *Memory) settle(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken+n > m.messages/2 {
		return false
	}
	m.take(n)
	return true
}

// shrink gives back the memory of receives that are not posted again.
func (m *Memory) shrink(n int) {
	m.mu.Lock()
	m.take(-n)
	m.mu.Unlock()
}

// extra takes memory for messages that are no receives.
func (m *Memory) extra(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken+n > m.messages {
		return false
	}
	m.take(n)
	return true
}

// ceiling is the most bulk memory that a connection may hold now, most at the most: when more
// than half is in use, an equal part of it.
func (m *Memory) ceiling(most int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used <= m.bulk/2 {
		return most
	}
	return min(most, m.bulk/max(m.holders, 1))
}

// hold notes that one more connection has bulk memory, or waits for it, or by -1 one less.
func (m *Memory) hold(n int) {
	m.mu.Lock()
	m.holders += n
	m.mu.Unlock()
}

// ticket is a place among those who wait for bulk memory: two blocks of n and m bytes.
type ticket struct {
	n, m int
	a, b []byte
	have bool   // a and b are there
	wake func() // called when they are, on any goroutine
}

// blockSize is how much memory a block of n bytes takes; 0 for no block at all.
func blockSize(n int) int {
	if n <= 0 {
		return 0
	}
	return rdma.ArenaBlockMin << bits.Len(uint(n-1)/rdma.ArenaBlockMin)
}

// alloc returns a block of n bytes for a call that is served, or nil if there is none to be had now.
func (m *Memory) alloc(n int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.get(n)
}

// allocBoth gets the two blocks of a ticket, either of which may be of 0 bytes. If it reports
// false the ticket waits, and its wake will be called once they are there.
func (m *Memory) allocBoth(t *ticket) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == 0 && m.both(t) {
		return true
	}
	m.waiting = append(m.waiting, t)
	return false
}

func (m *Memory) both(t *ticket) bool {
	if t.a = m.get(t.n); t.a != nil || t.n == 0 {
		if t.b = m.get(t.m); t.b != nil || t.m == 0 {
			return true
		}
		m.put(t.a)
	}
	t.a, t.b = nil, nil
	return false
}

// claim takes what a ticket that waited has got, and reports whether it has.
func (m *Memory) claim(t *ticket) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return t.have
}

// cancel ends the wait of a ticket.
func (m *Memory) cancel(t *ticket) {
	m.mu.Lock()
	if t.have {
		m.put(t.a)
		m.put(t.b)
		t.have = false
	}
	for i, w := range m.waiting {
		if w == t {
			m.waiting = append(m.waiting[:i], m.waiting[i+1:]...)
			break
		}
	}
	woken := m.next()
	m.mu.Unlock()
	for _, t := range woken {
		t.wake()
	}
}

// get is alloc with mu held.
func (m *Memory) get(n int) []byte {
	size := blockSize(n)
	if n <= 0 || m.used+size > m.bulk {
		return nil
	}
	b := m.arena.Alloc(n)
	if b != nil {
		m.used += size
		m.note()
	}
	return b
}

// put takes a block back with mu held.
func (m *Memory) put(b []byte) {
	if b != nil {
		m.used -= blockSize(len(b))
		m.arena.Free(b)
	}
}

// next serves those who wait, in their order, as far as there is memory. Call with mu held.
func (m *Memory) next() (woken []*ticket) {
	for len(m.waiting) > 0 && m.both(m.waiting[0]) {
		t := m.waiting[0]
		m.waiting[0] = nil
		m.waiting = m.waiting[1:]
		t.have = true
		woken = append(woken, t)
	}
	return woken
}

// free takes a block back, as long as it was given out.
func (m *Memory) free(b []byte) {
	if b == nil {
		return
	}
	m.mu.Lock()
	m.put(b)
	woken := m.next()
	m.mu.Unlock()
	for _, t := range woken {
		t.wake()
	}
}

// inUse is the memory in bulk blocks that are out.
func (m *Memory) inUse() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// pool is a Memory as it is registered with the device of a Listener.
type pool struct {
	*Memory
	mr   rdma.MR
	lkey uint32
	own  bool
}

func newPool(pd rdma.PD, m *Memory, own bool) (*pool, error) {
	mr, err := pd.Register(m.arena.Bytes(), rdma.LocalWrite)
	if err != nil {
		return nil, fmt.Errorf("registering %d bytes of memory: %w", len(m.arena.Bytes()), err)
	}
	return &pool{Memory: m, mr: mr, lkey: mr.LKey(), own: own}, nil
}

// close deregisters the memory, and gives it back to the system if it is the Listener's own. No
// block may be out, and no request that names one under way.
func (p *pool) close() error {
	p.mr.Close()
	if !p.own {
		return nil
	}
	return p.Close()
}
