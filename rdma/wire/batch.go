package wire

// Datagram is one packet to send. Its headers are in the slab of its Batch,
// its payload stays in the memory it was read from and must be left alone
// until the link has sent the batch.
type Datagram struct {
	Flow *Flow
	// Hdr is BTH and extended headers. Its capacity leaves room for the
	// trailer, pad and ICRC, which the link writes behind it: only the link
	// knows the IPv4 identification that the ICRC covers.
	Hdr        []byte
	Payload    [][]byte
	PayloadLen int
	Pad        uint8
	// Again says that the packet was sent before.
	Again bool
	// Volatile is not nil if others change the payload, or take it away. The packet is
	// then sent from a copy if it is sent again, or if touching the payload is a fault.
	Volatile Volatile
	// Void says that the payload could not be had: the packet is sent so that it is not
	// taken for a good one.
	Void bool
}

// Volatile makes copies of a payload that others change; see rdma.Volatile.
type Volatile interface {
	Copy(dst, src []byte) error
}

// Size is the length of the datagram in bytes, BTH to ICRC.
func (d *Datagram) Size() int { return len(d.Hdr) + d.PayloadLen + int(d.Pad) + ICRCLen }

// Own puts a copy in the place of a volatile payload: in b, which has room for it.
func (d *Datagram) Own(b []byte) {
	b = b[:d.PayloadLen:d.PayloadLen]
	at := 0
	for _, src := range d.Payload {
		if d.Volatile.Copy(b[at:at+len(src)], src) != nil {
			clear(b[at:])
			d.Void = true
			break
		}
		at += len(src)
	}
	d.Payload, d.Volatile = [][]byte{b}, nil
}

// trailerMax is the room for pad and ICRC behind the headers.
const trailerMax = 8

const slot = HeadersMax + trailerMax

// partsPerDatagram is how many payload pieces a datagram has room for on
// average; a Batch is full when either runs out.
const partsPerDatagram = 4

// PartsMax is the largest number of payload pieces of one datagram.
const PartsMax = 32

// Batch is a list of datagrams on their way to a link. All of its memory is
// made once; Add does not allocate.
type Batch struct {
	D     []Datagram
	slab  []byte
	parts [][]byte
}

// NewBatch makes a batch for up to n datagrams.
func NewBatch(n int) *Batch {
	return &Batch{
		D:     make([]Datagram, 0, n),
		slab:  make([]byte, n*slot),
		parts: make([][]byte, 0, n*partsPerDatagram+PartsMax),
	}
}

// Full reports whether there is no room for one more datagram of any kind.
func (b *Batch) Full() bool {
	return len(b.D) == cap(b.D) || cap(b.parts)-len(b.parts) < PartsMax
}

// Room is the number of datagrams of one payload piece each that still fit.
func (b *Batch) Room() int { return min(cap(b.D)-len(b.D), cap(b.parts)-len(b.parts)) }

// Reset empties the batch and forgets the payloads it referred to.
func (b *Batch) Reset() {
	clear(b.D)
	clear(b.parts)
	b.D, b.parts = b.D[:0], b.parts[:0]
}

// Add appends a packet. It sets p.Pad from the payload's length; p.Payload is
// ignored. The caller has checked Full. payload may be reused after the call,
// the bytes it names may not.
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
	at := len(b.D) * slot
	hdr := AppendHeaders(b.slab[at:at:at+slot], p)
	b.D = append(b.D, Datagram{Flow: f, Hdr: hdr, Payload: b.parts[start:len(b.parts):len(b.parts)], PayloadLen: n, Pad: p.Pad})
}
