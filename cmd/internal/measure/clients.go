package measure

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// clients records a bounded number of clients by address. The others are recorded together. At a
// rotation, a client that made more than twice as many calls as the least active recorded one takes
// its place.
type clients struct {
	limit int
	index atomic.Pointer[[]atomic.Pointer[client]] // a hash table; see slot
	full  atomic.Bool
	other clientCells

	mu      sync.Mutex
	list    []*client
	asked   map[netip.Addr]uint64 // calls in samples of clients that are not recorded separately
	retired []*client             // since the last rotation: a running call may still count there
}

type client struct {
	addr  netip.Addr
	cells clientCells
	seen  uint64 // calls at the last rotation
}

// clientCells are the cells of a client by shard and transport.
type clientCells [][len(transports)]cell

func newClientCells() clientCells { return make(clientCells, shards) }

func (c clientCells) calls() (n uint64) {
	for k := range c {
		for t := range c[k] {
			for i := range c[k][t].n {
				n += c[k][t].n[i].Load()
			}
		}
	}
	return n
}

const (
	probes     = 8 // slots of the hash table that a client can be in
	sampleOneN = 8 // of the calls of clients that are not recorded separately, one in so many is sampled
)

func (c *clients) init(limit int) {
	c.limit, c.other, c.asked = max(limit, 0), newClientCells(), make(map[netip.Addr]uint64)
	c.full.Store(c.limit == 0)
	c.build()
}

// build makes the hash table from the list. The caller holds mu, or is alone.
func (c *clients) build() {
	n := 16
	for n < 4*c.limit {
		n *= 2
	}
	t := make([]atomic.Pointer[client], n)
	for _, x := range c.list {
		put(t, x)
	}
	c.index.Store(&t)
}

// put gives a client a slot of the hash table. If all its slots are taken, calls of the client are
// found through the list.
func put(t []atomic.Pointer[client], x *client) {
	at := slot(x.addr)
	for i := range probes {
		if p := &t[(at+i)&(len(t)-1)]; p.Load() == nil {
			p.Store(x)
			return
		}
	}
}

func slot(a netip.Addr) int {
	b := a.As16()
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(b[:])^0x9e3779b97f4a7c15,
		binary.LittleEndian.Uint64(b[8:])^0xc2b2ae3d27d4eb4f)
	return int((hi ^ lo) >> 33)
}

// find returns the cells for calls of a client.
func (c *clients) find(a netip.Addr) clientCells {
	a = a.Unmap()
	t := *c.index.Load()
	at := slot(a)
	for i := range probes {
		x := t[(at+i)&(len(t)-1)].Load()
		if x == nil {
			break
		}
		if x.addr == a {
			return x.cells
		}
	}
	if c.full.Load() && rand.Uint32()%sampleOneN != 0 {
		return c.other
	}
	return c.miss(a)
}

// miss adds a client if there is room, or counts its call.
func (c *clients) miss(a netip.Addr) clientCells {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.list {
		if x.addr == a {
			return x.cells // another call added it, or it has no slot
		}
	}
	if len(c.list) < c.limit {
		x := &client{addr: a, cells: newClientCells()}
		c.list = append(c.list, x)
		c.full.Store(len(c.list) == c.limit)
		put(*c.index.Load(), x)
		return x.cells
	}
	if n, ok := c.asked[a]; ok || len(c.asked) < 4*c.limit {
		c.asked[a] = n + sampleOneN
	}
	return c.other
}

// rotate replaces the least active clients since the last rotation.
func (c *clients) rotate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.retired {
		c.other.fold(x.cells)
	}
	c.retired = nil
	type active struct {
		*client
		recent uint64
	}
	list := make([]active, len(c.list))
	for i, x := range c.list {
		n := x.cells.calls()
		list[i] = active{x, n - x.seen}
		x.seen = n
	}
	slices.SortFunc(list, func(a, b active) int { return cmp.Compare(a.recent, b.recent) })
	type candidate struct {
		addr netip.Addr
		n    uint64
	}
	var next []candidate
	for a, n := range c.asked {
		next = append(next, candidate{a, n})
	}
	clear(c.asked)
	slices.SortFunc(next, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.n, a.n), a.addr.Compare(b.addr)) })
	changed := false
	for i, x := range next {
		if i == len(list) || x.n <= 2*list[i].recent {
			break
		}
		c.retired = append(c.retired, list[i].client)
		j := slices.Index(c.list, list[i].client)
		c.list[j] = &client{addr: x.addr, cells: newClientCells()}
		changed = true
	}
	if changed {
		c.build()
	}
}

// fold adds the cells of a client to the common ones.
func (c clientCells) fold(o clientCells) {
	for k := range o {
		for t := range o[k] {
			to, from := &c[k][t], &o[k][t]
			for i := range from.n {
				to.n[i].Add(from.n[i].Load())
			}
			to.nanos.Add(from.nanos.Load())
			to.in.Add(from.in.Load())
			to.out.Add(from.out.Load())
			to.failed.Add(from.failed.Load())
		}
	}
}

func (c clientCells) sums(t int) (s Sums) {
	for k := range c {
		s.add(&c[k][t])
	}
	return s
}

// OtherClients is the name for all clients that are not recorded separately.
const OtherClients = "other"

// ClientCalls has the records of a client.
type ClientCalls struct {
	Client    string
	Transport rpc.Transport
	Sums
}

// Clients lists the records by client and transport.
func (r *Recorder) Clients() []ClientCalls {
	c := &r.clients
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []ClientCalls
	for t, transport := range transports {
		for _, x := range c.list {
			if s := x.cells.sums(t); s.Count() > 0 {
				out = append(out, ClientCalls{x.addr.String(), transport, s})
			}
		}
		s := c.other.sums(t)
		for _, x := range c.retired {
			gone := x.cells.sums(t)
			s.Add(&gone)
		}
		if s.Count() > 0 {
			out = append(out, ClientCalls{OtherClients, transport, s})
		}
	}
	return out
}

// Rotate must be called once a minute. It selects the most active clients, and removes old slow
// calls and users.
func (r *Recorder) Rotate() {
	r.clients.rotate()
	r.users.rotate(time.Now())
	r.slow.rotate()
}
