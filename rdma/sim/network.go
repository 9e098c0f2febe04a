package sim

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// Config describes a network. Probabilities are per datagram, 0 to 1.
type Config struct {
	Seed      uint64
	Delay     rdma.Time // one way; 0 means 10 microseconds
	Jitter    rdma.Time // added to it at random, which reorders
	Loss      float64
	Duplicate float64
	Reorder   float64 // delayed by up to ten delays more
	Corrupt   float64 // one bit flipped
	// Bandwidth of each sender in bytes per second, 0 without limit, and the
	// bytes that its queue holds before it drops.
	Bandwidth  int64
	QueueBytes int64
	MTU        int // of the interfaces; 0 means 65536, as on loopback
}

// Stats count datagrams by their fate.
type Stats struct {
	Sent, Delivered, Lost, Duplicated, Corrupted, Held, NoReceiver, TooLong uint64

	QueueDrops  uint64 // full queues of interfaces and ports
	Marked      uint64 // CE by a port
	BufferDrops uint64 // full socket buffers
}

// Network is a set of links and the datagrams in flight between them.
type Network struct {
	cfg   Config
	rnd   *rand.Rand
	now   rdma.Time
	links map[netip.Addr]*Link
	air   flights
	order uint64
	cut   map[[2]netip.Addr]bool
	via   map[[2]netip.Addr]*Bottleneck
	Stats Stats
}

// New makes a network. Its clock starts at one second.
func New(cfg Config) *Network {
	if cfg.Delay == 0 {
		cfg.Delay = 10 * rdma.Microsecond
	}
	if cfg.MTU == 0 {
		cfg.MTU = 65536
	}
	if cfg.QueueBytes == 0 {
		cfg.QueueBytes = 1 << 20
	}
	return &Network{
		cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x5eed)), now: rdma.Second,
		links: map[netip.Addr]*Link{}, cut: map[[2]netip.Addr]bool{},
		via: map[[2]netip.Addr]*Bottleneck{},
	}
}

// Rand is the network's source of randomness. The rest of a simulation may draw from it.
func (n *Network) Rand() *rand.Rand { return n.rnd }

// Now is the network's time.
func (n *Network) Now() rdma.Time { return n.now }

// Set changes the faults from now on. Seed and MTU stay.
func (n *Network) Set(cfg Config) {
	cfg.Seed, cfg.MTU = n.cfg.Seed, n.cfg.MTU
	if cfg.Delay == 0 {
		cfg.Delay = n.cfg.Delay
	}
	if cfg.QueueBytes == 0 {
		cfg.QueueBytes = n.cfg.QueueBytes
	}
	n.cfg = cfg
}

// Cut loses, while on, all datagrams between a and b.
func (n *Network) Cut(a, b netip.Addr, on bool) {
	n.cut[[2]netip.Addr{a, b}], n.cut[[2]netip.Addr{b, a}] = on, on
}

// Next is the time of the next event, 0 if nothing is in flight. At that time a datagram arrives,
// or a host with a Receiver is ready for more, so the caller polls the links.
func (n *Network) Next() rdma.Time {
	if len(n.air) == 0 {
		return 0
	}
	return n.air[0].at
}

// Advance moves the clock forward to t, and delivers the datagrams that arrive until then.
func (n *Network) Advance(t rdma.Time) {
	n.now = max(n.now, t)
	for len(n.air) > 0 && n.air[0].at <= n.now {
		f := heap.Pop(&n.air).(*flight)
		switch {
		case f.wake:
			continue
		case f.port != nil:
			f.port.take(f)
			continue
		}
		l := n.links[f.to]
		if l == nil {
			n.Stats.NoReceiver++
			continue
		}
		if l.arrive(&f.d) {
			n.Stats.Delivered++
		}
	}
}

// arrivedMax bounds the datagrams in a link that is not read and has no Receiver.
const arrivedMax = 4096

// Open attaches an address.
func (n *Network) Open(addr netip.Addr) (*Link, error) {
	if n.links[addr] != nil {
		return nil, fmt.Errorf("sim: %v is taken", addr)
	}
	l := &Link{net: n, addr: addr}
	n.links[addr] = l
	return l, nil
}

// Link is one address of a network. Recv never waits: the simulation advances the clock.
type Link struct {
	net     *Network
	addr    netip.Addr
	arrived []link.RxDatagram
	free    rdma.Time   // when the interface will have sent its queue
	woken   atomic.Bool // set by other goroutines

	receiver Receiver
	buffered int64     // bytes of arrived, as receiver charges them
	busy     rdma.Time // until when the host handles the datagrams of the last Recv
}

var _ link.Link = (*Link)(nil)

// Recv implements link.Link, without waiting.
func (l *Link) Recv(rx *link.Rx, _ rdma.Time) (int, error) {
	rx.Reset()
	if l.net.links[l.addr] != l {
		return 0, link.ErrClosed
	}
	k := min(l.ready(), cap(rx.D))
	rx.D = append(rx.D, l.arrived[:k]...)
	l.taken(rx.D)
	l.arrived = append(l.arrived[:0:0], l.arrived[k:]...)
	return k, nil
}

// Backlog is when the interface will have sent its queue.
func (l *Link) Backlog() rdma.Time { return max(l.free, l.net.now) }

// Arrived is the number of datagrams that Recv would return.
func (l *Link) Arrived() int { return l.ready() }

// Send implements link.Link.
func (l *Link) Send(b *wire.Batch) error {
	for i := range b.D {
		l.net.send(l, &b.D[i])
	}
	return nil
}

// Wake only records the call: Recv never sleeps.
func (l *Link) Wake() { l.woken.Store(true) }

// Woken reports whether Wake was called since the last Woken.
func (l *Link) Woken() bool {
	return l.woken.Swap(false)
}

// LocalAddr implements link.Link.
func (l *Link) LocalAddr() netip.Addr { return l.addr }

// MTU implements link.Link.
func (l *Link) MTU() int { return l.net.cfg.MTU }

// Now implements link.Link.
func (l *Link) Now() rdma.Time { return l.net.now }

// Close detaches the address. Datagrams in flight to it are lost.
func (l *Link) Close() error {
	if l.net.links[l.addr] == l {
		delete(l.net.links, l.addr)
	}
	return nil
}

const ipUDPLen = 28

func (n *Network) chance(p float64) bool { return p > 0 && n.rnd.Float64() < p }

func (n *Network) send(from *Link, g *wire.Datagram) {
	n.Stats.Sent++
	if g.Size()+ipUDPLen > n.cfg.MTU {
		n.Stats.TooLong++
		return
	}
	depart := n.now
	if n.cfg.Bandwidth > 0 {
		from.free = max(from.free, n.now)
		if int64(from.free-n.now)*n.cfg.Bandwidth/int64(rdma.Second) > n.cfg.QueueBytes {
			n.Stats.QueueDrops++
			return
		}
		from.free += rdma.Time(int64(g.Size()+ipUDPLen) * int64(rdma.Second) / n.cfg.Bandwidth)
		depart = from.free
	}
	if n.chance(n.cfg.Loss) || n.cut[[2]netip.Addr{from.addr, g.Flow.Dst}] {
		n.Stats.Lost++
		return
	}
	g.Flow.SrcPort = wire.Port
	raw := make([]byte, 0, g.Size())
	raw = append(raw, g.Hdr...)
	for _, p := range g.Payload {
		raw = append(raw, p...)
	}
	raw = append(raw, make([]byte, g.Pad)...)
	raw = binary.LittleEndian.AppendUint32(raw, g.ICRC(0))
	if n.chance(n.cfg.Corrupt) {
		n.Stats.Corrupted++
		raw[n.rnd.IntN(len(raw))] ^= 1 << n.rnd.IntN(8)
	}
	after := n.cfg.Delay
	if n.cfg.Jitter > 0 {
		after += rdma.Time(n.rnd.Int64N(int64(n.cfg.Jitter)))
	}
	if n.chance(n.cfg.Reorder) {
		n.Stats.Held++
		after += rdma.Time(n.rnd.Int64N(10 * int64(n.cfg.Delay)))
	}
	n.fly(from, g, depart, after, raw)
	if n.chance(n.cfg.Duplicate) {
		n.Stats.Duplicated++
		n.fly(from, g, depart, after+rdma.Time(n.rnd.Int64N(10*int64(n.cfg.Delay))), append([]byte(nil), raw...))
	}
}

// fly puts a datagram in flight: it arrives at its destination, or first at a port, which adds
// the delay after.
func (n *Network) fly(from *Link, g *wire.Datagram, depart, after rdma.Time, raw []byte) {
	f := &flight{at: depart + after, to: g.Flow.Dst, d: link.RxDatagram{
		Src: g.Flow.Src, Dst: g.Flow.Dst, SrcPort: wire.Port, TOS: g.Flow.TOS, Data: raw,
	}}
	if b := n.path(from.addr, g.Flow.Dst); b != nil {
		f.at, f.after, f.port = depart, after, b
	}
	n.launch(f)
}

func (n *Network) launch(f *flight) {
	n.order++
	f.order = n.order
	heap.Push(&n.air, f)
}

// flight is a datagram in flight. Those that arrive at the same time are delivered by order, the
// order of sending.
type flight struct {
	at    rdma.Time
	order uint64
	to    netip.Addr
	d     link.RxDatagram
	wake  bool        // no datagram: a host becomes ready for more
	port  *Bottleneck // where it arrives; nil for its destination
	after rdma.Time   // delay from the port to the destination
}

// size is the length on the wire, without the link layer.
func (f *flight) size() int64 { return int64(len(f.d.Data)) + ipUDPLen }

type flights []*flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].order < f[j].order
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }

// Push implements heap.Interface.
func (f *flights) Push(x any) { *f = append(*f, x.(*flight)) }

// Pop implements heap.Interface.
func (f *flights) Pop() any {
	n := len(*f) - 1
	x := (*f)[n]
	(*f)[n] = nil
	*f = (*f)[:n]
	return x
}
