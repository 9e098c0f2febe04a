package wire

// Datagram is one packet to send. Its headers lie in the slab of its Batch. Its payload stays in
// the memory of the work request or region. That memory must not be reused until the link has
// sent the batch.
type Datagram struct {
	Flow *Flow
	// Hdr is BTH and extended headers. Its capacity has room for pad and ICRC. The link
	// appends them, because only the link knows the IPv4 identification, which the ICRC covers.
	Hdr        []byte
	Payload    [][]byte
	PayloadLen int
	Pad        uint8
	Retransmit bool // the packet was sent before
	// Volatile is that of the work request, see rdma.Volatile and link.Own.
	Volatile Volatile
	// BadICRC makes the link send a wrong ICRC, so that the receiver drops the packet.
	BadICRC bool
}

// Volatile is the owner of a payload that others can change, see rdma.Volatile.
type Volatile interface {
	Copy(dst, src []byte) error
}

// Size is the length of the datagram in bytes, BTH to ICRC.
func (d *Datagram) Size() int { return len(d.Hdr) + d.PayloadLen + int(d.Pad) + ICRCLen }

// ICRC is the ICRC to send for the IPv4 identification id.
func (d *Datagram) ICRC(id uint16) uint32 {
	switch {
	case d.BadICRC:
		return ^d.Flow.ICRC(id, d.Hdr, d.Payload, int(d.Pad))
	case d.Flow.NoICRC:
		return 0
	}
	return d.Flow.ICRC(id, d.Hdr, d.Payload, int(d.Pad))
}

// trailerMax is the room for pad and ICRC behind the headers.
const trailerMax = 8

// hdrRoom is the part of the slab that each datagram gets.
const hdrRoom = HeadersMax + trailerMax

// partsPerDatagram is how many payload pieces there is room for, on average. A Batch is full
// when it runs out of datagrams or of pieces.
const partsPerDatagram = 4

// PartsMax is the largest number of payload pieces of one datagram.
const PartsMax = 32

// Batch is a list of datagrams for a link. NewBatch allocates all of its memory; Add and Reset
// do not allocate.
type Batch struct {
	D     []Datagram
	slab  []byte
	parts [][]byte
}

// NewBatch makes a batch for up to n datagrams.
func NewBatch(n int) *Batch {
	return &Batch{
		D:     make([]Datagram, 0, n),
		slab:  make([]byte, n*hdrRoom),
		parts: make([][]byte, 0, n*partsPerDatagram+PartsMax),
	}
}

// Full reports whether there is no room for one more datagram of any kind.
func (b *Batch) Full() bool {
	return len(b.D) == cap(b.D) || cap(b.parts)-len(b.parts) < PartsMax
}

// Room is the number of datagrams of one payload piece each that still fit.
func (b *Batch) Room() int { return min(cap(b.D)-len(b.D), cap(b.parts)-len(b.parts)) }

// Reset empties the batch. It clears the references to payloads, so that the batch does not keep
// memory of completed requests reachable.
func (b *Batch) Reset() {
	clear(b.D)
	clear(b.parts)
	b.D, b.parts = b.D[:0], b.parts[:0]
}

// Add appends a packet. It sets p.Pad from the payload's length (IBTA 9.2) and ignores p.Payload.
// The caller has checked Full. The caller may reuse the slice payload after the call, but not the
// bytes that its elements refer to.
func (b *Batch) Add(f *Flow, p *Packet, payload [][]byte) {
	start := len(b.parts)
	n := 0
	for _, s := range payload {
		if len(s) > 0 {
			b.parts = append(b.parts, s)
			n += len(s)
		}
	}
	p.Pad = uint8(-n & 3)
	at := len(b.D) * hdrRoom
	hdr := AppendHeaders(b.slab[at:at:at+hdrRoom], p)
	parts := b.parts[start:len(b.parts):len(b.parts)]
	b.D = append(b.D, Datagram{Flow: f, Hdr: hdr, Payload: parts, PayloadLen: n, Pad: p.Pad})
}
