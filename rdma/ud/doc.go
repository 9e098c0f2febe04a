// Package ud is the engine of unreliable datagrams (IBTA 9.8.3), one queue pair as a value:
// what may be sent, what a datagram that arrives is held against, and where it goes. It
// does no IO and reads no clock; the packets' ICRC is its owner's business.
//
// Where the specification leaves a choice, it does what rdma_rxe does: a datagram that is
// longer than the next receive is dropped, and the receive waits for another.
package ud
