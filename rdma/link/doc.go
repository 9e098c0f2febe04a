// Package link is the contract for moving RoCEv2 datagrams in batches. A link belongs to one
// address and one loop: it is the only thing in the packet path that touches the outside.
// rdma/link/udp implements it with sockets and rdma/sim with a simulated network; a capture wraps
// either. The package knows nothing of queue pairs and connections. Begin reading at Link.
//
// # Ownership
//
// The bytes of received datagrams belong to the Rx they were received into and are valid until the
// next Recv into it. A batch and the payloads it refers to belong to the link during Send only.
//
// # Concurrency
//
// Recv, Send and Close are called by one goroutine, the loop's. Wake, LocalAddr, MTU and Now may be
// called from any.
//
// # Example
//
// A loop with one link:
//
//	rx := link.NewRx(64, 2048)
//	for {
//		n, err := l.Recv(rx, deadline) // sleeps until a datagram, the deadline, or Wake
//		...
//		l.Send(batch)
//	}
package link
