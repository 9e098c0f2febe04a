package link

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// ErrClosed is returned by the methods of a link that was closed.
var ErrClosed = errors.New("link: closed")

// TooBigError is returned by Send for datagrams that do not fit the interface to Dst. Datagrams
// that do not fit a later hop are lost without an error.
type TooBigError struct {
	Dst  netip.Addr
	Size int // of the IP packet
	MTU  int // of our interface
}

func (e *TooBigError) Error() string {
	return fmt.Sprintf("a packet of %d bytes to %v does not fit the interface that leads there: the one of our address "+
		"has MTU %d; connections must use a smaller RDMA path MTU",
		e.Size, e.Dst, e.MTU)
}

// NoWait is the deadline of a Recv that takes only what has arrived already.
const NoWait rdma.Time = -1

// VolatileSender is a Link that sends datagrams whose payload is volatile.
type VolatileSender interface {
	SendsVolatile() bool
}

// Host is a Link that knows its host.
type Host interface {
	// HostID identifies the kernel and the network namespace of the link: two links with one ID are
	// in one namespace. 0 means that it is not known.
	HostID() uint32
	// Loopback reports whether the kernel delivers packets from the link's address to peer, and back,
	// within the host, so that no network card carries them. It is called by the link's loop.
	Loopback(peer netip.Addr) bool
}

// Caller is a Link that sleeps in another way while other goroutines give the loop work. Called says
// that one has, without a Wake. It is called by the link's loop.
type Caller interface{ Called() }

// Link moves datagrams between one local address and its peers, all of them
// to UDP port 4791.
type Link interface {
	// Recv waits for datagrams until deadline (0: for ever, negative: not at all). It fills rx.D
	// with them and returns their number. It returns 0 without error when the deadline passes, when
	// Wake is called, and sometimes for no reason.
	Recv(rx *Rx, deadline rdma.Time) (n int, err error)

	// Send sends the batch. It writes pad and ICRC behind the headers of each datagram, and may set
	// the source port of the flows. A link may lose datagrams, as the network does. The error, if
	// any, is about datagrams that can never be sent, such as those over the MTU; the others were
	// sent.
	Send(b *wire.Batch) error

	// Wake makes the Recv under way, or else the next one, return at once.
	Wake()

	// LocalAddr is the address that the link sends from and receives on.
	LocalAddr() netip.Addr

	// MTU is the largest IP packet that the interface carries, in bytes.
	MTU() int

	// Now reads the clock that deadlines are measured by.
	Now() rdma.Time

	// Close ends the link.
	Close() error
}

// RxDatagram is one received datagram, from the BTH to the ICRC.
type RxDatagram struct {
	Src     netip.Addr
	Dst     netip.Addr
	SrcPort uint16
	TOS     uint8 // DSCP and ECN of the IP header
	// Nth is the datagram's place among those that came merged, 0 if it came alone.
	Nth  uint16
	Data []byte
}

// Rx is the memory that a link receives into. All of it is made once.
type Rx struct {
	// D is what the last Recv received.
	D []RxDatagram

	slab  []byte
	slots int
	size  int
}

// SegmentsMax is the largest number of datagrams that the network stack hands
// over merged into one buffer.
const SegmentsMax = 128

// NewRx makes an Rx of slots buffers of size bytes. A link that receives merged
// datagrams needs buffers of 64 KiB.
func NewRx(slots, size int) *Rx {
	return &Rx{
		D:     make([]RxDatagram, 0, slots*SegmentsMax),
		slab:  make([]byte, slots*size),
		slots: slots,
		size:  size,
	}
}

// Slots is the number of buffers.
func (rx *Rx) Slots() int { return rx.slots }

// Slot is buffer i.
func (rx *Rx) Slot(i int) []byte { return rx.slab[i*rx.size : (i+1)*rx.size : (i+1)*rx.size] }

// Reset empties D.
func (rx *Rx) Reset() { rx.D = rx.D[:0] }

// Split appends to D the datagrams that were received merged in data: of seg
// bytes each, the last one possibly shorter. seg 0 means that data is one
// datagram. What is beyond the room of D is left out, and the number of bytes
// left out returned.
func (rx *Rx) Split(d RxDatagram, seg int) (rest int) {
	data := d.Data
	if seg <= 0 || seg > len(data) {
		seg = len(data)
	}
	for len(data) > 0 && len(rx.D) < cap(rx.D) {
		n := min(seg, len(data))
		d.Data = data[:n:n]
		rx.D = append(rx.D, d)
		d.Nth++
		data = data[n:]
	}
	return len(data)
}
