package requests

import (
	"slices"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// Loss loses packets of the connections that the sequence wants one lost of: those of the
// client's requests, or of the responses to them. It is what one host does, so the peer
// needs no part in it. One for each device.
type Loss struct {
	server bool
	armed  atomic.Int32 // an opcode, or none
}

const none = -1

// NewLoss makes a Loss for the device of the server or of the client.
func NewLoss(server bool) *Loss {
	l := &Loss{server: server}
	l.armed.Store(none)
	return l
}

// Wrap is for Wrap of roce.Config.
func (l *Loss) Wrap(_ int, in link.Link) link.Link { return lossy{in, l} }

// arm has the next packet lost that the connection wants lost.
func (l *Loss) arm(c *Connection) {
	if l == nil {
		return
	}
	if c.Loses {
		l.armed.Store(int32(c.Lost))
	} else {
		l.armed.Store(none)
	}
}

// lose reports whether a packet is the one, which it is once. Which way it goes decides
// whether it belongs to a request of the client or of the server.
func (l *Loss) lose(bth []byte, sent bool) bool {
	op := wire.Opcode(bth[0])
	return op.Is(wire.Request) == (sent != l.server) && l.armed.CompareAndSwap(int32(op), none)
}

type lossy struct {
	link.Link
	l *Loss
}

func (l lossy) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	n, err := l.Link.Recv(rx, deadline)
	rx.D = slices.DeleteFunc(rx.D[:n],
		func(d link.RxDatagram) bool { return len(d.Data) >= wire.BTHLen && l.l.lose(d.Data, false) })
	return len(rx.D), err
}

func (l lossy) Send(b *wire.Batch) error {
	b.D = slices.DeleteFunc(b.D, func(d wire.Datagram) bool { return l.l.lose(d.Hdr, true) })
	return l.Link.Send(b)
}
