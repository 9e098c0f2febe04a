package rc

import "github.com/rstored/rstored/rdma"

// Counters count what happened on a QP, or on those that share them. They are plain
// integers, which only the loop of the QP touches.
type Counters struct {
	TxPackets, RxPackets  uint64
	TxRetransmits         uint64 // request packets sent again
	ReadReissues          uint64 // READ requests sent again for what is missing
	TxTailProbes          uint64 // request packets sent again to request an ACK that was delayed
	AckTimeouts           uint64
	RetryExceeded         uint64
	RNRRetryExceeded      uint64
	RxNAKSequence         uint64
	RxNAKInvalid          uint64
	RxNAKAccess           uint64
	RxNAKOperation        uint64
	RxRNR                 uint64
	RxBadResponse         uint64
	RxGhostAck            uint64 // responses to a PSN that was never sent
	RxStaleResponse       uint64
	TxNAKSequence         uint64
	TxNAKRepeats          uint64 // of them, those for packets that the peer did not send again
	PeerStopped           uint64 // connections that ended because NAKs were repeated in vain
	TxNAKInvalid          uint64
	TxNAKAccess           uint64
	TxNAKOperation        uint64
	TxRNR                 uint64
	RxDuplicate           uint64
	RxDuplicateNoResource uint64 // duplicate READ or atomic not remembered
	RxOutOfSequence       uint64
	DropState             uint64 // packets that the QP's state does not allow
	DropPeer              uint64 // wrong source or destination address
	DropPKey              uint64
	DropOpcode            uint64 // not an opcode of the RC class
	TxBytesSend           uint64 // payload by operation, first transmissions
	TxBytesWrite          uint64
	TxBytesReadResponse   uint64
	RxBytesSend           uint64
	RxBytesWrite          uint64
	RxBytesReadResponse   uint64
	RxECN                 uint64 // packets that a switch marked
	RxCNP                 uint64
	CNPHandled            uint64 // those that lowered a window or a rate
	TxCNP                 uint64
}

// Add adds o.
func (c *Counters) Add(o *Counters) { rdma.AddCounters(c, o) }
