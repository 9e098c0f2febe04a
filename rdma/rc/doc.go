// Package rc is the reliable connection engine of RoCEv2 (IBTA 9.7) as a state
// machine without IO, clock or locks. One QP is one value; its owner feeds it
// packets and the time, and asks it for packets, completions and its next
// deadline:
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
//		q.PollSend(wcs); q.PollRecv(wcs) // and what they lead to: q.PostSend, q.PostRecv
//		for q.HasWork() && !batch.Full() {
//			q.Transmit(now, batch)
//		}
//		link.Send(batch)
//	}
//
// The halves of the engine follow the specification: requester.go sends our
// requests, completer.go takes the answers to them, responder.go serves the
// peer's requests. Payload is never held: requests are gathered from the memory
// of their work requests each time they are sent, READ responses from the
// region each time they are asked for.
package rc
