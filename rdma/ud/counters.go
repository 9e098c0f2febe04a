package ud

import "github.com/rstored/rstored/rdma"

// Counters count what happened on a QP, or on those that share them. They are plain
// integers, which only the loop of the QP touches.
type Counters struct {
	TxPackets, RxPackets uint64 // sent; addressed to the QP, with those dropped
	TxBytes, RxBytes     uint64 // payload sent and delivered
	TxTooLong            uint64 // sends of more than the MTU, which completed and were not sent
	DropOpcode           uint64 // not an opcode of the UD class
	DropState            uint64 // the QP's state does not receive
	DropPKey             uint64
	DropQKey             uint64
	DropNoReceive        uint64 // no receive was posted
	DropTooLong          uint64 // longer than the receive
}

// Add adds o.
func (c *Counters) Add(o *Counters) { rdma.AddCounters(c, o) }
