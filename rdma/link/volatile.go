package link

import "github.com/rstored/rstored/rdma/wire"

// Own replaces the volatile payload of d (pages of a file, say) by a copy in b, which has room for
// d.PayloadLen bytes. The datagram refers to b until the batch is sent. A link does this for a
// retransmission, and for a payload whose reading faults.
//
// If a part cannot be copied, for example because the file was truncated, the datagram gets a wrong
// ICRC: the receiver drops it, and its PSN stays open.
func Own(d *wire.Datagram, b []byte) {
	b = b[:d.PayloadLen:d.PayloadLen]
	at := 0
	for _, src := range d.Payload {
		if d.Volatile.Copy(b[at:at+len(src)], src) != nil {
			clear(b[at:])
			d.BadICRC = true
			break
		}
		at += len(src)
	}
	d.Payload, d.Volatile = [][]byte{b}, nil
}
