package state

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// The state of clients is bounded in bytes: for all clients, and for each host. A session counts,
// from its beginning, as much as all its slots may retain. So there is always memory for a reply
// cache that was granted. Everything else counts when it is made. The costs are a little more than
// what the heap takes.
//
//	new hosts             7/8 of all; the rest is for hosts with mounts
//	without an export     1/64 of all, for all clients that no export admits
//	one host of these     1/4 of that
//	one session           1/8 of what is left, by fewer slots and smaller replies
//
// Before the server refuses anybody, it ends clients that have not confirmed their ID, and clients
// whose lease has run out (freeMemory).
//
// The bounds exist because EXCHANGE_ID needs no mount: every host that reaches the port can make
// client records, each with an owner string of up to 1024 bytes (NFS4_OPAQUE_LIMIT), and after
// CREATE_SESSION reply caches. A refused client gets:
//
//	EXCHANGE_ID, CREATE_SESSION    DELAY
//	SETCLIENTID, new open-owner    RESOURCE
//	OPEN, LOCK                     DELAY
//	delegation, asynchronous COPY  none; the OPEN succeeds, the COPY is synchronous
//
// The counters are atomic. A request checks them (room), and then raises them (charge), without a
// lock over both. Concurrent requests can therefore exceed a bound by what each of them adds.

// Costs in bytes, with the entries of maps; strings of the client are added.
const (
	clientCost  = 2 << 10
	sessionCost = 2 << 10
	slotCost    = 128
	stateCost   = 768
	offloadCost = 2 << 10
	ownerCost   = 1 << 10 // an owner of version 4.0 with its last answer
)

const (
	memoryDefault       = 1 << 30
	clientMemoryDefault = 256 << 20

	reservedPart     = 8    // of all, for hosts with mounts
	noExportPart     = 64   // of all, for clients that no export admits
	noExportHostPart = 4    // of that, for one
	sessionPart      = 8    // of what is left, for one session
	clientsPart      = 8    // of the number of clients, for one host
	clientsMin       = 1024 // but at least this many
	slotsWanted      = 8    // before replies get smaller
	cachedMin        = 2 << 10
	reclaimEvery     = time.Second // at most one look at all clients in this time
	unconfirmedAge   = time.Second // before a client that is not confirmed goes
)

// memory has the bounds and the counts.
type memory struct {
	limit, host, clients int64        // bounds: bytes, bytes of one host, clients of one host
	all, noExport        atomic.Int64 // bytes now; noExport is a part of all
	refused              atomic.Uint64
	freed                atomic.Int64 // when room was made, in nanoseconds of the Unix time

	mu    sync.Mutex // see the lock order of the package
	hosts map[netip.Addr]*account
}

// account counts what the clients of one host take. It is in memory.hosts while the host has a
// client; each client of the host refers to it. A client stays in the account of the address that
// made it, whatever addresses it uses later.
type account struct {
	key     netip.Addr
	bytes   atomic.Int64
	mounts  atomic.Int64 // confirmed clients that an export admits
	clients int64        // memory.mu guards it
}

// hostKey returns the address of an IPv4 host, or the network of 64 bits of an IPv6 host. An IPv6
// host may use all addresses of its network, and would otherwise have as many accounts as it likes.
func hostKey(a netip.Addr) netip.Addr {
	const prefix = 64
	if a.Is6() {
		if p, err := a.Prefix(prefix); err == nil {
			return p.Addr()
		}
	}
	return a
}

// enter adds a client to the account of its host. It returns nil if the host already has the most
// clients that it may have.
func (m *memory) enter(host netip.Addr, most int64) *account {
	key := hostKey(host)
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.hosts[key]
	if a == nil {
		a = &account{key: key}
		m.hosts[key] = a
	}
	if a.clients >= most {
		return nil
	}
	a.clients++
	return a
}

func (m *memory) leave(a *account) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.clients--; a.clients == 0 {
		delete(m.hosts, a.key)
	}
}

// peek returns the account of a host without adding a client. For a host without clients it returns
// an empty account that is not in the table: a request that is refused leaves nothing behind.
func (m *memory) peek(host netip.Addr) *account {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.hosts[hostKey(host)]; a != nil {
		return a
	}
	return new(account)
}

// left returns how many more bytes a host can have. The result is below 0 if a bound was lowered or
// exceeded.
func (m *memory) left(a *account, noExport bool) int64 {
	all := m.limit
	// The last eighth is for hosts with a confirmed client that an export admits. Hosts without one
	// can fill the rest, and those at work can still open files.
	if a.mounts.Load() == 0 {
		all -= all / reservedPart
	}
	n := min(all-m.all.Load(), m.host-a.bytes.Load())
	if noExport {
		most := m.limit / noExportPart
		n = min(n, most-m.noExport.Load(), most/noExportHostPart-a.bytes.Load())
	}
	return n
}

// room reports whether the client can have n more bytes. Call with mu held.
func (c *Client) room(n int64) bool {
	if c.s.mem.left(c.account, c.noExport) >= n {
		return true
	}
	c.s.mem.refused.Add(1)
	return false
}

// charge adds n bytes to the account; n can be negative. Call with mu held, or before others see
// the client.
func (c *Client) charge(n int64) {
	if c.left {
		return
	}
	c.charged += n
	c.count(n)
}

func (c *Client) count(n int64) {
	m := &c.s.mem
	m.all.Add(n)
	c.account.bytes.Add(n)
	if c.noExport {
		m.noExport.Add(n)
	}
}

// enterAccount enters a new client into an account. It reports false if there is no room.
func (c *Client) enterAccount(host netip.Addr, noExport bool) bool {
	m := &c.s.mem
	if c.account = m.enter(host, m.clients); c.account == nil {
		m.refused.Add(1)
		return false
	}
	c.noExport = noExport
	n := int64(clientCost + len(c.owner))
	if !c.room(n) {
		m.leave(c.account)
		return false
	}
	c.charge(n)
	return true
}

// leaveAccount subtracts all bytes of a client that ends from its account. From then on charge does
// nothing, so a request in progress cannot count against an account that has left the table. A
// second call does nothing. Call with mu held.
func (c *Client) leaveAccount() {
	c.charge(-c.charged)
	if c.left {
		return
	}
	c.left = true
	if c.mounted {
		c.account.mounts.Add(-1)
	}
	c.s.mem.leave(c.account)
}

// admitted is called when an export admits the client. Its bytes no longer count as those of
// clients without an export, and its host counts as one with a mount. This is permanent. Call with
// mu held.
func (c *Client) admitted() {
	if c.noExport {
		c.count(-c.charged)
		c.noExport = false
		c.count(c.charged)
	}
	if !c.mounted && !c.left && c.confirmed.Load() {
		c.mounted = true
		c.account.mounts.Add(1)
	}
}

// costOf returns the bytes that a state takes.
func costOf(what any) int64 {
	switch w := what.(type) {
	case *open:
		return int64(stateCost + len(w.Key.Owner))
	case *locks:
		return int64(stateCost + len(w.Key.Owner))
	case *Offload:
		return offloadCost
	}
	return stateCost
}

func (o *seqOwner) cost() int64 { return int64(ownerCost + len(o.Name)) }

// full reports whether the client can have no further state, for an owner string of this many
// bytes. An export has admitted the caller, because the caller has a file handle. Call with mu
// held.
func (c *Client) full(owner int) bool {
	c.admitted()
	return len(c.states) >= c.s.cfg.States || !c.room(int64(stateCost+owner))
}

// cost returns the most bytes that a session takes. The allocator rounds the memory of a retained
// reply up by at most an eighth. MaxSlots and MaxCached are what the server grants, so the product
// stays far below 2^63.
func (ch *Channel) cost() int64 {
	return sessionCost + int64(ch.MaxSlots)*(slotCost+int64(ch.MaxCached)*9/8)
}

// shrink reduces a channel until its session costs at most n, as far as possible. CREATE_SESSION
// may grant less than the client asks for (RFC 8881 section 18.36.3). First shrink halves the slots
// down to 8, then it cuts replies to 2 KiB, then it halves the slots down to 1.
//
// The Linux client refuses a session without a slot, and one with fewer operations than it asked
// for (nfs4_verify_fore_channel_attrs). So one slot stays, and MaxOps is never changed.
func (ch *Channel) shrink(n int64) {
	for ch.cost() > n {
		switch {
		case ch.MaxSlots > slotsWanted:
			ch.MaxSlots = max(ch.MaxSlots/2, slotsWanted)
		case ch.MaxCached > cachedMin:
			ch.MaxCached = cachedMin
		case ch.MaxSlots > 1:
			ch.MaxSlots /= 2
		default:
			return
		}
	}
}

// freeMemory ends clients that have no claim to their state, if a host lacks n bytes or has too
// many clients: those that did not confirm their ID, and those whose lease has run out. It looks at
// all clients, and therefore runs at most once a second. Of several callers, the one that moves the
// time in freed runs it. Call with no lock held: give writes the journal.
//
// If the host itself has too much, only its own clients end. If all hosts together have too much,
// clients of every host end. except is the client that asks for memory; it does not end.
func (s *Server) freeMemory(now time.Time, a *account, noExport bool, n int64, except *Client) {
	m := &s.mem
	m.mu.Lock()
	many := a.clients >= m.clients
	m.mu.Unlock()
	if !many && m.left(a, noExport) >= n*sessionPart {
		return
	}
	at, last := now.UnixNano(), m.freed.Load()
	if last != 0 && at >= last && at-last < int64(reclaimEvery) || !m.freed.CompareAndSwap(last, at) {
		return
	}
	ownOnly := many || m.host-a.bytes.Load() < n*sessionPart
	var gone []*Client
	for _, c := range s.clientList() {
		old := !c.confirmed.Load() && at-c.renewed.Load() >= int64(unconfirmedAge)
		if c != except && (!ownOnly || c.account == a) && (old || c.expired(now)) {
			gone = append(gone, c)
		}
	}
	for _, c := range gone {
		s.give(c)
	}
}

// MemoryInfo is what clients have made the server remember, in bytes, and how often there was no
// room.
type MemoryInfo struct {
	Bytes, Limit int64
	Refused      uint64
}

// Memory returns the use of memory.
func (s *Server) Memory() MemoryInfo {
	return MemoryInfo{Bytes: s.mem.all.Load(), Limit: s.mem.limit, Refused: s.mem.refused.Load()}
}
