package rc

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Seen is what a QP keeps for a post-mortem. It is written where the shared
// Counters are, so that it costs the packet path next to nothing.
type Seen struct {
	TxPackets, RxPackets uint64
	// Tx are what we sent, Rx what the peer did.
	TxNAK, RxNAK NAKs
	TxRNR, RxRNR NAKs
	// Status is that of the request of ours that failed; Success if none did.
	Status rdma.Status
	// FullSent: a packet that fills the path MTU was sent, or asked for by a READ. FullArrived: one such
	// packet was acknowledged, or arrived.
	FullSent, FullArrived bool
}

// Narrow reports whether the path seems to carry less than the path MTU of the connection: packets arrive, but none
// that is full.
func (s *Seen) Narrow() bool { return s.FullSent && !s.FullArrived && s.RxPackets > 0 }

// NAKs are the negative acknowledgements of one kind and direction.
type NAKs struct {
	Count       uint64
	First, Last NAK // the last one is what broke a connection, if one did
}

// NAK is one negative acknowledgement.
type NAK struct {
	Syndrome uint8
	PSN      wire.PSN
}

func (n *NAKs) add(syndrome uint8, psn wire.PSN) {
	n.Last = NAK{syndrome, psn}
	if n.Count == 0 {
		n.First = n.Last
	}
	n.Count++
}

// Seen returns what the QP has kept.
func (q *QP) Seen() Seen { return q.seen }

// SyndromeText says in words what the syndrome of an AETH means (IBTA 9.7.5.2.4).
func SyndromeText(s uint8) string {
	switch s & wire.SyndromeTypeMask {
	case wire.SyndromeTypeAck:
		return "ACK"
	case wire.SyndromeTypeRNR:
		return fmt.Sprintf("receiver not ready, come again in %d us", rnrTime(s&wire.SyndromeValueMask)/rdma.Microsecond)
	case wire.SyndromeTypeNAK:
		switch s {
		case wire.NAKSequence:
			return "PSN sequence error"
		case wire.NAKInvalidRequest:
			return "invalid request"
		case wire.NAKRemoteAccess:
			return "remote access error"
		case wire.NAKRemoteOp:
			return "remote operational error"
		}
	}
	return "reserved syndrome"
}
