package sim

import (
	"container/heap"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
)

// Port describes the output port of a switch: a queue that drains at a rate.
type Port struct {
	Rate  int64 // bytes per second on the wire, over 0
	Queue int64 // capacity in bytes; a datagram that does not fit is dropped. 0 means no limit
	Mark  int64 // ECT datagrams that find more bytes than this waiting are marked CE; 0 for never
}

// Bottleneck is a port that several paths share. Its methods belong to the goroutine of the
// network.
type Bottleneck struct {
	Port
	net   *Network
	free  rdma.Time // when its queue will be empty
	Stats PortStats
}

// PortStats count the datagrams of a port by their fate.
type PortStats struct {
	Passed, Dropped, Marked uint64
	Bytes                   uint64 // passed, with the headers of IP and UDP
	QueueMax                int64  // the most bytes that waited
}

// NewBottleneck makes a port. Via routes datagrams through it.
func (n *Network) NewBottleneck(p Port) *Bottleneck { return &Bottleneck{Port: p, net: n} }

// Via routes the datagrams that the address from sends to the address to through b. The zero
// address matches any. The most specific rule applies; of two equally specific ones, that of the
// sender.
func (n *Network) Via(b *Bottleneck, from, to netip.Addr) { n.via[[2]netip.Addr{from, to}] = b }

// path is the port between two addresses, nil for none.
func (n *Network) path(from, to netip.Addr) *Bottleneck {
	if len(n.via) == 0 {
		return nil
	}
	var any netip.Addr
	for _, k := range [...][2]netip.Addr{{from, to}, {from, any}, {any, to}, {any, any}} {
		if b := n.via[k]; b != nil {
			return b
		}
	}
	return nil
}

// waits is the number of bytes in the queue.
func (b *Bottleneck) waits(now rdma.Time) int64 {
	if b.free <= now {
		return 0
	}
	return int64(b.free-now) * b.Rate / int64(rdma.Second)
}

// take queues a datagram that arrives at f.at. It reports false if it drops it.
func (b *Bottleneck) take(f *flight) bool {
	size := f.size()
	q := b.waits(f.at)
	if b.Queue > 0 && q+size > b.Queue {
		b.Stats.Dropped++
		b.net.Stats.QueueDrops++
		return false
	}
	if b.Mark > 0 && q > b.Mark && ect(f.d.TOS) {
		f.d.TOS |= ce
		b.Stats.Marked++
		b.net.Stats.Marked++
	}
	b.Stats.QueueMax = max(b.Stats.QueueMax, q+size)
	b.Stats.Passed++
	b.Stats.Bytes += uint64(size)
	b.free = max(b.free, f.at) + rdma.Time(size*int64(rdma.Second)/b.Rate)
	f.at, f.port = b.free+f.after, nil
	b.net.launch(f)
	return true
}

// ECN codepoints of a traffic class (RFC 3168 section 5).
const (
	ce      = 3
	ecnMask = 3
)

func ect(tos uint8) bool { return tos&ecnMask == 1 || tos&ecnMask == 2 }

// Receiver describes how fast a host receives, and the buffer of its socket.
type Receiver struct {
	// Buffer is the size of the socket's receive buffer in bytes, 0 for
	// 4096 datagrams. Each datagram is charged with Charge bytes more than it has.
	Buffer int64
	Charge int64
	// Each is the time that the host needs for a datagram. Recv returns no more datagrams until
	// the host has handled those of the last call.
	Each rdma.Time
}

// SetReceiver changes the Receiver of the host.
func (l *Link) SetReceiver(r Receiver) { l.receiver = r }

// arrive puts a datagram into the socket buffer, if there is room.
func (l *Link) arrive(d *link.RxDatagram) bool {
	r := &l.receiver
	size := int64(len(d.Data)) + r.Charge
	if r.Buffer > 0 && l.buffered+size > r.Buffer {
		l.net.Stats.BufferDrops++
		return false
	}
	if r.Buffer == 0 && len(l.arrived) >= arrivedMax {
		l.net.Stats.NoReceiver++
		return false
	}
	l.buffered += size
	l.arrived = append(l.arrived, *d)
	return true
}

// recvMax is the number of datagrams of one Recv of a host with a Receiver, like a batch of
// recvmmsg. These are not in the socket buffer any more.
const recvMax = 32

// ready is the number of datagrams that the host may take now.
func (l *Link) ready() int {
	if l.receiver.Each == 0 {
		return len(l.arrived)
	}
	if l.net.now < l.busy {
		return 0
	}
	return min(len(l.arrived), recvMax)
}

// taken accounts for the datagrams that Recv returned.
func (l *Link) taken(d []link.RxDatagram) {
	for i := range d {
		l.buffered -= int64(len(d[i].Data)) + l.receiver.Charge
	}
	if l.receiver.Each == 0 || len(d) == 0 {
		return
	}
	l.busy = l.net.now + rdma.Time(len(d))*l.receiver.Each
	// This makes Next return the time when the host is ready again.
	l.net.order++
	heap.Push(&l.net.air, &flight{at: l.busy, order: l.net.order, wake: true})
}
