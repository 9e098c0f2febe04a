package nfs

import (
	"math/bits"
	"net/netip"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Bucket is a token bucket. full is the time at which it is full again, in nanoseconds; the zero
// value is full. A Bucket reads no clock: all times that it gets must be of one clock.
type Bucket struct{ full int64 }

// A bucket holds 1/burst of the units of a second.
const burst = 8

// Reserve takes n units out of the bucket and returns how long to wait for them. One request may
// take more than the bucket holds: the bucket then goes into debt, and the next request waits until
// the debt is paid.
func (b *Bucket) Reserve(now int64, rate, n uint64) (wait time.Duration) {
	begin := max(b.full, now-int64(time.Second)/burst)
	b.full = begin + cost(rate, n)
	return time.Duration(max(begin-now, 0))
}

// Refund puts units back that were reserved and are not used.
func (b *Bucket) Refund(rate, n uint64) { b.full -= cost(rate, n) }

// cost returns in how many nanoseconds n units become available, at most costMax.
func cost(rate, n uint64) int64 {
	const costMax = int64(time.Hour)
	hi, lo := bits.Mul64(n, uint64(time.Second))
	if rate == 0 || hi >= rate {
		return costMax
	}
	q, _ := bits.Div64(hi, lo, rate)
	return int64(min(q, uint64(costMax)))
}

// Limit is a rate limit: bytes of data and operations per second. 0 means no limit.
type Limit struct{ Bytes, Ops uint64 }

func (l Limit) none() bool { return l == Limit{} }

// waitMax is the longest that a call waits for its turn. Clients send a call again after a minute.
const waitMax = 15 * time.Second

// meterClients bounds the clients for which a meter has buckets of their own.
const meterClients = 4096

// meter has the buckets of an export: one pair for all clients, and one for each client. A changed
// export keeps its meter.
type meter struct {
	mu      sync.Mutex
	all     buckets
	clients map[netip.Addr]*buckets
}

type buckets struct{ bytes, ops Bucket }

func (b *buckets) reserve(now int64, l Limit, n uint64) (wait time.Duration) {
	if l.Bytes > 0 {
		wait = b.bytes.Reserve(now, l.Bytes, n)
	}
	if l.Ops > 0 {
		wait = max(wait, b.ops.Reserve(now, l.Ops, 1))
	}
	return wait
}

func (b *buckets) refund(l Limit, n uint64) {
	if l.Bytes > 0 {
		b.bytes.Refund(l.Bytes, n)
	}
	if l.Ops > 0 {
		b.ops.Refund(l.Ops, 1)
	}
}

// idle reports whether both buckets are full again.
func (b *buckets) idle(now int64) bool { return max(b.bytes.full, b.ops.full) <= now }

// reserve takes one operation with n bytes of data out of the buckets. If the wait would be longer
// than waitMax, ok is false and nothing was taken.
func (m *meter) reserve(now time.Time, client netip.Addr, each, all Limit, n uint64) (wait time.Duration, ok bool) {
	at := now.UnixNano()
	m.mu.Lock()
	defer m.mu.Unlock()
	var c *buckets
	if !each.none() {
		c = m.client(at, client)
		wait = c.reserve(at, each, n)
	}
	wait = max(wait, m.all.reserve(at, all, n))
	if wait > waitMax {
		if c != nil {
			c.refund(each, n)
		}
		m.all.refund(all, n)
		return 0, false
	}
	return wait, true
}

func (m *meter) client(now int64, a netip.Addr) *buckets {
	if c := m.clients[a]; c != nil {
		return c
	}
	if len(m.clients) >= meterClients {
		for a, c := range m.clients {
			if c.idle(now) {
				delete(m.clients, a)
			}
		}
		for a := range m.clients {
			if len(m.clients) < meterClients {
				break
			}
			delete(m.clients, a)
		}
	}
	if m.clients == nil {
		m.clients = make(map[netip.Addr]*buckets)
	}
	c := new(buckets)
	m.clients[a] = c
	return c
}

// comeAgain is the wait that Pace returns for a call that is refused because its real wait would be
// too long.
const comeAgain = time.Second

// Pace implements rpc.Proc.Pace for a call with n bytes of data on the object of a file handle. It
// counts the call against the limits of its client and its export. now is of the clock of the
// caller. A call that no rule admits is not counted, because it is refused when it is served.
func (t *Table) Pace(codec *Codec, c *rpc.Call, fh []byte, n int, take bool, now time.Time) (limit uint32,
	wait time.Duration, ok bool,
) {
	id, _, err := codec.Parse(fh)
	x := t.ByID(id)
	if err != nil || x == nil {
		return 0, 0, true
	}
	rule, st := x.Admits(&c.Peer)
	if st != OK || !x.Limited(rule) {
		return 0, 0, true
	}
	limit = id + 1
	if !take {
		return limit, 0, true
	}
	if wait, ok = x.Reserve(rule, now, c.Peer.Addr.Addr(), n); !ok {
		return limit, comeAgain, false
	}
	c.Paid = true
	return limit, wait, true
}

// Limited reports whether the export, or the client's rule in it, has a limit.
func (x *Export) Limited(r *ClientRule) bool { return !x.Limit.none() || !r.Limit.none() }

// Reserve counts an operation with n bytes of data against the limits, and returns how long the
// operation has to wait. If ok is false the wait would be too long: the client has to send the call
// again later.
func (x *Export) Reserve(r *ClientRule, now time.Time, client netip.Addr, n int) (wait time.Duration, ok bool) {
	return x.meter.reserve(now, client.Unmap(), r.Limit, x.Limit, uint64(max(n, 0)))
}
