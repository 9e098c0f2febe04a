package rpcrdma

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
)

// Memory is an arena that any number of Listeners may share, and the account of its use. It is
// registered with the device of each Listener, for local access only. Its methods may be called
// from any goroutine; those with callbacks call them without mu.
//
//   - A quarter is for messages: the receives of each connection, for its credits and some more.
//   - The rest is for bulk data of calls in progress. A call reserves all it needs at once, so
//     no call has memory while it waits for more. A handler may allocate more later, but
//     without waiting (alloc). Calls that find none wait in the order of arrival.
//
// While less than half of the memory for messages is in use, each connection gets as many credits
// as it uses. Beyond that, each connection gets an equal share at most, and connections with more
// are reduced to it, one credit per reply. This leaves memory for the least credits of new
// connections (floorCredits).
//
//	+-------- messages: 1/4 --------+----------------- bulk: 3/4 ------------------+
//	| receives of each connection   | blocks of powers of two, for one call each   |
//	| half of it: as wanted         | half of it: ConnMemory per connection        |
//	| above: an equal share of 3/4  | above: an equal share                        |
//	| the last quarter: floors      |                                              |
//	+-------------------------------+----------------------------------------------+
//
// Lock order: mu is taken last. Code that has mu calls only the arena, no callback.
type Memory struct {
	arena    *rdma.Arena
	messages int // bytes for messages
	bulk     int // bytes for bulk data

	// Pinned memory is divided in advance: a block for the receives of each possible connection.
	// Otherwise these long-lived blocks would fragment the memory for bulk data.
	pinned     bool
	recvBlocks [][]byte // under mu; nil if not pinned
	backBlocks [][]byte
	most       int // number of connections that pinned memory is divided for

	// each is the share of a connection in bytes of messages while these are short, else 0. It is
	// read for every reply, so it is not under mu.
	each atomic.Int64

	mu           sync.Mutex
	conns        int // connections that have receives
	messagesUsed int // bytes of messages
	bulkUsed     int // bytes in bulk blocks that are out
	// bulkUsers counts connections that have bulk blocks or wait for them.
	bulkUsers int
	waiting   []*allocation
	// peak is the highest sum of messagesUsed and bulkUsed.
	peak int
}

// MemoryStats describe the use of a Memory. Sizes are in bytes.
type MemoryStats struct {
	// Limit is the budget. Messages is in use by receives, Bulk by calls in progress. Peak is the
	// highest sum of both.
	Limit, Messages, Bulk, Peak int
	// Connections have receives. Waiting of them wait for bulk memory.
	Connections, Waiting int
	// Share is the credits of each connection when memory is short.
	Share int
}

// MemoryMin is the least memory of a Listener, in bytes: several of the longest calls, and
// messages.
const MemoryMin = 16 << 20

// messageShare is the part of the memory that is for messages: 1/messageShare.
const messageShare = 4

// The least resources of a connection. A connection that cannot have them is refused.
const (
	floorCredits = 2
	// extraReceives are posted beyond the credits (16, or 1 per credit if that is less). They are for
	// messages that use no credit (RFC 8166 section 3.3.1). They also bridge the time between the
	// arrival of a reply and the completion of its SEND: the client may send again then, but the
	// buffer of the call is not free.
	extraReceives = 16
)

// receives is the number of receives for a number of credits.
func receives(credits int) int { return credits + min(extraReceives, credits) }

// creditsOf is the inverse of receives: the credits that n receives are enough for, floorCredits at
// least.
func creditsOf(n int) int { return max(n-extraReceives, min(n, extraReceives*2)/2, floorCredits) }

// newMemory maps memory of limit bytes for at most conns connections. block bounds the bytes of all
// receives of one connection.
func newMemory(limit, block, conns int, pinned bool) (*Memory, error) {
	m := &Memory{messages: limit / messageShare, pinned: pinned}
	m.bulk = limit - m.messages
	each := blockSize(block) + blockSize(backwardMemory)
	if pinned {
		conns = max(min(conns, m.messages/each), 1)
	}
	// Each connection has addresses for all receives it can ever have. Their pages are not
	// resident until they are used, unless the memory is pinned.
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

// NewMemory maps memory of limit bytes, MemoryMin at least, for Listeners with the Credits, Inline,
// Receive and Pinned of cfg. The caller closes the Listeners before the Memory.
func NewMemory(limit int, cfg Config) (*Memory, error) {
	cfg = cfg.withDefaults()
	limit = max(limit, MemoryMin)
	conns := limit / messageShare / (receives(floorCredits) * cfg.Receive)
	return newMemory(limit, cfg.receiveMemory(), max(conns, 1), cfg.Pinned)
}

// block allocates n bytes for messages: from a list of prepared blocks if the memory is pinned,
// else from the arena. It returns nil if there are none.
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

// discard returns the pages of b to the system until they are used again. Pinned memory keeps its
// pages: the device would go on to use the old ones.
func (m *Memory) discard(b []byte) {
	if !m.pinned {
		m.arena.Discard(b)
	}
}

// Close unmaps the memory.
func (m *Memory) Close() error { return m.arena.Close() }

// Stats describes the use of the memory, for connections with receives of receive bytes; 0 means the
// default of Config.
func (m *Memory) Stats(receive int) MemoryStats {
	if receive == 0 {
		cfg := Config{Pinned: m.pinned}.withDefaults()
		receive = cfg.Receive
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return MemoryStats{
		Limit: m.messages + m.bulk, Messages: m.messagesUsed, Bulk: m.bulkUsed, Peak: m.peak,
		Connections: m.conns, Waiting: len(m.waiting), Share: m.share(receive),
	}
}

// share is the credits of each connection when three quarters of the memory for messages are
// divided equally.
func (m *Memory) share(receive int) int { return creditsOf(m.part() / receive) }

// part is share in bytes.
func (m *Memory) part() int { return m.messages / 4 * 3 / max(m.conns, 1) }

// addConn charges the receives of a new connection that wants a number of credits. It returns the
// credits that the connection gets: those wanted, floorCredits if half of the memory is in use,
// or 0 if there is not even memory for the floor.
func (m *Memory) addConn(want, receive int) (credits int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns++
	credits = want
	if m.messagesUsed+receives(credits)*receive > m.messages/2 {
		credits = min(want, floorCredits)
	}
	if !m.chargeUpTo(receives(credits)*receive, m.messages) {
		m.conns--
		return 0
	}
	return credits
}

// restoreConn charges n bytes for the receives of a connection that another process handed over,
// beyond the limit if need be. Connections are then reduced to their shares.
func (m *Memory) restoreConn(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns++
	m.charge(n)
}

// charge adds n bytes, or subtracts them, to the messages in use. The caller holds mu.
func (m *Memory) charge(n int) {
	m.messagesUsed += n
	m.note()
	var each int
	if m.messagesUsed > m.messages/2 {
		each = m.part()
	}
	m.each.Store(int64(each))
}

// chargeUpTo charges n bytes, if no more than limit are in use then. The caller holds mu.
func (m *Memory) chargeUpTo(n, limit int) bool {
	if m.messagesUsed+n > limit {
		return false
	}
	m.charge(n)
	return true
}

// note updates the peak. The caller holds mu.
func (m *Memory) note() { m.peak = max(m.peak, m.messagesUsed+m.bulkUsed) }

// removeConn ends a connection, whose last n bytes of receives are free.
func (m *Memory) removeConn(n int) {
	m.mu.Lock()
	m.conns--
	m.charge(-n)
	m.mu.Unlock()
}

// allowed returns the most credits that a connection may have now, credits at most.
func (m *Memory) allowed(credits, receive int) int {
	if each := m.each.Load(); each > 0 {
		return min(credits, creditsOf(int(each)/receive))
	}
	return credits
}

// grow charges n bytes for more receives of a connection that then has the given credits, if there
// is memory.
func (m *Memory) grow(n, credits, receive int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if credits > m.share(receive) {
		return m.chargeUpTo(n, m.messages/2)
	}
	return m.chargeUpTo(n, m.messages/4*3)
}

// raiseInitial charges n bytes for the first grant of an established connection, unless half of the
// memory is in use: most connections never use more than the floor.
func (m *Memory) raiseInitial(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.chargeUpTo(n, m.messages/2)
}

// shrink releases n bytes of receives that are not posted again.
func (m *Memory) shrink(n int) {
	m.mu.Lock()
	m.charge(-n)
	m.mu.Unlock()
}

// extra charges n bytes for messages that are not receives.
func (m *Memory) extra(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.chargeUpTo(n, m.messages)
}

// ceiling returns the most bulk memory that a connection may have now: most, or an equal share if
// more than half is in use.
func (m *Memory) ceiling(most int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bulkUsed <= m.bulk/2 {
		return most
	}
	return min(most, m.bulk/max(m.bulkUsers, 1))
}

// countUser adds n, 1 or -1, to the connections that have bulk memory or wait for it.
func (m *Memory) countUser(n int) {
	m.mu.Lock()
	m.bulkUsers += n
	m.mu.Unlock()
}

// pool is a Memory registered with the device of one Listener. The region has no remote access: the
// server moves all bulk data itself, so no R_Key of it ever goes on the wire.
type pool struct {
	*Memory
	mr   rdma.MR
	lkey uint32
	own  bool // the Listener made the Memory and closes it
}

// newPool registers the memory with a device. own says that the Listener closes it.
func newPool(pd rdma.PD, m *Memory, own bool) (*pool, error) {
	mr, err := pd.Register(m.arena.Bytes(), rdma.LocalWrite)
	if err != nil {
		return nil, fmt.Errorf("registering %d bytes of memory: %w", len(m.arena.Bytes()), err)
	}
	return &pool{Memory: m, mr: mr, lkey: mr.LKey(), own: own}, nil
}

// close deregisters the memory, and unmaps it if it is the Listener's own. No block may be
// allocated, and no work request may be using one.
func (p *pool) close() error {
	p.mr.Close()
	if !p.own {
		return nil
	}
	return p.Close()
}
