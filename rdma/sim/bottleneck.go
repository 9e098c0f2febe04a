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
	Queue int64 // bytes that it holds; what comes when it is full is dropped. 0 without limit
	Mark  int64 // ECT datagrams that find more bytes than this waiting are marked CE; 0 for never
}

// Bottleneck is a port that datagrams share. Its methods belong to the goroutine of
// the network.
type Bottleneck struct {
	Port
	net   *Network
	free  rdma.Time // when it has sent what waits
	Stats PortStats
}

// PortStats count what became of the datagrams that came to a port.
type PortStats struct {
	Passed, Dropped, Marked uint64
	Bytes                   uint64 // passed, with the headers of IP and UDP
	QueueMax                int64  // the most bytes that waited
}

// NewBottleneck makes a port that nothing passes through yet.
func (n *Network) NewBottleneck(p Port) *Bottleneck { return &Bottleneck{Port: p, net: n} }

// Via leads what from sends to to through b. The zero address stands for any; the
// more exact rule counts, and of two equally exact ones that of the sender.
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

// waits is the number of bytes that the port has still to send at a time.
func (b *Bottleneck) waits(now rdma.Time) int64 {
	if b.free <= now {
		return 0
	}
	return int64(b.free-now) * b.Rate / int64(rdma.Second)
}

// take queues a datagram that comes at f.at, and reports false if it drops it.
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

// Receiver describes how a host takes in datagrams, as its processor and its socket
// do.
type Receiver struct {
	// Buffer is the size of the socket's receive buffer in bytes, 0 for
	// 4096 datagrams. Each datagram is charged with Charge bytes more than it has.
	Buffer int64
	Charge int64
	// Each is the time that the host takes for a datagram. Until it is done with what
	// Recv gave it, Recv gives it no more.
	Each rdma.Time
}

// SetReceiver changes how the host of the link takes in datagrams.
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

// recvMax is how many datagrams a host with a receiver takes at once, as one recvmmsg
// does: so much is in its hands and no longer in the buffer.
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

// taken notes that the host has taken k datagrams.
func (l *Link) taken(d []link.RxDatagram) {
	for i := range d {
		l.buffered -= int64(len(d[i].Data)) + l.receiver.Charge
	}
	if l.receiver.Each == 0 || len(d) == 0 {
		return
	}
	l.busy = l.net.now + rdma.Time(len(d))*l.receiver.Each
	// So that whoever drives the network looks again then.
	l.net.order++
	heap.Push(&l.net.air, &flight{at: l.busy, order: l.net.order, wake: true})
}
