// Package ud is the engine of unreliable datagrams (IBTA 9.8.3): one queue pair as a value. It
// decides what may be sent, checks each datagram that arrives, and copies it to a receive. It
// does no IO and reads no clock, and knows nothing of connections. Its owner checks the ICRC.
//
// Where the specification leaves a choice, it does what rdma_rxe does: a datagram that is longer
// than the next receive is dropped, and the receive stays posted.
//
// Begin with QP.Receive and QP.Transmit. A QP is not safe for concurrent use: it belongs to a loop.
//
//	q := ud.New(ud.Config{Num: qpn, Mem: mem, Caps: caps, Addr: addr, MTU: 4096})
//	// q.Modify to INIT, RTR and RTS; q.PostRecv, q.PostSend
//	for q.Transmit(batch, 64) {
//		link.Send(batch)
//	}
//	q.PollSend(wcs)
package ud
