package rc

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Summary is what a QP records about itself for a post-mortem. It is updated together with the
// shared Counters, so its cost on the packet path is small.
type Summary struct {
	TxPackets, RxPackets uint64
	// Tx were sent by us, Rx by the peer.
	TxNAK, RxNAK NAKs
	TxRNR, RxRNR NAKs
	// Status is that of the request of ours that failed; Success if none did.
	Status rdma.Status
	// FullSent: a packet that fills the path MTU was sent, or requested by a READ. FullArrived:
	// such a packet was acknowledged, or arrived.
	FullSent, FullArrived bool
}

// Narrow reports whether the path seems to carry less than the path MTU of the connection: packets
// arrive, but no full packet does.
func (s *Summary) Narrow() bool { return s.FullSent && !s.FullArrived && s.RxPackets > 0 }

// NAKs are negative acknowledgements of one kind and direction.
type NAKs struct {
	Count       uint64
	First, Last NAK // if a NAK ended the connection, it is the last
}

// NAK is one negative acknowledgement.
type NAK struct {
	Syndrome uint8
	PSN      wire.PSN
}

// add records a NAK.
func (n *NAKs) add(syndrome uint8, psn wire.PSN) {
	n.Last = NAK{syndrome, psn}
	if n.Count == 0 {
		n.First = n.Last
	}
	n.Count++
}

// Summary returns what the QP has recorded.
func (q *QP) Summary() Summary { return q.summary }

// SyndromeText describes the syndrome of an AETH (IBTA 9.7.5.2).
func SyndromeText(s uint8) string {
	switch s & wire.SyndromeTypeMask {
	case wire.SyndromeTypeAck:
		return "ACK"
	case wire.SyndromeTypeRNR:
		return fmt.Sprintf("receiver not ready, retry after %d us", rnrTime(s&wire.SyndromeValueMask)/rdma.Microsecond)
	}
	if i := int(s) - wire.NAKSequence; i >= 0 && i < len(nakText) {
		return nakText[i]
	}
	return "reserved syndrome"
}

// nakText is indexed by the code of a NAK.
var nakText = [...]string{"PSN sequence error", "invalid request", "remote access error", "remote operational error"}
