// Package rc is the reliable connection engine of RoCEv2 (IBTA 9.7): the transport protocol of one
// queue pair as a state machine. It does no IO, reads no clock and takes no locks. It knows nothing
// of connection management, of sockets or of other queue pairs.
//
// One QP is one value. Its owner feeds it packets and the time, and takes from it packets,
// completions and its next deadline:
//
//	for {
//		n := link.Recv(&rx, earliest of q.Deadline())
//		now := clock()
//		for each valid packet p for q {
//			q.Receive(now, &p)
//		}
//		if d := q.Deadline(); d != 0 && d <= now {
//			q.Expire(now)
//		}
//		q.PollSend(wcs); q.PollRecv(wcs) // the owner then calls q.PostSend, q.PostRecv
//		for q.HasWork() && !batch.Full() {
//			q.Transmit(now, batch)
//		}
//		link.Send(batch)
//	}
//
// # Where to begin
//
// The files follow the specification:
//
//	requester.go                sends our requests
//	completer.go                handles the responses to our requests (IBTA 9.7.6)
//	responder.go                serves the peer's requests (9.7.4, 9.7.5)
//	deadlines.go                the retransmission timer
//	window, pace, rate, ecn.go  congestion control
//	nakrepeat.go                a workaround for peers that stop
//
// # Memory
//
// The engine never copies payload to send it. A request is gathered from the memory of its work
// request each time it is sent, a READ response from the region each time it is requested. So the
// memory of a work request belongs to the engine from PostSend to the completion that covers it,
// and the payload of a batch must not change until the link has sent the batch. Received payload
// is copied to its place before Receive returns.
//
// # Concurrency
//
// A QP is not safe for concurrent use: it belongs to the goroutine of its owner, like the Memory,
// the SRQ and the Counters that it shares with other QPs there. In the steady state nothing is
// allocated.
package rc
