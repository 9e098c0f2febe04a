// Package udp is the link of the soft provider: RoCEv2 datagrams through an
// ordinary UDP socket.
//
// Three facts shape it. The ICRC covers the IPv4 identification, so the socket
// must send a known one: bound, never connected, and with DF set (IP_PMTUDISC_PROBE),
// Linux sends identification 0, and segment k of a UDP_SEGMENT send carries
// identification k. UDP_SEGMENT cuts a buffer into equal pieces, so FIRST, a
// run of MIDDLEs with the LAST, and what follows are messages of one sendmmsg.
// And a receiver with UDP_GRO gets such a run back as one buffer.
//
// The socket waits in the runtime's poller and not in a system call of its own:
// a loop that sleeps in ppoll keeps its processor from the other goroutines
// until the runtime's monitor takes it away, which costs them up to 10 ms.
package udp
