// Package tickle ends TCP connections whose server is gone with its node, when another node has
// taken the address over. It knows neither ports nor leases. Begin reading at Table.
//
// A client that has sent a call, and waits for the reply, sends nothing more. Nothing tells the
// client that the node which acknowledged the call is lost: it waits for its own timeout, 15
// seconds and more. So the new node sends the client a segment from the moved address that fits no
// connection. The client acknowledges what it has. The new node's kernel knows no such connection
// and answers RST. The client then connects again (RFC 9293 section 3.10.7.4; CTDB calls this a
// tickle ACK).
//
// One goroutine at a time may use a Table. Send may be called from any goroutine.
//
//	table, left := tickle.Open(mem) // left: connections of the process that had mem before
//	sent, err := tickle.Send(left)
//	table.Set(connections)
package tickle
